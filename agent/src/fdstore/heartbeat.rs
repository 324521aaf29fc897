//! Heartbeats: how the fd store notices an agent that lives and does nothing.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::HEARTBEAT_INTERVAL;
use super::wire::peer;

/// The number of heartbeats in a row that may be missing: half a minute, far more than a busy machine or a slow disk holds up an
/// agent.
const MISSED_LIMIT: u32 = 15;

/// The interval at which it is checked whether the agent is stopped. Two checks in a row find it so before it is continued, so its
/// readers wait for a second at most, and who stops and continues it himself is rarely met.
pub const STOPPED_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The heartbeats of one agent.
#[derive(Debug)]
pub struct Heartbeats {
    /// Whether heartbeats are expected: an older agent greets once, and does not say that it will send more.
    are_expected: bool,
    was_greeted: bool,
    /// Whether one has come after the greeting.
    was_sent: bool,
    missed: u32,
    since: Instant,
    /// Whether it was stopped at the last check.
    was_stopped: bool,
}

impl Heartbeats {
    /// The heartbeats of an agent that has connected at `now`.
    pub fn new(now: Instant) -> Self {
        Self {
            are_expected: false,
            was_greeted: false,
            was_sent: false,
            missed: 0,
            since: now,
            was_stopped: false,
        }
    }

    /// Records a greeting at `now`, which may say that the agent `beats`. A version of the past sent more and did not say it.
    pub fn record_greeting(&mut self, now: Instant, beats: bool) {
        self.are_expected |= beats || self.was_greeted;
        self.was_sent |= self.was_greeted;
        self.was_greeted = true;
        (self.missed, self.since) = (0, now);
    }

    /// Whether the agent has come so far as to send one; an older agent that only greets counts as soon as it has.
    pub fn is_running(&self) -> bool {
        self.was_sent || self.was_greeted && !self.are_expected
    }

    /// Counts a heartbeat as missed at `now` when one is due, and returns whether the agent hangs. However much time has passed, it
    /// counts as one: this process may have been stopped, too.
    pub fn count_missed(&mut self, now: Instant) -> bool {
        if self.are_expected && now.duration_since(self.since) >= HEARTBEAT_INTERVAL * 2 {
            self.missed += 1;
            self.since = now - HEARTBEAT_INTERVAL;
        }
        self.missed >= MISSED_LIMIT
    }

    /// Continues the agent at the other end of `link` if it is stopped now and was at the check before. Returns whether it was
    /// continued.
    pub fn continue_if_stopped(&mut self, link: &OwnedFd) -> bool {
        let is_stopped = is_peer_stopped(link);
        let continued = is_stopped && self.was_stopped && signal_peer(link, Signal::CONT);
        self.was_stopped = is_stopped && !continued;
        continued
    }
}

/// Whether the process at the other end of `link` was stopped by a signal (SIGSTOP, SIGTSTP), not by a debugger: state `T` of
/// proc(5). False where its process id is not known, as in another container.
fn is_peer_stopped(link: &OwnedFd) -> bool {
    let stat = peer_pid(link)
        .and_then(|pid| fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok());
    // The name before it may contain parentheses.
    stat.is_some_and(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
}

/// Sends `signal` to the process at the other end of `link`. False where that is impossible, as in another container.
pub fn signal_peer(link: &OwnedFd, signal: Signal) -> bool {
    let Some(pid) = peer_pid(link) else { return false };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    // Until it hangs up it is the one that connected: no other process has its id.
    let mut polled = [PollFd::new(link, PollFlags::empty())];
    let connected = poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready == 0);
    connected && pidfd_send_signal(&process, signal).is_ok()
}

fn peer_pid(link: &OwnedFd) -> Option<Pid> {
    Pid::from_raw(peer(link.as_fd()).ok()?.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_missed_in_a_row_report_a_hung_agent() {
        let start = Instant::now();
        let at = |beats: u32| start + HEARTBEAT_INTERVAL * beats;
        let mut heartbeats = Heartbeats::new(start);
        heartbeats.record_greeting(start, false);
        assert!(!heartbeats.count_missed(at(1000)), "an older agent greets once");
        heartbeats.record_greeting(at(1000), false);
        assert!(!heartbeats.count_missed(at(9000)), "this process itself may have stood still");
        heartbeats.record_greeting(at(9001), false);
        assert!((1..=MISSED_LIMIT).all(|beat| !heartbeats.count_missed(at(9001 + beat))));
        assert!(heartbeats.count_missed(at(9001 + MISSED_LIMIT + 1)));
        // One that says it may hang before the next.
        let mut heartbeats = Heartbeats::new(start);
        heartbeats.record_greeting(start, true);
        assert!((2..=MISSED_LIMIT).all(|beat| !heartbeats.count_missed(at(beat))));
        assert!(heartbeats.count_missed(at(MISSED_LIMIT + 1)));
    }
}
