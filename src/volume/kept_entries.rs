//! The entries that stay in the next snapshot of a directory though a walk has not found them: those that can't be read, and those
//! that may have been renamed while it was walked.

use super::home_tree::{FormerFiles, is_at_or_after};
use super::settle::SEAL_QUIET_PERIOD;
use super::skip_reason::SkipReason;
use super::walk::{FileTime, Scan};
use crate::error::{Error, Kind, Result};
use crate::tree_merge::{MergeEntry, MergeTree, directories_above};

impl Scan {
    /// Adds entries of `base` to `tree`, the scan's own, where there is content now that can't be read: it was not removed. Returns
    /// the paths of the unreadable entries; what `base` has at and below them is added.
    ///
    /// # Errors
    /// [`Kind::Invalid`] where a snapshot can't have such a file as it was.
    pub fn keep_skipped(
        &mut self,
        tree: &mut MergeTree,
        base: &MergeTree,
        former: &FormerFiles,
    ) -> Result<Vec<(Vec<u8>, SkipReason)>> {
        let skipped = self.skipped.iter().filter(|(_, why)| why.has_content());
        let skipped: Vec<_> = skipped.map(|(path, why)| (path.clone(), *why)).collect();
        for (path, why) in &skipped {
            let below = [path, &b"/"[..]].concat();
            let covered = base.range(below.clone()..).take_while(|(path, _)| path.starts_with(&below));
            for (path, entry) in base.get_key_value(path).into_iter().chain(covered) {
                self.keep(path, entry, tree, former).ok_or_else(|| {
                    let path = path.escape_ascii();
                    let text = format!(
                        "{path} can't stay as it was saved, and {why}; replace it by a copy, or remove it"
                    );
                    Error::new(Kind::Invalid, text)
                })?;
            }
        }
        Ok(skipped)
    }

    /// Adds entries of `base` to `tree`, the scan's own, that the walk may have missed because they were renamed during it. Such a
    /// rename is found neither at its old place nor at its new one. Entries are added below directories changed just before
    /// `walked_at` or later: the time at which the walk began, in nanoseconds since 1970.
    ///
    /// # Errors
    /// [`Kind::Changed`] where a snapshot can't have such a file as it was.
    pub fn keep_missing(
        &mut self,
        tree: &mut MergeTree,
        base: &MergeTree,
        former: &FormerFiles,
        walked_at: i64,
    ) -> Result<()> {
        let quiet = i64::try_from(SEAL_QUIET_PERIOD.as_nanos()).unwrap_or(i64::MAX);
        let settled_before = walked_at.saturating_sub(quiet);
        for (path, entry) in base {
            if self.has(path) || !self.may_be_moving(path, settled_before) {
                continue;
            }
            self.keep(path, entry, tree, former).ok_or_else(|| {
                let path = path.escape_ascii();
                Error::new(
                    Kind::Changed,
                    format!("{path} was removed or renamed while its directory was read"),
                )
            })?;
        }
        Ok(())
    }

    /// Has the `entry` of an earlier snapshot stay at `path`; `None` where a snapshot can't have such a file as it was.
    fn keep(
        &mut self,
        path: &[u8],
        entry: &MergeEntry,
        tree: &mut MergeTree,
        former: &FormerFiles,
    ) -> Option<()> {
        match entry {
            MergeEntry::File { .. } if !former.contains_key(path) => return None,
            MergeEntry::Link { target, mtime } => {
                self.links.insert(path.to_owned(), (target.clone(), *mtime));
            }
            MergeEntry::Directory => {
                self.kept_directories.insert(path.to_owned());
            }
            MergeEntry::File { .. } => {}
        }
        tree.insert(path.to_owned(), entry.clone());
        Some(())
    }

    fn has(&self, path: &[u8]) -> bool {
        self.files.contains_key(path)
            || self.directories.contains_key(path)
            || self.links.contains_key(path)
            || self.skipped.contains_key(path)
    }

    /// Whether the lowest directory above `path` that is there lost an entry at `since` or later. Not where something else has
    /// come to the place of one.
    fn may_be_moving(&self, path: &[u8], since: i64) -> bool {
        let above: Vec<_> = directories_above(path).collect();
        let directory = above.iter().rev().find(|above| self.has(above)).copied().unwrap_or_default();
        match self.last_change(directory) {
            Some(at) => is_at_or_after(&at, since) || self.shrunk.contains(directory),
            None => false,
        }
    }

