//! Content that the disk failed to write. The kernel tells of that once, and takes what it still has in memory for written.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::seal::{EncodedPath, Seal};
use super::walk::{FileTime, ScannedFile};

/// The number of contents that are remembered one by one, so that a record stays small.
const MAX_CONTENTS: usize = 1000;

/// The content of a directory that the disk failed to write, until it is written again. What a scan does not find may have been
/// renamed meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnwrittenContent {
    /// The [versions](ScannedFile::content_version) of it.
    contents: BTreeSet<String>,
    /// The times of the oldest and the newest beyond [`MAX_CONTENTS`]: what was written between them counts as such, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    since: Option<FileTime>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<FileTime>,
}

impl UnwrittenContent {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.contents.is_empty() && self.until.is_none()
    }

    /// Adds that of `file`.
    pub fn add(&mut self, file: &ScannedFile) {
        if self.contents.len() < MAX_CONTENTS {
            self.contents.insert(file.content_version().to_owned());
        } else {
            // A record of an earlier version has no oldest: all that is older counts.
            self.since =
                if self.until.is_none() { Some(file.mtime) } else { self.since.min(Some(file.mtime)) };
            self.until = self.until.max(Some(file.mtime));
        }
    }

    /// Forgets content that none of `files` has; `files` are all files there are.
    pub fn retain<'a>(&mut self, files: impl Iterator<Item = &'a ScannedFile>) {
        if self.is_empty() {
            return;
        }
        let (mut found, mut is_any_beyond) = (BTreeSet::new(), false);
        for file in files {
            let version = file.content_version();
            if self.contents.contains(version) {
                found.insert(version.to_owned());
            } else {
                is_any_beyond |= self.is_beyond(file);
            }
        }
        self.contents = found;
        if !is_any_beyond {
            (self.since, self.until) = (None, None);
        }
    }

    /// Whether `file` was written between the oldest and the newest content that is not remembered by itself.
    fn is_beyond(&self, file: &ScannedFile) -> bool {
        self.until >= Some(file.mtime) && self.since <= Some(file.mtime)
    }

    /// Whether `file` has such content.
    pub fn has(&self, file: &ScannedFile) -> bool {
        // There may be a million files, and each scan asks.
        !self.is_empty() && (self.contents.contains(file.content_version()) || self.is_beyond(file))
    }

    /// The path of a file of `seal` that has such content.
    pub fn path_in<'a>(&self, seal: &'a Seal) -> Option<&'a EncodedPath> {
        if self.is_empty() {
            return None;
        }
        seal.files.iter().find(|(_, file)| self.has(file)).map(|(path, _)| path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal(files: impl IntoIterator<Item = (String, u64, i64)>) -> Seal {
        let files = files.into_iter().map(|(path, inode, second)| {
            let version = format!("7-{inode}-1-{second}000000000-99");
            (
                EncodedPath(path.into()),
                ScannedFile { version, size: 1, mtime: (second, 0), executable: false },
            )
        });
        Seal { files: files.collect(), ..Seal::default() }
    }

    fn path(name: &str) -> EncodedPath {
        EncodedPath(name.into())
    }

    #[test]
    fn unwritten_content_is_found_under_any_name_and_is_not_when_it_was_written_again() {
        let mut unwritten = UnwrittenContent::default();
        let found = seal([("a/one".into(), 1, 5), ("a/two".into(), 2, 5)]);
        assert_eq!(unwritten.path_in(&found), None);
        unwritten.add(&found.files[&path("a/two")]);
        assert_eq!(unwritten.path_in(&found), Some(&path("a/two")));
        assert_eq!(unwritten.path_in(&seal([("b/renamed".into(), 2, 5)])), Some(&path("b/renamed")));
        assert_eq!(unwritten.path_in(&seal([("a/one".into(), 1, 5), ("a/two".into(), 2, 6)])), None);
    }

    #[test]
    fn unwritten_content_beyond_the_limit_is_all_that_is_as_old() {
        let many = seal((0..MAX_CONTENTS as u64 + 2).map(|number| (format!("{number:06}"), number, 5)));
        let mut unwritten = UnwrittenContent::default();
        many.files.values().for_each(|file| unwritten.add(file));
        assert_eq!(unwritten.contents.len(), MAX_CONTENTS);
        assert_eq!(
            unwritten.path_in(&seal([("last".into(), MAX_CONTENTS as u64 + 1, 5)])),
            Some(&path("last"))
        );
        assert_eq!(unwritten.path_in(&seal([("newer".into(), 1 << 40, 6)])), None);
        assert_eq!(unwritten.path_in(&seal([("older".into(), 1 << 40, 4)])), None);

        // Those that were remembered one by one are gone, and the last is not.
        let last = seal([("last".into(), MAX_CONTENTS as u64 + 1, 5)]);
        unwritten.retain(last.files.values());
        assert_eq!(unwritten.path_in(&last), Some(&path("last")));
        unwritten.retain(seal([("last".into(), MAX_CONTENTS as u64 + 1, 6)]).files.values());
        assert!(unwritten.is_empty());
    }
}
