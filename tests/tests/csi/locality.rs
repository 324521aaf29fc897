//! Locality: a node of an API server gets labels of what its agent has whole, and loses its startup taint.

use std::fs;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{Path, State};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use bdnfs_tests::MIB;
use bdnfs_tests::kubelet::PodVolume;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::repository;
use bdnfs_tests::serve::HttpServer;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

use crate::kit::{DriverProcess, KubernetesNode};
use crate::publish::SHORT_DEADLINE;

/// The node, and its CSINode.
type Nodes = Arc<Mutex<[Value; 2]>>;

async fn read(State(nodes): State<Nodes>, Path(name): Path<String>) -> String {
    assert_eq!(name, "node-1");
    nodes.lock().unwrap()[0].to_string()
}

/// The CSINode, which is not there before the kubelet has made it.
async fn read_csi(State(nodes): State<Nodes>) -> Result<String, StatusCode> {
    let csi_node = nodes.lock().unwrap()[1].clone();
    if csi_node.is_null() { Err(StatusCode::NOT_FOUND) } else { Ok(csi_node.to_string()) }
}

/// Patches the node as the API server does: on condition of its version, where the patch has one.
async fn patch(State(nodes): State<Nodes>, headers: HeaderMap, body: String) -> Result<String, StatusCode> {
    assert_eq!(headers[AUTHORIZATION], "Bearer hush");
    assert_eq!(headers[CONTENT_TYPE], "application/merge-patch+json");
    let (mut nodes, patch): (_, Value) = (nodes.lock().unwrap(), serde_json::from_str(&body).unwrap());
    let version = nodes[0]["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    if patch["metadata"]["resourceVersion"].as_str().is_some_and(|expected| expected != version) {
        return Err(StatusCode::CONFLICT);
    }
    merge(&mut nodes[0], &patch);
    nodes[0]["metadata"]["resourceVersion"] = format!("{version}1").into();
    Ok(nodes[0].to_string())
}

/// A JSON merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, change) in changes {
        if change.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], change);
        }
    }
}

/// An API server with a node, and the options of a driver that labels it each `interval`.
fn api_server(nodes: &Nodes, account: &FilePath, interval: &str) -> (HttpServer, Vec<String>) {
    let app = Router::new()
        .route("/api/v1/nodes/{name}", get(read).patch(patch))
        .route("/apis/storage.k8s.io/v1/csinodes/node-1", get(read_csi));
    let server = HttpServer::start(app.with_state(Arc::clone(nodes)), 0);
    let CertifiedKey { cert, .. } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(account.join("ca.crt"), cert.pem()).unwrap();
    fs::write(account.join("token"), "hush\n").unwrap();
    let words =
        ["--locality", "--locality-interval", interval, "--api-server", &server.url(), "--service-account"];
    let words = words.map(str::to_owned).into_iter().chain([account.to_str().unwrap().to_owned()]).collect();
    (server, words)
}

