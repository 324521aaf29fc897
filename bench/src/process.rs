//! Processor time and memory of processes, and which one is the agent.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

/// A process, our child or not.
#[derive(Clone, Copy, Debug)]
pub struct ProcessStats(Pid);

impl ProcessStats {
    /// That with the number `pid`.
    pub fn of(pid: Pid) -> Self {
        Self(pid)
    }

    /// The agent that has the lock of `cache`, if there is one.
    pub fn agent(cache: &Path) -> Option<Self> {
        let inode = fs::metadata(cache.join("lock")).ok()?.ino();
        let locks = fs::read_to_string("/proc/locks").ok()?;
        locks.lines().find_map(|line| holder(line, inode)).and_then(Pid::from_raw).map(Self)
    }

    /// Seconds of CPU that it has used, in user and kernel mode (proc_pid_stat(5): the 14th and 15th field).
    ///
    /// # Errors
    /// It is gone.
    pub fn cpu(&self) -> Result<f64> {
        let stat = self.read("stat")?;
        // The second field is a name in parentheses, which may hold spaces.
        let (_, fields) = stat.rsplit_once(") ").context("/proc/PID/stat has another format")?;
        let ticks =
            fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>();
        Ok(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
    }

    /// MiB of memory that it has now: `VmRSS`, or had at the most: `VmHWM` (proc_pid_status(5)).
    ///
    /// # Errors
    /// It is gone.
    pub fn memory(&self, field: &str) -> Result<f64> {
        let status = self.read("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        let kib: f64 =
            line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).context("no such field")?;
        Ok(kib / 1024.0)
    }

    /// How many files it has open.
    ///
    /// # Errors
    /// It is gone.
    pub fn open_files(&self) -> Result<f64> {
        let path = format!("/proc/{}/fd", self.0.as_raw_nonzero());
        Ok(std::fs::read_dir(&path).with_context(|| format!("cannot list {path}"))?.count() as f64)
    }

    /// Asks it to end, and kills it when it has not ended after `limit`.
    pub fn end(&self, limit: Duration) {
        // What fails here is that it is gone, which is what is wanted.
        let _ = kill_process(self.0, Signal::TERM);
        let begin = Instant::now();
        while self.lives() && begin.elapsed() < 2 * limit {
            if begin.elapsed() > limit {
                let _ = kill_process(self.0, Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn lives(&self) -> bool {
        self.read("stat").is_ok_and(|stat| !stat.contains(") Z "))
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = format!("/proc/{}/{name}", self.0);
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))
    }
}

/// The process that holds an flock on the file `inode`, by a line of /proc/locks (proc_locks(5)).
fn holder(line: &str, inode: u64) -> Option<i32> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (kind, pid) = (fields.next()?, fields.nth(2)?);
    let locked = fields.next()?.rsplit(':').next()?.parse::<u64>().ok()?;
    (kind == "FLOCK" && locked == inode).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_holding_a_lock_is_found() {
        let line = "3: FLOCK  ADVISORY  WRITE 4711 fe:00:131090 0 EOF";
        assert_eq!(holder(line, 131090), Some(4711));
        assert_eq!(holder(line, 1), None);
        assert_eq!(holder("4: POSIX  ADVISORY  WRITE 1 fe:00:131090 0 EOF", 131090), None);
        assert_eq!(holder("3: -> FLOCK  ADVISORY  WRITE 12 fe:00:131090 0 EOF", 131090), None);
    }

    #[test]
    fn process_cost_of_self_is_positive() {
        let this = ProcessStats(rustix::process::getpid());
        assert!(this.cpu().unwrap() >= 0.0);
        assert!(this.memory("VmHWM").unwrap() >= this.memory("VmRSS").unwrap() * 0.5);
    }
}
