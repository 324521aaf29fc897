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
//! On a *steady* mount, the lower layer of an overlay, a file has one node: an overlay fails an open with ESTALE where a name leads
//! to another node than before. A file that becomes whole while cached handles are open gets its passthrough after the last of them
//! has been closed. While handles of a backing file that was not right are open, the file can't be opened: the kernel would take
//! only handles with the same backing file.
//!
//! The kernel forgets the mode of a node before it sends RELEASE, and sets it after the reply to OPEN: what is counted here
//! is never less than what the kernel counts.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use crate::idle_cache::IdleCache;
use crate::tree;

/// The number of backing files of closed nodes that stay registered: opening again is then nearly twice as fast. Each holds an open
/// file and a lease, so they are few.
const IDLE_BACKING_FILES: NonZeroUsize = NonZeroUsize::new(256).unwrap();
/// The time for which idle backing files stay registered: long enough for a program that opens its files over and over, short
/// enough not to keep the cache from evicting.
pub(crate) const BACKING_IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The open nodes. `B` is a registered backing file, `W` is dropped when no request waits any more for a
/// node's file to become whole.
#[derive(Debug)]
pub(crate) struct OpenTable<B, W> {
    open: HashMap<u64, OpenNode<B, W>>,
    idle: IdleCache<u64, B>,
    /// The generation of those files that are not in their first.
    generations: HashMap<u32, u32>,
    /// Whether each file keeps its node.
    steady: bool,
}

/// The open handles of one node, all of one mode.
#[derive(Debug)]
enum OpenNode<B, W> {
    Cached {
        handles: u64,
        whole: bool,
        _watch: Option<W>,
    },
    /// `damaged`: the backing file was not right, and gets no more handles.
    Passthrough {
        handles: u64,
        backing: B,
        damaged: bool,
    },
}

/// The work that is left after [`OpenTable::renew`].
#[derive(Debug)]
pub(crate) struct RenewalActions<B> {
    /// The nodes of the file, whose pages the kernel is to drop.
    pub(crate) nodes: Vec<u64>,
    /// The node that lookups lead to from now on, if it is another.
    pub(crate) moved_to: Option<u64>,
    /// Whether the kernel may know the file's name with another node than lookups lead to: of this renewal, or of an earlier one
    /// that a process did not see to its end.
    pub(crate) is_name_outdated: bool,
    /// The node that stays, and its backing file that has open handles.
    pub(crate) damaged: Option<(u64, B)>,
    /// Backing files without open handles.
    pub(crate) backings: Vec<B>,
}

/// The mode in which a file is to be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode<B> {
    /// Reads are served by the agent.
    Cached,
    /// Reads are served by the kernel from this file.
    Passthrough(B),
}

impl<B: Clone, W> OpenTable<B, W> {
    /// A table without open nodes, of a mount that may be `steady`.
    pub(crate) fn new(steady: bool) -> Self {
        Self {
            open: HashMap::new(),
            idle: IdleCache::new(IDLE_BACKING_FILES, BACKING_IDLE_TIMEOUT),
            generations: HashMap::new(),
            steady,
        }
    }

    /// Opens `node` once more where its backing file is registered already.
    pub(crate) fn reopen(&mut self, node: u64) -> Option<B> {
        if let Some(backing) = self.idle.take(&node) {
            self.insert_passthrough(node, backing.clone());
            return Some(backing);
        }
        match self.open.get_mut(&node) {
            Some(OpenNode::Passthrough { handles, backing, damaged: false }) => {
                *handles += 1;
                Some(backing.clone())
            }
            _ => None,
        }
    }

    /// Opens `node`. Where its first handle decides, `back` registers the backing file, if the file is whole;
    /// else `watch` begins to wait for that. `None` while a backing file that was not right has open handles.
    pub(crate) fn open(
        &mut self,
        node: u64,
        back: impl FnOnce() -> Option<B>,
        watch: impl FnOnce() -> Option<W>,
    ) -> Option<OpenMode<B>> {
        if let Some(backing) = self.reopen(node) {
            return Some(OpenMode::Passthrough(backing));
        }
        match self.open.get_mut(&node) {
            Some(OpenNode::Cached { handles, .. }) => {
                *handles += 1;
                return Some(OpenMode::Cached);
            }
            Some(OpenNode::Passthrough { .. }) => return None,
            None => {}
        }
        if let Some(backing) = back() {
            self.insert_passthrough(node, backing.clone());
            return Some(OpenMode::Passthrough(backing));
        }
        self.open.insert(node, OpenNode::Cached { handles: 1, whole: false, _watch: watch() });
        Some(OpenMode::Cached)
    }

