//! Name servers that do not answer: one of several costs a second, all of them an error that says so.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bdnfs_tests::dns::Dns;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::network::{NetworkHost, TestNetwork, inside};
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::S3Server;
use bdnfs_tests::serve::ReservedPort;
use bdnfs_tests::tree::{assert_same, write_file};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};
use tempfile::TempDir;

/// What a name server that is silent may cost, with all else that is done meanwhile. It used to be ten seconds.
const QUICK: Duration = Duration::from_secs(5);

/// A name server at `host` that hears every question and answers none, for as long as this lives.
fn silent(host: &NetworkHost) -> UdpSocket {
    inside(&host.path(), || UdpSocket::bind(host.socket_address(53)).expect("the port of name servers"))
}

/// A `resolv.conf` with these name servers, in this order, and nothing else.
fn resolver(machine: &Machine, servers: &[&NetworkHost]) -> PathBuf {
    let path = machine.directory("etc").join("resolv.conf");
    let lines: String = servers.iter().map(|host| format!("nameserver {}\n", host.address)).collect();
    std::fs::write(&path, lines).expect("a file");
    path
}

/// A server on `host` that accepts no connection of `client`: its queue is full, and more get no answer. With what fills it.
fn full(host: &NetworkHost, client: &NetworkHost, address: SocketAddr) -> (OwnedFd, Vec<OwnedFd>) {
    let socket = || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket")
    };
    let listener = inside(&host.path(), || {
        let listener = socket();
        bind(&listener, &address).and_then(|()| listen(&listener, 0)).expect("a listener");
        listener
    });
    let connections = inside(&client.path(), || {
        let connect = |_| {
            let connection = socket();
            // Not yet, or never.
            let _ = connect(&connection, &address);
            connection
        };
        (0..4).map(connect).collect()
    });
    (listener, connections)
}

/// Asserts that a listing of `uri` fails as `said`, in seconds: at least one is as quick as that, however busy the machine is.
fn assert_given_up(machine: &Machine, uri: &str, said: &str) {
    eventually("it is given up in seconds", || {
        let begin = Instant::now();
        let listed = machine.run(&["ls", uri, "--allow-http"]);
        let took = begin.elapsed();
        assert_ne!(listed.code, Some(0), "{}", listed.out);
        took < QUICK && listed.err.contains(said)
    });
}

#[test]
fn name_server_that_is_silent_is_skipped() {
    let Some(network) = TestNetwork::new() else { return };
    let [own, first, second] = [(); 3].map(|()| network.host("1gbit"));
    let machine = Machine::new();
    let resolver = resolver(&machine, &[&first, &second]);
    let machine = machine.in_network(&own).with_resolver(&resolver);
    let _silent = silent(&first);
    // The name leads to an address without a listener: to notice that, it has to be resolved.
    let _dns = Dns::start(second, &[own.address]);
    assert_given_up(&machine, "http://files.test:1/x", "cannot connect to the server: Connection refused");
}

#[test]
fn mount_and_read_past_a_silent_name_server_take_seconds() {
    let Some(network) = TestNetwork::new() else { return };
    let [own, first, second, store] = [(); 4].map(|()| network.host("1gbit"));
    let root = TempDir::with_prefix("bdnfs-s3-").expect("a directory");
    let bytes = write_file(root.path(), "bucket/file", 3 << 20);
    let s3 = S3Server::at(root.path(), None, ReservedPort::on(&store, 9000));
    let machine = Machine::new();
    let resolver = resolver(&machine, &[&first, &second]);
    let machine = machine.in_network(&own).with_resolver(&resolver);
    let _silent = silent(&first);
    let _dns = Dns::start(second, &[store.address]);
    let (mut turn, options) = (0, ["--endpoint", "http://files.test:9000", "--anonymous", "--allow-http"]);
    eventually("a mount and a read are not kept for long", || {
        turn += 1;
        let point = machine.directory(&turn.to_string());
        let begin = Instant::now();
        machine.try_mount("s3://bucket", &point, &options).succeeds();
        let mounted = begin.elapsed();
        // Its resolver is its own, and so are its mounts.
        let agent = machine.agent_pids()[0].as_raw_nonzero();
        let inside = point.strip_prefix("/").expect("an absolute path");
        let begin = Instant::now();
        let read =
            std::fs::read(Path::new("/proc").join(agent.to_string()).join("root").join(inside).join("file"));
        let took = begin.elapsed();
        assert_same(&bytes, &read.expect("what the server has"), "what was read");
        // The next one looks its server up again.
        machine.crash();
        mounted < QUICK && took < QUICK
    });
    drop(s3);
}

#[test]
fn mirror_whose_name_server_is_silent_is_given_up_in_seconds() {
    let Some(network) = TestNetwork::new() else { return };
    let [own, only] = [(); 2].map(|()| network.host("1gbit"));
    let machine = Machine::new();
    let resolver = resolver(&machine, &[&only]);
    let machine = machine.in_network(&own).with_resolver(&resolver);
    let silent = silent(&only);
    let mirror =
        ["--mirror", "s3://mirror", "--mirror-endpoint", "http://files.test:1", "--mirror-anonymous"];
    let listed = machine.run(&[&["mirror", "ls", "--allow-http"], &mirror[..]].concat());
    listed.fails(&["cannot resolve the server's name"]);
    silent.set_nonblocking(true).expect("a socket");
    let questions = std::iter::from_fn(|| silent.recv(&mut [0; 512]).ok()).count();
    // One try of a few seconds asks for two kinds of addresses, each second once; ten tries asked 60 questions.
    assert!(questions <= 16, "the name server was asked {questions} times");
}

#[test]
fn name_servers_that_are_all_silent_are_named_in_the_error() {
    let Some(network) = TestNetwork::new() else { return };
    let [own, only] = [(); 2].map(|()| network.host("1gbit"));
    let machine = Machine::new();
    let resolver = resolver(&machine, &[&only]);
    let machine = machine.in_network(&own).with_resolver(&resolver);
    let _silent = silent(&only);
    assert_given_up(&machine, "http://files.test:1/x", "cannot resolve the server's name");
}

#[test]
fn server_that_answers_no_connection_is_given_up_in_seconds() {
    let Some(network) = TestNetwork::new() else { return };
    let [own, first, second, server] = [(); 4].map(|()| network.host("1gbit"));
    let machine = Machine::new();
    let resolver = resolver(&machine, &[&first, &second]);
    let machine = machine.in_network(&own).with_resolver(&resolver);
    // The look-up takes a second of the time for the connection.
    let _silent = silent(&first);
    let address = server.socket_address(80);
    let _dns = Dns::start(second, &[server.address]);
    let _full = full(&server, &own, address);
    assert_given_up(&machine, "http://files.test/x", "the server did not respond within 3 s");
}
