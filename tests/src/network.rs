//! A network in a machine: each host is a network namespace with an address of its own, and a cable to one switch.
//!
//! The switch is a bridge in a namespace of its own, so nothing of all this is to be seen, or in the way, outside. It takes
//! root, and the program `ip` with `tc` beside it.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tokio::runtime::{Builder, Runtime};

use crate::tools::{cannot_run, program, run};

/// Where `ip` keeps the namespaces that have a name.
const NAMES: &str = "/run/netns";
/// The prefix of our names; the process that made them follows.
const PREFIX: &str = "bdnfs-test-";

/// Tells the networks of one process apart.
static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// A switch, and the hosts at it. They are gone when they are dropped.
#[derive(Debug)]
pub struct TestNetwork {
    switch: NetworkNamespace,
    last: AtomicU8,
}

/// A host.
#[derive(Debug)]
pub struct NetworkHost {
    namespace: NetworkNamespace,
    /// Where it is plugged in.
    switch: String,
    port: String,
    /// Its address.
    pub address: Ipv4Addr,
}

/// A network namespace with a name.
#[derive(Debug)]
struct NetworkNamespace(String);

impl TestNetwork {
    /// A switch without machines; `None` where the kernel or a sandbox around this does not have what it takes.
    ///
    /// # Panics
    /// When it can't be made, and in CI also where the kernel lacks something.
    pub fn new() -> Option<Self> {
        sweep();
        let number = NETWORKS.fetch_add(1, Relaxed);
        let name = format!("{PREFIX}{}-{number}", std::process::id());
        if let Some(lacking) = lacking(&format!("{name}-probe")) {
            cannot_run(&format!(
                "network namespaces with bridges and shaped links are needed, and {lacking}"
            ));
            return None;
        }
        let switch = NetworkNamespace::new(name);
        ip(&["-n", &switch.0, "link", "add", "bridge", "type", "bridge"]);
        ip(&["-n", &switch.0, "link", "set", "bridge", "up"]);
        // A switch looks at no packet, though the kernel has bridges show each to its firewall where that is loaded.
        let showing = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables");
        if inside(&switch.path(), || showing.exists()) {
            inside(&switch.path(), || fs::write(showing, "0")).expect("a bridge's settings");
        }
        Some(Self { switch, last: AtomicU8::new(0) })
    }

    /// A new host, whose link carries `rate` (`1gbit`) each way.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn host(&self, rate: &str) -> NetworkHost {
        let number = self.last.fetch_add(1, Relaxed) + 1;
        let (switch, port) = (self.switch.0.clone(), format!("port{number}"));
        let namespace = NetworkNamespace::new(format!("{switch}-{number}"));
        let (name, address) = (namespace.0.as_str(), Ipv4Addr::new(10, 77, 0, number));
        ip(&["-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", name]);
        ip(&["-n", &switch, "link", "set", &port, "master", "bridge", "up"]);
        ip(&["-n", name, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
        for device in ["eth0", "lo"] {
            ip(&["-n", name, "link", "set", device, "up"]);
        }
        // Linux's default, whatever is configured for the machine: BBR, for one, would time the packets of all hosts.
        let _ = inside(&namespace.path(), || fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "cubic"));
        // What waits at a link that is full may wait for 50 ms, as in a switch with deep buffers.
        for (namespace, device) in [(name, "eth0"), (&switch, &port)] {
            let line = format!(
                "-n {namespace} qdisc add dev {device} root tbf rate {rate} burst 256kb latency 50ms"
            );
            run(program("tc").args(line.split(' ')));
        }
        NetworkHost { switch, port, address, namespace }
    }
}

impl NetworkHost {
    /// The namespace, as a file.
    pub fn path(&self) -> PathBuf {
        self.namespace.path()
    }

    /// `port` at its address.
    pub fn socket_address(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.address, port))
    }

    /// Pulls the cable out, or puts it in again.
    ///
    /// # Panics
    /// When there is none.
    pub fn set_connected(&self, is_in: bool) {
        let state = if is_in { "up" } else { "down" };
        ip(&["-n", &self.switch, "link", "set", &self.port, state]);
    }

    /// Bytes that it has sent over its link.
    ///
    /// # Panics
    /// When its link is gone.
    pub fn sent(&self) -> u64 {
        let counted = inside(&self.path(), || fs::read_to_string("/proc/thread-self/net/dev"));
        let table = counted.expect("the counters of devices");
        let line = table.lines().find_map(|line| line.trim().strip_prefix("eth0:")).expect("a device");
        line.split_whitespace()
            .nth(8)
            .and_then(|bytes| bytes.parse().ok())
            .expect("the column of what was sent")
    }

    /// Threads whose sockets are this host's.
    ///
    /// # Panics
    /// When there can be none.
    pub fn runtime(&self) -> Runtime {
        let path = self.path();
        Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .on_thread_start(move || enter(&path))
            .build()
            .expect("a tokio runtime")
    }
}

impl NetworkNamespace {
    fn new(name: String) -> Self {
        ip(&["netns", "add", &name]);
        Self(name)
    }

    fn path(&self) -> PathBuf {
        Path::new(NAMES).join(&self.0)
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        delete(&self.0);
    }
}

/// What a network takes that there isn't here, if anything; tried in the namespace `name`.
fn lacking(name: &str) -> Option<String> {
    let tried = [
        format!("ip netns add {name}"),
        format!("ip -n {name} link add bridge type bridge"),
        format!("ip -n {name} link add one type veth peer name other"),
        format!("tc -n {name} qdisc add dev one root tbf rate 1gbit burst 256kb latency 50ms"),
    ];
    let failed = tried.iter().find_map(|line| {
        let mut words = line.split(' ');
        let output = program(words.next()?).args(words).output().ok()?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        (!output.status.success()).then(|| format!("`{line}`: {said}"))
    });
    delete(name);
    failed
}

/// Does `work` in the network namespace at `path`: sockets made there stay there.
///
/// # Panics
/// When there is none, and when `work` does.
pub fn inside<T: Send>(path: &Path, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let working = scope.spawn(|| {
            enter(path);
            work()
        });
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Moves this thread to the namespace at `path`, for good.
fn enter(path: &Path) {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), Some(LinkNameSpaceType::Network))
        .unwrap_or_else(|e| panic!("cannot enter {}: {e}", path.display()));
}

fn ip(arguments: &[&str]) {
    run(program("ip").args(arguments));
}

fn delete(name: &str) {
    let mut command: Command = program("ip");
    // Whatever becomes of it: the next test looks for what is left.
    let _ = command.args(["netns", "delete", name]).output();
}

/// Deletes what processes left behind that were killed.
fn sweep() {
    for entry in fs::read_dir(NAMES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            delete(&name);
        }
    }
}
