//! The processes of a job: all below its supervisor, which adopts those whose parent has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, pidfd_open, pidfd_send_signal, wait,
};

/// Sends `signal` to all processes of the job, and returns how many there are.
pub fn signal(signal: Signal) -> usize {
    let all = all();
    all.iter().for_each(|pid| send(signal, *pid, &all));
    all.len()
}

/// Sends `signal` to the process `pid` of `all`, those below this one, unless it has ended meanwhile.
fn send(signal: Signal, pid: i32, all: &BTreeSet<i32>) {
    let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    // Looked at again now that the process is held: its id may be that of a process of the host by now.
    let is_below = |parent: i32| parent == std::process::id() as i32 || all.contains(&parent);
    if let Some(process) = process.filter(|_| parent_of(pid).is_some_and(is_below)) {
        // A process that has ended needs no signal.
        let _ = pidfd_send_signal(process, signal);
    }
}

/// Reaps the next child of this process that has ended, if any has.
pub fn reap() -> Option<(Pid, WaitStatus)> {
    // Not `waitpid`, which passes over those that have a group of their own.
    wait(WaitOptions::NOHANG).ok().flatten()
}

/// All processes below this one, those that have ended and wait to be reaped left out.
pub fn all() -> BTreeSet<i32> {
    let parents: BTreeMap<i32, i32> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, parent_of(pid)?))
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

/// The parent of the process `pid`, if that lives.
fn parent_of(pid: i32) -> Option<i32> {
    parent(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
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
    use std::io::{BufRead, BufReader};

    use super::*;

    #[test]
    fn parent_of_a_process_with_any_name_is_parsed() {
        assert_eq!(parent("7 (a) S 1) S 3 7 7 0"), Some(3));
        assert_eq!(parent("7 (sh) Z 3 7 7 0"), None);
        assert_eq!(parent(""), None);
    }

    #[test]
    fn signal_to_a_process_that_is_not_below_any_listed_one_is_not_sent() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & echo $!; wait"]).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().expect("a process");
        let mut line = String::new();
        let output = shell.stdout.take().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("its child");
        let pid: i32 = line.trim().parse().expect("a number");
        // As if its parent and it were processes of the host with the ids of two that have ended.
        send(Signal::KILL, pid, &BTreeSet::from([pid]));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(parent_of(pid).is_some(), "it lives");
        send(Signal::KILL, pid, &BTreeSet::from([pid, shell.id() as i32]));
        shell.wait().expect("its child was killed");
        assert_eq!(parent_of(pid), None);
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
