//! What is open on each node, and in which mode the next open of it may be. Pure.
//!
//! A handle is *cached* (the daemon serves it through the page cache) or *passthrough* (the kernel reads a
//! backing file). The kernel refuses, with EIO, an open that would bring both modes onto one node, and two
//! backing files onto one node. So the first handle of a node decides, and the others follow. A file that
//! becomes whole while cached handles are open gets its passthrough on the other one of its two nodes
//! ([`tree`]): names are then answered with that one. Nothing is kept of nodes that are merely looked up.
//!
//! The kernel lets the mode of a node go before it sends RELEASE, and takes it after the reply to OPEN; what
//! is counted here is therefore never less than what the kernel counts.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::idle::Idle;
use crate::tree;

/// How many backing files of closed nodes stay registered: opening again is then nearly twice as fast. Each
/// holds an open file and a lease, so they are few.
const IDLE: usize = 256;
/// How long they stay: long enough for a program that opens its files over and over, short enough not to keep
/// the cache from evicting.
pub(crate) const IDLE_TIME: Duration = Duration::from_secs(10);

/// The table of what is open. `B` is a registered backing file, `W` is dropped when nobody waits any more for
/// a node's file to become whole.
#[derive(Debug)]
pub(crate) struct Opens<B, W> {
    live: HashMap<u64, Live<B, W>>,
    idle: Idle<u64, B>,
}

/// The open handles of one node, all of one mode.
#[derive(Debug)]
enum Live<B, W> {
    Cached { handles: u64, whole: bool, _watch: Option<W> },
    Passthrough { handles: u64, backing: B },
}

/// How a file is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode<B> {
    /// Served by the daemon.
    Cached,
    /// Served by the kernel from this file.
    Passthrough(B),
}

impl<B: Clone, W> Opens<B, W> {
    /// Nothing is open.
    pub(crate) fn new() -> Self {
        Self { live: HashMap::new(), idle: Idle::new(IDLE, IDLE_TIME) }
    }

    /// Opens `node` once more where its backing file is registered already.
    pub(crate) fn reopen(&mut self, node: u64) -> Option<B> {
        if let Some(backing) = self.idle.take(&node) {
            self.live.insert(node, Live::Passthrough { handles: 1, backing: backing.clone() });
            return Some(backing);
        }
        match self.live.get_mut(&node) {
            Some(Live::Passthrough { handles, backing }) => {
                *handles += 1;
                Some(backing.clone())
            }
            _ => None,
        }
    }

    /// Opens `node`. Where its first handle decides, `back` registers the backing file, if the file is whole;
    /// else `watch` begins to wait for that.
    pub(crate) fn open(
        &mut self,
        node: u64,
        back: impl FnOnce() -> Option<B>,
        watch: impl FnOnce() -> Option<W>,
    ) -> Mode<B> {
        if let Some(backing) = self.reopen(node) {
            return Mode::Passthrough(backing);
        }
        if let Some(Live::Cached { handles, .. }) = self.live.get_mut(&node) {
            *handles += 1;
            return Mode::Cached;
        }
        if let Some(backing) = back() {
            self.live.insert(node, Live::Passthrough { handles: 1, backing: backing.clone() });
            return Mode::Passthrough(backing);
        }
        self.live.insert(node, Live::Cached { handles: 1, whole: false, _watch: watch() });
        Mode::Cached
    }

    /// Takes over a handle of `node`, which the process before this one opened in `mode`.
    pub(crate) fn inherit(&mut self, node: u64, mode: Mode<B>, watch: impl FnOnce() -> Option<W>) {
        match self.live.get_mut(&node) {
            // Of the same mode: the process before this one kept to the same rule.
            Some(Live::Cached { handles, .. } | Live::Passthrough { handles, .. }) => *handles += 1,
            None => {
                let live = match mode {
                    Mode::Cached => Live::Cached { handles: 1, whole: false, _watch: watch() },
                    Mode::Passthrough(backing) => Live::Passthrough { handles: 1, backing },
                };
                self.live.insert(node, live);
            }
        }
    }

    /// Closes a handle of `node` at `now`. What no longer needs to be registered is returned.
    pub(crate) fn close(&mut self, node: u64, now: Instant) -> Option<B> {
        match self.live.get_mut(&node)? {
            Live::Cached { handles, .. } | Live::Passthrough { handles, .. } if *handles > 1 => {
                *handles -= 1;
                None
            }
            _ => match self.live.remove(&node)? {
                Live::Passthrough { backing, .. } => self.idle.put(node, backing, now),
                Live::Cached { .. } => None,
            },
        }
    }

    /// The file behind `node` has become whole. `true`: it has cached handles, so its name is to be looked up
    /// anew.
    pub(crate) fn complete(&mut self, node: u64) -> bool {
        match self.live.get_mut(&node) {
            Some(Live::Cached { whole, .. }) => {
                *whole = true;
                true
            }
            _ => false,
        }
    }

    /// The node that a lookup of file `index` is answered with: the base, but the twin where the file is
    /// whole and only the base has handles that keep it from passthrough.
    pub(crate) fn prefer(&self, index: u32) -> u64 {
        let (base, twin) = (tree::base(index), tree::twin(index));
        let held = matches!(self.live.get(&base), Some(Live::Cached { whole: true, .. }));
        let free = !matches!(self.live.get(&twin), Some(Live::Cached { .. }));
        if held && free { twin } else { base }
    }

    /// Takes out the backing files that have been idle for too long at `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<B> {
        self.idle.expire(now)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: u32 = 4;

