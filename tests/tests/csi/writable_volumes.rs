//! Volumes that pods write to: checkpoints, which are saved also after the pod, and the training cache of a project.

mod restarts;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bdnfs_csi::proto::csi::volume_capability::access_mode::Mode;
use bdnfs_tests::kubelet::{CALL_DEADLINE, PodVolume};
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tree::regular_files;
use serde_json::{Value, json};
use tonic::Code;

use crate::kit::KubernetesNode;

/// What the configuration of an agent says that lets pods write.
const ALLOWED: &str = "inline_volumes = [\"checkpoints\", \"projectCache\", \"teamCache\"]\n";
/// The uid of a pod, and the job that its checkpoints belong to.
const POD: &str = "3f1c9a2b-0d6e-4f0a-9c1b-2a3b4c5d6e7f";
const JOB: &str = "3f1c9a2b";

/// A node whose pods may write, and whose agent saves that in the bucket `mirror`.
struct WritingNode(KubernetesNode);

impl WritingNode {
    fn new() -> Self {
        Self::with(ALLOWED, "")
    }

    fn with(allowed: &str, more: &str) -> Self {
        let node = KubernetesNode::with_config(CALL_DEADLINE, &(Self::more(allowed) + more));
        fs::create_dir(node.env.bucket().with_file_name("mirror")).unwrap();
        Self(node)
    }

    fn more(allowed: &str) -> String {
        format!("{allowed}[mirror]\nurl = \"s3://mirror\"\n")
    }

    /// Whether any content is in the mirror.
    fn has_saved(&self) -> bool {
        let mirror = self.0.env.bucket().with_file_name("mirror");
        regular_files(&mirror).iter().any(|(path, _)| path.iter().any(|part| part == "blobs"))
    }

    fn crash_agent(&mut self) {
        self.0.agent.take().unwrap().crash();
    }

    fn crash_agent_and_savers(&mut self) {
        self.crash_agent();
        self.0.env.machine.kill_savers();
    }

    fn start_agent(&mut self) {
        let config = KubernetesNode::config(&self.0.env) + &Self::more(ALLOWED);
        self.0.agent = Some(self.0.env.machine.agent(&config));
    }

    /// The volumes that the agent knows.
    fn volumes(&self) -> Vec<Value> {
        let list = self.0.agent().get("/v1/volumes").json();
        list["volumes"].as_array().unwrap().clone()
    }

    /// The records of the volumes that the agent knows.
    fn records(&self) -> Vec<PathBuf> {
        let records = fs::read_dir(self.0.env.machine.cache().join("state/volumes")).unwrap();
        records.map(|entry| entry.unwrap().path()).collect()
    }

    /// The directory of a pod's checkpoints on the node.
    fn directory(&self) -> PathBuf {
        self.0.env.machine.volumes().join("default/jobs").join(JOB)
    }

    /// Whether a checkpoint of the pod is saved.
    fn is_saved(&self, name: &str) -> bool {
        let saved = |unit: &Value| unit["name"] == name && unit["state"] == "saved";
        self.volumes().iter().any(|volume| {
            volume["saving"]["checkpoints"].as_array().is_some_and(|units| units.iter().any(saved))
        })
    }

    /// The files of a checkpoint as it is in the mirror.
    fn saved(&self, name: &str, path: &str) -> String {
        let machine = &self.0.env.machine;
        let to = machine.directory("got").join(name);
        let source = format!("bt://llama@{JOB}/{name}");
        machine
            .run(&["checkpoint", "get", &source, to.to_str().unwrap(), "--mirror", "s3://mirror"])
            .succeeds();
        fs::read_to_string(to.join(path)).unwrap()
    }

    fn await_end(&self) {
        eventually("all is saved", || self.volumes().is_empty());
    }
}

fn checkpoints() -> PodVolume {
    PodVolume::inline(POD, &[("checkpoints", "llama")])
}

/// A node, the checkpoints of its pod, and where the pod has them.
fn node_with_checkpoints() -> (WritingNode, PodVolume, PathBuf) {
    let (node, volume) = (WritingNode::new(), checkpoints());
    assert!(node.0.kubelet.mount(&volume).is_empty());
    let target = node.0.kubelet.target(&volume);
    (node, volume, target)
}

