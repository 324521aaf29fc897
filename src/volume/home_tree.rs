//! A directory that outlives its writers, such as a training cache: compared with a snapshot of it, brought to the state of
//! another, and read as an origin without the files that are being written.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, renameat, renameat_with};
use rustix::io::Errno;

use super::seal::{EncodedPath, Seal, SealedUnit};
use super::settle::{SEAL_QUIET_PERIOD, SEAL_QUIET_PERIOD_WITHOUT_LEASES};
use super::unwritten_content::UnwrittenContent;
use super::walk::{FileTime, Scan, ScannedFile, VolumeDirectory, split};
use super::writer_probe::{Writers, probe_writers};
use crate::cache::io;
use crate::checkpoint::LOOSE;
use crate::error::{Error, Kind, Result};
use crate::manifest::FileVersions;
use crate::tree_merge::{MergeEntry, MergePlan, MergeTree, directories_above, is_changed};

/// The mode of a directory that a merge makes: that of one which a command copies.
const NEW_DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// The version that an empty file is published as where its own is not known: it has no content that could change.
const EMPTY_FILE_VERSION: &[u8] = b"empty";

/// A file as a snapshot has it.
#[derive(Clone, Debug)]
pub struct FormerFile {
    /// The size in bytes.
    pub size: u64,
    /// When it was last written.
    pub mtime: FileTime,
    /// Whether it may be executed.
    pub executable: bool,
    /// The version that it was published as.
    pub version: Bytes,
}

/// The files of a snapshot by their paths, but for small ones of which it doesn't know the version.
pub type FormerFiles = BTreeMap<Vec<u8>, FormerFile>;

/// A directory ready to be published.
#[derive(Debug)]
pub struct QuietTree {
    /// All but what is left out.
    pub unit: Arc<SealedUnit>,
    /// The files that are published as in the snapshot before: unchanged files, and files that are left out.
    pub former: FormerFiles,
    /// The files that are left out.
    pub left_out: LeftOutFiles,
}

/// The files that are not published as they are.
#[derive(Debug, Default)]
pub struct LeftOutFiles {
    /// Those that are being written.
    pub busy: Vec<Vec<u8>>,
    /// Those that the disk failed to write.
    pub unwritten: Vec<Vec<u8>>,
    /// When the first of these was last touched, in nanoseconds since 1970.
    pub since: Option<i64>,
}

impl LeftOutFiles {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.busy.is_empty() && self.unwritten.is_empty()
    }
}

/// The files of the snapshot with this `tree`, which were published as `versions`.
pub fn former_files(tree: &MergeTree, versions: &FileVersions) -> FormerFiles {
    let former = tree.iter().filter_map(|(path, entry)| match entry {
        MergeEntry::File { size, mtime, executable, .. } => {
            let version = match size {
                0 => Bytes::from_static(EMPTY_FILE_VERSION),
                _ => versions.get(&path[..])?.clone(),
            };
            Some((path.clone(), FormerFile { size: *size, mtime: *mtime, executable: *executable, version }))
        }
        _ => None,
    });
    former.collect()
}

impl Scan {
    /// The scanned directory as a tree. Files changed in any way at `since` or later, in nanoseconds since 1970, are
    /// touched, and all in directories that were renamed then: those may have come to the place of others.
    pub fn tree(&self, since: i64) -> MergeTree {
        let renamed: HashSet<_> = self
            .renamed
            .iter()
            .filter(|(_, at)| is_at_or_after(at, since))
            .map(|(path, _)| &path[..])
            .collect();
        let is_renamed =
            |path: &[u8]| !renamed.is_empty() && directories_above(path).any(|above| renamed.contains(above));
        let files = self.files.iter().map(|(path, file)| {
            let ScannedFile { size, mtime, executable, .. } = *file;
            let touched = file.touched().is_none_or(|at| at >= since.into()) || is_renamed(path);
            (path.clone(), MergeEntry::File { size, mtime, executable, touched, content: None })
        });
        let directories = self.directories.keys().map(|path| (path.clone(), MergeEntry::Directory));
        let links = self.links.iter().map(|(path, (target, mtime))| {
            (path.clone(), MergeEntry::Link { target: target.clone(), mtime: *mtime })
        });
        files.chain(directories).chain(links).collect()
    }

