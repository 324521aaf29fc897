//! The fd store, and agents of other versions.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use bdnfs_tests::ca::TestCa;
use bdnfs_tests::freezer::FrozenProcess;
use bdnfs_tests::mounts::{drop_caches, is_mounted};
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::python;
use bdnfs_tests::tree::assert_same;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send,
    socket_with,
};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::takeover::wait_until_blocked;

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
fn on_demand_agent_stopped_by_a_signal_is_continued() {
    let env = TestEnv::new();
    let bytes = env.put("file", 17 << 20);
    let point = env.machine.mount("s3://bucket", "mnt");
    eventually("there is who continues it", || !env.machine.fdstores().is_empty());
    let agent = env.machine.agent_pids()[0];
    env.proxy.set(NetworkFault { frozen: true, ..NetworkFault::default() });
    // No signal ends a process that waits so.
    let script = "import mmap, os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)\n\
                  assert os.preadv(fd, [mmap.mmap(-1, 1 << 20)], 0) == 1 << 20";
    let mut reader = python(script).arg(point.join("file")).spawn().unwrap();
    wait_until_blocked(&reader);
    kill_process(agent, Signal::STOP).unwrap();
    env.proxy.set(NetworkFault::default());
    assert!(wait_for_exit(&mut reader, "a reader").success());
    assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "what is read afterwards");
    env.machine.umount(&point);
    eventually("it ends with the agent", || env.machine.fdstores().is_empty());
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
fn fdstore_stopped_by_a_signal_is_continued_by_the_next_agent() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let agent = env.machine.agent("");
    let point = env.machine.mount("s3://bucket", "mnt");
    let device = rustix::fs::stat(&point).unwrap().st_dev;
    let lock = env.machine.cache().join("holder.lock");
    eventually("it has said which process it is", || fs::read(&lock).is_ok_and(|owner| !owner.is_empty()));
    let stores = env.machine.fdstores();
    stores.iter().for_each(|store| kill_process(*store, Signal::STOP).unwrap());
    agent.crash();
    let agent = env.machine.agent("");
    assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "the same mount");
    assert_eq!((rustix::fs::stat(&point).unwrap().st_dev, env.machine.fdstores()), (device, stores));
    agent.stop();
}

#[test]
fn agent_that_is_stopped_while_it_restores_mounts_leaves_none() {
    let env = TestEnv::new();
    env.put("file", 5000);
    let agent = env.machine.agent("");
    let points: Vec<_> = (0..20).map(|n| env.machine.mount("s3://bucket", &format!("mnt{n}"))).collect();
    agent.crash();
    let agent = env.machine.agent_not_ready("");
    eventually("it is asked to stop", || env.machine.run(&["agent", "--stop"]).code == Some(0));
    drop(agent);
    assert_eq!(points.iter().filter(|point| is_mounted(point)).count(), 0);
    eventually("its fd store has ended", || env.machine.fdstores().is_empty());
}

#[test]
fn fdstore_met_by_a_newer_agent_keeps_mounts_for_the_next() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let agent = env.machine.agent("");
    let point = env.machine.mount("s3://bucket", "mnt");
    let device = rustix::fs::stat(&point).unwrap().st_dev;
    eventually("there is an fd store", || !env.machine.fdstores().is_empty());
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

/// The soft limit of open files of an fd store that runs as a service: its own, and few mounts'.
const OPEN_FILES_LIMIT: u64 = 24;

/// An fd store that runs as a service. Dropping it kills it.
struct FdstoreService(Child);

impl FdstoreService {
    fn start(env: &TestEnv) -> Self {
        let socket = env.machine.directory("run").join("fdstore.sock");
        let mut command = env.machine.command(&["fdstore", "--listen", socket.to_str().unwrap()]);
        // SAFETY: setrlimit(2) is safe in a child between fork and exec.
        unsafe {
            // As service managers and container runtimes start it.
            command.pre_exec(|| {
                let limit = getrlimit(Resource::Nofile);
                Ok(setrlimit(Resource::Nofile, Rlimit { current: Some(OPEN_FILES_LIMIT), ..limit })?)
            })
        };
        Self(command.spawn().expect("an fd store"))
    }

