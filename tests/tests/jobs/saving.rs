//! What the suites of what jobs save share.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use bdnfs::cache::Limits;
use bdnfs::checkpoint::{CheckpointId, encoded_name};
use bdnfs::engine::{Config, Engine};
use bdnfs::error::{Error, Kind};
use bdnfs::manifest::Node;
use bdnfs::mirror::Mirror;
use bdnfs::mirror::index::checkpoint_key;
use bdnfs::source::Access;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use serde_json::Value;
use tempfile::TempDir;

use super::kit::{events, sha256, spec, submitted, text, toml};

/// Paths in a checkpoint, and the SHA-256 of what is there.
pub type Files = BTreeSet<(String, String)>;

/// A machine with an agent, whose mirror is a directory.
pub struct SavingMachine {
    pub machine: Machine,
    pub agent: AgentProcess,
}

pub fn start(machine: &Machine) -> AgentProcess {
    start_with(machine, "")
}

/// Starts an agent whose configuration has the lines `config`.
pub fn start_with(machine: &Machine, config: &str) -> AgentProcess {
    machine.agent(&format!("{config}\n[mirror]\nurl = \"file://{}\"\n", mirror(machine).display()))
}

pub fn mirror(machine: &Machine) -> PathBuf {
    machine.directory("home").join("mirror")
}

/// The specification of a job that writes checkpoints with `command`.
pub fn saving_spec(machine: &Machine, name: &str, command: &str) -> PathBuf {
    let text = toml(&[], &[command]) + "[runtime.checkpointing_config]\nenabled = true\n";
    spec(machine, &format!("{name}.toml"), &text)
}

impl SavingMachine {
    pub fn new() -> Self {
        let machine = Machine::new();
        let agent = start(&machine);
        Self { machine, agent }
    }

    /// Submits a job of the project `p` that writes checkpoints with `command`, and answers with its number.
    pub fn submit(&self, id: &str, command: &str) -> String {
        submitted(
            &self.machine,
            &["--id", id, "--project", "p", text(&saving_spec(&self.machine, id, command))],
        )
    }

    pub fn status(&self, number: &str) -> Value {
        self.agent.get(&format!("/v1/jobs/{number}")).json()
    }

    /// Waits until the job has ended, and answers with its status.
    pub fn ended(&self, number: &str) -> Value {
        eventually("the job ends", || !self.status(number)["ended"].is_null());
        self.status(number)
    }

    pub fn await_event(&self, number: &str, begin: &str) {
        eventually(begin, || events(&self.status(number)).iter().any(|event| event.starts_with(begin)));
    }

    /// What is saved as `source`.
    pub fn files(&self, source: &str) -> Option<Files> {
        saved_files(&mirror(&self.machine), source)
    }

    /// The volume of the job `id`.
    pub fn volume(&self, id: &str) -> PathBuf {
        self.machine.volumes().join("default/jobs").join(id)
    }

    pub fn verify(&self) {
        let url = format!("file://{}", mirror(&self.machine).display());
        self.machine.run(&["mirror", "verify", "--deep", "--mirror", &url]).succeeds();
    }

    /// As [`verify`](Self::verify), where anything was saved yet.
    pub fn verify_if_begun(&self) {
        if mirror(&self.machine).join("format.json").exists() {
            self.verify();
        }
    }

    /// Has the mirror be away, until [`bring_mirror_back`](Self::bring_mirror_back).
    pub fn take_mirror_away(&self) {
        let mirror = mirror(&self.machine);
        let _ = fs::rename(&mirror, mirror.with_extension("away"));
        fs::write(mirror, "no directory").unwrap();
    }

    pub fn bring_mirror_back(&self) {
        let mirror = mirror(&self.machine);
        fs::remove_file(&mirror).unwrap();
        let _ = fs::rename(mirror.with_extension("away"), mirror);
    }
}

/// The files of the checkpoint `source` in the mirror `directory`, if it is saved; read as any job reads it.
pub fn saved_files(directory: &Path, source: &str) -> Option<Files> {
    Some(saved_checkpoint(directory, source)?.1)
}

/// The names of the checkpoints of the job `id` of the project `p` in the mirror `directory`.
pub fn saved_names(directory: &Path, id: &str) -> Vec<String> {
    let index = directory.join("tenants/default/checkpoints/p").join(id);
    let names = fs::read_dir(index).into_iter().flatten().flatten();
    names.map(|entry| encoded_name::decode(entry.file_name().to_str().unwrap()).unwrap()).collect()
}

/// The files of the checkpoint `source`, as [`saved_files`] has them, and whether the index says that this state is complete.
pub fn saved_checkpoint(directory: &Path, source: &str) -> Option<(bool, Files)> {
    let home = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let uri = format!("file://{}", directory.display()).parse().unwrap();
        let mirror = Mirror::open(&uri, &Access::default(), "default", home.path().to_owned()).unwrap();
        let id: CheckpointId = source.parse().unwrap();
        let saved = mirror.checkpoint(&id).await.unwrap()?;
        let found = mirror.find(&checkpoint_key(&id)).await.unwrap()?;
        let config = Config {
            cache: home.path().join("cache"),
            tenant: "default".into(),
            limits: Limits { capacity: None, reserve: 0 },
            quotas: Default::default(),
            memory: 64 << 20,
            now: std::time::SystemTime::now,
        };
        let engine = Engine::open(&config, tokio::runtime::Handle::current()).unwrap();
        let nowhere = || -> futures_util::future::BoxFuture<'static, _> {
            Box::pin(async { Err(Error::new(Kind::NotFound, "there is no origin")) })
        };
        let snapshot = engine.mirrored(&mirror, &found, Box::new(nowhere)).await.unwrap();
        let (manifest, mut files) = (snapshot.manifest(), Files::new());
        for entry in 0..manifest.entries() {
            if let Node::File(slice) = manifest.entry(entry).unwrap().node {
                let len = slice.len as usize;
                let content = snapshot.open(slice).unwrap().read_at(0, len).await.unwrap().concat();
                let path = String::from_utf8(manifest.path(entry).unwrap()).unwrap();
                files.insert((path, sha256(&content)));
            }
        }
        assert!(saved.generation > 0 && files.len() as u64 == manifest.files());
        // The entry may be of an earlier generation.
        Some((saved.complete && saved.manifest == found.manifest, files))
    })
}

/// What became of the checkpoints of a job: name, state, complete, generation.
pub fn checkpoints(status: &Value) -> Vec<(String, String, bool, u64)> {
    let all = status["saving"]["checkpoints"].as_array().cloned().unwrap_or_default();
    let one = |one: &Value| {
        let text = |key: &str| one[key].as_str().unwrap().to_owned();
        (text("name"), text("state"), one["complete"].as_bool().unwrap(), one["generation"].as_u64().unwrap())
    };
    all.iter().map(one).collect()
}

pub fn saved(name: &str, complete: bool, generation: u64) -> (String, String, bool, u64) {
    (name.to_owned(), "saved".to_owned(), complete, generation)
}

pub fn file(path: &str, content: &str) -> (String, String) {
    (path.to_owned(), sha256(content.as_bytes()))
}