    /// Whether any file or directory was changed in any way, or any link was made, at `since` or later, in nanoseconds since 1970.
    pub fn is_touched_since(&self, since: i64) -> bool {
        self.files.values().any(|file| file.touched().is_none_or(|at| at >= since.into()))
            || self.directories.values().chain(self.renamed.values()).any(|at| is_at_or_after(at, since))
            || is_at_or_after(&self.root, since)
            || self.links.values().any(|(_, at)| is_at_or_after(at, since))
    }

    /// The paths of the files and links to which nothing was done at `since` or later, in nanoseconds since 1970, but that a
    /// directory above them may have been renamed.
    pub fn untouched_since(&self, since: i64) -> BTreeSet<Vec<u8>> {
        let files = self.files.iter().filter(|(_, file)| file.touched().is_some_and(|at| at < since.into()));
        let links = self.links.iter().filter(|(_, (_, at))| !is_at_or_after(at, since));
        files.map(|(path, _)| path).chain(links.map(|(path, _)| path)).cloned().collect()
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.directories.is_empty()
            && self.links.is_empty()
            && self.skipped.is_empty()
    }

    /// Makes the scanned `directory` durable, and ready to be published after the snapshot of the files `former`, whose tree is
    /// `base`; `tree` is that of the scan. Files that are being written stay as they were there, or are left out where they are
    /// new. While processes write to the directory, `writing_at` is the time of the walk, in nanoseconds since 1970, and what was
    /// touched just before it counts as being written. What the disk fails to write is added to `unwritten`, also where this fails,
    /// and all that has such content is left out. Touches the local disk; the process must ignore SIGIO.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk); [`Kind::Invalid`] where a file that is left out can't stay as it was.
    pub fn into_quiet_tree(
        self,
        directory: &Arc<VolumeDirectory>,
        tree: &MergeTree,
        (base, mut former): (&MergeTree, FormerFiles),
        writing_at: Option<i64>,
        unwritten: &mut UnwrittenContent,
    ) -> Result<QuietTree> {
        let flushed = directory.sync();
        let changed: HashSet<_> =
            self.files.keys().filter(|path| is_changed(base.get(*path), tree.get(*path))).cloned().collect();
        let (mut seal, mut left_out) =
            (Seal { unit: LOOSE.into(), ..Seal::default() }, LeftOutFiles::default());
        let mut is_told = false;
        for (path, file) in self.files {
            if !changed.contains(&path) {
                seal.files.insert(EncodedPath(path), file);
                continue;
            }
            let opened = open_quiet(directory, &path, &file, writing_at)?;
            // Of all that is on the disk, the file itself tells whether it could not be written.
            if opened.as_ref().is_some_and(|opened| io::await_writeback(opened).is_err()) {
                unwritten.add(&file);
                is_told = true;
            }
            let is_unwritten = unwritten.has(&file);
            if opened.is_some() && !is_unwritten {
                former.remove(&path);
                seal.files.insert(EncodedPath(path), file);
            } else if matches!(base.get(&path), Some(MergeEntry::File { .. })) && !former.contains_key(&path)
            {
                // Other nodes would remove it.
                let path = path.escape_ascii();
                let text = match is_unwritten {
                    true => format!(
                        "{path} can't stay as it was saved, and the disk failed to write it: write it again"
                    ),
                    false => format!(
                        "{path} can't stay as it was saved, and is being written: all is saved when it no longer is"
                    ),
                };
                return Err(Error::new(Kind::Invalid, text));
            } else {
                let touched = file.touched().and_then(|at| at.try_into().ok()).unwrap_or(0);
                left_out.since = Some(left_out.since.map_or(touched, |since: i64| since.min(touched)));
                if is_unwritten { left_out.unwritten.push(path) } else { left_out.busy.push(path) }
            }
        }
        // What failed may be more than these files, and is told by the next flush of what is written again alone.
        if is_told { directory.sync() } else { flushed }?;
        former.retain(|path, _| matches!(tree.get(path), Some(MergeEntry::File { .. })));
        // Others come with what lies in them. When these were changed is not known.
        let is_empty = |path: &Vec<u8>| {
            let below = [path, &b"/"[..]].concat();
            !tree.range(below.clone()..).next().is_some_and(|(next, _)| next.starts_with(&below))
        };
        let kept = self.kept_directories.into_iter().filter(is_empty).map(|path| (path, FileTime::default()));
        let directories = kept.chain(self.directories).map(|(path, at)| (EncodedPath(path), at));
        seal.directories = directories.collect();
        let links =
            self.links.into_iter().map(|(path, (target, at))| (EncodedPath(path), (EncodedPath(target), at)));
        seal.links = links.collect();
        let unit = SealedUnit { seal, directory: Arc::clone(directory), held: HashMap::new() };
        Ok(QuietTree { unit: Arc::new(unit), former, left_out })
    }
}

