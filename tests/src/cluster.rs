//! A cluster of agents, each on a host of its own in one network, and the mirror that they share, on another.

use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::agent::AgentProcess;
use crate::ca::TestCa;
use crate::command_output::CommandOutput;
use crate::machine::Machine;
use crate::network::{NetworkHost, TestNetwork};
use crate::process::eventually;
use crate::s3::{Keys, S3Server};
use crate::serve::ReservedPort;
use crate::tree;

/// Where agents listen for their peers.
pub const PORT: u16 = 7531;

/// Where the mirror is, in an agent's configuration.
const MIRROR: &str = "[mirror]\nurl = \"s3://mirror\"\nallow_http = true\n";

/// A mirror of the bucket `bucket`, and the network in which it is reached.
#[derive(Debug)]
pub struct TestCluster {
    // In this order they are dropped.
    publisher: Machine,
    /// The server of bucket and mirror.
    pub s3: S3Server,
    /// The authority for nodes of the tenant `default`.
    pub ca: TestCa,
    store: NetworkHost,
    /// Where nodes are.
    pub network: TestNetwork,
    root: TempDir,
}

/// A node: an agent that is part of the cluster.
#[derive(Debug)]
pub struct ClusterHost {
    /// The agent; `None` while there is none.
    pub agent: Option<AgentProcess>,
    /// Its machine.
    pub machine: Machine,
    /// Its host.
    pub host: NetworkHost,
    config: String,
}

impl TestCluster {
    /// An empty bucket, behind a link that carries `rate` each way; `None` where there can be no [`TestNetwork`].
    ///
    /// # Panics
    /// When it can't be made.
    pub fn new(rate: &str) -> Option<Self> {
        let network = TestNetwork::new()?;
        let root = TempDir::with_prefix("bdnfs-lab-").expect("a temporary directory");
        for bucket in ["bucket", "mirror"] {
            std::fs::create_dir(root.path().join(bucket)).expect("a bucket");
        }
        let store = network.host(rate);
        let s3 = S3Server::at(root.path(), Some(Keys::sample()), ReservedPort::on(&store, 9000));
        let publisher = Machine::new().in_network(&store).s3(&s3.server.url(), &Keys::sample());
        Some(Self { publisher, s3, ca: TestCa::with(&[], "default"), store, network, root })
    }

    /// The directory with the bucket's objects.
    pub fn bucket(&self) -> PathBuf {
        self.root.path().join("bucket")
    }

    /// Puts objects of these sizes into the bucket, and the bucket into the mirror.
    ///
    /// # Panics
    /// When that fails.
    pub fn publish(&self, objects: &[(&str, usize)]) {
        for (key, len) in objects {
            tree::write_file(&self.bucket(), key, *len);
        }
        let add = ["mirror", "add", "s3://bucket", "--mirror", "s3://mirror", "--allow-http"];
        self.publisher.run(&add).succeeds();
        self.s3.requests.clear();
    }

    /// How often the content of the mirror was read, all of it.
    pub fn mirror_reads(&self) -> f64 {
        let is_blob = |path: &str| path.starts_with("/mirror/") && path.contains("/blobs/");
        let read = self.s3.requests.of(axum::http::Method::GET, is_blob).bytes;
        let objects = std::fs::read_dir(self.bucket()).expect("a bucket");
        let size = |object: std::io::Result<std::fs::DirEntry>| {
            object.expect("an object").metadata().expect("a file").len()
        };
        read as f64 / objects.map(size).sum::<u64>() as f64
    }

    /// Bytes that the mirror's link has carried to the nodes.
    pub fn mirror_bytes_sent(&self) -> u64 {
        self.store.sent()
    }

    /// The node `id`, whose link carries `rate` each way; its agent's configuration begins with `lines`.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn node(&self, id: &str, rate: &str, lines: &str) -> ClusterHost {
        let machine = Machine::new();
        self.node_on(machine, id, rate, lines)
    }

    /// The same, on `machine`.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn node_on(&self, machine: Machine, id: &str, rate: &str, lines: &str) -> ClusterHost {
        self.configured(lines, &self.seeds(), machine, id, rate)
    }

    /// The node `id` on `machine`, which finds the others at `seeds` alone.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn node_with_seeds(&self, seeds: &[String], machine: Machine, id: &str, rate: &str) -> ClusterHost {
        self.configured("", seeds, machine, id, rate)
    }

    fn configured(
        &self,
        lines: &str,
        seeds: &[String],
        machine: Machine,
        id: &str,
        rate: &str,
    ) -> ClusterHost {
        self.ca.run(&format!("cluster issue {id} --ca @ca --tenant default --out @")).succeeds();
        let who = self.ca.lines(id, "ca");
        let config = format!("{lines}\n{MIRROR}[cluster]\nseeds = {seeds:?}\n{who}");
        self.started(machine, rate, config)
    }

    /// A node on `machine` without peers.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn standalone_node(&self, machine: Machine, rate: &str) -> ClusterHost {
        self.started(machine, rate, MIRROR.to_owned())
    }

    fn started(&self, machine: Machine, rate: &str, config: String) -> ClusterHost {
        let host = self.network.host(rate);
        let machine = machine.in_network(&host).s3(&self.s3.server.url(), &Keys::sample());
        let mut node = ClusterHost { agent: None, machine, host, config };
        node.start();
        node
    }

    /// The seeds of all nodes: the addresses of the first two.
    pub fn seeds(&self) -> [String; 2] {
        let [a, b, c, last] = self.store.address.octets();
        [1, 2].map(|next| std::net::SocketAddr::from(([a, b, c, last + next], PORT)).to_string())
    }
}

impl ClusterHost {
    /// Starts its agent.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn start(&mut self) {
        self.agent = Some(self.machine.agent(&self.config));
    }

    /// Its agent.
    ///
    /// # Panics
    /// When there is none.
    pub fn agent(&self) -> &AgentProcess {
        self.agent.as_ref().expect("an agent that runs")
    }

    /// Mounts the bucket, and makes all of it local.
    pub fn stage(&self) -> (PathBuf, CommandOutput) {
        let point = self.machine.directory("mnt");
        let ran = self.machine.try_mount("s3://bucket", &point, &["--wait", "--allow-http"]);
        (point, ran)
    }

    /// Mounts the bucket, and waits for nothing.
    ///
    /// # Panics
    /// When it can't be mounted.
    pub fn mount(&self) -> PathBuf {
        self.machine.mount_with("s3://bucket", "mnt", &["--allow-http"])
    }

    /// The state of `id` as this node sees it; `None`: it knows no node of that name.
    ///
    /// # Panics
    /// When its agent does not answer.
    pub fn state(&self, id: &str) -> Option<String> {
        let cluster = self.agent().get("/v1/cluster").json();
        let members = cluster["members"].as_array().expect("a list");
        let member = members.iter().find(|member| member["id"] == id)?;
        Some(member["state"].as_str().expect("text").to_owned())
    }

    /// Waits until it knows `count` nodes that are well, itself among them.
    ///
    /// # Panics
    /// When that never comes.
    pub fn wait_for_members(&self, count: usize) {
        eventually(&format!("{count} nodes are known"), || {
            let cluster = self.agent().get("/v1/cluster").json();
            let members = cluster["members"].as_array().expect("a list");
            members.iter().filter(|member| member["state"] == "alive").count() == count
        });
    }

    /// The bytes that its first mount has fetched, by tier.
    ///
    /// # Panics
    /// When it has none.
    pub fn traffic(&self) -> Value {
        self.agent().status()["mounts"][0]["traffic"].clone()
    }
}
