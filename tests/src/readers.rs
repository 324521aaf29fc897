//! Readers: processes that read mounts in all ways, while a test does things to what serves those.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::machine::Machine;
use crate::process::{eventually, wait_for_exit};
use crate::tools::target;

/// Processes that read mounts, and end at the first thing that is wrong. Dropping it kills them.
#[derive(Debug)]
pub struct ReaderProcesses {
    stop: PathBuf,
    all: Vec<ReaderProcess>,
}

#[derive(Debug)]
struct ReaderProcess {
    child: Child,
    progress: PathBuf,
    /// How many of its stalls were asked for.
    seen: usize,
}

impl ReaderProcess {
    /// How much it has done, and how long all took that took long.
    fn progress(&self) -> (u64, Vec<Duration>) {
        let bytes = fs::read(&self.progress).expect("its progress");
        let (turns, stalls) = bytes.split_first_chunk().expect("eight bytes at least");
        let millis = stalls.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("four")));
        (u64::from_le_bytes(*turns), millis.map(|millis| Duration::from_millis(millis.into())).collect())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.progress.with_extension("log")).unwrap_or_default()
    }
}

impl ReaderProcesses {
    /// Starts `count` of them, which read `mounts` in turn: each the directory with the original, and where that is mounted.
    ///
    /// # Panics
    /// When they can't be started.
    pub fn start(machine: &Machine, mounts: &[(PathBuf, PathBuf)], count: u64, seed: u64) -> Self {
        Self::start_with(&machine.directory(&format!("readers-{seed}")), count, |number, progress, stop| {
            let (original, mount) = &mounts[number as usize % mounts.len()];
            let mut command = Command::new(target().join("reader"));
            command.arg(original).arg(mount).arg(progress).arg(stop).arg((seed + number).to_string());
            command
        })
    }

    /// Starts `count` of them by commands, which are told their number, and the files of their progress and of the end of all.
    /// These lie in `directory`.
    ///
    /// # Panics
    /// When they can't be started.
    pub fn start_with(directory: &Path, count: u64, command: impl Fn(u64, &Path, &Path) -> Command) -> Self {
        let stop = directory.join("stop");
        let spawn = |number: u64| {
            let progress = directory.join(number.to_string());
            fs::write(&progress, [0; 8]).expect("a file");
            let log = File::create(progress.with_extension("log")).expect("a file");
            let mut command = command(number, &progress, &stop);
            let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
            ReaderProcess { child: child.expect("a reader"), progress, seen: 0 }
        };
        Self { all: (0..count).map(spawn).collect(), stop }
    }

    /// Waits until each has done something more.
    ///
    /// # Panics
    /// When one has ended, or never does.
    pub fn wait_for_progress(&mut self) {
        for reader in &mut self.all {
            // One turn may have been all but done.
            let (begin, _) = reader.progress();
            eventually(&format!("reader {} goes on", reader.child.id()), || {
                if let Some(status) = reader.child.try_wait().expect("a child can be asked") {
                    panic!("a reader ended with {status}: {}", reader.log());
                }
                reader.progress().0 > begin + 1
            });
        }
    }

    /// The longest stall of each since this was asked last, the shortest first; nothing under a tenth of a second is one.
    pub fn stalls(&mut self) -> Vec<Duration> {
        let mut longest: Vec<_> = Vec::with_capacity(self.all.len());
        for reader in &mut self.all {
            let (_, stalls) = reader.progress();
            longest.push(stalls[reader.seen..].iter().max().copied().unwrap_or_default());
            reader.seen = stalls.len();
        }
        longest.sort_unstable();
        longest
    }

    /// Makes them read again what they have open, and end.
    ///
    /// # Panics
    /// When one fails, or does not end.
    pub fn end(mut self) {
        fs::write(&self.stop, "").expect("a file");
        for mut reader in std::mem::take(&mut self.all) {
            let status = wait_for_exit(&mut reader.child, "a reader");
            assert!(status.success(), "a reader ended with {status}: {}", reader.log());
        }
    }
}

impl Drop for ReaderProcesses {
    fn drop(&mut self) {
        for reader in &mut self.all {
            let _ = reader.child.kill();
            // Not waited for: it may be stuck until its mount is taken away, which comes next.
        }
    }
}
