//! Processes that hang: they live, and run no instruction.

use std::fs;
use std::path::PathBuf;

use rustix::process::Pid;

use crate::process::eventually;

/// A process that hangs and can be killed, unlike one that SIGSTOP stopped, which others can continue. Dropping it lets it go on.
#[derive(Debug)]
pub struct FrozenProcess {
    root: PathBuf,
    group: PathBuf,
}

impl FrozenProcess {
    /// Freezes the process `pid` in a control group of its own.
    ///
    /// # Panics
    /// When control groups of version 2 are not mounted.
    pub fn new(pid: Pid) -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let mut lines = mounts.lines().map(|line| line.split(' '));
        let root = lines.find_map(|mut fields| {
            Some(fields.nth(1)?.to_owned()).filter(|_| fields.next() == Some("cgroup2"))
        });
        let root = PathBuf::from(root.expect("control groups of version 2 are mounted"));
        let group = root.join(format!("bdnfs-test-{}", pid.as_raw_nonzero()));
        // That of an earlier process of the same id, whose test was killed.
        let _ = fs::remove_dir(&group);
        fs::create_dir(&group).expect("a group");
        let frozen = Self { root, group };
        fs::write(frozen.group.join("cgroup.procs"), pid.as_raw_nonzero().to_string())
            .expect("it is in the group");
        fs::write(frozen.group.join("cgroup.freeze"), "1").expect("frozen");
        eventually("the group is frozen", || {
            fs::read_to_string(frozen.group.join("cgroup.events"))
                .is_ok_and(|events| events.contains("frozen 1"))
        });
        frozen
    }

    /// Moves all processes out of the group: the one that was frozen, and those that it has started since.
    fn empty_group(&self) {
        let processes = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for process in processes.lines() {
            // Nobody reads the groups of a process that has been killed.
            let _ = fs::write(self.root.join("cgroup.procs"), process);
        }
    }
}

impl Drop for FrozenProcess {
    fn drop(&mut self) {
        let _ = fs::write(self.group.join("cgroup.freeze"), "0");
        // A process that was killed leaves it when all its threads have ended.
        eventually("the group is empty", || {
            self.empty_group();
            fs::remove_dir(&self.group).is_ok()
        });
    }
}
