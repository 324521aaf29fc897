//! Name servers that do not answer: one of several costs a second, all of them an error that says so.

use std::net::UdpSocket;
use std::path::PathBuf;

use bdnfs_tests::dns::Dns;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::network::{NetworkHost, TestNetwork, inside};

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
    let listed = machine.run(&["ls", "http://files.test:1/x", "--allow-http"]);
    listed.fails(&["cannot resolve the server's name"]);
}
