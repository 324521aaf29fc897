//! The processes of a job: all below its supervisor, which adopts those whose parent has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

/// Sends `signal` to all processes of the job, and returns how many there are.
pub fn signal(signal: Signal) -> usize {
    let all = all();
    for pid in &all {
        // A process that has ended needs no signal.
        let _ = Pid::from_raw(*pid).map(|pid| kill_process(pid, signal));
    }
    all.len()
}

/// Reaps the next child of this process that has ended, if any has.
pub fn reap() -> Option<(Pid, WaitStatus)> {
    // Not `waitpid`, which passes over those that have a group of their own.
    wait(WaitOptions::NOHANG).ok().flatten()
}

/// All processes below this one, those that have ended and wait to be reaped left out.
fn all() -> BTreeSet<i32> {
    let parents: BTreeMap<i32, i32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent(&fs::read_to_string(entry.path().join("stat")).ok()?)?))
        })
        .collect();
    let own = std::process::id() as i32;
    let is_below = |mut pid: i32| {
        // The steps are bounded: what is read of processes that come and go may form a ring.
        for _ in 0..parents.len() {
            match parents.get(&pid) {
                Some(parent) if *parent == own => return true,
                Some(parent) => pid = *parent,
                None => return false,
            }
        }
        false
    };
    parents.keys().copied().filter(|pid| is_below(*pid)).collect()
}

/// The parent in a line of `/proc/<pid>/stat`, of a process that lives. The name may hold anything, so it is counted from
/// the last parenthesis.
fn parent(stat: &str) -> Option<i32> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_of_a_process_with_any_name_is_parsed() {
        assert_eq!(parent("7 (a) S 1) S 3 7 7 0"), Some(3));
        assert_eq!(parent("7 (sh) Z 3 7 7 0"), None);
        assert_eq!(parent(""), None);
    }

    #[test]
    fn children_of_this_process_are_listed() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a process");
        assert!(all().contains(&(child.id() as i32)));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(!all().contains(&(child.id() as i32)));
    }
}
