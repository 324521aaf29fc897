//! The fd store, and agents of other versions.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::Duration;

use bdnfs_tests::freezer::FrozenProcess;
use bdnfs_tests::mounts::drop_caches;
use bdnfs_tests::process::eventually;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::assert_same;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use rustix::process::{Signal, kill_process};

/// Sends a packet.
fn send_packet(link: &OwnedFd, packet: &str) {
    send(link, packet.as_bytes(), SendFlags::empty()).expect("sent");
}

/// Receives a packet.
fn receive_packet(link: &OwnedFd) -> String {
    let mut packet = vec![0; 4096];
    let (len, _) = recv(link.as_fd(), &mut packet[..], RecvFlags::empty()).expect("an answer");
    String::from_utf8(packet[..len].to_vec()).expect("text")
}

#[test]
fn fdstore_with_stopped_agent_continues_it() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let agent = env.machine.agent("");
    let point = env.machine.mount("s3://bucket", "mnt");
    for _ in 0..3 {
        drop_caches();
        kill_process(agent.pid(), Signal::STOP).unwrap();
        assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "who read meanwhile");
    }
    agent.stop();
}

#[test]
fn fdstore_with_hung_agent_lets_the_next_take_over() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let agent = env.machine.agent("");
    let point = env.machine.mount("s3://bucket", "mnt");
    let device = rustix::fs::stat(&point).unwrap().st_dev;
    let frozen = FrozenProcess::new(agent.pid());
    let reader = std::thread::spawn({
        let file = point.join("file");
        move || fs::read(file)
    });
    eventually("the hung agent is gone", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid().as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    });
    drop((agent, frozen));
    let agent = env.machine.agent("");
    assert_same(&bytes, &reader.join().unwrap().unwrap(), "who read meanwhile");
    assert_eq!(rustix::fs::stat(&point).unwrap().st_dev, device);
    agent.stop();
}

#[test]
fn fdstore_met_by_a_newer_agent_keeps_mounts_for_the_next() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let agent = env.machine.agent("");
    let point = env.machine.mount("s3://bucket", "mnt");
    let device = rustix::fs::stat(&point).unwrap().st_dev;
    let store = env.machine.fdstores();
    agent.crash();

    let link = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    set_socket_timeout(&link, Timeout::Recv, Some(Duration::from_secs(60))).unwrap();
    connect(&link, &SocketAddrUnix::new(env.machine.cache().join("holder.sock")).unwrap()).unwrap();
    send_packet(&link, r#"{"Hello":{"version":99,"hold":300,"name":"of a later time"}}"#);
    assert_eq!(receive_packet(&link), r#"{"Hello":{"version":1,"hold":300}}"#);
    send_packet(&link, r#"{"Sing":{"id":7}}"#);
    assert_eq!(receive_packet(&link), r#""Unknown""#);
    drop(link);

    // The same mount goes on: it was not made anew.
    let agent = env.machine.agent("");
    assert_eq!(env.machine.fdstores(), store);
    assert_eq!(rustix::fs::stat(&point).unwrap().st_dev, device);
    assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "file");
    agent.stop();
}

/// An fd store that runs as a service. Dropping it kills it.
struct FdstoreService(Child);

impl FdstoreService {
    fn start(env: &TestEnv) -> Self {
        let socket = env.machine.directory("run").join("fdstore.sock");
        let mut command = env.machine.command(&["fdstore", "--listen", socket.to_str().unwrap()]);
        Self(command.spawn().expect("an fd store"))
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_none()
    }
}

impl Drop for FdstoreService {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn fdstore_service_keeps_mounts_between_agents_and_stays_when_it_is_empty() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let config = format!("fdstore = {:?}", env.machine.directory("run").join("fdstore.sock"));
    let mut service = FdstoreService::start(&env);
    let agent = env.machine.agent(&config);
    let point = env.machine.mount("s3://bucket", "mnt");
    let device = rustix::fs::stat(&point).unwrap().st_dev;
    assert!(env.machine.fdstores().is_empty(), "the agent started none");
    let second = env.machine.directory("run").join("fdstore.sock");
    env.machine
        .run(&["fdstore", "--listen", second.to_str().unwrap()])
        .fails(&["another fd store listens at"]);
    agent.crash();
    let agent = env.machine.agent(&config);
    assert_eq!(rustix::fs::stat(&point).unwrap().st_dev, device, "{}", agent.log());
    assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "file");
    // Another one comes in its place: the agent gives it all that it has.
    drop(service);
    service = FdstoreService::start(&env);
    eventually("the new one has the mount", || agent.log().contains("another fd store has 1 of 1 mounts"));
    agent.crash();
    let agent = env.machine.agent(&config);
    assert_eq!(rustix::fs::stat(&point).unwrap().st_dev, device, "{}", agent.log());
    env.machine.umount(&point);
    agent.end();
    assert!(service.is_running());
    env.machine.agent(&config).end();
    assert!(service.is_running());
}
