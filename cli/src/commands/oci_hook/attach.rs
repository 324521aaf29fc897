//! Mounts below the root of a container that is being created, in its mount namespace.
//!
//! Its runtime has made the namespace and not entered the root yet. What the image has on the way (links, above all) is not to be
//! trusted: names are resolved as the container itself would.

use std::fs::{File, Metadata};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use bdnfs_fs::mount_copy::DetachedMount;
use rustix::fs::{FsWord, Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags, fstatfs, mkdirat, open, openat2};
use rustix::io::Errno;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The type of sysfs (statfs(2)).
const SYSFS_MAGIC: FsWord = 0x6265_6572;
/// The permissions of directories that the image lacks.
const DIRECTORY_MODE: Mode =
    Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP).union(Mode::ROTH).union(Mode::XOTH);

/// Mounts each of `mounts` at its location below `root`, in the mount namespace of the process `pid`.
pub fn attach(mounts: Vec<(DetachedMount, PathBuf)>, pid: i32, root: &Path) -> Result<()> {
    let path = format!("/proc/{pid}/ns/mnt");
    let namespace = File::open(&path)
        .with_context(|| format!("cannot open {path}; is the hook run as createRuntime?"))?;
    let id = |meta: Metadata| (meta.dev(), meta.ino());
    if id(namespace.metadata()?) == id(std::fs::metadata("/proc/self/ns/mnt")?) {
        bail!("the container has no mount namespace of its own; is the hook run as createRuntime?");
    }
    // A thread of its own, which ends there.
    let entered = std::thread::scope(|scope| {
        let attached = scope.spawn(|| {
            enter(&namespace).context("cannot enter the mount namespace of the container")?;
            let root = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .with_context(|| format!("cannot open the root {}", root.display()))?;
            mounts.into_iter().try_for_each(|(mount, location)| {
                attach_one(mount, &root, &location)
                    .with_context(|| format!("cannot mount at {} in the container", location.display()))
            })
        });
        attached.join()
    });
    entered.unwrap_or_else(|_| Err(anyhow!("cannot mount in the container")))
}

/// Moves this thread into a mount namespace.
fn enter(namespace: &File) -> rustix::io::Result<()> {
    // SAFETY: only the working directory, root and umask of this thread are no longer those of the process. No descriptor is
    // unshared.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Mount))
}

fn attach_one(mount: DetachedMount, root: &OwnedFd, location: &Path) -> Result<()> {
    let directory = make_directory(root, location)?;
    // Runtimes write to these files during the creation, and rely on what they are.
    if [PROC_SUPER_MAGIC, SYSFS_MAGIC].contains(&fstatfs(&directory)?.f_type) {
        bail!("it lies in /proc or /sys");
    }
    Ok(mount.attach(&directory)?)
}

/// Opens the directory `location` below `root`, and makes what is missing of it.
fn make_directory(root: &OwnedFd, location: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let open = |path: &Path| openat2(root, path, flags, Mode::empty(), resolve);
    let (mut directory, mut path) = (open(Path::new("."))?, PathBuf::new());
    for part in location.components() {
        let Component::Normal(name) = part else { continue };
        path.push(name);
        let found = match open(&path) {
            Err(Errno::NOENT) => match mkdirat(&directory, name, DIRECTORY_MODE) {
                // A link that leads nowhere exists as well, and is not found again.
                Ok(()) | Err(Errno::EXIST) => open(&path),
                Err(error) => Err(error),
            },
            found => found,
        };
        directory = found.with_context(|| format!("/{}", path.display()))?;
    }
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn make_directory_below_links_stays_in_the_root() {
        let home = tempfile::tempdir().expect("a directory");
        let (root, outside) = (home.path().join("root"), home.path().join("outside"));
        fs::create_dir_all(&root).expect("made");
        fs::create_dir(&outside).expect("made");
        symlink(&outside, root.join("absolute")).expect("a link");
        symlink("../../../outside", root.join("relative")).expect("a link");
        symlink("models", root.join("link")).expect("a link");
        fs::create_dir(root.join("models")).expect("made");
        fs::write(root.join("file"), "").expect("written");
        let opened = open(&root, OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        make_directory(&opened, Path::new("/a/b/c")).expect("made");
        make_directory(&opened, Path::new("/a/b/c")).expect("it is there");
        make_directory(&opened, Path::new("/link/llama")).expect("made");
        assert!(root.join("a/b/c").is_dir() && root.join("models/llama").is_dir());
        for path in ["/absolute/x", "/relative/x", "/file/x"] {
            make_directory(&opened, Path::new(path)).expect_err(path);
        }
        assert_eq!(fs::read_dir(&outside).expect("read").count(), 0);
    }
}
