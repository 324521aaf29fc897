//! Agents that join a cluster, as their configuration says.

use std::path::Path;

use bdnfs::peer::client::http::HttpPeerClient;
use bdnfs::peer::identity::Identity;
use bdnfs::peer::{Member, token};
use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::ca::TestCa;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::xattr;
use bdnfs_tests::process::eventually;
use bdnfs_tests::serve::ReservedPort;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::assert_same_tree;
use serde_json::Value;

use crate::trust;

const MIRROR: &str = "[mirror]\nurl = \"s3://mirror\"\n[cluster]\n";

/// An agent on a machine of its own.
struct AgentNode {
    // First, so that it ends before its files go.
    agent: AgentProcess,
    machine: Machine,
    _port: ReservedPort,
}

impl AgentNode {
    /// A node that finds the others at `seeds`; `who` are the lines of its identity.
    fn start(env: &TestEnv, seeds: &[&AgentNode], who: &str) -> Self {
        let port = ReservedPort::take(0);
        let seeds: Vec<_> = seeds.iter().map(|node| format!("\"{}\"", node._port.address)).collect();
        let machine = env.second_machine();
        let seeds = seeds.join(", ");
        let lines = format!("{MIRROR}listen = \"{}\"\nseeds = [{seeds}]\n{who}", port.address);
        Self { agent: machine.agent(&lines), machine, _port: port }
    }

    fn stage(&self, env: &TestEnv) {
        let point = self.machine.mount_with("s3://bucket", "mnt", &["--wait"]);
        assert_same_tree(&env.bucket(), &point);
    }

    fn cluster(&self) -> Value {
        self.agent.get("/v1/cluster").json()
    }

    /// The states of those that it knows, by their names.
    fn states(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let cluster = self.cluster();
        let members = cluster["members"].as_array().expect("a list");
        members.iter().map(|member| (text(&member["id"]), text(&member["state"]))).collect()
    }

    fn sees(&self, ids: &[&str]) {
        eventually(&format!("{ids:?} are seen"), || {
            let states = self.states();
            states.len() == ids.len()
                && states.iter().zip(ids).all(|((a, state), b)| a == b && state == "alive")
        });
    }

    fn traffic(&self, of: &str) -> u64 {
        self.agent.status()["mounts"][0]["traffic"][of].as_u64().expect("a number")
    }
}