fn write(directory: &Path, path: &str, content: &str) {
    let path = directory.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

#[test]
fn checkpoints_of_a_pod_are_saved_while_it_runs_and_after_it_has_ended() {
    let (node, volume, target) = node_with_checkpoints();
    let kubelet = &node.0.kubelet;
    kubelet.publish(&volume).unwrap();
    assert_eq!(crate::kit::mode(&target), 0o777, "whoever the pod's user is");
    assert_eq!(crate::kit::mode(&node.directory()), 0o700, "and nobody else");
    write(&target, "checkpoint-1/model", "one");
    write(&target, "checkpoint-1/.metadata", "");
    eventually("the first is saved", || node.is_saved("checkpoint-1"));
    assert_eq!(node.saved("checkpoint-1", "model"), "one");
    let (used, _, abnormal) = kubelet.stats(&volume).unwrap();
    assert_eq!((used, abnormal), (0, false), "no total, which would be a limit");
    // Written a moment before the end, and without a hint.
    write(&target, "checkpoint-2/model", "two");
    for _ in 0..2 {
        kubelet.unpublish(&volume).unwrap();
    }
    assert!(!is_mounted(&target));
    node.await_end();
    assert_eq!(node.saved("checkpoint-2", "model"), "two");
    assert!(!node.directory().exists(), "what is saved is not kept here");
    // On this node it is in the cache.
    node.0.env.s3.requests.clear();
    let source = format!("bt://llama@{JOB}/checkpoint-2");
    let resumed = PodVolume::persistent("resumed", "resumed", &[("source", &source)]);
    kubelet.mount(&resumed);
    assert_eq!(fs::read_to_string(kubelet.target(&resumed).join("model")).unwrap(), "two");
    assert_eq!(node.0.env.mirrored().requests, 0);
    kubelet.unpublish(&resumed).unwrap();
    assert_eq!(kubelet.stats(&volume).unwrap_err().code(), Code::NotFound);
}

#[test]
fn keep_of_a_pod_removes_older_checkpoints_of_its_project() {
    let node = WritingNode::new();
    let volume = PodVolume::inline(POD, &[("checkpoints", "llama"), ("keep", "2")]);
    node.0.kubelet.mount(&volume);
    let target = node.0.kubelet.target(&volume);
    for step in ["checkpoint-1", "checkpoint-2", "checkpoint-3"] {
        write(&target, &format!("{step}/model"), step);
        write(&target, &format!("{step}/.metadata"), "");
        eventually("it is saved", || node.is_saved(step));
    }
    node.0.kubelet.unpublish(&volume).unwrap();
    node.await_end();
    let project = ["checkpoint", "ls", "--project", "llama", "--json", "--mirror", "s3://mirror"];
    let listed = node.0.env.machine.run(&project).succeeds();
    assert!(!listed.contains("checkpoint-1"), "{listed}");
    assert!(listed.contains("checkpoint-2") && listed.contains("checkpoint-3"), "{listed}");
}

#[test]
fn checkpoints_of_a_pod_that_has_ended_are_saved_when_mirror_and_agent_are_back() {
    let (mut node, volume, target) = node_with_checkpoints();
    node.0.env.proxy.set(bdnfs_tests::proxy::NetworkFault { refuse: true, ..Default::default() });
    write(&target, "checkpoint-1/model", "one");
    let begin = Instant::now();
    node.0.kubelet.unpublish(&volume).unwrap();
    assert!(begin.elapsed().as_secs() < 60, "it does not wait for the upload");
    assert!(node.volumes().iter().all(|volume| volume["state"] == "saving"), "{:?}", node.volumes());
    // The same pod, before that is saved.
    let error = node.0.kubelet.publish(&volume).unwrap_err();
    assert!(error.code() == Code::Aborted && error.message().contains("is being saved"), "{error:?}");
    node.crash_agent_and_savers();
    node.start_agent();
    assert_eq!(node.volumes().len(), 1);
    node.0.env.proxy.set(Default::default());
    node.await_end();
    assert_eq!(node.saved("checkpoint-1", "model"), "one");
    // And then it begins with an empty directory.
    node.0.kubelet.mount(&volume);
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
    node.0.kubelet.unpublish(&volume).unwrap();
    node.await_end();
}

#[test]
fn volume_to_write_to_that_cannot_be_is_refused_by_name_and_leaves_nothing() {
    let node = WritingNode::with("", "");
    let refused = |volume: &PodVolume, code: Code, words: &str| {
        let error = node.0.kubelet.publish(volume).unwrap_err();
        assert!(error.code() == code && error.message().contains(words), "{error:?}");
        assert!(node.volumes().is_empty() && !node.directory().exists(), "{error:?}");
    };
    let inline = |attributes: &[(&str, &str)]| PodVolume::inline(POD, attributes);
    let owned = |attributes: &[(&str, &str)]| PodVolume {
        mode: Mode::SingleNodeWriter,
        ..PodVolume::persistent("volume", POD, attributes)
    };
    let one = [("checkpoints", "llama")];
    refused(&inline(&one), Code::PermissionDenied, "inline_volumes");
    refused(&inline(&[("projectCache", "llama")]), Code::PermissionDenied, "projectCache: ");
    refused(&inline(&[("teamCache", "research")]), Code::PermissionDenied, "teamCache: ");
    let both = [("checkpoints", "llama"), ("source", "s3://bucket")];
    refused(&owned(&both), Code::InvalidArgument, "source: cannot be used with checkpoints");
    refused(&PodVolume { read_only: true, ..owned(&one) }, Code::InvalidArgument, "checkpoints: ");
    let reader = PodVolume { mode: Mode::MultiNodeReaderOnly, ..owned(&one) };
    refused(&reader, Code::InvalidArgument, "ReadWriteOnce");
    refused(&owned(&one).secret("key", "hush"), Code::InvalidArgument, "takes no secret");
    refused(&owned(&[("checkpoints", "a\nb")]), Code::InvalidArgument, "checkpoints: ");
    let mut nameless = owned(&one);
    nameless.context.remove("csi.storage.k8s.io/pod.uid");
    refused(&nameless, Code::InvalidArgument, "podInfoOnMount");
    // An administrator needs no rule.
    node.0.kubelet.mount(&owned(&one));
    node.0.kubelet.unpublish(&owned(&one)).unwrap();
    node.await_end();
}

#[test]
fn checkpoints_without_a_mirror_are_refused() {
    let node = KubernetesNode::with_config(CALL_DEADLINE, ALLOWED);
    let error = node.kubelet.publish(&checkpoints()).unwrap_err();
    assert!(error.code() == Code::FailedPrecondition && error.message().contains("[mirror]"), "{error:?}");
}

#[test]
fn project_cache_is_one_directory_for_its_pods_and_saved_after_the_last() {
    let mut node = WritingNode::new();
    let volume = |pod: &str| PodVolume::inline(pod, &[("projectCache", "llama")]);
    let (one, other) = (volume("one"), volume("other"));
    node.0.kubelet.mount(&one);
    node.0.kubelet.mount(&other);
    write(&node.0.kubelet.target(&one), "pip/file", "cached");
    assert_eq!(fs::read_to_string(node.0.kubelet.target(&other).join("pip/file")).unwrap(), "cached");
    node.crash_agent();
    node.start_agent();
    let project = |command: &str| {
        let words = ["project", command, "llama", "--yes", "--mirror", "s3://mirror"];
        node.0.env.machine.run(&words)
    };
    let removed = project("rm");
    assert!(removed.code != Some(0) && removed.err.contains("in use"), "{removed:?}");
    node.0.kubelet.unpublish(&one).unwrap();
    eventually("the first has ended", || node.volumes().len() == 1);
    assert!(!node.has_saved(), "the other pod uses it");
    node.0.kubelet.unpublish(&other).unwrap();
    node.await_end();
    assert!(node.has_saved());
    let home = node.0.env.machine.volumes().join("default/caches/project/llama");
    assert_eq!(fs::read_to_string(home.join("tree/pip/file")).unwrap(), "cached");
    // On a node that lost it, a pod begins with what is saved.
    node.0.env.machine.run(&["project", "rm", "llama", "--yes"]).succeeds();
    assert!(!home.exists());
    node.0.kubelet.mount(&one);
    assert_eq!(fs::read_to_string(node.0.kubelet.target(&one).join("pip/file")).unwrap(), "cached");
    node.0.kubelet.unpublish(&one).unwrap();
    node.await_end();
    project("rm").succeeds();
    assert!(!home.exists());
}

#[test]
fn team_cache_of_pods_is_that_of_jobs_of_their_tenant_and_team() {
    let node = WritingNode::new();
    let kubelet = &node.0.kubelet;
    let volume = |pod: &str, namespace: &str, attribute: (&str, &str)| {
        let mut volume = PodVolume::inline(pod, &[attribute]);
        volume.context.insert("csi.storage.k8s.io/pod.namespace".into(), namespace.into());
        volume
    };
    let team = volume("team", "default", ("teamCache", "research"));
    let others = [
        volume("project", "default", ("projectCache", "research")),
        volume("team-b", "default", ("teamCache", "b")),
        volume("tenant", "other", ("teamCache", "research")),
    ];
    kubelet.mount(&team);
    write(&kubelet.target(&team), "pip/file", "cached");
    for other in &others {
        kubelet.mount(other);
        assert_eq!(fs::read_dir(kubelet.target(other)).unwrap().count(), 0, "{:?}", other.context);
        kubelet.unpublish(other).unwrap();
    }
    let mut foreign = volume("foreign", "default", ("teamCache", "research"));
    foreign.context.insert("tenant".into(), "other".into());
    let error = kubelet.publish(&foreign).unwrap_err();
    assert!(error.code() == Code::PermissionDenied && error.message().contains("tenant"), "{error:?}");
    // A job of the team, at the same time.
    let machine = &node.0.env.machine;
    let seen = machine.directory("seen").join("file");
    let command = format!("cp $BT_TEAM_CACHE_DIR/pip/file {}", seen.display());
    let runtime = json!({"start_commands": [command], "cache_config": {
        "enabled": true, "mount_base_path": machine.directory("base"), "require_cache_affinity": false,
    }});
    let body = json!({"image": {"base_image": "x"}, "runtime": runtime, "weights": []}).to_string();
    let spec = machine.directory("specs").join("job.json");
    fs::write(&spec, body).unwrap();
    machine.run(&["job", "run", "--no-mirror", "--team", "research", spec.to_str().unwrap()]).succeeds();
    assert_eq!(fs::read_to_string(seen).unwrap(), "cached");
    kubelet.unpublish(&team).unwrap();
    node.await_end();
    assert!(node.has_saved());
    let home = machine.volumes().join("default/caches/team/research");
    assert_eq!(fs::read_to_string(home.join("tree/pip/file")).unwrap(), "cached");
}

#[test]
fn project_cache_is_saved_while_a_pod_uses_it() {
    let node = WritingNode::with(ALLOWED, "[volumes]\nsave_interval = \"2s\"\n");
    let volume = PodVolume::inline(POD, &[("projectCache", "llama")]);
    node.0.kubelet.mount(&volume);
    write(&node.0.kubelet.target(&volume), "pip/file", "cached");
    eventually("it is saved", || node.has_saved());
    assert_eq!(node.volumes()[0]["state"], "published");
    node.0.kubelet.unpublish(&volume).unwrap();
    node.await_end();
}

/// Publishes a project cache that is pulled from a mirror that does not answer, and expects that `end` ends that at once.
fn ended_while_it_is_pulled(end: impl FnOnce(&WritingNode, &PodVolume)) {
    let node = WritingNode::new();
    node.0.env.proxy.set(bdnfs_tests::proxy::NetworkFault { frozen: true, ..Default::default() });
    let volume = PodVolume::inline(POD, &[("projectCache", "llama")]);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| node.0.kubelet.call_publish(&volume));
        eventually("it is prepared", || node.volumes().len() == 1);
        let begin = Instant::now();
        end(&node, &volume);
        assert!(begin.elapsed().as_secs() < 2, "{:?}", begin.elapsed());
        assert_eq!(held.join().unwrap().unwrap_err().code(), Code::Aborted);
    });
    node.await_end();
}

#[test]
fn pod_deleted_while_its_project_cache_is_pulled_ends_at_once() {
    ended_while_it_is_pulled(|node, volume| node.0.kubelet.unpublish(volume).unwrap());
}

#[test]
fn publish_that_is_refused_while_its_project_cache_is_pulled_is_not_taken_for_done() {
    ended_while_it_is_pulled(|node, _| {
        // As where the rules of the driver are others since it was restarted.
        let refused = PodVolume::inline(POD, &[("projectCache", "llama"), ("source", "s3://bucket")]);
        assert_eq!(node.0.kubelet.call_publish(&refused).unwrap_err().code(), Code::InvalidArgument);
    });
}