    fn insert_passthrough(&mut self, node: u64, backing: B) {
        self.open.insert(node, OpenNode::Passthrough { handles: 1, backing, damaged: false });
    }

    /// Adds a handle of `node` that the previous process opened in `mode`.
    pub(crate) fn restore(&mut self, node: u64, mode: OpenMode<B>, watch: impl FnOnce() -> Option<W>) {
        self.restore_generation(node);
        match self.open.get_mut(&node) {
            // Of the same mode: the previous process kept to the same rule.
            Some(OpenNode::Cached { handles, .. } | OpenNode::Passthrough { handles, .. }) => *handles += 1,
            None => match mode {
                OpenMode::Cached => {
                    self.open.insert(node, OpenNode::Cached { handles: 1, whole: false, _watch: watch() });
                }
                OpenMode::Passthrough(backing) => {
                    // It was open when its file moved on.
                    let damaged = self.is_outdated(node);
                    self.open.insert(node, OpenNode::Passthrough { handles: 1, backing, damaged });
                }
            },
        }
    }

    /// Marks the open backing file of `node` as not right, and returns it, unless that was done: it gets no more handles.
    pub(crate) fn mark_damaged(&mut self, node: u64) -> Option<B> {
        match self.open.get_mut(&node)? {
            OpenNode::Passthrough { backing, damaged: damaged @ false, .. } => {
                *damaged = true;
                Some(backing.clone())
            }
            _ => None,
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
        let is_outdated = self.is_outdated(node);
        match self.open.get_mut(&node)? {
            OpenNode::Cached { handles, .. } | OpenNode::Passthrough { handles, .. } if *handles > 1 => {
                *handles -= 1;
                None
            }
            _ => match self.open.remove(&node)? {
                OpenNode::Passthrough { backing, damaged, .. } if damaged || is_outdated => Some(backing),
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

    /// Whether handles of `node` are served by the kernel from a damaged file, which has moved on from there.
    pub(crate) fn has_damaged_backing(&self, node: u64) -> bool {
        !self.steady && matches!(self.open.get(&node), Some(OpenNode::Passthrough { damaged: true, .. }))
    }

    /// Whether `node` is of an earlier generation of its file.
    fn is_outdated(&self, node: u64) -> bool {
        tree::index(node).is_some_and(|index| tree::generation(node) < self.generation(index))
    }

    fn generation(&self, index: u32) -> u32 {
        self.generations.get(&index).copied().unwrap_or_default()
    }

    /// Marks the file `index` as read wrongly: its next opens read it anew.
    pub(crate) fn renew(&mut self, index: u32) -> RenewalActions<B> {
        let generation = self.generation(index);
        let present = tree::ids(index, generation);
        let moved = !self.steady && present.iter().any(|node| self.is_passthrough(*node));
        let backings = present.iter().filter_map(|node| self.idle.take(node)).collect();
        let mut nodes: Vec<_> =
            (0..=generation).flat_map(|generation| tree::ids(index, generation)).collect();
        let damaged: Vec<_> =
            nodes.iter().filter_map(|&node| Some((node, self.mark_damaged(node)?))).collect();
        let damaged = damaged.into_iter().next().filter(|_| self.steady);
        let moved_to = moved.then(|| {
            self.generations.insert(index, generation + 1);
            let next = tree::ids(index, generation + 1);
            nodes.extend(next);
            next[0]
        });
        let is_name_outdated = moved_to.is_some() || generation > 0;
        RenewalActions { nodes, moved_to, is_name_outdated, damaged, backings }
    }

    /// Removes and returns the backing files that were idle for too long at `now`.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<B> {
        self.idle.expire(now, |_| false)
    }
}

#[cfg(test)]
mod tests;
