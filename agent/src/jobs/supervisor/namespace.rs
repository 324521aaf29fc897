//! The mount namespace of a job: all that the host has, and the job's sources in their places.
//!
//! A place that exists is mounted over. Where one doesn't, the host gets no new directory: the nearest directory above it
//! that exists is covered, in this namespace alone, by a small file system in memory with the same entries, each bound to what
//! the host has there, and the missing directories beside them. New entries of that directory live in it, and vanish with the
//! job; what lies below those that it had is the host's own, and as writable as ever. Places in a volume of the job are
//! directories of that volume (`mount_point`). Those in a source, which takes no directory, are made as outside of one.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, DirEntry, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Kind, Result};
use bdnfs_fs::mounts;
use rustix::fs::CWD;
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind,
    mount_bind_recursive, mount_change, mount_move, move_mount, open_tree, unmount,
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::thread::UnshareFlags;

use super::{VolumeBinds, mount_point};
use crate::context::Context;

/// The most entries that a directory to be covered may have. Each becomes a mount, and the kernel takes 100,000 of them.
const MAX_OVERLAID_ENTRIES: usize = 4096;

/// The most memory that the new entries of a covered directory may take, in bytes, and how many there may be: logs and temporary
/// files fit, and nothing that would make the machine short of memory.
pub const TMPFS_OVERLAY_BYTES: u64 = 256 << 20;
const TMPFS_OVERLAY_INODES: usize = 64 << 10;

/// Unmounts what is left at `mountpoint`, even if it is in use. What can't be unmounted stays.
pub fn detach(mountpoint: &Path) {
    let _ = unmount(mountpoint, UnmountFlags::DETACH);
}

/// A source or a directory of a volume, and where the job sees it.
struct JobMount<'a> {
    from: &'a Path,
    place: &'a Path,
    is_volume: bool,
}

impl<'a> JobMount<'a> {
    fn of((from, place): &'a (PathBuf, PathBuf), is_volume: bool) -> Self {
        Self { from, place, is_volume }
    }
}

/// The places that the mounts of a job hide from it.
pub struct HiddenPlaces {
    /// The directories that are covered.
    pub covered: Vec<PathBuf>,
    /// The places in training caches of the job that hide files of these.
    pub hiding: Vec<PathBuf>,
}

