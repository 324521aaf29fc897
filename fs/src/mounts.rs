//! The mount table: which mounts there are, and which processes use them.

mod dependents;
mod namespaces;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Result};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::path::Arg;

use crate::mount::FUSE_TYPE;

pub use crate::mount::{detach, unmount};
pub use dependents::{MountDependent, dependents};
pub(crate) use namespaces::is_shown_anywhere;
pub use namespaces::{is_bound_anywhere, is_mounted_elsewhere, sees_all_namespaces};

/// The file system type of native mounts, and how the names of their images end.
pub(crate) const NATIVE_TYPE: &str = "erofs";
pub(crate) const IMAGE_SUFFIX: &str = ".bdnfs";
/// The directory in which the kernel lists processes.
const PROC_PATH: &str = "/proc";
/// The mount table of the kernel; described in proc(5).
const MOUNT_TABLE_PATH: &str = "/proc/self/mountinfo";

/// The FUSE device.
const FUSE_DEVICE_PATH: &str = "/dev/fuse";

/// A mounted file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// The id, which another mount may have when this one is gone.
    pub id: u64,
    /// The id of the mount that it is mounted on.
    pub parent: u64,
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The source in the mount table: for a bdnfs mount its source, as its origin names it.
    pub source: String,
    /// The file system type.
    pub kind: String,
    /// The device number: major, minor.
    pub device: (u32, u32),
    /// The directory of its file system that it shows, from that one's root on.
    pub root: PathBuf,
    /// Whether an unmount in the mount namespace that this one was made from removes it here, too.
    pub follows: bool,
}

impl MountEntry {
    /// Whether it is a bdnfs mount.
    pub fn ours(&self) -> bool {
        self.kind == FUSE_TYPE || self.is_native()
    }

    /// Whether it is a bdnfs mount that the kernel serves alone.
    pub fn is_native(&self) -> bool {
        self.kind == NATIVE_TYPE && self.source.ends_with(IMAGE_SUFFIX)
    }
}

/// A process that uses a mount, and so keeps it from being unmounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUser {
    /// The process id.
    pub pid: u32,
    /// The command name.
    pub command: String,
}

/// A file as proc(5) names those that are mapped: device, inode.
type MappedInode = (String, String);

/// All bdnfs mounts that this process can see, oldest first.
///
/// # Errors
/// [`Kind::Disk`](bdnfs::error::Kind::Disk) when `/proc` can't be read.
pub fn list() -> Result<Vec<MountEntry>> {
    Ok(all()?.into_iter().filter(MountEntry::ours).collect())
}

/// The mount at exactly `mountpoint`; the uppermost, where several are.
///
/// # Errors
/// As [`list`].
pub fn at(mountpoint: &Path) -> Result<Option<MountEntry>> {
    Ok(stack_at(mountpoint)?.pop())
}

/// The mounts at exactly `mountpoint`, each covered by those behind it.
///
/// # Errors
/// As [`list`].
pub fn stack_at(mountpoint: &Path) -> Result<Vec<MountEntry>> {
    Ok(stack(all()?.into_iter().filter(|mounted| mounted.mountpoint == mountpoint).collect()))
}

/// Sorts the mounts at one mount point, each before those that cover it. The table has them in the order in which they were made,
/// and one may be put beneath another, or moved over it.
fn stack(mut mounts: Vec<MountEntry>) -> Vec<MountEntry> {
    let mut sorted: Vec<MountEntry> = Vec::with_capacity(mounts.len());
    while !mounts.is_empty() {
        let is_next = |mounted: &MountEntry| match sorted.last() {
            Some(below) => mounted.parent == below.id,
            None => !mounts.iter().any(|other| other.id == mounted.parent),
        };
        // A table that changed while it was read may lack one of them.
        let next = mounts.iter().position(is_next).unwrap_or(0);
        sorted.push(mounts.remove(next));
    }
    sorted
}

/// The processes that use `mounted`: by an open file, a mapping, a working directory, a root or a program.
/// Processes that this one may not look into are not found.
pub fn users(mounted: &MountEntry) -> Vec<MountUser> {
    processes(|process| uses(process, mounted.device))
}

