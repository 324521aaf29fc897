//! A cache of idle values: those that may be wanted again, bounded in number and in time.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;

/// Values by key. The least recently used one is evicted when there are too many, or when it has been idle for too long.
///
/// Evicted values are returned to the caller, who can drop them without a lock.
#[derive(Debug)]
pub(crate) struct IdleCache<K: Hash + Eq, V> {
    timeout: Duration,
    /// Each with when it was last used.
    values: LruCache<K, (Instant, V)>,
}

impl<K: Eq + Hash, V> IdleCache<K, V> {
    /// Keeps at most `capacity` values, and none that has been idle for `timeout`.
    pub(crate) fn new(capacity: NonZeroUsize, timeout: Duration) -> Self {
        Self { timeout, values: LruCache::new(capacity) }
    }

    /// Keeps `value`, last used at `now`, and returns the value that it replaces or evicts.
    pub(crate) fn put(&mut self, key: K, value: V, now: Instant) -> Option<V> {
        self.values.push(key, (now, value)).map(|(_, (_, evicted))| evicted)
    }

    /// Removes and returns the value of `key`.
    pub(crate) fn take(&mut self, key: &K) -> Option<V> {
        self.values.pop(key).map(|(_, value)| value)
    }

    /// The value of `key`, which counts as used at `now`.
    pub(crate) fn get(&mut self, key: &K, now: Instant) -> Option<V>
    where
        V: Clone,
    {
        let (used, value) = self.values.get_mut(key)?;
        *used = now;
        Some(value.clone())
    }

    /// Removes and returns all values that were idle for too long at `now`; those `in_use` count as used.
    pub(crate) fn expire(&mut self, now: Instant, in_use: impl Fn(&V) -> bool) -> Vec<V> {
        let mut expired = Vec::new();
        while self.values.peek_lru().is_some_and(|(_, (used, _))| now.duration_since(*used) >= self.timeout) {
            match self.values.pop_lru() {
                Some((key, (_, value))) if in_use(&value) => drop(self.values.push(key, (now, value))),
                oldest => expired.extend(oldest.map(|(_, (_, value))| value)),
            }
        }
        expired
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_cache_full_evicts_the_least_recently_used() {
        let now = Instant::now();
        let mut idle = IdleCache::new(NonZeroUsize::new(2).expect("two"), Duration::from_secs(10));
        assert_eq!(idle.put(1, 'a', now), None);
        assert_eq!(idle.put(2, 'b', now), None);
        assert_eq!(idle.get(&1, now), Some('a'));
        assert_eq!(idle.put(3, 'c', now), Some('b'));
        assert_eq!(idle.put(3, 'd', now), Some('c'));
        assert_eq!(idle.take(&1), Some('a'));
        assert_eq!(idle.take(&1), None);
    }

    #[test]
    fn idle_cache_timeout_passed_expires_what_was_not_used() {
        let start = Instant::now();
        let mut idle = IdleCache::new(NonZeroUsize::new(9).expect("nine"), Duration::from_secs(10));
        for key in 0..3 {
            idle.put(key, key, start + Duration::from_secs(key));
        }
        idle.get(&0, start + Duration::from_secs(3));
        assert!(idle.expire(start + Duration::from_secs(9), |_| false).is_empty());
        assert_eq!(idle.expire(start + Duration::from_secs(12), |_| false), [1, 2]);
        assert_eq!(idle.expire(start + Duration::from_secs(13), |_| false), [0]);
    }

    #[test]
    fn idle_cache_timeout_passed_keeps_what_is_in_use() {
        let start = Instant::now();
        let mut idle = IdleCache::new(NonZeroUsize::new(9).expect("nine"), Duration::from_secs(10));
        for key in 0..3 {
            idle.put(key, key, start);
        }
        assert_eq!(idle.expire(start + Duration::from_secs(10), |value| *value == 1), [0, 2]);
        assert!(idle.expire(start + Duration::from_secs(19), |_| false).is_empty(), "it counted as used");
        assert_eq!(idle.expire(start + Duration::from_secs(20), |_| false), [1]);
    }
}
