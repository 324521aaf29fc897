//! A tree in the order of the format.

use std::ops::Range;

use super::encode::{Content, Contents, Name};
use super::tree::{Item, Tree, What};
use super::{Entry, Node, Slice};
use crate::blob::Stored;
use crate::error::Result;

/// The name of no blob yet.
const NONE: u32 = u32::MAX;

/// A tree whose entries have their numbers.
#[derive(Debug)]
pub(super) struct Ordered<'a> {
    source: &'a str,
    tree: Tree,
    /// The items, in the order of their entries.
    entries: Vec<u32>,
    /// By the number of a directory: its entry, and those of its children.
    places: Vec<(u32, Range<u32>)>,
    /// The first entry of each blob.
    blobs: Vec<u32>,
    /// The blob of the empty files, where there are any.
    empty: u32,
}

impl<'a> Ordered<'a> {
    /// Puts `tree`, a state of `source`, in order. Each item that has the path of another is given to `twice`.
    pub(super) fn new(source: &'a str, tree: Tree, mut twice: impl FnMut(&Tree, &Item)) -> Self {
        let siblings = siblings(&tree);
        for pair in siblings.windows(2) {
            let [one, other] = [pair[0], pair[1]].map(|i| &tree.items[i as usize]);
            if one.parent == other.parent && tree.name(one) == tree.name(other) {
                twice(&tree, if one.what == What::Directory { one } else { other });
            }
        }
        let (entries, places) = breadth_first(&tree, &siblings);
        let mut ordered = Self { source, tree, entries, places, blobs: Vec::new(), empty: NONE };
        ordered.date();
        ordered.number_blobs();
        ordered
    }

    /// Gives each directory without a time of its own that of the newest entry in it.
    fn date(&mut self) {
        for index in self.entries.iter().skip(1).rev() {
            let item = &self.tree.items[*index as usize];
            let time = (item.seconds, item.nanoseconds);
            let parent = &self.tree.directories[item.parent as usize];
            if !parent.dated {
                let parent = &mut self.tree.items[parent.item as usize];
                (parent.seconds, parent.nanoseconds) = time.max((parent.seconds, parent.nanoseconds));
            }
        }
    }

    fn number_blobs(&mut self) {
        for (entry, index) in self.entries.iter().enumerate() {
            let item = &mut self.tree.items[*index as usize];
            if !matches!(item.what, What::File | What::Program) {
                continue;
            }
            if item.size > 0 || self.empty == NONE {
                item.extra = self.blobs.len() as u32;
                self.blobs.push(entry as u32);
            }
            if item.size == 0 {
                if self.empty == NONE {
                    self.empty = item.extra;
                }
                item.extra = self.empty;
            }
        }
    }

    fn item(&self, entry: u32) -> &Item {
        &self.tree.items[self.entries[entry as usize] as usize]
    }
}

/// The items that are kept, without the root, sorted by their directory's number and their name.
fn siblings(tree: &Tree) -> Vec<u32> {
    let kept = |index: &u32| {
        let item = &tree.items[*index as usize];
        item.what != What::Directory || tree.directories[item.extra as usize].kept
    };
    let mut items: Vec<u32> = (1..tree.items.len() as u32).filter(kept).collect();
    items.sort_unstable_by(|a, b| {
        let [a, b] = [a, b].map(|i| &tree.items[*i as usize]);
        a.parent.cmp(&b.parent).then_with(|| tree.name(a).cmp(tree.name(b)))
    });
    items
}

/// The items in the order of the format, and for each directory its place in it with its children's.
fn breadth_first(tree: &Tree, siblings: &[u32]) -> (Vec<u32>, Vec<(u32, Range<u32>)>) {
    let parent = |index: u32| tree.items[index as usize].parent;
    let mut groups = vec![0..0; tree.directories.len()];
    let mut start = 0;
    for group in siblings.chunk_by(|a, b| parent(*a) == parent(*b)) {
        groups[parent(group[0]) as usize] = start..start + group.len();
        start += group.len();
    }
    let mut places = vec![(0, 0..0); tree.directories.len()];
    let mut entries = Vec::with_capacity(siblings.len() + 1);
    entries.push(0);
    let mut next = 0;
    while let Some(index) = entries.get(next) {
        let item = &tree.items[*index as usize];
        if item.what == What::Directory {
            let start = entries.len() as u32;
            let number = item.extra as usize;
            entries.extend_from_slice(&siblings[groups[number].clone()]);
            places[number] = (next as u32, start..entries.len() as u32);
        }
        next += 1;
    }
    (entries, places)
}

impl Contents for Ordered<'_> {
    fn source(&self) -> &str {
        self.source
    }

    fn entries(&self) -> u32 {
        self.entries.len() as u32
    }

    fn entry(&self, index: u32) -> Result<Entry<'_>> {
        let item = self.item(index);
        let node = match item.what {
            What::Directory => Node::Directory(self.places[item.extra as usize].1.clone()),
            What::File | What::Program => Node::File(Slice { blob: item.extra, offset: 0, len: item.size }),
            What::Symlink => Node::Symlink(self.tree.tail(item)),
        };
        Ok(Entry {
            name: self.tree.name(item),
            parent: self.places[item.parent as usize].0,
            mtime: (item.seconds, item.nanoseconds),
            executable: item.what == What::Program,
            node,
        })
    }

    fn blobs(&self) -> u32 {
        self.blobs.len() as u32
    }

    fn blob(&self, index: u32) -> Result<Content<'_>> {
        if index == self.empty {
            return Ok(Content::empty());
        }
        let entry = self.blobs[index as usize];
        let item = self.item(entry);
        let (sha256, version) = match self.tree.tail(item).split_first_chunk() {
            Some((sha256, version)) if item.sha256 => (Some(*sha256), version),
            _ => (None, self.tree.tail(item)),
        };
        Ok(Content {
            name: Name::Origin,
            size: item.size,
            entry: Some(entry),
            version: version.into(),
            packed: false,
            sha256,
            stored: Stored::default(),
        })
    }
}