/// The processes that have one of `inodes` mapped.
pub(crate) fn mapping(inodes: &BTreeSet<MappedInode>) -> Vec<MountUser> {
    processes(|process| {
        has_mapped(process, |device, inode| inodes.contains(&(device.to_owned(), inode.to_owned())))
    })
}

/// `file` as the maps of processes name it.
pub(crate) fn inode(file: &fs::File) -> Option<MappedInode> {
    let seen = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::INO).ok()?;
    Some((format!("{:02x}:{:02x}", seen.stx_dev_major, seen.stx_dev_minor), seen.stx_ino.to_string()))
}

/// The processes that have the device of `mounted` open: its agent, and the fd store. None on a Linux that does not tell
/// (before 6.16), and none that this process may not look into.
pub fn servers(mounted: &MountEntry) -> Vec<MountUser> {
    let connection = format!("fuse_connection:\t{}", mounted.device.1);
    processes(|process| serves(process, &connection))
}

/// The processes with a directory in /proc that `is_wanted`.
fn processes(mut is_wanted: impl FnMut(&Path) -> bool) -> Vec<MountUser> {
    let mut users = Vec::new();
    for (pid, path) in process_directories(Path::new(PROC_PATH)).unwrap_or_default() {
        if is_wanted(&path) {
            let command = fs::read(path.join("comm")).unwrap_or_default();
            let command = String::from_utf8_lossy(command.trim_ascii_end()).into_owned();
            users.push(MountUser { pid, command });
        }
    }
    users
}

/// All processes below `proc`, by their ids, each with its directory.
fn process_directories(proc: &Path) -> io::Result<BTreeMap<u32, PathBuf>> {
    let entries = fs::read_dir(proc)?.collect::<io::Result<Vec<_>>>()?;
    let processes =
        entries.iter().filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())));
    Ok(processes.collect())
}

/// All mounts that this process can see, oldest first.
///
/// # Errors
/// As [`list`].
pub fn all() -> Result<Vec<MountEntry>> {
    let table =
        fs::read(MOUNT_TABLE_PATH).map_err(|e| Error::disk(format!("cannot read {MOUNT_TABLE_PATH}"), e))?;
    Ok(entries(&table).collect())
}

fn entries(table: &[u8]) -> impl Iterator<Item = MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(parse)
}

/// One line: `36 35 0:40 / /mnt rw,nosuid shared:1 - fuse.bdnfs source rw`, with any number of fields before
/// the dash.
fn parse(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let number = |field| std::str::from_utf8(field).ok();
    let id = number(fields.next()?)?.parse().ok()?;
    let parent = number(fields.next()?)?.parse().ok()?;
    let device = number(fields.next()?)?.split_once(':')?;
    let root = PathBuf::from(unescape(fields.next()?));
    let mountpoint = PathBuf::from(unescape(fields.next()?));
    let optional = fields.by_ref().take_while(|field| *field != b"-");
    let follows = optional.filter(|field| field.starts_with(b"master:")).count() > 0;
    let kind = unescape(fields.next()?).to_string_lossy().into_owned();
    let source = unescape(fields.next()?).to_string_lossy().into_owned();
    Some(MountEntry {
        id,
        parent,
        mountpoint,
        source,
        kind,
        device: (device.0.parse().ok()?, device.1.parse().ok()?),
        root,
        follows,
    })
}

/// A field whose spaces, tabs, newlines and backslashes are written as three octal digits after a backslash.
fn unescape(field: &[u8]) -> OsString {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                plain.push(byte);
                rest = &tail[3..];
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(plain)
}

/// Whether the process at `/proc/PID` uses the file system `device`.
fn uses(process: &Path, device: (u32, u32)) -> bool {
    let links = ["cwd", "root", "exe"].map(|link| process.join(link));
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    links.into_iter().chain(open).any(|link| lies_on(CWD, &link, device)) || maps(process, device)
}