/// Leaves the host's mount namespace for one of its own, in which each of `sources` lies at its place, and what is bound of
/// `volume`. What else is mounted below `jobs` is not in it, nor are other volumes. `scratch` is an empty directory of the job's
/// own.
///
/// To be called before the process has a second thread: each would keep its own.
pub fn enter(
    sources: &[(PathBuf, PathBuf)],
    volume: &VolumeBinds,
    jobs: &Path,
    scratch: &Path,
) -> Result<HiddenPlaces> {
    // SAFETY: no descriptors are unshared, which is what can make it unsafe; and this process has one thread.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }
        .context("cannot make a mount namespace: run jobs as root")?;
    // The host's later mounts and unmounts propagate here, and none from here to the host.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .context("cannot make the mount namespace private")?;
    let volumes = volume.binds.iter().map(|bind| JobMount::of(bind, true));
    let mut all: Vec<_> = sources.iter().map(|bind| JobMount::of(bind, false)).chain(volumes).collect();
    // Parents first: a parent that is mounted later would cover its children.
    all.sort_by_key(|mount| mount.place);
    let trees: Vec<OwnedFd> = all.iter().map(|mount| take(mount.from)).collect::<Result<_>>()?;
    unmount_foreign_mounts(jobs)?;
    for root in [Some(&volume.root), volume.shared_root.as_ref()].into_iter().flatten() {
        let cover = || hide(&covering(root)?).context("cannot mount a tmpfs");
        cover().map_err(|e| e.context(format!("cannot cover the volumes in {}", root.display())))?;
    }
    let mut places = MountLocations { scratch, covered: Vec::new(), devices: BTreeSet::new() };
    let mut hiding = Vec::new();
    for (number, (tree, JobMount { place, .. })) in trees.iter().zip(&all).enumerate() {
        let failed = || format!("cannot mount at {}", place.display());
        let nearest =
            (0..number).rev().find_map(|above| Some((above, place.strip_prefix(all[above].place).ok()?)));
        if let Some((above, below)) = nearest.filter(|(above, _)| all[*above].is_volume) {
            let point = mount_point::open(&trees[above], below).map_err(|e| e.context(failed()))?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            move_mount(tree, "", &point.directory, "", flags).with_context(failed)?;
            // In the job's own volume there are only directories for what is mounted in it.
            let is_cache = !all[above].from.starts_with(&volume.own);
            hiding.extend((is_cache && point.has_entries).then(|| place.to_path_buf()));
            continue;
        }
        // Links followed, which the kernel does not do here.
        let directory = places.make(place).map_err(|e| e.context(failed()))?;
        move_mount(tree, "", CWD, &directory, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .with_context(failed)?;
    }
    // Covering binds copies of what lies below.
    for mounted in mounts::all()?.iter().rev().filter(|mounted| mounted.mountpoint.starts_with(jobs)) {
        let _ = unmount(&mounted.mountpoint, UnmountFlags::DETACH);
    }
    Ok(HiddenPlaces { covered: places.covered, hiding })
}

/// Returns the directory to cover in order to hide `root`. It is `root` itself, or, as long as that is not mounted, the directory
/// above on which it will be mounted. What the host mounts there later comes to lie below the cover.
fn covering(root: &Path) -> Result<PathBuf> {
    let mut directory = root;
    while !directory.try_exists().with_context(|| directory.display().to_string())? {
        let Some(above) = directory.parent() else { break };
        directory = above;
    }
    let is_empty = || fs::read_dir(directory).map(|mut entries| entries.next().is_none());
    if directory != root && !is_empty().with_context(|| directory.display().to_string())? {
        let directory = directory.display();
        return Err(invalid(format!(
            "it is not there, and {directory} is not empty; mount its file system first"
        )));
    }
    Ok(directory.to_owned())
}

/// Hides `directory` under an empty file system that takes no entries.
fn hide(directory: &Path) -> rustix::io::Result<()> {
    mount("bdnfs-job", directory, "tmpfs", MountFlags::RDONLY, c"mode=0700,nr_inodes=1")
}

/// A detached copy of a directory or of a mount. A link is not followed: another job may have put it there.
fn take(mount: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    open_tree(CWD, mount, flags)
        .with_context(|| format!("cannot copy the mount {} into the job", mount.display()))
}

/// Unmounts, in this namespace, the mounts of other jobs and those that would stay here when the host unmounts them: they
/// would live, with all that they hold, for as long as this job.
fn unmount_foreign_mounts(jobs: &Path) -> Result<()> {
    for mounted in mounts::list()?.iter().rev() {
        if !mounted.follows || mounted.mountpoint.starts_with(jobs) {
            let _ = unmount(&mounted.mountpoint, UnmountFlags::DETACH);
        }
    }
    Ok(())
}

/// Refuses mount locations of one job that are impossible or clash. A path may not lead over a file or a dangling link; two may not
/// be one directory, nor a link lead one into the other. Locations below another one are not checked: that covers what the host has
/// there.
///
/// # Errors
/// [`Kind::Invalid`]; [`Kind::Disk`] for one that can't be looked at.
pub fn check_places(paths: &[&Path]) -> Result<()> {
    let mut found = BTreeMap::<PathBuf, &Path>::new();
    for &path in paths {
        if paths.iter().any(|other| *other != path && path.starts_with(other)) {
            continue;
        }
        let place = MountLocation::find(path)
            .map_err(|e| e.context(format!("cannot mount at {}", path.display())))?;
        let place = place.path();
        let nests = |other: &&PathBuf| place.starts_with(other) || other.starts_with(&place);
        if let Some((other_place, other)) = found.iter().find(|(other, _)| nests(other)) {
            let (one, two, shown) = (other.display(), path.display(), place.display());
            let what = match () {
                () if path == *other => format!("mount location {two} is used twice"),
                () if place == *other_place => {
                    format!("the mount locations {one} and {two} are one directory, {shown}")
                }
                () => {
                    let other_place = other_place.display();
                    format!(
                        "links lead the mount locations {one} and {two} into each other, to {other_place} and {shown}"
                    )
                }
            };
            return Err(invalid(format!("{what}; choose another for one of them")));
        }
        found.insert(place, path);
    }
    Ok(())
}

/// A mount location, links followed.
struct MountLocation {
    /// The nearest directory at or above it that exists.
    above: PathBuf,
    /// The part of the path below it that is missing.
    missing: PathBuf,
}

impl MountLocation {
    /// Looks for the place `path`.
    fn find(path: &Path) -> Result<Self> {
        let mut missing = Vec::new();
        let mut above = path;
        while let Err(error) = fs::metadata(above) {
            // A path below a file counts as missing; the file is then refused as no directory.
            if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
                return Err(error).with_context(|| above.display().to_string());
            }
            if above.symlink_metadata().is_ok() {
                return Err(invalid(format!("{} is a dangling symbolic link", above.display())));
            }
            let (Some(parent), Some(name)) = (above.parent(), above.file_name()) else { break };
            missing.push(name);
            above = parent;
        }
        let above = above.canonicalize().with_context(|| above.display().to_string())?;
        if !above.is_dir() {
            return Err(invalid(format!("{} is not a directory", above.display())));
        }
        Ok(Self { above, missing: missing.into_iter().rev().collect() })
    }

    /// The whole path.
    fn path(&self) -> PathBuf {
        // Joining nothing would add a slash.
        if self.missing.as_os_str().is_empty() { self.above.clone() } else { self.above.join(&self.missing) }
    }
}

/// The maker of missing mount locations, and what it covered for them.
struct MountLocations<'a> {
    scratch: &'a Path,
    /// The directories that were covered.
    covered: Vec<PathBuf>,
    /// The file systems that cover them.
    devices: BTreeSet<u64>,
}

