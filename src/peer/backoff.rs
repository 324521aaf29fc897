//! Backoff: which peers are not asked for a while, and why.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::backoff::{Backoff, entropy};

/// The time for which a peer that sent wrong bytes is banned.
pub const CORRUPTION_BAN: Duration = Duration::from_secs(5 * 60);

/// The time for which a peer that did not respond is not asked: at first as long as gossip may need to notice, then twice as long
/// each time, up to the second value, less the jitter. Each request to a dead peer costs up to a second.
const BACKOFF_RANGE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// A peer that was heard within the first time, and finished a response within the second, is busy and not gone when one of its
/// responses is late: only that request goes elsewhere.
const BUSY_ACTIVITY_AGES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// The peers that failed, and the recent activity of all.
#[derive(Debug, Default)]
pub struct BackoffTable {
    /// One entry for each peer that failed, until it succeeds or is no member any more.
    backoffs: Mutex<HashMap<String, PeerBackoff>>,
    /// When each was last heard, and when it last finished a response.
    activity: Mutex<HashMap<String, (Instant, Instant)>>,
}

/// Whether requests are sent to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Requests are sent.
    Available,
    /// The peer did not respond; it gets no requests for this time.
    BackingOff(Duration),
    /// The peer sent wrong bytes; it gets no requests for this time.
    Banned(Duration),
}

#[derive(Debug)]
struct PeerBackoff {
    since: Instant,
    until: Instant,
    waits: Backoff,
    banned: bool,
}

impl BackoffTable {
    /// Whether `id` may be asked.
    pub fn is_available(&self, id: &str) -> bool {
        self.backoffs.lock().get(id).is_none_or(|backoff| Instant::now() >= backoff.until)
    }

    /// Whether `id` is asked, or for how much longer it is not.
    pub fn state_of(&self, id: &str) -> PeerState {
        let (backoffs, now) = (self.backoffs.lock(), Instant::now());
        match backoffs.get(id).map(|backoff| (backoff.until.saturating_duration_since(now), backoff.banned)) {
            Some((left, banned)) if !left.is_zero() => {
                if banned {
                    PeerState::Banned(left)
                } else {
                    PeerState::BackingOff(left)
                }
            }
            _ => PeerState::Available,
        }
    }

    /// Records that `id` sent something.
    pub fn record_heard(&self, id: &str) {
        let (mut activity, now) = (self.activity(), Instant::now());
        match activity.get_mut(id) {
            Some((heard, _)) => *heard = now,
            None => {
                // It has not finished a response yet, but may be about to.
                activity.insert(id.to_owned(), (now, now));
            }
        }
    }

    /// Whether `id` is alive, and only slow with one of several responses.
    pub fn is_busy(&self, id: &str) -> bool {
        let activity = self.activity();
        activity.get(id).is_some_and(|(heard, did)| {
            heard.elapsed() < BUSY_ACTIVITY_AGES.0 && did.elapsed() < BUSY_ACTIVITY_AGES.1
        })
    }

    /// Records that `id` did not respond. True when a backoff starts.
    pub fn record_failure(&self, id: &str) -> bool {
        let mut backoffs = self.backoffs.lock();
        let now = Instant::now();
        // Requests that were in flight together fail together: that is one failure.
        if backoffs.get(id).is_some_and(|backoff| now < backoff.until) {
            return false;
        }
        let mut waits = backoffs.remove(id).map_or_else(first_waits, |backoff| backoff.waits);
        let until = now + waits.wait();
        backoffs.insert(id.to_owned(), PeerBackoff { since: now, until, waits, banned: false });
        true
    }

    /// Ends the backoff of `id` if it began before `back`, when it rejoined the cluster. True when `id` is available then.
    pub fn forgive_if_rejoined(&self, id: &str, back: Instant) -> bool {
        let mut backoffs = self.backoffs.lock();
        let over = backoffs.get(id).is_none_or(|backoff| !backoff.banned && backoff.since < back);
        if over {
            backoffs.remove(id);
        }
        over
    }

    /// Returns the number of the members that `known` accepts which have stopped responding recently.
    pub fn recent_failures(&self, known: impl Fn(&str) -> bool) -> usize {
        let backoffs = self.backoffs.lock();
        let recent = |backoff: &PeerBackoff| !backoff.banned && backoff.since.elapsed() < BACKOFF_RANGE.0;
        backoffs.iter().filter(|(id, backoff)| recent(backoff) && known(id)).count()
    }

    /// Bans `id`, which sent wrong bytes.
    pub fn ban_for_corruption(&self, id: &str) {
        let (now, mut waits) = (Instant::now(), first_waits());
        // What comes after the ban is not the first failure.
        waits.wait();
        let ban = PeerBackoff { since: now, until: now + CORRUPTION_BAN, waits, banned: true };
        self.backoffs.lock().insert(id.to_owned(), ban);
    }

