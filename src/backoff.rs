//! Backoff: how long to wait before a failed operation is tried again.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Exponential backoff with jitter. Each wait is twice as long as the one before, up to a limit, and shortened by up to half
/// at random: so nodes that fail together do not retry together.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
    random: u64,
}

impl Backoff {
    /// Waits of at most `first` at first and of at most `longest` in the end. `seed` decides the jitter: [`entropy`], but in
    /// tests that must run the same each time.
    pub fn new(first: Duration, longest: Duration, seed: u64) -> Self {
        Self { first, longest, next: first, random: seed }
    }

    /// The next wait.
    pub fn wait(&mut self) -> Duration {
        let longest = self.next;
        self.next = (longest * 2).min(self.longest);
        self.random = splitmix(self.random);
        // The upper 32 bits as a part of one.
        longest.mul_f64(1.0 - (self.random >> 32) as f64 / (1u64 << 33) as f64)
    }

    /// Starts again from the first wait: something has got better meanwhile.
    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

/// One wait of at most `longest`, shortened by up to half at random: for what is tried again at an interval.
pub fn jittered(longest: Duration) -> Duration {
    Backoff::new(longest, longest, entropy()).wait()
}

/// A seed that differs from process to process and from call to call.
pub fn entropy() -> u64 {
    RandomState::new().hash_one(())
}

/// The next number of a sequence without a visible pattern (splitmix64: Steele, Lea and Flood, OOPSLA 2014).
fn splitmix(state: u64) -> u64 {
    let x = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_repeated_doubles_up_to_the_limit_within_the_jitter() {
        let (first, longest) = (Duration::from_millis(50), Duration::from_secs(2));
        let mut backoff = Backoff::new(first, longest, 7);
        let mut expected = first;
        for _ in 0..10 {
            let wait = backoff.wait();
            assert!(expected / 2 <= wait && wait <= expected, "{wait:?} of {expected:?}");
            expected = (expected * 2).min(longest);
        }
        backoff.reset();
        assert!(backoff.wait() <= first);
    }

    #[test]
    fn wait_with_other_seeds_is_spread_over_half_of_its_length() {
        let first = Duration::from_secs(1);
        let waits: Vec<_> = (0..1000).map(|seed| Backoff::new(first, first, seed).wait()).collect();
        let below = waits.iter().filter(|wait| **wait < Duration::from_millis(750)).count();
        assert!((400..600).contains(&below), "{below} of 1000 in the lower half");
        assert_ne!(entropy(), entropy());
    }
}
