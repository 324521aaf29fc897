//! Health: who is left alone for a while, and why.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long a peer that sent wrong bytes is left alone.
pub const BAN: Duration = Duration::from_secs(5 * 60);

/// How long one that did not answer is left alone: at first as long as gossip may need to notice, then twice as long each
/// time. Each look at a dead peer costs those who look up to a second.
const REST: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

/// What is known of peers that did wrong.
#[derive(Debug, Default)]
pub struct Health {
    /// One entry for each that did, until it has done right or its time is long over.
    ill: Mutex<HashMap<String, Ill>>,
}

#[derive(Debug)]
struct Ill {
    until: Instant,
    rest: Duration,
    banned: bool,
}

impl Health {
    /// Whether `id` may be asked.
    pub fn is_well(&self, id: &str) -> bool {
        self.lock().get(id).is_none_or(|ill| Instant::now() >= ill.until)
    }

    /// Notes that `id` did not answer. True when that is news.
    pub fn silent(&self, id: &str) -> bool {
        let mut ill = self.lock();
        let now = Instant::now();
        // Requests that were under way together fail together: that is one failure.
        if ill.get(id).is_some_and(|ill| now < ill.until) {
            return false;
        }
        let rest = ill.get(id).map_or(REST.0, |ill| (ill.rest * 2).min(REST.1));
        ill.insert(id.to_owned(), Ill { until: now + rest, rest, banned: false });
        true
    }

    /// Notes that `id` sent wrong bytes.
    pub fn lied(&self, id: &str) {
        self.lock().insert(id.to_owned(), Ill { until: Instant::now() + BAN, rest: REST.0, banned: true });
    }

    /// Notes that `id` did as it should.
    pub fn did_well(&self, id: &str) {
        // Not what was under way when it was found to lie.
        let mut ill = self.lock();
        if ill.get(id).is_some_and(|ill| !ill.banned || Instant::now() >= ill.until) {
            ill.remove(id);
        }
    }

    /// Who is banned now.
    pub fn banned(&self) -> Vec<String> {
        let (ill, now) = (self.lock(), Instant::now());
        let banned = ill.iter().filter(|(_, ill)| ill.banned && now < ill.until);
        banned.map(|(id, _)| id.clone()).collect()
    }

    /// Forgets all but those that `known` knows: what is kept is bounded by the cluster's size.
    pub fn forget(&self, known: impl Fn(&str) -> bool) {
        let now = Instant::now();
        self.lock().retain(|id, ill| known(id) || ill.banned && now < ill.until);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Ill>> {
        // Each change is one statement.
        self.ill.lock().unwrap_or_else(PoisonError::into_inner)
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
        health.lied("b");
        health.did_well("b");
        tokio::time::advance(BAN - Duration::from_millis(1)).await;
        assert!(!health.is_well("b"));
        assert_eq!(health.banned(), ["b"]);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(health.is_well("b") && health.banned().is_empty());
    }
}
