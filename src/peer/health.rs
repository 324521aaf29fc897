//! Health: who is left alone for a while, and why.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// How long a peer that sent wrong bytes is left alone.
pub const BAN: Duration = Duration::from_secs(5 * 60);

/// How long one that did not answer is left alone: at first as long as gossip may need to notice, then twice as long each
/// time. Each look at a dead peer costs those who look up to a second.
const REST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// Who was heard so lately, and has finished an answer so lately, is busy and not gone when one of its answers does not
/// come: that one is looked for elsewhere, and others are still asked of it.
const BUSY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(3));

/// What is known of peers that did wrong.
#[derive(Debug, Default)]
pub struct Health {
    /// One entry for each that did, until it has done right or its time is long over.
    ill: Mutex<HashMap<String, Ill>>,
    /// When each was last heard, and when it last finished an answer.
    lately: Mutex<HashMap<String, (Instant, Instant)>>,
}

/// How a peer is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is asked.
    Well,
    /// It did not answer, and is left alone for so much longer.
    Silent(Duration),
    /// It sent wrong bytes, and is left alone for so much longer.
    Banned(Duration),
}

#[derive(Debug)]
struct Ill {
    since: Instant,
    until: Instant,
    rest: Duration,
    banned: bool,
}

impl Health {
    /// Whether `id` may be asked.
    pub fn is_well(&self, id: &str) -> bool {
        self.ill.lock().get(id).is_none_or(|ill| Instant::now() >= ill.until)
    }

    /// How `id` is doing.
    pub fn standing(&self, id: &str) -> Standing {
        let (ill, now) = (self.ill.lock(), Instant::now());
        match ill.get(id).map(|ill| (ill.until.saturating_duration_since(now), ill.banned)) {
            Some((left, banned)) if !left.is_zero() => {
                if banned {
                    Standing::Banned(left)
                } else {
                    Standing::Silent(left)
                }
            }
            _ => Standing::Well,
        }
    }

    /// Notes that something came from `id`.
    pub fn heard(&self, id: &str) {
        let (mut lately, now) = (self.lately(), Instant::now());
        match lately.get_mut(id) {
            Some((heard, _)) => *heard = now,
            None => {
                // It has not finished anything, but it may well be about to.
                lately.insert(id.to_owned(), (now, now));
            }
        }
    }

    /// Whether `id` is there, and only slow with one of several answers.
    pub fn is_busy(&self, id: &str) -> bool {
        let lately = self.lately();
        lately.get(id).is_some_and(|(heard, did)| heard.elapsed() < BUSY.0 && did.elapsed() < BUSY.1)
    }

    /// Notes that `id` did not answer. True when that is news.
    pub fn silent(&self, id: &str) -> bool {
        let mut ill = self.ill.lock();
        let now = Instant::now();
        // Requests that were under way together fail together: that is one failure.
        if ill.get(id).is_some_and(|ill| now < ill.until) {
            return false;
        }
        let rest = ill.get(id).map_or(REST.0, |ill| (ill.rest * 2).min(REST.1));
        ill.insert(id.to_owned(), Ill { since: now, until: now + rest, rest, banned: false });
        true
    }

    /// Forgets that `id` did not answer, if that was before `back`: it was out of reach of all, and is there again. True when that
    /// makes it well.
    pub fn is_back(&self, id: &str, back: Instant) -> bool {
        let mut ill = self.ill.lock();
        let over = ill.get(id).is_none_or(|ill| !ill.banned && ill.since < back);
        if over {
            ill.remove(id);
        }
        over
    }

    /// How many of those that `known` knows fell silent lately.
    pub fn fell_silent(&self, known: impl Fn(&str) -> bool) -> usize {
        let ill = self.ill.lock();
        let lately = |ill: &Ill| !ill.banned && ill.since.elapsed() < REST.0;
        ill.iter().filter(|(id, ill)| lately(ill) && known(id)).count()
    }