    fn open(opens: &mut Opens<u32, ()>, node: u64, whole: bool) -> Mode<u32> {
        opens.open(node, || whole.then_some(9), || None)
    }

    #[test]
    fn a_file_that_becomes_whole_goes_on_at_its_twin() {
        let mut opens = Opens::new();
        let node = opens.prefer(FILE);
        assert_eq!(node, tree::base(FILE));
        assert_eq!(open(&mut opens, node, false), Mode::Cached);
        assert!(opens.complete(node));
        assert_eq!(open(&mut opens, node, true), Mode::Cached);
        assert_eq!(opens.prefer(FILE), tree::twin(FILE));
        assert_eq!(open(&mut opens, tree::twin(FILE), true), Mode::Passthrough(9));
        opens.close(node, Instant::now());
        assert_eq!(opens.prefer(FILE), tree::twin(FILE));
        opens.close(node, Instant::now());
        assert_eq!(opens.prefer(FILE), node);
        assert_eq!(open(&mut opens, node, true), Mode::Passthrough(9));
        assert!(!opens.complete(node));
    }

    #[test]
    fn a_backing_file_stays_for_a_while() {
        let (mut opens, now) = (Opens::new(), Instant::now());
        assert_eq!(opens.reopen(5), None);
        open(&mut opens, 5, true);
        assert_eq!(opens.close(5, now), None);
        assert_eq!(opens.reopen(5), Some(9));
        assert!(opens.expire(now + IDLE_TIME).is_empty());
        opens.close(5, now);
        assert_eq!(opens.expire(now + IDLE_TIME), [9]);
        assert_eq!(opens.reopen(5), None);
    }

    #[test]
    fn the_watch_ends_with_the_last_cached_handle() {
        let watch = std::sync::Arc::new(());
        let mut opens: Opens<u32, _> = Opens::new();
        for _ in 0..2 {
            opens.open(5, || None, || Some(watch.clone()));
        }
        opens.close(5, Instant::now());
        assert_eq!(std::sync::Arc::strong_count(&watch), 2);
        opens.close(5, Instant::now());
        assert_eq!(std::sync::Arc::strong_count(&watch), 1);
    }

    /// What happens to one file.
    #[derive(Clone, Debug)]
    enum Step {
        Lookup,
        Open,
        OpenTwin,
        Close(prop::sample::Index),
        Whole,
        Evict,
        Expire,
        Takeover,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            2 => Just(Step::Lookup),
            4 => Just(Step::Open),
            1 => Just(Step::OpenTwin),
            4 => any::<prop::sample::Index>().prop_map(Step::Close),
            2 => Just(Step::Whole),
            1 => Just(Step::Evict),
            1 => Just(Step::Expire),
            1 => Just(Step::Takeover),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// The kernel's own rule, held against every sequence: all handles of a node are of one mode and of
        /// one backing file, which is still registered.
        #[test]
        fn no_sequence_mixes_modes(steps in steps()) {
            let mut opens: Opens<std::sync::Arc<u32>, ()> = Opens::new();
            let (mut whole, mut dentry, mut registered, now) = (false, tree::base(FILE), 0, Instant::now());
            let mut handles: Vec<(u64, Mode<u32>)> = Vec::new();
            let mut backings: std::collections::HashMap<u32, std::sync::Weak<u32>> = Default::default();
            for step in steps {
                match step {
                    Step::Lookup => dentry = opens.prefer(FILE),
                    Step::Open | Step::OpenTwin => {
                        let node = if matches!(step, Step::Open) { dentry } else { tree::twin(FILE) };
                        let back = || whole.then(|| { registered += 1; std::sync::Arc::new(registered) });
                        let mode = match opens.open(node, back, || None) {
                            Mode::Cached => Mode::Cached,
                            Mode::Passthrough(backing) => {
                                prop_assert!(std::sync::Arc::strong_count(&backing) > 1);
                                backings.insert(*backing, std::sync::Arc::downgrade(&backing));
                                Mode::Passthrough(*backing)
                            }
                        };
                        prop_assert!(handles.iter().all(|(n, m)| *n != node || *m == mode));
                        handles.push((node, mode));
                    }
                    Step::Close(which) if !handles.is_empty() => {
                        let (node, _) = handles.swap_remove(which.index(handles.len()));
                        opens.close(node, now);
                    }
                    Step::Whole => {
                        whole = true;
                        opens.complete(tree::base(FILE));
                        opens.complete(tree::twin(FILE));
                    }
                    Step::Evict => whole &= !handles.is_empty(),
                    Step::Expire => drop(opens.expire(now + IDLE_TIME)),
                    Step::Takeover => {
                        // What the ledger tells; nothing else comes over.
                        let adopted: Vec<_> = backings.values().filter_map(std::sync::Weak::upgrade).collect();
                        opens = Opens::new();
                        for (node, mode) in &handles {
                            let mode = match mode {
                                Mode::Cached => Mode::Cached,
                                Mode::Passthrough(id) => {
                                    let adopted = adopted.iter().find(|backing| ***backing == *id);
                                    Mode::Passthrough(adopted.expect("registered while it is open").clone())
                                }
                            };
                            opens.inherit(*node, mode, || None);
                        }
                        if whole {
                            opens.complete(tree::base(FILE));
                            opens.complete(tree::twin(FILE));
                        }
                    }
                    Step::Close(_) => {}
                }
                if handles.is_empty() && whole {
                    prop_assert_eq!(opens.prefer(FILE), tree::base(FILE));
                }
            }
        }
    }
}
