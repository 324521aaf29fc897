//! The mounts of other mount namespaces, as the processes in them see them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use bdnfs::error::{Error, Result};
use rustix::io::Errno;

use super::{MountEntry, PROC_PATH, all, at, entries, process_directories};

/// The process namespace of the first process of a machine, as every Linux names it.
const FIRST_PROCESS_NAMESPACE: &str = "pid:[4026531836]";

/// A mount namespace, and the root of a process in it: of a namespace, a process sees what is below its root.
type NamespaceView = (PathBuf, PathBuf);

/// Whether a mount has this `source` in any mount namespace. Those of processes that this one may not look into are not seen.
///
/// # Errors
/// As [`list`](super::list); also where a process that runs can't be looked at.
pub(crate) fn is_shown_anywhere(source: &Path) -> Result<bool> {
    is_mounted_anywhere(|mounted| Path::new(&mounted.source) == source)
}

/// Whether `directory` is bound anywhere, in any mount namespace. Those of processes that this one may not look into are not seen.
///
/// # Errors
/// As [`list`](super::list); also where a process that runs can't be looked at.
pub fn is_bound_anywhere(directory: &Path) -> Result<bool> {
    let shown = shown_at(&all()?, directory);
    is_mounted_anywhere(|mounted| Some((mounted.device, mounted.root.clone())) == shown)
}

/// Whether the file system at `mountpoint` is mounted at another path, too, in any mount namespace; false where nothing is mounted.
/// Copies of the whole mount table, such as those of services, have it at the same path.
///
/// # Errors
/// As [`list`](super::list); also where a process that runs can't be looked at.
pub fn is_mounted_elsewhere(mountpoint: &Path) -> Result<bool> {
    let Some(own) = at(mountpoint)? else { return Ok(false) };
    is_mounted_anywhere(|mounted| mounted.device == own.device && mounted.mountpoint != mountpoint)
}

/// Whether this process sees those of the whole machine, and their mounts: not so in a container with process ids of its own.
pub fn sees_all_namespaces() -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid");
    namespace.is_ok_and(|namespace| namespace == Path::new(FIRST_PROCESS_NAMESPACE))
        && rustix::process::geteuid().is_root()
}

/// The device of `directory`, a path without links, and its path from the root of its file system on.
fn shown_at(table: &[MountEntry], directory: &Path) -> Option<((u32, u32), PathBuf)> {
    // Of several at one place the last is seen.
    let on = table.iter().filter(|mounted| directory.starts_with(&mounted.mountpoint));
    let on = on.max_by_key(|mounted| mounted.mountpoint.components().count())?;
    Some((on.device, on.root.join(directory.strip_prefix(&on.mountpoint).ok()?)))
}

fn is_mounted_anywhere(is_it: impl Fn(&MountEntry) -> bool) -> Result<bool> {
    Ok(all()?.iter().any(&is_it) || is_mounted_for_any(Path::new(PROC_PATH), is_it)?)
}

/// Whether any process below `proc` has such a mount.
fn is_mounted_for_any(proc: &Path, is_it: impl Fn(&MountEntry) -> bool) -> Result<bool> {
    let cannot = |of: &Path| format!("cannot read the mount tables of {}", of.display());
    let processes = process_directories(proc).map_err(|e| Error::disk(cannot(proc), e))?;
    let mut seen = BTreeSet::new();
    for process in processes.values() {
        match unseen_table(process, &mut seen) {
            Ok(table) if entries(&table).any(|mounted| is_it(&mounted)) => return Ok(true),
            Ok(_) => {}
            Err(error) if is_invisible(&error) => {}
            Err(error) => return Err(Error::disk(cannot(process), error)),
        }
    }
    Ok(false)
}

/// The mount table of the process at `/proc/PID`; an empty one where its view is among those that were `seen`.
fn unseen_table(process: &Path, seen: &mut BTreeSet<NamespaceView>) -> io::Result<Vec<u8>> {
    let link = |name| fs::read_link(process.join(name));
    let view = || -> io::Result<NamespaceView> { Ok((link("ns/mnt")?, link("root")?)) };
    let mut before = view()?;
    while !seen.contains(&before) {
        let table = fs::read(process.join("mountinfo"))?;
        let after = view()?;
        // One that has changed its namespace meanwhile, as unshare(1) does, has shown one or the other.
        if before == after {
            seen.insert(after);
            return Ok(table);
        }
        before = after;
    }
    Ok(Vec::new())
}

/// Whether the error is that of a process that has ended, or that this one may not look into.
fn is_invisible(error: &io::Error) -> bool {
    // One that is ending has no namespace any more, and its table is invalid.
    let is_gone = [Errno::NOENT, Errno::SRCH, Errno::INVAL].map(Errno::raw_os_error);
    error.kind() == ErrorKind::PermissionDenied
        || error.raw_os_error().is_some_and(|number| is_gone.contains(&number))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn shown_at_a_path_below_a_bind_is_the_path_on_its_disk() {
        let table: Vec<_> = entries(
            b"1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 /data /var/lib rw - ext4 /dev/b rw\n3 1 8:3 / /var/lib/x rw - ext4 /dev/c rw",
        )
        .collect();
        let at = |path: &str| shown_at(&table, Path::new(path)).expect("there is a root");
        assert_eq!(at("/var/lib/volumes"), ((8, 2), PathBuf::from("/data/volumes")));
        assert_eq!(at("/var/library"), ((8, 1), PathBuf::from("/var/library")));
        assert_eq!(at("/var/lib/x/y"), ((8, 3), PathBuf::from("/y")));
    }

    #[test]
    fn process_whose_table_cannot_be_read_is_an_error_and_one_that_has_ended_is_none() {
        let proc = tempfile::tempdir().expect("a directory");
        let looked = || is_mounted_for_any(proc.path(), |mounted| mounted.source == "model");
        let process = |pid: &str| {
            let directory = proc.path().join(pid);
            fs::create_dir_all(directory.join("ns")).expect("made");
            symlink(format!("mnt:[{pid}]"), directory.join("ns/mnt")).expect("linked");
            symlink("/", directory.join("root")).expect("linked");
            directory.join("mountinfo")
        };
        fs::create_dir(proc.path().join("1")).expect("made");
        process("2");
        assert!(!looked().expect("both have ended"));
        // Any error that is not that of a process that has ended.
        let table = process("3");
        fs::create_dir(&table).expect("made");
        let error = looked().expect_err("it is not known").to_string();
        assert!(error.contains(table.parent().and_then(Path::to_str).expect("text")), "{error}");
        fs::remove_dir(&table).expect("removed");
        fs::write(table, "36 35 0:40 / /mnt rw - fuse.bdnfs model rw\n").expect("written");
        assert!(looked().expect("it is read"));
    }
}
