//! Three-way merge of directory trees: which changes of two trees with a common base are combined.
//!
//! Paths, kinds, sizes and times are compared, and of two snapshots what each was published as; no content is read. What was
//! changed in one of the trees wins over what was not; of what was changed in both, what was changed later; and what was changed
//! over what was deleted.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::blob::Key;
use crate::digest::Digest;
use crate::error::Result;
use crate::manifest::{FileVersions, Manifest, Node, Slice};

/// A directory tree: what lies at each path below it. The directories above a path are in it, too.
pub type MergeTree = BTreeMap<Vec<u8>, MergeEntry>;

/// An entry of a tree.
#[derive(Clone, Debug)]
pub enum MergeEntry {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// The size in bytes.
        size: u64,
        /// When it was last written: seconds and nanoseconds since 1970.
        mtime: (i64, u32),
        /// Whether it may be executed.
        executable: bool,
        /// Whether anything was done to it since the trees were the same, though it may look as it did.
        touched: bool,
        /// The content that a snapshot has for it; `None` for a file in a directory.
        content: Option<SavedContent>,
    },
    /// A symbolic link.
    Link {
        /// The link's target.
        target: Vec<u8>,
        /// When it was made: seconds and nanoseconds since 1970.
        mtime: (i64, u32),
    },
}

/// The content of a file in a snapshot, as far as it tells that of another snapshot from it: hashes of the version that the file
/// was published as, and of where the content lies. One of them stays the same as long as the content does, unless something was
/// done to the file and it lies in another pack since.
#[derive(Clone, Copy, Debug)]
pub struct SavedContent {
    version: u64,
    location: u64,
}

impl SavedContent {
    /// The content that is the part of `slice` in the blob `key`, and was published as `version`, where that is known.
    fn new(slice: Slice, key: &Key, version: Option<&Bytes>) -> Self {
        let location = short_hash(format!("{key} {}", slice.offset).as_bytes());
        Self { version: version.map_or(location, |version| short_hash(version)), location }
    }

    fn differs_from(self, other: Self) -> bool {
        self.version != other.version && self.location != other.location
    }
}

/// The first 64 bits of a hash, which of a million files no two share by accident.
fn short_hash(bytes: &[u8]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = Digest::of(bytes).0;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The changes that make a tree the merged one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MergePlan {
    /// The paths whose entries the other tree gives.
    pub take: BTreeSet<Vec<u8>>,
    /// The paths whose entries go.
    pub remove: BTreeSet<Vec<u8>>,
    /// The paths that were changed in both trees, whose change in one of them is lost.
    pub conflicts: BTreeSet<Vec<u8>>,
}

impl MergeEntry {
    /// Whether `other` looks the same, and both have the same content as far as that is known.
    fn is_same(&self, other: &Self) -> bool {
        self.looks_like(other) && !self.has_other_content(other)
    }

    fn looks_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Directory, Self::Directory) => true,
            (Self::Link { target, .. }, Self::Link { target: other, .. }) => target == other,
            (
                Self::File { size, mtime, executable, .. },
                Self::File { size: other_size, mtime: other_mtime, executable: other_executable, .. },
            ) => (size, mtime, executable) == (other_size, other_mtime, other_executable),
            _ => false,
        }
    }

    /// Whether both are files of snapshots and do not have the same content, however they look.
    fn has_other_content(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File { content: Some(one), .. }, Self::File { content: Some(other), .. }) => {
                one.differs_from(*other)
            }
            _ => false,
        }
    }

    fn is_directory(&self) -> bool {
        matches!(self, Self::Directory)
    }

    fn is_touched(&self) -> bool {
        matches!(self, Self::File { touched: true, .. })
    }

    fn mtime(&self) -> (i64, u32) {
        match self {
            Self::Directory => (0, 0),
            Self::File { mtime, .. } | Self::Link { mtime, .. } => *mtime,
        }
    }
}

/// Whether the entry at a path is another one than that of the `base`.
pub fn is_changed(base: Option<&MergeEntry>, now: Option<&MergeEntry>) -> bool {
    match (base, now) {
        (None, None) => false,
        (Some(base), Some(now)) => !base.is_same(now) || now.is_touched(),
        _ => true,
    }
}

/// Whether something was done to an entry since it was the `base`'s, though it looks as it did: only the time of that tells.
pub fn is_hidden_change(base: Option<&MergeEntry>, now: &MergeEntry) -> bool {
    now.is_touched() && base.is_some_and(|base| base.is_same(now))
}

/// The tree of a snapshot, whose files were published as `versions`.
///
/// # Errors
/// [`Kind::Corrupt`](crate::error::Kind::Corrupt) where the manifest is damaged.
pub fn tree_of(manifest: &Manifest, versions: &FileVersions) -> Result<MergeTree> {
    let mut tree = MergeTree::new();
    for index in 1..manifest.entries() {
        let entry = manifest.entry(index)?;
        let (path, mtime, executable) = (manifest.path(index)?, entry.mtime, entry.executable);
        let found = match entry.node {
            Node::Directory(_) => MergeEntry::Directory,
            Node::File(slice) => {
                let key = manifest.key(slice.blob)?;
                let content = Some(SavedContent::new(slice, &key, versions.get(&path[..])));
                MergeEntry::File { size: slice.len, mtime, executable, touched: false, content }
            }
            Node::Symlink(target) => MergeEntry::Link { target: target.to_vec(), mtime },
        };
        tree.insert(path, found);
    }
    Ok(tree)
}