    /// Records that `id` finished a response.
    pub fn record_success(&self, id: &str) {
        let now = Instant::now();
        self.activity().insert(id.to_owned(), (now, now));
        // A ban is not lifted by a response that was in flight when it began.
        let mut backoffs = self.backoffs.lock();
        if backoffs.get(id).is_some_and(|backoff| !backoff.banned || Instant::now() >= backoff.until) {
            backoffs.remove(id);
        }
    }

    /// The ids of the peers that are banned now.
    pub fn banned(&self) -> Vec<String> {
        let (backoffs, now) = (self.backoffs.lock(), Instant::now());
        let banned = backoffs.iter().filter(|(_, backoff)| backoff.banned && now < backoff.until);
        banned.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the number of peers that have an entry.
    pub fn tracked_peers(&self) -> usize {
        self.backoffs.lock().len().max(self.activity().len())
    }

    /// Removes the peers that `known` rejects: the tables are bounded by the size of the cluster.
    pub fn retain(&self, known: impl Fn(&str) -> bool) {
        let now = Instant::now();
        self.backoffs.lock().retain(|id, backoff| known(id) || backoff.banned && now < backoff.until);
        self.activity().retain(|id, _| known(id));
    }

    fn activity(&self) -> MutexGuard<'_, HashMap<String, (Instant, Instant)>> {
        self.activity.lock()
    }
}

/// The waits after the failures of a peer.
fn first_waits() -> Backoff {
    Backoff::new(BACKOFF_RANGE.0, BACKOFF_RANGE.1, entropy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn backoff_repeated_failure_doubles_and_corruption_bans_for_five_minutes() {
        let backoffs = BackoffTable::default();
        assert!(backoffs.record_failure("a"));
        assert!(!backoffs.record_failure("a"), "one failure");
        assert!(!backoffs.is_available("a") && backoffs.is_available("b"));
        tokio::time::advance(BACKOFF_RANGE.0).await;
        assert!(backoffs.is_available("a"));
        assert!(backoffs.record_failure("a"));
        tokio::time::advance(BACKOFF_RANGE.0 - Duration::from_millis(1)).await;
        assert!(!backoffs.is_available("a"), "twice as long");
        backoffs.record_success("a");
        assert!(backoffs.is_available("a"));
        backoffs.record_failure("a");
        assert_eq!(backoffs.recent_failures(|id| id == "a"), 1);
        assert!(
            !backoffs.forgive_if_rejoined("a", Instant::now()) && !backoffs.is_available("a"),
            "it rejoined before"
        );
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(backoffs.forgive_if_rejoined("a", Instant::now()) && backoffs.is_available("a"));
        assert_eq!(backoffs.recent_failures(|_| true), 0);
        backoffs.ban_for_corruption("b");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!backoffs.forgive_if_rejoined("b", Instant::now()), "a ban stays");
        tokio::time::advance(Duration::from_millis(1)).await;
        backoffs.ban_for_corruption("b");
        backoffs.record_success("b");
        tokio::time::advance(CORRUPTION_BAN - Duration::from_millis(1)).await;
        assert!(!backoffs.is_available("b"));
        assert_eq!(backoffs.banned(), ["b"]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(backoffs.is_available("b") && backoffs.banned().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn is_busy_peer_that_finishes_responses_is_busy() {
        let (backoffs, moment) = (BackoffTable::default(), Duration::from_millis(400));
        assert!(!backoffs.is_busy("a"), "never heard");
        backoffs.record_success("a");
        for _ in 0..7 {
            backoffs.record_heard("a");
            assert!(backoffs.is_busy("a"));
            tokio::time::advance(moment).await;
        }
        backoffs.record_heard("a");
        tokio::time::advance(moment).await;
        backoffs.record_heard("a");
        assert!(!backoffs.is_busy("a"), "it talks, but finishes nothing");
        backoffs.record_success("a");
        tokio::time::advance(BUSY_ACTIVITY_AGES.0).await;
        assert!(!backoffs.is_busy("a"), "silent");
    }

    #[tokio::test(start_paused = true)]
    async fn state_of_a_failed_peer_has_the_time_that_is_left() {
        let backoffs = BackoffTable::default();
        assert_eq!(backoffs.state_of("a"), PeerState::Available);
        backoffs.record_failure("a");
        let PeerState::BackingOff(left) = backoffs.state_of("a") else { panic!("not backing off") };
        assert!(BACKOFF_RANGE.0 / 2 <= left && left <= BACKOFF_RANGE.0, "{left:?}");
        backoffs.ban_for_corruption("a");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(backoffs.state_of("a"), PeerState::Banned(CORRUPTION_BAN - Duration::from_secs(60)));
        tokio::time::advance(CORRUPTION_BAN).await;
        assert_eq!(backoffs.state_of("a"), PeerState::Available);
    }
}
