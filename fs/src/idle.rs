//! What is kept for a while because it may be wanted again: bounded in number and in time.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Values by key; the one unused for longest goes when there are too many, or when it has lain too long.
///
/// Values that go are handed to the caller, who can let them go without a lock.
#[derive(Debug)]
pub(crate) struct Idle<K, V> {
    most: usize,
    age: Duration,
    values: HashMap<K, (u64, V)>,
    /// When each was last used, in that order.
    order: BTreeMap<u64, (Instant, K)>,
    next: u64,
}

impl<K: Copy + Eq + Hash, V> Idle<K, V> {
    /// Keeps at most `most` values, and none for longer than `age`.
    pub(crate) fn new(most: usize, age: Duration) -> Self {
        Self { most, age, values: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }

    /// Keeps `value`, used last at `now`. What has to go for it is returned.
    pub(crate) fn put(&mut self, key: K, value: V, now: Instant) -> Option<V> {
        let replaced = self.take(&key);
        self.order.insert(self.next, (now, key));
        self.values.insert(key, (self.next, value));
        self.next += 1;
        replaced.or_else(|| if self.values.len() > self.most { self.pop() } else { None })
    }

    /// Takes the value of `key` out.
    pub(crate) fn take(&mut self, key: &K) -> Option<V> {
        let (at, value) = self.values.remove(key)?;
        self.order.remove(&at);
        Some(value)
    }

    /// The value of `key`, which counts as used at `now`.
    pub(crate) fn get(&mut self, key: K, now: Instant) -> Option<V>
    where
        V: Clone,
    {
        let value = self.take(&key)?;
        self.put(key, value.clone(), now);
        Some(value)
    }

    /// Takes out all that has lain too long at `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<V> {
        let old = |(_, (used, _)): (&u64, &(Instant, K))| now.duration_since(*used) >= self.age;
        let count = self.order.iter().take_while(|entry| old(*entry)).count();
        (0..count).filter_map(|_| self.pop()).collect()
    }

    /// Takes out what has been unused for longest.
    fn pop(&mut self) -> Option<V> {
        let (_, (_, key)) = self.order.pop_first()?;
        self.values.remove(&key).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_unused_goes_first() {
        let now = Instant::now();
        let mut idle = Idle::new(2, Duration::from_secs(10));
        assert_eq!(idle.put(1, 'a', now), None);
        assert_eq!(idle.put(2, 'b', now), None);
        assert_eq!(idle.get(1, now), Some('a'));
        assert_eq!(idle.put(3, 'c', now), Some('b'));
        assert_eq!(idle.put(3, 'd', now), Some('c'));
        assert_eq!(idle.take(&1), Some('a'));
        assert_eq!(idle.take(&1), None);
    }

    #[test]
    fn nothing_lies_for_longer_than_its_time() {
        let start = Instant::now();
        let mut idle = Idle::new(9, Duration::from_secs(10));
        for key in 0..3 {
            idle.put(key, key, start + Duration::from_secs(key));
        }
        idle.get(0, start + Duration::from_secs(3));
        assert!(idle.expire(start + Duration::from_secs(9)).is_empty());
        assert_eq!(idle.expire(start + Duration::from_secs(12)), [1, 2]);
        assert_eq!(idle.expire(start + Duration::from_secs(13)), [0]);
    }
}
