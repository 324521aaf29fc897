//! The table of open nodes: which mode the handles of each have, and which the next open must have. Pure.
//!
//! A handle is *cached* (the agent serves it through the page cache) or *passthrough* (the kernel reads a
//! backing file). The kernel refuses, with EIO, an open that would bring both modes onto one node, and two
//! backing files onto one node. So the first handle of a node decides, and the others follow. A file that
//! becomes whole while cached handles are open gets its passthrough on the other one of its two nodes
//! ([`tree`]): lookups then answer with that one. Nothing is kept of nodes that are merely looked up.
//!
//! A backing file that was not right can't be taken from open handles. The file then moves on to two other nodes, those of its
//! next generation, on which nothing is open.
//!
//! The kernel forgets the mode of a node before it sends RELEASE, and sets it after the reply to OPEN: what is counted here
//! is never less than what the kernel counts.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crate::idle_cache::IdleCache;
use crate::tree;

/// How many backing files of closed nodes stay registered: opening again is then nearly twice as fast. Each
/// holds an open file and a lease, so they are few.
const IDLE_BACKING_FILES: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// How long idle backing files stay registered: long enough for a program that opens its files over and over, short enough
/// not to keep the cache from evicting.
pub(crate) const BACKING_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The open nodes. `B` is a registered backing file, `W` is dropped when no request waits any more for a
/// node's file to become whole.
#[derive(Debug)]
pub(crate) struct OpenTable<B, W> {
    open: HashMap<u64, OpenNode<B, W>>,
    idle: IdleCache<u64, B>,
    /// The generation of those files that are not in their first.
    generations: HashMap<u32, u32>,
}

/// The open handles of one node, all of one mode.
#[derive(Debug)]
enum OpenNode<B, W> {
    Cached { handles: u64, whole: bool, _watch: Option<W> },
    Passthrough { handles: u64, backing: B },
}

/// What is left to do after [`OpenTable::renew`].
#[derive(Debug)]
pub(crate) struct Renewed<B> {
    /// The nodes of the file, whose pages the kernel is to drop.
    pub(crate) nodes: Vec<u64>,
    /// The node that lookups lead to from now on, if it is another.
    pub(crate) moved_to: Option<u64>,
    /// Backing files without open handles.
    pub(crate) backings: Vec<B>,
}

/// How a file is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode<B> {
    /// Reads are served by the agent.
    Cached,
    /// Reads are served by the kernel from this file.
    Passthrough(B),
}

impl<B: Clone, W> OpenTable<B, W> {
    /// A table without open nodes.
    pub(crate) fn new() -> Self {
        Self {
            open: HashMap::new(),
            idle: IdleCache::new(IDLE_BACKING_FILES, BACKING_IDLE_TIMEOUT),
            generations: HashMap::new(),
        }
    }