    fn config(env: &TestEnv) -> String {
        format!("fdstore = {:?}", env.machine.directory("run").join("fdstore.sock"))
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
    let config = FdstoreService::config(&env);
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

#[test]
fn fdstore_service_away_for_long_is_given_all_mounts_when_it_is_back() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let config = FdstoreService::config(&env);
    let service = FdstoreService::start(&env);
    let agent = env.machine.agent(&config);
    let first = env.machine.mount("s3://bucket", "first");
    drop(service);
    eventually("the agent notices it", || agent.log().contains("the fd store of this agent has ended"));
    let begin = Instant::now();
    let second = env.machine.mount("s3://bucket", "second");
    assert!(begin.elapsed() < Duration::from_secs(15), "a mount waited for it: {:?}", begin.elapsed());
    // Longer than an agent waits for it when it starts.
    std::thread::sleep(Duration::from_secs(35).saturating_sub(begin.elapsed()));
    let _service = FdstoreService::start(&env);
    eventually("it is given all", || agent.log().contains("another fd store has 2 of 2 mounts"));
    let device = |point: &Path| rustix::fs::stat(point).unwrap().st_dev;
    let devices = [&first, &second].map(|point| device(point));
    agent.crash();
    let agent = env.machine.agent(&config);
    for (point, before) in [(&first, devices[0]), (&second, devices[1])] {
        assert_eq!(device(point), before, "{}", agent.log());
        assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "file");
    }
    agent.stop();
}

#[test]
fn agent_that_ends_while_its_fdstore_service_is_away_waits_for_it() {
    let env = TestEnv::new();
    let config = FdstoreService::config(&env);
    env.put("file", 1 << 20);
    let service = FdstoreService::start(&env);
    let agent = env.machine.agent(&config);
    let point = env.machine.mount("s3://bucket", "mnt");
    let device = rustix::fs::stat(&point).unwrap().st_dev;
    drop(service);
    eventually("the agent notices it", || agent.log().contains("the fd store of this agent has ended"));
    kill_process(agent.pid(), Signal::TERM).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    let _service = FdstoreService::start(&env);
    agent.gone();
    let agent = env.machine.agent(&config);
    assert_eq!(rustix::fs::stat(&point).unwrap().st_dev, device, "{}", agent.log());
    agent.stop();
}

#[test]
fn fdstore_service_with_few_open_files_allowed_holds_more_mounts() {
    let env = TestEnv::new();
    env.put("file", 1 << 20);
    let config = FdstoreService::config(&env);
    let service = FdstoreService::start(&env);
    let agent = env.machine.agent(&config);
    let points: Vec<_> = (0..OPEN_FILES_LIMIT)
        .map(|number| env.machine.mount("s3://bucket", &format!("mnt-{number}")))
        .collect();
    let devices: Vec<_> = points.iter().map(|point| rustix::fs::stat(point).unwrap().st_dev).collect();
    agent.crash();
    let agent = env.machine.agent(&config);
    for (point, device) in points.iter().zip(devices) {
        assert_eq!(rustix::fs::stat(point).unwrap().st_dev, device, "{}", agent.log());
    }
    agent.stop();
    drop(service);
}

#[test]
fn mount_whose_request_is_longer_than_a_message_is_handed_over() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let agent = env.machine.agent("");
    // As long as the bundle of a Linux distribution.
    let bundle = env.machine.directory("bundle").join("ca.pem");
    let certificate = fs::read_to_string(TestCa::with(&[], "default").root().join("ca/ca.pem")).unwrap();
    fs::write(&bundle, certificate.repeat((200 << 10) / certificate.len())).unwrap();
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--ca-file", bundle.to_str().unwrap()]);
    let device = rustix::fs::stat(&point).unwrap().st_dev;
    fs::remove_file(bundle).unwrap();
    // The second takes what the first has given back.
    let mut agent = agent;
    for _ in 0..2 {
        agent.crash();
        agent = env.machine.agent("");
        assert_eq!(rustix::fs::stat(&point).unwrap().st_dev, device, "{}", agent.log());
        drop_caches();
        assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "file");
    }
    agent.stop();
}