#[test]
fn agents_with_certificates_share_blocks_and_leave() {
    let env = TestEnv::new();
    env.put("weights", 20 * MIB + 3);
    env.put("config", 1000);
    env.mirror();
    let ca = TestCa::with(&["a", "b"], "default");
    let a = AgentNode::start(&env, &[], &(ca.lines("a", "ca") + "zone = \"left\"\ncapacity = \"2T\""));
    let b = AgentNode::start(&env, &[&a], &ca.lines("b", "ca"));
    a.sees(&["a", "b"]);
    b.sees(&["a", "b"]);
    let listed = b.machine.run(&["cluster", "ls"]).succeeds();
    let row = |id: &str| {
        let row = listed.lines().find(|line| line.split_whitespace().next() == Some(id));
        row.unwrap_or_else(|| panic!("{listed}")).split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(row("a")[1..], [&a._port.address.to_string(), "left", "2.0", "TB", "1", "alive"]);
    assert_eq!(row("b")[2..3], ["-"]);
    assert!(row("b").ends_with(&["this", "node"]) && !listed.contains("WITHOUT TLS"), "{listed}");

    env.s3.requests.clear();
    a.stage(&env);
    b.stage(&env);
    let read = env.mirrored().bytes;
    let asked =
        |node: &AgentNode, outcome: &str| node.cluster()["asked"][outcome].as_u64().expect("a number");
    assert!(read >= 20 * MIB as u64 && b.traffic("peer") > 0 && asked(&b, "asked") > 0, "{read}");
    // A peer that does not respond within a second, as on a busy machine, is left alone for a while.
    if asked(&a, "failed") + asked(&b, "failed") == 0 {
        assert!(read < 25 * MIB as u64, "the second has it of the first: {read}");
        // But for what it had fetched for the first.
        assert_eq!(b.traffic("mirror"), 0, "{}", b.agent.status());
        assert_eq!(a.cluster()["sent"].as_u64(), Some(b.traffic("peer")));
    }

    let AgentNode { agent, machine: _machine, _port } = b;
    agent.end();
    eventually("it is known that b leaves or is gone", || {
        !a.states().contains(&("b".to_owned(), "alive".to_owned()))
    });
}

#[test]
fn agent_whose_job_has_ended_serves_the_snapshot_to_others() {
    let env = TestEnv::new();
    let size = 60 * MIB;
    env.put("weights", size);
    env.put("config", 1000);
    env.mirror();
    let start =
        |seeds: &[&AgentNode], id| AgentNode::start(&env, seeds, &format!("id = \"{id}\"\ninsecure = true"));
    let a = start(&[], "a");
    let b = start(&[&a], "b");
    let mut c = start(&[&a], "c");
    let all = ["a", "b", "c"];
    [&a, &b, &c].iter().for_each(|node| node.sees(&all));
    // What it read of the mirror, and from where it all came.
    let run = |node: &AgentNode| {
        let place = node.machine.directory("models");
        let place = place.to_str().expect("text");
        let spec = node.machine.directory("specs").join("job.toml");
        let text = format!(
            "[runtime]\nstart_commands = [\"wc -c < {place}/weights\"]\n\
             [[weights]]\nsource = \"s3://bucket\"\nmount_location = \"{place}\"\n"
        );
        std::fs::write(&spec, text).expect("a file");
        env.s3.requests.clear();
        let ran = node.machine.run(&["job", "run", spec.to_str().expect("text"), "--json"]).succeeds();
        let job: Value = serde_json::from_str(ran.lines().last().expect("a job")).expect("JSON");
        (env.mirrored().bytes, job["report"]["verdict"].as_str().expect("a verdict").to_owned())
    };
    let evict = |node: &AgentNode| {
        node.machine.run(&["cache", "evict", "--all"]).succeeds();
    };
    let hit = (0, "cluster-local hit".to_owned());
    // Gossip takes a moment to say what each has, and has no more.
    let hits = |node: &AgentNode, what: &str| {
        eventually(what, || {
            evict(node);
            run(node) == hit
        });
    };
    for node in [&a, &b, &c] {
        run(node);
    }
    hits(&c, "nobody uses what the others have");
    // What an agent finds when it starts is as good.
    evict(&b);
    evict(&c);
    let AgentNode { agent, machine, _port } = a;
    agent.end();
    drop(c);
    c = start(&[&b], "c");
    let agent = machine.agent(&format!(
        "{MIRROR}listen = \"{0}\"\nseeds = [\"{1}\"]\nid = \"a\"\ninsecure = true",
        _port.address, b._port.address
    ));
    let a = AgentNode { agent, machine, _port };
    [&a, &b, &c].iter().for_each(|node| node.sees(&all));
    hits(&b, "what a had before its restart");
    // An evicted snapshot is announced no more: its node is not asked in vain.
    evict(&a);
    let missed = || c.cluster()["asked"]["missed"].as_u64().expect("a number");
    eventually("what b has alone", || {
        let before = missed();
        evict(&c);
        run(&c) == hit && missed() == before
    });
}

#[test]
fn agents_without_certificates_warn_and_bind_loopback() {
    let env = TestEnv::new();
    env.put("weights", 3 * MIB);
    env.mirror();
    let a = AgentNode::start(&env, &[], "id = \"a\"\ninsecure = true");
    a.sees(&["a"]);
    eventually("it is logged", || a.agent.log().contains("PEERS ARE SERVED WITHOUT TLS"));
    let listed = a.machine.run(&["cluster", "ls"]).succeeds();
    assert!(listed.contains("WITHOUT TLS"), "{listed}");
    let output = a.machine.run(&["cluster", "ls", "--json"]).succeeds();
    let output: Value = serde_json::from_str(&output).expect("JSON");
    assert_eq!((&output["id"], &output["secure"]), (&"a".into(), &false.into()));
    let alone = Machine::new().env("BDNFS_LOG", "error");
    alone.run(&["cluster", "ls"]).fails(&["no agent listens"]);
    let agent = alone.agent("");
    alone.run(&["cluster", "ls"]).fails(&["in no cluster", "[cluster]"]);
    agent.end();
    let config = alone.directory("etc").join("wrong.toml");
    let ca = TestCa::with(&["a"], "default");
    let refused = |lines: &str, words: &[&str]| {
        std::fs::write(&config, format!("{MIRROR}{lines}")).expect("a file");
        let cache = alone.directory("cache");
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        alone.run(&["agent", "--config", &text(&config), "--cache-dir", &text(&cache)]).fails(words);
    };
    refused(
        "listen = \"0.0.0.0:0\"\nadvertise = \"10.0.0.1:1\"\ninsecure = true",
        &["needs loopback addresses"],
    );
    refused("listen = \"127.0.0.1:0\"", &["certificate", "bdnfs cluster init-ca"]);
    let other = format!("listen = \"127.0.0.1:0\"\nid = \"b\"\n{}", ca.lines("a", "ca"));
    refused(&other, &["cluster.id", "is b", "it is a"]);
    let taken = format!("listen = \"{}\"\n{}", a._port.address, ca.lines("a", "ca"));
    refused(&taken, &["cannot listen at", "cluster.listen"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_asked_by_stranger_or_other_tenant_answers_nothing() {
    let env = TestEnv::new();
    let content = env.put("weights", 3 * MIB + 3);
    env.mirror();
    let ca = TestCa::with(&["a", "friend", "node"], "default");
    for line in [
        "cluster issue red --ca @ca --tenant red --out @",
        "cluster init-ca @other",
        "cluster issue stranger --ca @other --tenant default --out @",
    ] {
        ca.run(line).succeeds();
    }
    trust::expire(ca.root(), &trust::signed(&ca, "node", "ca"));
    let a = AgentNode::start(&env, &[], &ca.lines("a", "ca"));
    a.stage(&env);
    let snapshot = xattr(&a.machine.directory("mnt"), "user.bdnfs.digest").parse().expect("a digest");
    let peer = || Member {
        address: a._port.address,
        tenants: ["default", "red"].map(|tenant| token(&[tenant.as_bytes()])).to_vec(),
        ..trust::member("a", 0)
    };
    let identity = |id, authority| Identity::open(trust::signed(&ca, id, authority)).expect("a certificate");
    let client = |id, authority| HttpPeerClient::new(identity(id, authority));
    let absent = vec![7; 5 * MIB];
    let get = |client, tenant, content| trust::get_of(client, peer(), tenant, snapshot, content);
    let first = get(client("friend", "ca"), "default", &content).await.expect("served").expect("there");
    assert!(first == content[..MIB], "what a friend gets is right");
    // More than that where an answer came too late, and is counted later still.
    let sent = trust::await_constant(|| a.cluster()["sent"].as_u64()).await;
    assert!(sent >= Some(MIB as u64), "{sent:?}");
    for (content, what) in [(&content[..], "what is there"), (&absent, "what isn't")] {
        for tenant in ["default", "red"] {
            let got = get(client("red", "ca"), tenant, content).await.expect("an answer");
            assert_eq!(got, None, "red asks for {what}, of {tenant}");
        }
        for refused in [
            get(client("stranger", "other"), "default", content).await,
            get(client("stranger", "ca"), "default", content).await,
            get(client("node", "ca"), "default", content).await,
            get(HttpPeerClient::plain(), "default", content).await,
        ] {
            refused.expect_err(what);
        }
    }
    assert_eq!(a.cluster()["sent"].as_u64(), sent, "nobody else got a byte");
    // Nor does a stranger get to know who is there, or make itself known.
    let x = AgentNode::start(&env, &[&a], &ca.lines("stranger", "other"));
    assert_eq!(x.states(), [("stranger".to_owned(), "alive".to_owned())]);
    assert_eq!(a.states(), [("a".to_owned(), "alive".to_owned())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_with_new_certificate_serves_its_tenants() {
    let env = TestEnv::new();
    let content = env.put("weights", 3 * MIB + 3);
    env.mirror();
    let ca = TestCa::with(&["friend"], "default");
    let issue = |tenants: &str| {
        ca.run(&format!("cluster issue a --ca @ca {tenants} --out @")).succeeds();
    };
    issue("--tenant default");
    let a = AgentNode::start(&env, &[], &ca.lines("a", "ca"));
    a.stage(&env);
    let snapshot = xattr(&a.machine.directory("mnt"), "user.bdnfs.digest").parse().expect("a digest");
    let identity = Identity::open(trust::signed(&ca, "friend", "ca")).expect("a certificate");
    let gets = async || {
        let peer =
            Member { address: a._port.address, tenants: vec![token(&[b"default"])], ..trust::member("a", 0) };
        let client = HttpPeerClient::new(identity.clone());
        trust::get_of(client, peer, "default", snapshot, &content).await.expect("an answer").is_some()
    };
    assert!(gets().await);
    let hosts = |tenants: &str| a.agent.log().matches(&format!("hosts these tenants now: {tenants}")).count();
    issue("--tenant red");
    eventually("its tenants are others", || hosts("{\"red\"}") == 1);
    assert!(!gets().await, "what it hosts no more");
    issue("--tenant default --tenant red");
    eventually("it hosts both", || hosts("{\"default\", \"red\"}") == 1);
    assert!(gets().await, "what it hosts again");
}
