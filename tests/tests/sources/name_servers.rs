//! Name servers that do not answer: one of several costs a second, all of them an error that says so.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bdnfs_tests::dns::Dns;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::network::{NetworkHost, TestNetwork, inside};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, listen, socket_with};

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

/// Asserts that what began then was given up after the 3 s that a connection may take: not later than a machine that is busy makes it, nor
/// after the tens of seconds of a resolver or a kernel.
fn assert_given_up(began: Instant) {
    assert!(began.elapsed() < Duration::from_secs(10), "it was given up after {:?}", began.elapsed());
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
    let listed = machine.run(&["ls", "http://files.test:1/x", "--allow-http"]);
    listed.fails(&["cannot connect to the server: Connection refused"]);
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
    let began = Instant::now();
    let listed = machine.run(&["ls", "http://files.test:1/x", "--allow-http"]);
    listed.fails(&["cannot resolve the server's name"]);
    assert_given_up(began);
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
    let began = Instant::now();
    let listed = machine.run(&["ls", "http://files.test/x", "--allow-http"]);
    listed.fails(&["the server did not respond within 3 s"]);
    assert_given_up(began);
}
