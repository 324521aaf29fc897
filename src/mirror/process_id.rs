//! Identities of processes, so that a lease whose holder was killed on this machine need not time out.

use std::fs;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use crate::boot;

/// The identity of this process: the machine's boot and its PID namespace, hashed; its id; when it started. Empty where
/// that can't be told. What it asks the kernel for never waits.
pub(super) fn current() -> String {
    let pid = std::process::id();
    match machine().zip(started(pid)) {
        Some((machine, started)) => format!("{machine}-{pid}-{started}"),
        None => String::new(),
    }
}

/// Whether `holder` was a process of this machine and is certainly gone.
pub(super) fn is_gone(holder: &str) -> bool {
    let mut words = holder.split('-');
    let (Some(there), Some(Ok(pid)), Some(Ok(start))) =
        (words.next(), words.next().map(str::parse::<u32>), words.next().map(str::parse::<u64>))
    else {
        return false;
    };
    if machine().as_deref() != Some(there) {
        return false;
    }
    // Another user's process may be hidden in /proc, but not from signals.
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let none = raw.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH));
    none || started(pid).is_some_and(|other| other != start)
}

fn machine() -> Option<String> {
    let boot = boot::id_line().ok()?;
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(boot.as_bytes()).update(namespace.as_os_str().as_encoded_bytes());
    Some(hasher.finalize().to_hex()[..16].to_owned())
}

/// When a process started, in ticks since the machine did: field 22 of its state (proc(5)).
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn process_that_ended_on_this_machine_is_gone() {
        let own = current();
        assert!(!own.is_empty() && !is_gone(&own));
        let mut child = Command::new("true").spawn().expect("spawned");
        let ended = own.replace(&format!("-{}-", std::process::id()), &format!("-{}-", child.id()));
        child.wait().expect("ended");
        assert!(is_gone(&ended), "{ended}");
        let (before, _) = own.rsplit_once('-').expect("three words");
        assert!(is_gone(&format!("{before}-1")), "another one with its number");
        assert!(!is_gone(&ended.replacen(&own[..16], "0123456789abcdef", 1)), "of another machine");
        assert!(!is_gone("") && !is_gone("what-ever-else"));
    }
}
