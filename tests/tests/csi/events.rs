//! Events of pods, as an API server gets them.

use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use axum::routing::post;
use bdnfs_tests::MIB;
use bdnfs_tests::kubelet::Kubelet;
use bdnfs_tests::process::eventually;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::serve::HttpServer;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tonic::Code;

use crate::kit::{DriverProcess, KubernetesNode};
use crate::publish::SHORT_DEADLINE;

/// Posted events: the namespace, the credentials of the client, and the event.
type Posted = Arc<Mutex<Vec<(String, String, Value)>>>;

async fn take(State(posted): State<Posted>, Path(namespace): Path<String>, headers: HeaderMap, body: String) {
    let by = headers[AUTHORIZATION].to_str().unwrap().to_owned();
    posted.lock().unwrap().push((namespace, by, serde_json::from_str(&body).unwrap()));
}

/// An API server that takes events.
pub struct EventServer {
    _server: HttpServer,
    posted: Posted,
}

impl EventServer {
    /// One for `node`, whose driver is replaced by one that posts events to it.
    pub fn start(node: &mut KubernetesNode) -> Self {
        let posted = Posted::default();
        let app = Router::new().route("/api/v1/namespaces/{namespace}/events", post(take));
        let server = HttpServer::start(app.with_state(Arc::clone(&posted)), 0);
        let account = node.env.machine.directory("account");
        let CertifiedKey { cert, .. } = generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(account.join("ca.crt"), cert.pem()).unwrap();
        fs::write(account.join("token"), "hush\n").unwrap();
        node.driver.end();
        let account = account.to_str().unwrap();
        let words = ["--events", "--api-server", &server.url(), "--service-account", account];
        node.driver = DriverProcess::start(&node.env, &words);
        node.kubelet.register();
        Self { _server: server, posted }
    }

    /// The first event with this reason: its namespace, the credentials of the client, and the event.
    pub fn find(&self, reason: &str) -> Option<(String, String, Value)> {
        self.posted.lock().unwrap().iter().find(|(.., event)| event["reason"] == reason).cloned()
    }

    fn count(&self, reason: &str) -> usize {
        self.posted.lock().unwrap().iter().filter(|(.., event)| event["reason"] == reason).count()
    }
}

#[test]
fn pod_whose_volume_is_staged_and_fails_has_events() {
    let mut node = KubernetesNode::new(SHORT_DEADLINE);
    let server = EventServer::start(&mut node);
    let (find, count) = (|reason: &str| server.find(reason), |reason: &str| server.count(reason));

    node.env.put("weights", 8 * MIB);
    node.env.proxy.set(NetworkFault { rate: Some(100_000), ..NetworkFault::default() });
    let volume = node.volume("pod");
    assert_eq!(node.kubelet.publish(&volume).unwrap_err().code(), Code::Aborted);
    eventually("an event is posted", || find("Staging").is_some());
    let (namespace, by, event) = find("Staging").unwrap();
    assert_eq!((namespace.as_str(), by.as_str()), ("default", "Bearer hush"));
    assert_eq!(event["type"], "Normal");
    assert!(event["message"].as_str().unwrap().contains("s3://bucket"), "{event}");
    let pod = json!({"kind": "Pod", "apiVersion": "v1", "namespace": "default", "name": "pod", "uid": "pod"});
    assert_eq!(event["involvedObject"], pod);

    // The hold ends within a second, and between two intervals.
    let slow = Kubelet::new(&node.env.machine.directory("kubelet"));
    node.kubelet = slow.with_deadline(Duration::from_millis(7700));
    node.kubelet.register();
    let before = count("Staging");
    assert_eq!(node.kubelet.publish(&volume).unwrap_err().code(), Code::Aborted);
    eventually("an event is posted", || count("Staging") > before);
    assert_eq!((count("Staging"), count("Staged")), (before + 1, 0));

    // It is staged when no call is held.
    node.env.proxy.set(NetworkFault::default());
    let published = || node.agent().get("/v1/publications").json()["publications"][0]["state"] == "published";
    eventually("it is staged", published);
    for _ in 0..2 {
        node.kubelet.publish(&volume).unwrap();
    }
    eventually("it is said that it is staged", || find("Staged").is_some());
    assert!(find("Staged").unwrap().2["message"].as_str().unwrap().starts_with("staged "));
    let mut missing = node.volume("other");
    missing.context.insert("source".into(), "s3://bucket/nothing".into());
    node.kubelet.publish(&missing).unwrap_err();
    eventually("a warning is posted", || {
        find("StagingFailed").is_some_and(|(.., event)| event["type"] == "Warning")
    });
    assert_eq!(count("Staged"), 1);
    assert!(!node.driver.log().contains("hush"), "{}", node.driver.log());
    node.kubelet.unpublish(&volume).unwrap();
}