    /// Opens `node` once more where its backing file is registered already.
    pub(crate) fn reopen(&mut self, node: u64) -> Option<B> {
        if let Some(backing) = self.idle.take(&node) {
            self.open.insert(node, OpenNode::Passthrough { handles: 1, backing: backing.clone() });
            return Some(backing);
        }
        match self.open.get_mut(&node) {
            Some(OpenNode::Passthrough { handles, backing }) => {
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
    ) -> OpenMode<B> {
        if let Some(backing) = self.reopen(node) {
            return OpenMode::Passthrough(backing);
        }
        if let Some(OpenNode::Cached { handles, .. }) = self.open.get_mut(&node) {
            *handles += 1;
            return OpenMode::Cached;
        }
        if let Some(backing) = back() {
            self.open.insert(node, OpenNode::Passthrough { handles: 1, backing: backing.clone() });
            return OpenMode::Passthrough(backing);
        }
        self.open.insert(node, OpenNode::Cached { handles: 1, whole: false, _watch: watch() });
        OpenMode::Cached
    }

    /// Adds a handle of `node` that the previous process opened in `mode`.
    pub(crate) fn restore(&mut self, node: u64, mode: OpenMode<B>, watch: impl FnOnce() -> Option<W>) {
        self.restore_generation(node);
        match self.open.get_mut(&node) {
            // Of the same mode: the previous process kept to the same rule.
            Some(OpenNode::Cached { handles, .. } | OpenNode::Passthrough { handles, .. }) => *handles += 1,
            None => {
                let restored = match mode {
                    OpenMode::Cached => OpenNode::Cached { handles: 1, whole: false, _watch: watch() },
                    OpenMode::Passthrough(backing) => OpenNode::Passthrough { handles: 1, backing },
                };
                self.open.insert(node, restored);
            }
        }
    }

    /// Notes that the file of `node` is in its generation, or in a later one.
    pub(crate) fn restore_generation(&mut self, node: u64) {
        if let (Some(index), generation @ 1..) = (tree::index(node), tree::generation(node)) {
            let known = self.generations.entry(index).or_default();
            *known = generation.max(*known);
        }
    }

    /// Closes a handle of `node` at `now`. What no longer needs to be registered is returned.
    pub(crate) fn close(&mut self, node: u64, now: Instant) -> Option<B> {
        match self.open.get_mut(&node)? {
            OpenNode::Cached { handles, .. } | OpenNode::Passthrough { handles, .. } if *handles > 1 => {
                *handles -= 1;
                None
            }
            _ => match self.open.remove(&node)? {
                OpenNode::Passthrough { backing, .. } => self.idle.put(node, backing, now),
                OpenNode::Cached { .. } => None,
            },
        }
    }

    /// Marks the file behind `node` as whole. `true`: it has cached handles, so its name is to be looked up anew.
    pub(crate) fn mark_whole(&mut self, node: u64) -> bool {
        match self.open.get_mut(&node) {
            Some(OpenNode::Cached { whole, .. }) => {
                *whole = true;
                true
            }
            _ => false,
        }
    }

    /// The node that a lookup of file `index` is answered with: the base, but the twin where the file is
    /// whole and only the base has handles that keep it from passthrough.
    pub(crate) fn lookup_node(&self, index: u32) -> u64 {
        let [base, twin] = tree::ids(index, self.generation(index));
        let base_cached = matches!(self.open.get(&base), Some(OpenNode::Cached { whole: true, .. }));
        let twin_cached = matches!(self.open.get(&twin), Some(OpenNode::Cached { .. }));
        if base_cached && !twin_cached { twin } else { base }
    }

    /// Whether the handles of `node` are served by the kernel.
    pub(crate) fn is_passthrough(&self, node: u64) -> bool {
        matches!(self.open.get(&node), Some(OpenNode::Passthrough { .. }))
    }

    fn generation(&self, index: u32) -> u32 {
        self.generations.get(&index).copied().unwrap_or_default()
    }

    /// Marks the file `index` as read wrongly: its next opens read it anew.
    pub(crate) fn renew(&mut self, index: u32) -> Renewed<B> {
        let generation = self.generation(index);
        let present = tree::ids(index, generation);
        let moved = present.iter().any(|node| self.is_passthrough(*node));
        let backings = present.iter().filter_map(|node| self.idle.take(node)).collect();
        let mut nodes: Vec<_> =
            (0..=generation).flat_map(|generation| tree::ids(index, generation)).collect();
        let moved_to = moved.then(|| {
            self.generations.insert(index, generation + 1);
            let next = tree::ids(index, generation + 1);
            nodes.extend(next);
            next[0]
        });
        Renewed { nodes, moved_to, backings }
    }

    /// Removes and returns the backing files that were idle for too long at `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<B> {
        self.idle.expire(now, |_| false)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: u32 = 4;

    fn open(table: &mut OpenTable<u32, ()>, node: u64, whole: bool) -> OpenMode<u32> {
        table.open(node, || whole.then_some(9), || None)
    }

    #[test]
    fn lookup_file_became_whole_while_open_answers_with_its_twin() {
        let mut table = OpenTable::new();
        let node = table.lookup_node(FILE);
        assert_eq!(node, tree::base(FILE));
        assert_eq!(open(&mut table, node, false), OpenMode::Cached);
        assert!(table.mark_whole(node));
        assert_eq!(open(&mut table, node, true), OpenMode::Cached);
        assert_eq!(table.lookup_node(FILE), tree::twin(FILE));
        assert_eq!(open(&mut table, tree::twin(FILE), true), OpenMode::Passthrough(9));
        table.close(node, Instant::now());
        assert_eq!(table.lookup_node(FILE), tree::twin(FILE));
        table.close(node, Instant::now());
        assert_eq!(table.lookup_node(FILE), node);
        assert_eq!(open(&mut table, node, true), OpenMode::Passthrough(9));
        assert!(!table.mark_whole(node));
    }

    #[test]
    fn renew_with_open_backing_file_moves_lookups_to_new_nodes() {
        let mut table = OpenTable::new();
        let old = table.lookup_node(FILE);
        open(&mut table, old, true);
        let renewed = table.renew(FILE);
        assert!(renewed.nodes.contains(&old) && renewed.backings.is_empty());
        let new = table.lookup_node(FILE);
        assert!(new != old && renewed.moved_to == Some(new));
        assert_eq!(open(&mut table, new, false), OpenMode::Cached);
        table.close(new, Instant::now());
        assert_eq!(table.open(new, || Some(10), || None), OpenMode::Passthrough(10));
        table.close(new, Instant::now());
        let renewed = table.renew(FILE);
        assert_eq!((renewed.moved_to, renewed.backings), (None, vec![10]), "nobody has it open");
        let mut next: OpenTable<u32, ()> = OpenTable::new();
        next.restore(old, OpenMode::Passthrough(9), || None);
        next.restore_generation(new);
        assert_eq!(next.lookup_node(FILE), new, "the next process goes on from there");
    }

    #[test]
    fn backing_file_closed_stays_until_its_timeout() {
        let (mut table, now) = (OpenTable::new(), Instant::now());
        assert_eq!(table.reopen(5), None);
        open(&mut table, 5, true);
        assert_eq!(table.close(5, now), None);
        assert_eq!(table.reopen(5), Some(9));
        assert!(table.expire(now + BACKING_IDLE_TIMEOUT).is_empty());
        table.close(5, now);
        assert_eq!(table.expire(now + BACKING_IDLE_TIMEOUT), [9]);
        assert_eq!(table.reopen(5), None);
    }

    #[test]
    fn watch_last_cached_handle_closed_is_dropped() {
        let watch = std::sync::Arc::new(());
        let mut table: OpenTable<u32, _> = OpenTable::new();
        for _ in 0..2 {
            table.open(5, || None, || Some(watch.clone()));
        }
        table.close(5, Instant::now());
        assert_eq!(std::sync::Arc::strong_count(&watch), 2);
        table.close(5, Instant::now());
        assert_eq!(std::sync::Arc::strong_count(&watch), 1);
    }

    /// What happens to one file.
    #[derive(Clone, Debug)]
    enum TableStep {
        Lookup,
        Open,
        OpenTwin,
        Close(prop::sample::Index),
        Whole,
        Evict,
        DentryInvalidator,
        Takeover,
    }

    fn steps() -> impl Strategy<Value = Vec<TableStep>> {
        let step = prop_oneof![
            2 => Just(TableStep::Lookup),
            4 => Just(TableStep::Open),
            1 => Just(TableStep::OpenTwin),
            4 => any::<prop::sample::Index>().prop_map(TableStep::Close),
            2 => Just(TableStep::Whole),
            1 => Just(TableStep::Evict),
            1 => Just(TableStep::DentryInvalidator),
            1 => Just(TableStep::Takeover),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        /// The kernel's own rule, held against every sequence: all handles of a node are of one mode and of
        /// one backing file, which is still registered.
        #[test]
        fn open_table_any_sequence_never_mixes_modes(steps in steps()) {
            let mut table: OpenTable<std::sync::Arc<u32>, ()> = OpenTable::new();
            let (mut whole, mut dentry, mut registered, now) = (false, tree::base(FILE), 0, Instant::now());
            let mut handles: Vec<(u64, OpenMode<u32>)> = Vec::new();
            let mut backings: std::collections::HashMap<u32, std::sync::Weak<u32>> = Default::default();
            for step in steps {
                match step {
                    TableStep::Lookup => dentry = table.lookup_node(FILE),
                    TableStep::Open | TableStep::OpenTwin => {
                        let node = if matches!(step, TableStep::Open) { dentry } else { tree::twin(FILE) };
                        let back = || whole.then(|| { registered += 1; std::sync::Arc::new(registered) });
                        let mode = match table.open(node, back, || None) {
                            OpenMode::Cached => OpenMode::Cached,
                            OpenMode::Passthrough(backing) => {
                                prop_assert!(std::sync::Arc::strong_count(&backing) > 1);
                                backings.insert(*backing, std::sync::Arc::downgrade(&backing));
                                OpenMode::Passthrough(*backing)
                            }
                        };
                        prop_assert!(handles.iter().all(|(n, m)| *n != node || *m == mode));
                        handles.push((node, mode));
                    }
                    TableStep::Close(which) if !handles.is_empty() => {
                        let (node, _) = handles.swap_remove(which.index(handles.len()));
                        table.close(node, now);
                    }
                    TableStep::Whole => {
                        whole = true;
                        table.mark_whole(tree::base(FILE));
                        table.mark_whole(tree::twin(FILE));
                    }
                    TableStep::Evict => whole &= !handles.is_empty(),
                    TableStep::DentryInvalidator => drop(table.expire(now + BACKING_IDLE_TIMEOUT)),
                    TableStep::Takeover => {
                        // From the ledger; nothing else is handed over.
                        let adopted: Vec<_> = backings.values().filter_map(std::sync::Weak::upgrade).collect();
                        table = OpenTable::new();
                        for (node, mode) in &handles {
                            let mode = match mode {
                                OpenMode::Cached => OpenMode::Cached,
                                OpenMode::Passthrough(id) => {
                                    let adopted = adopted.iter().find(|backing| ***backing == *id);
                                    OpenMode::Passthrough(adopted.expect("registered while it is open").clone())
                                }
                            };
                            table.restore(*node, mode, || None);
                        }
                        if whole {
                            table.mark_whole(tree::base(FILE));
                            table.mark_whole(tree::twin(FILE));
                        }
                    }
                    TableStep::Close(_) => {}
                }
                if handles.is_empty() && whole {
                    prop_assert_eq!(table.lookup_node(FILE), tree::base(FILE));
                }
            }
        }
    }
}