    /// Notes that `id` sent wrong bytes.
    pub fn lied(&self, id: &str) {
        let now = Instant::now();
        let ban = Ill { since: now, until: now + BAN, rest: REST.0, banned: true };
        self.ill.lock().insert(id.to_owned(), ban);
    }

    /// Notes that `id` did as it should.
    pub fn did_well(&self, id: &str) {
        let now = Instant::now();
        self.lately().insert(id.to_owned(), (now, now));
        // Not what was under way when it was found to lie.
        let mut ill = self.ill.lock();
        if ill.get(id).is_some_and(|ill| !ill.banned || Instant::now() >= ill.until) {
            ill.remove(id);
        }
    }

    /// Who is banned now.
    pub fn banned(&self) -> Vec<String> {
        let (ill, now) = (self.ill.lock(), Instant::now());
        let banned = ill.iter().filter(|(_, ill)| ill.banned && now < ill.until);
        banned.map(|(id, _)| id.clone()).collect()
    }

    /// Of how many something is remembered.
    pub fn remembered(&self) -> usize {
        self.ill.lock().len().max(self.lately().len())
    }

    /// Forgets all but those that `known` knows: what is kept is bounded by the cluster's size.
    pub fn forget(&self, known: impl Fn(&str) -> bool) {
        let now = Instant::now();
        self.ill.lock().retain(|id, ill| known(id) || ill.banned && now < ill.until);
        self.lately().retain(|id, _| known(id));
    }

    fn lately(&self) -> MutexGuard<'_, HashMap<String, (Instant, Instant)>> {
        self.lately.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_silent_rest_longer_each_time_and_liars_for_five_minutes() {
        let health = Health::default();
        assert!(health.silent("a"));
        assert!(!health.silent("a"), "one failure");
        assert!(!health.is_well("a") && health.is_well("b"));
        tokio::time::advance(REST.0).await;
        assert!(health.is_well("a"));
        assert!(health.silent("a"));
        tokio::time::advance(REST.0).await;
        assert!(!health.is_well("a"), "twice as long");
        health.did_well("a");
        assert!(health.is_well("a"));
        health.silent("a");
        assert_eq!(health.fell_silent(|id| id == "a"), 1);
        assert!(!health.is_back("a", Instant::now()) && !health.is_well("a"), "it was silent then");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(health.is_back("a", Instant::now()) && health.is_well("a"));
        assert_eq!(health.fell_silent(|_| true), 0);
        health.lied("b");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!health.is_back("b", Instant::now()), "a liar stays one");
        tokio::time::advance(Duration::from_millis(1)).await;
        health.lied("b");
        health.did_well("b");
        tokio::time::advance(BAN - Duration::from_millis(1)).await;
        assert!(!health.is_well("b"));
        assert_eq!(health.banned(), ["b"]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(health.is_well("b") && health.banned().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_heard_and_gets_things_done_is_busy_and_not_gone() {
        let (health, moment) = (Health::default(), Duration::from_millis(400));
        assert!(!health.is_busy("a"), "never heard");
        health.did_well("a");
        for _ in 0..7 {
            health.heard("a");
            assert!(health.is_busy("a"));
            tokio::time::advance(moment).await;
        }
        health.heard("a");
        tokio::time::advance(moment).await;
        health.heard("a");
        assert!(!health.is_busy("a"), "it talks, but finishes nothing");
        health.did_well("a");
        tokio::time::advance(BUSY.0).await;
        assert!(!health.is_busy("a"), "silent");
    }

    #[tokio::test(start_paused = true)]
    async fn how_a_peer_stands_is_told_with_the_time_that_is_left() {
        let health = Health::default();
        assert_eq!(health.standing("a"), Standing::Well);
        health.silent("a");
        assert_eq!(health.standing("a"), Standing::Silent(REST.0));
        health.lied("a");
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(health.standing("a"), Standing::Banned(BAN - Duration::from_secs(60)));
        tokio::time::advance(BAN).await;
        assert_eq!(health.standing("a"), Standing::Well);
    }
}