impl MountLocations<'_> {
    /// Makes sure that `path` is a directory. Returns where it is.
    fn make(&mut self, path: &Path) -> Result<PathBuf> {
        let place = MountLocation::find(path)?;
        let (above, found) = (&place.above, place.above.metadata());
        let found = found.with_context(|| above.display().to_string())?;
        if place.missing.as_os_str().is_empty() {
            return Ok(place.above);
        }
        if !self.devices.contains(&found.dev()) {
            self.cover(above).map_err(|error| {
                let path = path.display();
                error.context(format!(
                    "{path} does not exist and could not be made for the job alone; make it with `mkdir -p {path}`"
                ))
            })?;
        }
        let path = place.path();
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&path)
            .with_context(|| path.display().to_string())?;
        Ok(path)
    }

    /// Covers `directory` with a file system that has the same entries, and can have more.
    fn cover(&mut self, directory: &Path) -> Result<()> {
        let name = || directory.display().to_string();
        let entries: Vec<DirEntry> = fs::read_dir(directory)
            .and_then(|entries| entries.take(MAX_OVERLAID_ENTRIES + 1).collect())
            .with_context(name)?;
        if entries.len() > MAX_OVERLAID_ENTRIES {
            return Err(invalid(format!("{} has more than {MAX_OVERLAID_ENTRIES} entries", name())));
        }
        let like = directory.metadata().with_context(name)?;
        let (mode, uid, gid) = (like.mode() & 0o7777, like.uid(), like.gid());
        let data = format!(
            "mode={mode:o},uid={uid},gid={gid},size={TMPFS_OVERLAY_BYTES},nr_inodes={TMPFS_OVERLAY_INODES}"
        );
        let data = std::ffi::CString::new(data).with_context(name)?;
        mount("bdnfs-job", self.scratch, "tmpfs", MountFlags::empty(), data.as_c_str())
            .context("cannot mount a tmpfs")?;
        for entry in entries {
            let what = entry.path();
            bind(&entry, &self.scratch.join(entry.file_name()))
                .with_context(|| what.display().to_string())?;
        }
        self.devices.insert(fs::metadata(self.scratch).with_context(name)?.dev());
        if directory == Path::new("/") {
            change_root(self.scratch).context("cannot change the root")?;
        } else {
            mount_move(self.scratch, directory).with_context(name)?;
        }
        self.covered.push(directory.to_owned());
        Ok(())
    }
}

/// Shows the host's `entry` at `to`: a link as a copy, all else as a bind.
fn bind(entry: &DirEntry, to: &Path) -> io::Result<()> {
    let (from, kind) = (entry.path(), entry.file_type()?);
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    let bound = if kind.is_dir() {
        fs::create_dir(to)?;
        mount_bind_recursive(&from, to)
    } else {
        File::create(to)?;
        mount_bind(&from, to)
    };
    match bound {
        // The entry was removed meanwhile.
        Err(rustix::io::Errno::NOENT) => Ok(()),
        bound => Ok(bound?),
    }
}

/// Makes the mount at `path` the root, and unmounts the old one.
fn change_root(path: &Path) -> io::Result<()> {
    std::env::set_current_dir(path)?;
    // pivot_root(2), "pivot_root(".", ".")": the old root comes to lie on the new one.
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

/// A path of the request that can't be a mount point.
fn invalid(text: String) -> Error {
    Error::new(Kind::Invalid, text)
}

/// The inode of the mount namespace of a process, by its id or `self`.
pub fn number(process: &str) -> Result<u64> {
    Ok(fs::metadata(format!("/proc/{process}/ns/mnt")).context("cannot read /proc")?.ino())
}

/// The id of the mount namespace of a process, which the kernel never gives to another one, by the process's id or `self`; `None`
/// before Linux 6.11. The [number](number) of one that is gone is that of the next one that is made.
pub fn unique_id(process: &str) -> Option<u64> {
    let namespace = File::open(format!("/proc/{process}/ns/mnt")).ok()?;
    let mut id: u64 = 0;
    // SAFETY: the request writes one number of 64 bits, and the descriptor is open.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), libc::NS_GET_MNTNS_ID, &raw mut id) };
    (result == 0).then_some(id)
}

/// Kills all processes that live in the mount namespace with this `number` and, where the kernel has ids, this `id`. Returns how
/// many there are.
pub fn kill_members(number: u64, id: Option<u64>) -> usize {
    let lives = |name: &str| {
        self::number(name).is_ok_and(|other| other == number) && (id.is_none() || unique_id(name) == id)
    };
    let kill = |name: &str| {
        let process = name.parse().ok().and_then(Pid::from_raw);
        let process = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        // Looked at again now that the process is held: its id may be another's by now.
        if let Some(process) = process.filter(|_| lives(name)) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    let members = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && lives(name));
    members.inspect(|name| kill(name)).count()
}