#[test]
fn node_label_of_a_complete_source_stays_until_it_is_evicted() {
    let other = json!({"zone": "a", "bdnfs.io/has-0123456789abcdef": "true"});
    let nodes: Nodes = Arc::new(Mutex::new([
        json!({"metadata": {"name": "node-1", "resourceVersion": "1", "labels": other}, "spec": {}}),
        json!({}),
    ]));
    let mut node = KubernetesNode::new(SHORT_DEADLINE);
    let (_server, words) = api_server(&nodes, &node.env.machine.directory("account"), "1s");
    node.driver.end();
    node.driver = DriverProcess::start(&node.env, &words.iter().map(String::as_str).collect::<Vec<_>>());
    node.kubelet.register();
    let labels = || nodes.lock().unwrap()[0]["metadata"]["labels"].clone();
    eventually("what it has no more is not said", || labels() == json!({"zone": "a"}));

    node.env.put("weights", MIB);
    let volume = node.volume("pod");
    node.kubelet.mount(&volume);
    let endpoint = node.env.proxy.url();
    let key = ["source", "key", "s3://bucket", "--tenant", "default", "--endpoint", &endpoint];
    let affinity = node.env.machine.run(&key).succeeds();
    let label = affinity.split("- key: ").nth(1).unwrap().lines().next().unwrap().to_owned();
    eventually("the label is there that pods ask for", || {
        labels() == json!({"zone": "a", label.as_str(): "true"})
    });

    node.kubelet.unpublish(&volume).unwrap();
    eventually("what was evicted is not said", || {
        // What the base of the publication still holds is not evicted.
        assert_eq!(node.agent().ask("POST", "/v1/cache/evict", r#"{"all": true}"#).code, 200);
        labels() == json!({"zone": "a"})
    });
    assert!(!node.driver.log().contains("hush"), "{}", node.driver.log());
}

#[test]
fn node_label_of_a_training_cache_stays_until_its_home_is_gone() {
    let node =
        json!({"metadata": {"name": "node-1", "resourceVersion": "1", "labels": {"zone": "a"}}, "spec": {}});
    let nodes: Nodes = Arc::new(Mutex::new([node, json!({})]));
    let allowed = "inline_volumes = [\"projectCache\", \"teamCache\"]\n";
    let mut node = KubernetesNode::with_config(SHORT_DEADLINE, allowed);
    let (_server, words) = api_server(&nodes, &node.env.machine.directory("account"), "1s");
    node.driver.end();
    node.driver = DriverProcess::start(&node.env, &words.iter().map(String::as_str).collect::<Vec<_>>());
    node.kubelet.register();
    let labels = || nodes.lock().unwrap()[0]["metadata"]["labels"].clone();
    let label = |words: &[&str]| {
        let affinity = node.env.machine.run(&[&["project", "key"], words].concat()).succeeds();
        affinity.split("- key: ").nth(1).unwrap().lines().next().unwrap().to_owned()
    };
    let (project, team) = (label(&["llama"]), label(&["llama", "--team"]));
    assert!(project != team && project != label(&["llama", "--tenant", "other"]));

    let volumes = [("one", "projectCache"), ("two", "teamCache")]
        .map(|(pod, attribute)| PodVolume::inline(pod, &[(attribute, "llama")]));
    for volume in &volumes {
        node.kubelet.mount(volume);
        node.kubelet.unpublish(volume).unwrap();
    }
    eventually("the labels are there that pods ask for", || {
        labels() == json!({"zone": "a", project.as_str(): "true", team.as_str(): "true"})
    });
    let removed = || node.env.machine.run(&["project", "rm", "llama", "--yes"]).code == Some(0);
    eventually("the home is not in use", removed);
    eventually("what is gone is not said", || labels() == json!({"zone": "a", team.as_str(): "true"}));
}

#[test]
fn startup_taint_is_removed_when_agent_and_driver_are_ready_and_others_stay() {
    let [ours, other] =
        ["bdnfs.io/agent-not-ready", "gpu"].map(|key| json!({"key": key, "effect": "NoSchedule"}));
    let node_object = json!({
        "metadata": {"name": "node-1", "resourceVersion": "1"}, "spec": {"taints": [ours, other], "podCIDR": "10.0.0.0/24"},
    });
    let nodes: Nodes = Arc::new(Mutex::new([node_object.clone(), Value::Null]));
    let mut node = KubernetesNode::new(SHORT_DEADLINE);
    let (_server, words) = api_server(&nodes, &node.env.machine.directory("account"), "1h");
    node.driver.end();
    drop(node.agent.take());
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    node.driver = DriverProcess::start(&node.env, &words);
    node.kubelet.register();
    node.start_agent();
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(nodes.lock().unwrap()[0], node_object, "there is no CSINode yet");
    nodes.lock().unwrap()[1] = json!({"spec": {"drivers": [{"name": "another"}]}});
    // Asked some times by then.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert_eq!(nodes.lock().unwrap()[0], node_object, "the kubelet does not know the driver yet");
    nodes.lock().unwrap()[1]["spec"]["drivers"] = json!([{"name": "another"}, {"name": "csi.bdnfs.io"}]);
    eventually("the taint is gone", || nodes.lock().unwrap()[0]["spec"]["taints"] == json!([other]));
    assert_eq!(nodes.lock().unwrap()[0]["spec"]["podCIDR"], "10.0.0.0/24");
}

#[test]
fn kubernetes_page_affinity_equals_output_of_source_key_and_project_key() {
    let page = repository().join("docs/kubernetes.md");
    let page = fs::read_to_string(page).unwrap();
    for command in ["bdnfs source key ", "bdnfs project key "] {
        let line = page.lines().find(|line| line.starts_with(command)).unwrap();
        let words: Vec<_> = line.split(' ').skip(1).collect();
        let printed = Machine::new().run(&words).succeeds();
        // It stands below `spec`.
        let indented: String = printed.lines().map(|line| format!("  {line}\n")).collect();
        assert!(page.contains(&indented), "{indented}");
    }
}