    /// When the directory at `path` was last changed itself, as far as a walk tells; `None` where there is none.
    fn last_change(&self, path: &[u8]) -> Option<FileTime> {
        if path.is_empty() {
            return Some(self.root);
        }
        self.renamed.get(path).or_else(|| self.directories.get(path)).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::sync::Arc;

    use bytes::Bytes;

    use super::super::home_tree::FormerFile;
    use super::super::unwritten_content::UnwrittenContent;
    use super::super::walk::VolumeDirectory;
    use super::*;

    fn walk(path: &std::path::Path) -> Scan {
        VolumeDirectory::open(path).and_then(|directory| directory.walk()).expect("a walk")
    }

    fn former(tree: &MergeTree) -> FormerFiles {
        let file =
            FormerFile { size: 1, mtime: (1, 0), executable: false, version: Bytes::from_static(b"1") };
        let files = tree.iter().filter(|(_, entry)| matches!(entry, MergeEntry::File { .. }));
        files.map(|(path, _)| (path.clone(), file.clone())).collect::<BTreeMap<_, _>>()
    }

    fn names(tree: &MergeTree) -> Vec<String> {
        tree.keys().map(|path| String::from_utf8(path.clone()).expect("text")).collect()
    }

    #[test]
    fn tree_keeps_what_is_missing_from_a_directory_that_was_changed_just_now() {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(home.path().join("data/in")).expect("directories");
        fs::create_dir(home.path().join("other")).expect("a directory");
        for file in ["data/in/file", "other/file", "plain"] {
            fs::write(home.path().join(file), "1").expect("a file");
        }
        symlink("file", home.path().join("data/in/link")).expect("a link");
        let base = walk(home.path()).tree(0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::rename(home.path().join("data"), home.path().join("moved")).expect("renamed");
        // A directory that was read before has what comes to it, and one that is read after has it no more.
        fs::remove_dir_all(home.path().join("moved")).expect("removed");
        // This is no renaming: something else is there.
        fs::remove_dir_all(home.path().join("other")).expect("removed");
        fs::write(home.path().join("other"), "1").expect("a file");
        let changed = fs::metadata(home.path()).expect("stat");
        let changed = changed.ctime() * 1_000_000_000 + changed.ctime_nsec();
        let kept = |walked_at| {
            let mut scan = walk(home.path());
            let mut tree = scan.tree(0);
            scan.keep_missing(&mut tree, &base, &former(&base), walked_at).expect("kept");
            (names(&tree), scan.links.len())
        };
        let all = ["data", "data/in", "data/in/file", "data/in/link", "other", "plain"].map(str::to_owned);
        assert_eq!(kept(changed + 1_999_999_999), (all.to_vec(), 1));
        assert_eq!(kept(changed - 1), (all.to_vec(), 1), "it was changed after the walk began");
        assert_eq!(kept(changed + 2_000_000_001), (vec!["other".to_owned(), "plain".to_owned()], 0));
        let mut scan = walk(home.path());
        scan.shrunk.insert(Vec::new());
        let mut tree = scan.tree(0);
        let late = changed + 5_000_000_000;
        scan.keep_missing(&mut tree, &base, &former(&base), late).expect("kept");
        assert_eq!(names(&tree), all, "one was gone when it was to be read");
        let unknown = scan.keep_missing(&mut walk(home.path()).tree(0), &base, &FormerFiles::new(), late);
        assert_eq!(unknown.expect_err("it would be removed").kind(), Kind::Changed);
    }

    #[test]
    fn tree_keeps_what_lies_below_a_directory_that_cannot_be_read() {
        let home = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(home.path().join("disk/in")).expect("directories");
        fs::create_dir(home.path().join("disk/empty")).expect("a directory");
        fs::write(home.path().join("disk/in/file"), "1").expect("a file");
        fs::write(home.path().join("disk2"), "1").expect("a file");
        symlink("file", home.path().join("disk/link")).expect("a link");
        let base = walk(home.path()).tree(0);
        let mut scan = walk(home.path());
        scan.directories.clear();
        scan.links.clear();
        scan.files.retain(|path, _| path == b"disk2");
        scan.skipped.insert(b"disk".to_vec(), SkipReason::OtherFileSystem);
        let mut tree = scan.tree(0);
        let kept = scan.keep_skipped(&mut tree, &base, &former(&base)).expect("kept");
        assert_eq!(kept, [(b"disk".to_vec(), SkipReason::OtherFileSystem)]);
        assert_eq!((names(&tree), scan.links.len()), (names(&base), 1));
        let directory = Arc::new(VolumeDirectory::open(home.path()).expect("a directory"));
        let quiet = scan
            .into_quiet_tree(
                &directory,
                &tree,
                (&base, former(&base)),
                None,
                &mut UnwrittenContent::default(),
            )
            .expect("sealed");
        let directories = quiet.unit.seal.directories.keys().map(|path| path.0.clone());
        assert!(directories.eq([b"disk/empty"]), "the others come with their files: {quiet:?}");
    }
}