/// Plans the changes that bring into `ours` what was done to `theirs` since both were `base`.
pub fn merge(base: &MergeTree, ours: &MergeTree, theirs: &MergeTree) -> MergePlan {
    let mut plan = MergePlan::default();
    let paths: BTreeSet<_> = base.keys().chain(ours.keys()).chain(theirs.keys()).collect();
    for path in paths {
        let (base, ours, theirs) = (base.get(path), ours.get(path), theirs.get(path));
        // What was published anew looks as before. It may have been touched and packed with others only, so a change of ours that
        // can be seen wins over it.
        let is_unseen =
            base.zip(theirs).is_some_and(|(base, now)| base.looks_like(now) && base.has_other_content(now));
        if is_unseen && !base.zip(ours).is_some_and(|(base, ours)| base.looks_like(ours)) {
            continue;
        }
        // What was touched may look the same and have another content.
        let looks_same = !is_unseen && is_same(ours, theirs);
        let may_differ = ours.is_some_and(MergeEntry::is_touched);
        if !is_changed(base, theirs) || (looks_same && !may_differ) {
            continue;
        }
        let is_conflict = is_changed(base, ours) && !looks_same;
        let is_theirs = !is_conflict
            || is_unseen
            || match (ours, theirs) {
                (None, _) => true,
                (_, None) => false,
                (Some(ours), Some(theirs)) => {
                    (theirs.is_directory(), theirs.mtime()) > (ours.is_directory(), ours.mtime())
                }
            };
        if is_theirs {
            let goes = if theirs.is_some() { &mut plan.take } else { &mut plan.remove };
            goes.insert(path.clone());
        }
        if is_conflict && ours.is_some() && theirs.is_some() {
            plan.conflicts.insert(path.clone());
        }
    }
    plan.keep_directories(ours, theirs);
    plan
}

fn is_same(one: Option<&MergeEntry>, other: Option<&MergeEntry>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => one.is_same(other),
        _ => false,
    }
}

impl MergePlan {
    /// Makes sure that all that stays or comes lies in directories: a file in the place of one goes, and one that is missing comes.
    fn keep_directories(&mut self, ours: &MergeTree, theirs: &MergeTree) {
        let stays = |plan: &Self, path: &Vec<u8>| !plan.take.contains(path) && !plan.remove.contains(path);
        let kept: Vec<_> = ours.keys().filter(|path| stays(self, path)).cloned().collect();
        let all: BTreeSet<_> = kept.into_iter().chain(self.take.iter().cloned()).collect();
        for directory in all.iter().flat_map(|path| directories_above(path)) {
            let entry = match self.take.contains(directory) {
                true => theirs.get(directory),
                false => ours.get(directory).filter(|_| !self.remove.contains(directory)),
            };
            if entry.is_some_and(MergeEntry::is_directory) {
                continue;
            }
            if entry.is_some() {
                self.conflicts.insert(directory.to_owned());
            }
            self.take.remove(directory);
            self.remove.remove(directory);
            if !ours.get(directory).is_some_and(MergeEntry::is_directory) {
                self.take.insert(directory.to_owned());
            }
        }
    }

    /// Whether there is nothing to do.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.take.is_empty() && self.remove.is_empty()
    }

    /// The tree that `ours` becomes.
    #[cfg(test)]
    fn apply(&self, ours: &MergeTree, theirs: &MergeTree) -> MergeTree {
        let mut tree = ours.clone();
        self.remove.iter().for_each(|path| drop(tree.remove(path)));
        self.take.iter().for_each(|path| drop(tree.insert(path.clone(), theirs[path].clone())));
        tree
    }
}

/// The paths of the directories that `path` lies in.
pub(crate) fn directories_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at])
}

#[cfg(test)]
mod tests {
    use proptest::collection::btree_map;
    use proptest::prelude::*;

    use super::*;

    fn file(time: i64) -> MergeEntry {
        MergeEntry::File { size: 1, mtime: (time, 0), executable: false, touched: false, content: None }
    }

    fn tree(entries: &[(&str, Option<i64>)]) -> MergeTree {
        let entry = |time: &Option<i64>| time.map_or(MergeEntry::Directory, file);
        entries.iter().map(|(path, time)| (path.as_bytes().to_vec(), entry(time))).collect()
    }

    fn merged(base: &MergeTree, ours: &MergeTree, theirs: &MergeTree) -> (MergeTree, Vec<String>) {
        let plan = merge(base, ours, theirs);
        let conflicts = plan.conflicts.iter().map(|path| String::from_utf8(path.clone()).expect("text"));
        (plan.apply(ours, theirs), conflicts.collect())
    }