/// Whether the process at `/proc/PID` has a FUSE device open whose line in /proc is `connection`.
fn serves(process: &Path, connection: &str) -> bool {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut devices =
        open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(FUSE_DEVICE_PATH)));
    devices.any(|entry| {
        let info = fs::read_to_string(process.join("fdinfo").join(entry.file_name()));
        info.is_ok_and(|info| info.lines().any(|line| line == connection))
    })
}

/// Whether what `link` leads to, or `at` where it is empty, lies on `device`. It is asked for without a word to the file system's
/// server, which may be dead or stuck.
pub(crate) fn lies_on(at: impl AsFd, link: impl Arg, device: (u32, u32)) -> bool {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    rustix::fs::statx(at, link, flags, StatxFlags::empty())
        .is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == device)
}

/// Whether a process has a file of `device` mapped.
fn maps(process: &Path, device: (u32, u32)) -> bool {
    let device = format!("{:02x}:{:02x}", device.0, device.1);
    has_mapped(process, |mapped, _| mapped == device)
}

/// Whether a process has a file mapped that `is_it`, by its device and inode: the fourth field of each line, in hexadecimal, and
/// the fifth.
fn has_mapped(process: &Path, is_it: impl Fn(&str, &str) -> bool) -> bool {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').any(|line| {
        let mut fields =
            line.split(|byte| *byte == b' ').map(|field| str::from_utf8(field).unwrap_or_default());
        fields.nth(3).zip(fields.next()).is_some_and(|(device, inode)| is_it(device, inode))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mountinfo_line_with_escapes_is_parsed() {
        let line = b"36 35 0:40 / /mnt/a\\040b\\134c rw,nosuid shared:1 master:2 - fuse.bdnfs s3://x/y\\040z rw,fd=3";
        let mounted = parse(line).expect("a mount");
        assert_eq!(mounted.mountpoint, Path::new("/mnt/a b\\c"));
        assert_eq!((mounted.source.as_str(), mounted.device), ("s3://x/y z", (0, 40)));
        assert_eq!((mounted.id, mounted.root.as_path()), (36, Path::new("/")));
        assert!(mounted.ours() && mounted.follows);
        let plain = parse(b"1 0 8:1 / / rw - ext4 /dev/sda1 rw").expect("a mount");
        assert!(!plain.ours() && !plain.follows);
        assert_eq!(plain.mountpoint, Path::new("/"));
        assert_eq!(parse(b"1 0 8:1 / / rw ext4"), None);
        assert_eq!(unescape(b"\\04"), "\\04");
        assert_eq!(unescape(b"\\777"), "\\777");
    }

    #[test]
    fn stack_is_sorted_by_what_covers_what() {
        // The second was put beneath the first; the third was made before both, and moved over them.
        let table = b"20 30 0:40 / /m rw - fuse.bdnfs x rw\n30 1 0:41 / /m rw - erofs y rw\n10 20 8:1 / /m rw - ext4 z rw";
        let ids = |mounts: Vec<MountEntry>| mounts.iter().map(|mounted| mounted.id).collect::<Vec<_>>();
        assert_eq!(ids(stack(entries(table).collect())), [30, 20, 10]);
        assert_eq!(ids(stack(entries(table).skip(2).collect())), [10]);
        let torn = entries(table).filter(|mounted| mounted.id != 20).collect();
        assert_eq!(ids(stack(torn)).len(), 2);
    }

    #[test]
    fn mount_with_an_open_file_is_used_by_its_process() {
        // Not /proc: looking for holders opens that.
        let mounted = at(Path::new("/sys")).expect("a table").expect("sysfs is mounted");
        let used = || users(&mounted).iter().any(|user| user.pid == std::process::id());
        assert!(!used());
        let open = fs::File::open("/sys").expect("a directory");
        assert!(used());
        drop(open);
    }

    proptest! {
        #[test]
        fn mountinfo_line_hostile_never_panics(line: Vec<u8>) {
            let _ = parse(&line);
            let _ = unescape(&line);
        }
    }
}
