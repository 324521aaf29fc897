//! The fd store, and agents of other versions.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

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
fn tell(link: &OwnedFd, packet: &str) {
    send(link, packet.as_bytes(), SendFlags::empty()).expect("sent");
}

/// Receives a packet.
fn hear(link: &OwnedFd) -> String {
    let mut packet = vec![0; 4096];
    let (len, _) = recv(link.as_fd(), &mut packet[..], RecvFlags::empty()).expect("an answer");
    String::from_utf8(packet[..len].to_vec()).expect("text")
}

#[test]
fn fdstore_with_stopped_agent_lets_the_next_take_over() {
    let env = TestEnv::new();
    let bytes = env.put("file", 3 << 20);
    let agent = env.machine.agent("");
    let point = env.machine.mount("s3://bucket", "mnt");
    let device = rustix::fs::stat(&point).unwrap().st_dev;
    // Longer than between two heartbeats: an agent that sent only one is taken for an older version.
    std::thread::sleep(Duration::from_secs(5));
    kill_process(agent.pid(), Signal::STOP).unwrap();
    let reader = std::thread::spawn({
        let file = point.join("file");
        move || fs::read(file)
    });
    eventually("the stopped agent is gone", || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", agent.pid().as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    });
    drop(agent);
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
    tell(&link, r#"{"Hello":{"version":99,"hold":300,"name":"of a later time"}}"#);
    assert_eq!(hear(&link), r#"{"Hello":{"version":1,"hold":300}}"#);
    tell(&link, r#"{"Sing":{"id":7}}"#);
    assert_eq!(hear(&link), r#""Unknown""#);
    drop(link);

    // The same mount goes on: it was not made anew.
    let agent = env.machine.agent("");
    assert_eq!(env.machine.fdstores(), store);
    assert_eq!(rustix::fs::stat(&point).unwrap().st_dev, device);
    assert_same(&bytes, &fs::read(point.join("file")).unwrap(), "file");
    agent.stop();
}