/// Whether a time is `since`, in nanoseconds since 1970, or later.
pub(super) fn is_at_or_after((seconds, nanoseconds): &FileTime, since: i64) -> bool {
    i128::from(*seconds) * 1_000_000_000 + i128::from(*nanoseconds) >= since.into()
}

/// Opens the file at `path` if it is as it was found, and not being written. For `writing_at` see [`Scan::into_quiet_tree`].
fn open_quiet(
    directory: &VolumeDirectory,
    path: &[u8],
    found: &ScannedFile,
    writing_at: Option<i64>,
) -> Result<Option<OwnedFd>> {
    let Some(opened) = directory.open_file(path)? else { return Ok(None) };
    let was_left_for = |period: Duration| {
        // Where nothing runs that may write, the version that is compared while the file is read has to do.
        let Some(now) = writing_at else { return true };
        found.touched().is_some_and(|at| i128::from(now) - at >= period.as_nanos().cast_signed())
    };
    let is_left = match probe_writers(&opened) {
        Writers::None => was_left_for(SEAL_QUIET_PERIOD),
        Writers::Some => false,
        Writers::Unknown => was_left_for(SEAL_QUIET_PERIOD_WITHOUT_LEASES),
    };
    Ok(Some(opened).filter(|opened| is_left && found.is_that_of(opened)))
}

impl VolumeDirectory {
    /// Makes all of its file system durable. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk), also for losses of another directory there; the kernel tells each loss once.
    pub fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(self.descriptor())
            .map_err(|e| Error::disk(format!("cannot make {} durable", self.name(b"")), e.into()))
    }

    /// Whether the disk has written what it was given so far of the file at `path` below it, or the file is gone. The kernel tells
    /// of a failure once. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk).
    pub fn is_written(&self, path: &[u8]) -> Result<bool> {
        Ok(self.open_file(path)?.is_none_or(|opened| io::await_writeback(&opened).is_ok()))
    }

    /// Has whatever was done to the file at `path` below it count as done now; neither its content nor its time of modification
    /// change. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`](crate::error::Kind::Disk).
    pub fn touch_change(&self, path: &[u8]) -> Result<()> {
        let fault = |e: Errno| Error::disk(format!("cannot change {}", self.name(path)), e.into());
        let Some(opened) = self.open_file(path)? else { return Ok(()) };
        let mode = Mode::from_raw_mode(rustix::fs::fstat(&opened).map_err(fault)?.st_mode);
        rustix::fs::fchmod(&opened, mode).map_err(fault)
    }
}

/// When a merge is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeDurability {
    /// When it returns.
    Now,
    /// When the file system is next synced: until then, files that it took may be empty or hold zeros after a power cut.
    Later,
}

/// Makes the changes of `plan` in `directory`; what it takes of the tree `theirs` lies in `incoming`, with nothing else but the
/// directories above it, and is moved from there, once it is durable. Nothing is reached through a link. It may be interrupted and
/// repeated. Touches the local disk.
///
/// # Errors
/// [`Kind::Disk`](crate::error::Kind::Disk), [`Kind::NoSpace`](crate::error::Kind::NoSpace).
pub fn apply_merge(
    directory: &VolumeDirectory,
    incoming: &VolumeDirectory,
    theirs: &MergeTree,
    plan: &MergePlan,
    durability: MergeDurability,
) -> Result<()> {
    apply_merge_with(directory, incoming, theirs, plan, |directory| match durability {
        MergeDurability::Now => directory.sync(),
        MergeDurability::Later => Ok(()),
    })
}

