//! Training caches on a disk that is nearly full.

use std::path::{Path, PathBuf};

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use serde_json::{Value, json};

use super::kit::{events, job, spec, submitted, text, toml};

/// A machine with an agent whose volumes lie on a small disk.
struct SmallDisk {
    disk: LoopDisk,
    machine: Machine,
}

impl SmallDisk {
    fn new(reserve: &str) -> Option<Self> {
        let disk = LoopDisk::new(256 << 20)?;
        let machine = Machine::new().env("BDNFS_CACHE_RESERVE", reserve);
        Some(Self { machine: machine.env("BDNFS_VOLUMES_DIR", disk.path().join("volumes")), disk })
    }

    /// One whose cache is on the disk, too.
    fn with_cache() -> Option<Self> {
        let disk = LoopDisk::new(256 << 20)?;
        let machine = Machine::new().with_cache(&disk.path().join("cache"));
        Some(Self { machine: machine.env("BDNFS_VOLUMES_DIR", disk.path().join("volumes")), disk })
    }

    fn agent(&self) -> AgentProcess {
        let mirror = self.machine.directory("home").join("mirror");
        self.machine.agent(&format!("[mirror]\nurl = \"file://{}\"\n", mirror.display()))
    }

    /// Runs a job with a training cache, and answers with its events.
    fn run(&self, agent: &AgentProcess, more: &[&str], command: &str) -> Vec<String> {
        let cache = json!({"enabled": true, "mount_base_path": self.machine.directory("base")});
        let runtime = json!({"start_commands": [command], "cache_config": cache});
        let body = json!({"image": {"base_image": "x"}, "runtime": runtime, "weights": []});
        let file = spec(&self.machine, "job.json", &body.to_string());
        let id = submitted(&self.machine, &[more, &[text(&file)]].concat());
        job(&self.machine, &["wait", &id]).succeeds();
        let status: Value = agent.get(&format!("/v1/jobs/{id}")).json();
        events(&status)
    }

    fn tree(&self, project: &str) -> PathBuf {
        let homes = self.disk.path().join("volumes/default/caches/project");
        homes.join(Path::new(project)).join("tree")
    }
}

#[test]
fn training_cache_that_is_saved_and_unused_makes_room_and_comes_back_from_the_mirror() {
    // Half of it is more than what is free beside one of the caches.
    let Some(small) = SmallDisk::new("300MB") else { return };
    let agent = small.agent();
    small.run(&agent, &["--project", "unsaved", "--no-mirror"], "echo kept > $BT_PROJECT_CACHE_DIR/file");
    let write = "cd $BT_PROJECT_CACHE_DIR && head -c 100000000 /dev/urandom > data && sha256sum data > sum";
    let events = small.run(&agent, &["--project", "large"], write);
    assert!(
        events.iter().any(|event| event.starts_with("saved the cache of the project large")),
        "{events:?}"
    );
    let events = small.run(&agent, &["--project", "new"], "true");
    let evicted = "removed the cache of the project large from this node to make room: it is saved";
    assert!(events.iter().any(|event| event.starts_with(evicted)), "{events:?}");
    assert!(!small.tree("large").exists());
    assert!(small.tree("unsaved").join("file").exists() && small.tree("new").exists());
    let events = small.run(&agent, &["--project", "large"], "cd $BT_PROJECT_CACHE_DIR && sha256sum -c sum");
    assert!(!events.iter().any(|event| event.contains("project unsaved")), "{events:?}");
    agent.stop();
}

#[test]
fn volume_without_room_has_saved_unused_training_caches_removed() {
    let Some(small) = SmallDisk::new("1MiB") else { return };
    let agent = small.agent();
    small.run(&agent, &["--project", "large"], "head -c 100000000 /dev/urandom > $BT_PROJECT_CACHE_DIR/data");
    // In bytes, as no specification has it.
    let run = |limit: u64| {
        let request = json!({
            "weights": [], "start_commands": ["true"], "workdir": "/", "checkpoints": {"size_limit": limit},
        });
        let id = agent.ask("POST", "/v1/jobs", &request.to_string()).json()["id"].to_string();
        job(&small.machine, &["wait", &id]);
        agent.get(&format!("/v1/jobs/{id}")).json()
    };
    let refused = run(1 << 40);
    assert_eq!(refused["state"], "TRAINING_JOB_FAILED", "{refused}");
    assert!(small.tree("large").exists(), "the disk is too small without it, too");
    let completed = run(180_000_000);
    assert_eq!(completed["state"], "TRAINING_JOB_COMPLETED", "{completed}");
    let evicted = "removed the cache of the project large from this node to make room: it is saved";
    assert!(events(&completed).iter().any(|event| event.starts_with(evicted)), "{completed}");
    assert!(!small.tree("large").exists());
    agent.stop();
}

#[test]
fn job_whose_sources_do_not_fit_beside_a_saved_training_cache_has_that_removed() {
    let Some(small) = SmallDisk::with_cache() else { return };
    let agent = small.agent();
    let write = "head -c 100000000 /dev/urandom > $BT_PROJECT_CACHE_DIR/data";
    small.run(&agent, &["--project", "large"], write);
    let read = |bytes: u64| {
        let source = small.machine.directory("source");
        std::fs::File::create(source.join("weights")).unwrap().set_len(bytes).unwrap();
        let (uri, place) = (format!("file://{}", text(&source)), small.machine.directory("place"));
        let file = spec(&small.machine, "reader.toml", &toml(&[(&uri, text(&place))], &["true"]));
        let id = submitted(&small.machine, &["--no-mirror", text(&file)]);
        job(&small.machine, &["wait", &id]);
        agent.get(&format!("/v1/jobs/{id}")).json()
    };
    let refused: Value = read(1 << 40);
    assert_eq!(refused["state"], "TRAINING_JOB_FAILED", "{refused}");
    assert!(small.tree("large").exists(), "the disk is too small without it, too");
    let status: Value = read(160_000_000);
    assert_eq!(status["state"], "TRAINING_JOB_COMPLETED", "{status}");
    let evicted = "removed the cache of the project large from this node to make room: it is saved";
    assert!(events(&status).iter().any(|event| event.starts_with(evicted)), "{status}");
    assert!(!small.tree("large").exists());
    agent.stop();
}