    fn is_equal(one: &MergeTree, other: &MergeTree) -> bool {
        let key = |tree: &MergeTree| tree.keys().cloned().collect::<Vec<_>>();
        key(one) == key(other) && one.iter().all(|(path, entry)| entry.is_same(&other[path]))
    }

    #[test]
    fn merge_of_changes_takes_each_and_the_later_of_two() {
        let base = tree(&[
            ("same", Some(1)),
            ("ours", Some(1)),
            ("theirs", Some(1)),
            ("both", Some(1)),
            ("gone", Some(1)),
        ]);
        let ours = tree(&[
            ("same", Some(1)),
            ("ours", Some(2)),
            ("theirs", Some(1)),
            ("both", Some(4)),
            ("mine", Some(2)),
        ]);
        let theirs = tree(&[
            ("same", Some(1)),
            ("ours", Some(1)),
            ("theirs", Some(3)),
            ("both", Some(3)),
            ("gone", Some(1)),
        ]);
        let (found, conflicts) = merged(&base, &ours, &theirs);
        let expected =
            [("same", Some(1)), ("ours", Some(2)), ("theirs", Some(3)), ("both", Some(4)), ("mine", Some(2))];
        assert!(is_equal(&found, &tree(&expected)), "{found:?}");
        assert_eq!(conflicts, ["both"]);
    }

    #[test]
    fn merge_of_a_change_and_a_deletion_keeps_the_change() {
        let base = tree(&[("d", None), ("d/a", Some(1)), ("d/b", Some(1))]);
        let changed = tree(&[("d", None), ("d/a", Some(2)), ("d/b", Some(1))]);
        for (ours, theirs) in [(&changed, &MergeTree::new()), (&MergeTree::new(), &changed)] {
            let (found, conflicts) = merged(&base, ours, theirs);
            assert!(is_equal(&found, &tree(&[("d", None), ("d/a", Some(2))])), "{found:?}");
            assert_eq!(conflicts, [""; 0]);
        }
    }

    #[test]
    fn merge_of_a_file_and_a_directory_keeps_the_directory() {
        let (directory, only) = (tree(&[("d", None), ("d/a", Some(1))]), tree(&[("d", Some(9))]));
        for (ours, theirs) in [(&directory, &only), (&only, &directory)] {
            let (found, conflicts) = merged(&MergeTree::new(), ours, theirs);
            assert!(is_equal(&found, &directory), "{found:?}");
            assert_eq!(conflicts, ["d"]);
        }
    }

    #[test]
    fn merge_of_a_touched_file_that_looks_the_same_keeps_it() {
        let base = tree(&[("a", Some(1))]);
        let mut ours = base.clone();
        ours.insert(
            b"a".to_vec(),
            MergeEntry::File { size: 1, mtime: (1, 0), executable: false, touched: true, content: None },
        );
        let plan = merge(&base, &ours, &MergeTree::new());
        assert_eq!(plan, MergePlan::default(), "it may have another content");
        let plan = merge(&MergeTree::new(), &ours, &base);
        assert_eq!(plan.take, [b"a".to_vec()].into(), "one of the two has to be everywhere");
    }

    /// Trees of few names, so that they meet.
    fn trees() -> impl Strategy<Value = MergeTree> {
        let path = proptest::collection::vec(prop_oneof!["a", "b"], 1..4).prop_map(|parts| parts.join("/"));
        btree_map(path, 0..3_i64, 0..6).prop_map(|files| {
            let mut tree = MergeTree::new();
            for (path, time) in files {
                let path = path.into_bytes();
                let above: Vec<_> = directories_above(&path).map(<[u8]>::to_vec).collect();
                let fits = above.iter().all(|path| tree.get(path).is_none_or(MergeEntry::is_directory));
                if fits && !tree.contains_key(&path) {
                    tree.extend(above.into_iter().map(|path| (path, MergeEntry::Directory)));
                    tree.insert(path, if time == 0 { MergeEntry::Directory } else { file(time) });
                }
            }
            tree
        })
    }

    proptest! {
        #[test]
        fn merge_of_any_trees_is_a_tree_and_reports_lost_changes(base in trees(), ours in trees(), theirs in trees()) {
            let plan = merge(&base, &ours, &theirs);
            let found = plan.apply(&ours, &theirs);
            for path in found.keys() {
                for directory in directories_above(path) {
                    prop_assert!(found.get(directory).is_some_and(MergeEntry::is_directory), "{found:?}");
                }
            }
            for side in [&ours, &theirs] {
                for (path, entry) in side.iter().filter(|(path, entry)| is_changed(base.get(*path), Some(entry))) {
                    let is_there = found.get(path).is_some_and(|found| found.is_same(entry));
                    prop_assert!(is_there || plan.conflicts.contains(path), "{path:?} of {side:?} in {found:?}");
                }
            }
        }

        #[test]
        fn merge_with_an_unchanged_side_is_the_other(base in trees(), changed in trees()) {
            prop_assert!(merge(&base, &changed, &base).is_empty());
            let plan = merge(&base, &base, &changed);
            prop_assert!(is_equal(&plan.apply(&base, &changed), &changed), "{plan:?}");
            prop_assert!(plan.conflicts.is_empty(), "{plan:?}");
        }
    }
}