/// [`apply_merge`], where `sync` makes the file system of a directory durable.
fn apply_merge_with(
    directory: &VolumeDirectory,
    incoming: &VolumeDirectory,
    theirs: &MergeTree,
    plan: &MergePlan,
    sync: impl Fn(&VolumeDirectory) -> Result<()>,
) -> Result<()> {
    let fault =
        |path: &[u8], e: Errno| Error::disk(format!("cannot change {}", directory.name(path)), e.into());
    // What lies in a directory comes after it.
    for path in plan.remove.iter().rev() {
        let (above, name) = split(path);
        match directory.at(above, OFlags::DIRECTORY).and_then(|above| remove(&above, name)) {
            Ok(()) | Err(Errno::NOENT | Errno::NOTDIR | Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(fault(path, error)),
        }
    }
    // Once renamed, a file looks right by its name, size and time, also where a power cut has left zeros in it.
    if !plan.take.is_empty() {
        sync(incoming)?;
    }
    let (mut moved, mut last) = (HashSet::new(), None);
    for path in plan.take.iter().map(Vec::as_slice) {
        // It came with its directory.
        if !moved.is_empty() && directories_above(path).any(|above| moved.contains(above)) {
            continue;
        }
        let (above, name) = split(path);
        let parents = match last.take().filter(|parents: &Parents<'_>| parents.path == above) {
            Some(parents) => parents,
            None => Parents::open(directory, incoming, above).map_err(|e| fault(path, e))?,
        };
        let is_directory = matches!(theirs.get(path), Some(MergeEntry::Directory));
        if parents.take(name, is_directory).map_err(|e| fault(path, e))? {
            moved.insert(path);
        }
        last = Some(parents);
    }
    sync(directory)
}

/// The directories that entries are moved between.
struct Parents<'a> {
    /// The path of both.
    path: &'a [u8],
    from: OwnedFd,
    to: OwnedFd,
}

impl<'a> Parents<'a> {
    fn open(
        directory: &VolumeDirectory,
        incoming: &VolumeDirectory,
        path: &'a [u8],
    ) -> rustix::io::Result<Self> {
        let [from, to] = [incoming, directory].map(|tree| tree.at(path, OFlags::DIRECTORY));
        Ok(Self { path, from: from?, to: to? })
    }

    /// Moves the entry `name` to its place, and returns whether all that lies in it came with it: a directory that was not there
    /// brings it, since all of it is taken. One that is there stays.
    fn take(&self, name: &[u8], is_directory: bool) -> rustix::io::Result<bool> {
        if is_directory {
            // NFS, among others, does not know this.
            let is_moved = renameat_with(&self.from, name, &self.to, name, RenameFlags::NOREPLACE).is_ok();
            return if is_moved { Ok(true) } else { make_directory(&self.to, name).map(|()| false) };
        }
        let renamed = match renameat(&self.from, name, &self.to, name) {
            Err(Errno::ISDIR) => {
                remove(&self.to, name)?;
                renameat(&self.from, name, &self.to, name)
            }
            renamed => renamed,
        };
        renamed.map(|()| false)
    }
}

fn make_directory(above: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    let made = rustix::fs::mkdirat(above, name, NEW_DIRECTORY_MODE);
    let is_directory = || {
        let found = rustix::fs::statat(above, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok::<_, Errno>(FileType::from_raw_mode(found.st_mode) == FileType::Directory)
    };
    if made != Err(Errno::EXIST) || is_directory()? {
        return made.or_else(|error| if error == Errno::EXIST { Ok(()) } else { Err(error) });
    }
    remove(above, name)?;
    rustix::fs::mkdirat(above, name, NEW_DIRECTORY_MODE)
}

/// Removes a file, a link, or a directory that is empty.
fn remove(above: &OwnedFd, name: &[u8]) -> rustix::io::Result<()> {
    match rustix::fs::unlinkat(above, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR),
        removed => removed,
    }
}
