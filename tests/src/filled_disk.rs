//! A disk that the cache has filled, with the volumes on it.

use crate::agent::AgentProcess;
use crate::disk::LoopDisk;
use crate::machine::Machine;
use crate::tree::write_file;

/// A machine whose volumes are on the disk of its cache: that has 50 MiB which nobody uses any more, of some 110 MiB, and keeps 40
/// MiB free.
#[derive(Debug)]
pub struct FilledDisk {
    /// Its agent.
    pub agent: AgentProcess,
    /// The machine.
    pub machine: Machine,
    _disk: LoopDisk,
}

impl FilledDisk {
    /// Fills the cache; `None` where there are no loop devices.
    ///
    /// # Panics
    /// When it can't be filled.
    pub fn new() -> Option<Self> {
        let disk = LoopDisk::new(128 << 20)?;
        let machine = Machine::new()
            .with_cache(&disk.path().join("cache"))
            .env("BDNFS_VOLUMES_DIR", disk.path().join("volumes"))
            .env("BDNFS_CACHE_RESERVE", "40MiB");
        let agent = machine.agent("");
        let source = machine.directory("source");
        for number in 0..5 {
            write_file(&source, format!("weights{number}"), 10 << 20);
        }
        let point = machine.mount_with(format!("file://{}", source.display()), "mnt", &["--wait"]);
        machine.run(&["umount", point.to_str().expect("UTF-8")]).succeeds();
        let filled = Self { agent, machine, _disk: disk };
        assert!(filled.usage("used") >= 50 << 20 && filled.usage("evicted") == 0);
        Some(filled)
    }

    /// A number of the cache's usage, in bytes: `used`, `free`, `evicted`.
    ///
    /// # Panics
    /// When the agent does not know it.
    pub fn usage(&self, key: &str) -> u64 {
        self.agent.status()["daemon"]["usage"][key].as_u64().expect("a number")
    }
}
