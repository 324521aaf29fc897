//! A bind: a base, read-only, at the target of a publication; or a directory that a container writes to.
//!
//! A target lies below one of the agent's target directories. That directory may be a link; nothing below it may, and what
//! the names lead to is what is bound to and unmounted, even if they are swapped meanwhile. No request is sent to a file system
//! that may be dead.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use bdnfs::error::{Error, Kind, Result};
use bdnfs_fs::mount_copy::DetachedMount;
use bdnfs_fs::mount_identity::MountIdentity;
use bdnfs_fs::mounts::{self, MountEntry};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, mkdirat, openat2, statat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// The permissions of a target's own directory, as the kubelet's; what is mounted hides them.
const TARGET_MODE: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP);

/// The directory in which a kubelet has the volumes of CSI drivers, each with its target.
const KUBELET_VOLUMES_DIRECTORY: &str = "kubernetes.io~csi";
/// The file that it keeps beside a target as long as it wants the volume.
const KUBELET_VOLUME_FILE: &str = "vol_data.json";

/// A target that lies where targets may. Copies know of what is bound by one of them.
#[derive(Clone, Debug)]
pub struct BindTarget {
    /// The target directory of the agent, without links.
    root: PathBuf,
    /// The target's parent below it.
    below: PathBuf,
    /// The target's own name, which the agent makes and removes.
    name: OsString,
    /// The file beside it without which it is not wanted: a kubelet removes that when it gives up a volume.
    required: Option<&'static str>,
    /// The mount that was bound to it, by which that is found if a directory above it is renamed.
    bound: Arc<Mutex<Option<MountIdentity>>>,
}

/// Two are the same where they are one place.
impl PartialEq for BindTarget {
    fn eq(&self, other: &Self) -> bool {
        (&self.root, &self.below, &self.name) == (&other.root, &other.below, &other.name)
    }
}

impl BindTarget {
    /// The target at `path`, which must be below one of `directories`. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a path that is not absolute, or has `..` in it; [`Kind::Refused`] for one that is elsewhere.
    pub fn locate(path: &Path, directories: &[PathBuf]) -> Result<Self> {
        let shown = path.display();
        let plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        // `components` drops dots.
        let has_dot = path.as_os_str().as_bytes().split(|byte| *byte == b'/').any(|part| part == b".");
        if !path.is_absolute() || has_dot || !path.components().all(plain) {
            return Err(Error::new(
                Kind::Invalid,
                format!("target {shown}: must be absolute, without . and .."),
            ));
        }
        let found =
            directories.iter().find_map(|directory| Some((directory, path.strip_prefix(directory).ok()?)));
        let (Some((directory, rest)), Some(name)) = (found, path.file_name()) else {
            let allowed = directories.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
            let text =
                format!("target {shown}: not below one of the target directories ({})", allowed.join(", "));
            return Err(Error::new(Kind::Refused, text));
        };
        let Some(below) = rest.parent() else {
            return Err(Error::new(Kind::Refused, format!("target {shown}: is a target directory itself")));
        };
        let root = directory.canonicalize().map_err(|e| missing(directory, e))?;
        let required = required_file(path);
        Ok(Self { root, below: below.to_owned(), name: name.to_owned(), required, bound: Arc::default() })
    }

    /// The target at `path`, wherever that is: what was bound there before the target directories were others.
    pub fn at(path: &Path) -> Self {
        let parent = path.parent().unwrap_or(path);
        Self {
            root: parent.canonicalize().unwrap_or_else(|_| parent.to_owned()),
            below: PathBuf::new(),
            name: path.file_name().unwrap_or_default().to_owned(),
            required: required_file(path),
            bound: Arc::default(),
        }
    }

    /// Takes what is mounted there for what an earlier run has bound.
    pub fn adopt(&self) {
        let Ok(parent) = self.parent() else { return };
        let mounted = self.open(&parent).ok().and_then(MountIdentity::of);
        // A plain directory is on the mount of its parent.
        *self.bound.lock() =
            mounted.filter(|mounted| MountIdentity::of(&parent).is_some_and(|above| above != *mounted));
    }

    /// The path of the target without links, as the mount table has it.
    pub fn path(&self) -> PathBuf {
        self.root.join(&self.below).join(&self.name)
    }

    /// The mount at the path.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn mounted(&self) -> Result<Option<MountEntry>> {
        mounts::at(&self.path())
    }

    /// Makes the directory, and binds `base` to it. Nothing is left behind where that fails.
    ///
    /// # Errors
    /// [`Kind::NotFound`] where its parent is gone or a kubelet has given it up, [`Kind::Refused`] for a symbolic link in the path,
    /// [`Kind::Busy`] where something else is mounted there.
    pub fn bind(&self, base: &Path) -> Result<()> {
        self.bind_copy(|| DetachedMount::copy_of(base))
    }

    /// Like [`bind`](Self::bind), with a `directory` that is to be written to.
    ///
    /// # Errors
    /// Those of [`bind`](Self::bind).
    pub fn bind_writable(&self, directory: &Path) -> Result<()> {
        self.bind_copy(|| DetachedMount::writable_copy_of(directory))
    }

    fn bind_copy(&self, copy: impl FnOnce() -> Result<DetachedMount>) -> Result<()> {
        if let Some(other) = self.mounted()? {
            let text = format!("target {}: {} is mounted there", self.path().display(), other.source);
            return Err(Error::new(Kind::Busy, text));
        }
        // One that was moved away is in the way of nobody.
        if let Err(error) = self.unbind_moved() {
            tracing::warn!("{error}");
        }
        let parent = self.parent()?;
        self.ensure_wanted(&parent)?;
        match mkdirat(&parent, &self.name, TARGET_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(self.failed("cannot make it", error)),
        }
        let bound = self.attach(&parent, copy);
        if bound.is_err() {
            let _ = unlinkat(&parent, &self.name, AtFlags::REMOVEDIR);
        }
        bound?;
        // A kubelet that gave it up meanwhile will not ask for its end.
        self.ensure_wanted(&parent).inspect_err(|_| {
            let _ = self.unbind_writable();
        })
    }

    /// Whether it is certain that nobody wants what is bound there, and nobody will ask for its end.
    pub fn is_unwanted(&self) -> bool {
        let wanted = self.parent().and_then(|parent| self.ensure_wanted(&parent));
        self.required.is_some() && wanted.is_err_and(|error| error.kind() == Kind::NotFound)
    }

    fn ensure_wanted(&self, parent: &OwnedFd) -> Result<()> {
        let Some(required) = self.required else { return Ok(()) };
        match statat(parent, required, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => {
                let text = format!(
                    "target {}: the kubelet has given it up: there is no {required} beside it",
                    self.path().display()
                );
                Err(Error::new(Kind::NotFound, text))
            }
            // What can't be looked at may be there.
            _ => Ok(()),
        }
    }

    fn attach(&self, parent: &OwnedFd, copy: impl FnOnce() -> Result<DetachedMount>) -> Result<()> {
        let (target, copy) = (self.open(parent)?, copy()?);
        let identity = copy.identity();
        copy.attach(&target).map_err(|e| self.failed("cannot bind to it", e))?;
        *self.bound.lock() = identity;
        Ok(())
    }

    fn open(&self, parent: &OwnedFd) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat2(parent, &self.name, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        target.map_err(|e| self.failed("is not a directory", e))
    }

    /// Unmounts what is bound there, in use or not, and removes the directory. It is no error where nothing is.
    ///
    /// # Errors
    /// [`Kind::Busy`] where somebody else has mounted something over it; [`Kind::Disk`].
    pub fn unbind(&self) -> Result<()> {
        self.unbind_where(MountEntry::ours)
    }

    /// Like [`unbind`](Self::unbind), whatever is mounted there: a directory that was bound looks like any other mount.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn unbind_writable(&self) -> Result<()> {
        self.unbind_where(|_| true)
    }

    fn unbind_where(&self, is_own: impl Fn(&MountEntry) -> bool) -> Result<()> {
        let parent = match self.parent() {
            Ok(parent) => parent,
            // The parent is gone, and with it the target, or it has another name.
            Err(error) if error.kind() == Kind::NotFound => return self.unbind_moved(),
            Err(error) => return Err(error),
        };
        // The name in the parent that was opened, wherever that is by now.
        let name = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(&self.name);
        loop {
            let stack = mounts::stack_at(&self.path())?;
            let Some(top) = stack.last().filter(|_| stack.iter().any(&is_own)) else { break };
            if !is_own(top) {
                let (path, cover) = (self.path(), &top.source);
                let text =
                    format!("target {}: {cover} is mounted over it; unmount that first", path.display());
                return Err(Error::new(Kind::Busy, text));
            }
            match unmount(&name, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                Ok(()) => {}
                // Another process was faster, or moved it.
                Err(Errno::INVAL | Errno::NOENT) => break,
                Err(error) => return Err(self.failed("cannot unmount it", error)),
            }
        }
        // A directory that is not empty is not ours.
        let _ = unlinkat(&parent, &self.name, AtFlags::REMOVEDIR);
        self.unbind_moved()
    }

    /// Unmounts what was bound to the target, where it was moved to with a directory above it.
    fn unbind_moved(&self) -> Result<()> {
        let mut bound = self.bound.lock();
        let Some(identity) = *bound else { return Ok(()) };
        let failed = |error: Error| error.context(format!("target {}: was moved", self.path().display()));
        if let Some(place) = identity.detach().map_err(failed)? {
            tracing::warn!(
                "target {}: was moved to {}, and is unmounted there",
                self.path().display(),
                place.display()
            );
        }
        *bound = None;
        Ok(())
    }

    /// Opens the parent; no link leads there.
    fn parent(&self) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |from: &dyn AsFd, path: &Path, resolve| {
            openat2(from.as_fd(), path, flags, Mode::empty(), resolve)
        };
        let root = open(&CWD, &self.root, ResolveFlags::NO_SYMLINKS)
            .map_err(|e| self.failed("cannot open it", e))?;
        if self.below.as_os_str().is_empty() {
            return Ok(root);
        }
        let parent = open(&root, &self.below, ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH);
        parent.map_err(|e| self.failed("cannot open its parent", e))
    }

    fn failed(&self, what: &str, error: Errno) -> Error {
        let kind = match error {
            Errno::NOENT => Kind::NotFound,
            Errno::LOOP | Errno::NOTDIR | Errno::XDEV | Errno::PERM | Errno::ACCESS => Kind::Refused,
            _ => Kind::Disk,
        };
        let why = if error == Errno::LOOP {
            "a component of the path is a symbolic link".to_owned()
        } else {
            error.to_string()
        };
        let text = format!("target {}: {what}: {why}", self.path().display());
        Error::with(kind, text, io::Error::from(error))
    }
}

/// The file beside the target at `path` without which it is not wanted, if a kubelet made its parent.
fn required_file(path: &Path) -> Option<&'static str> {
    let volumes = path.parent()?.parent()?.file_name()?;
    (volumes == KUBELET_VOLUMES_DIRECTORY).then_some(KUBELET_VOLUME_FILE)
}

fn missing(directory: &Path, error: io::Error) -> Error {
    Error::with(Kind::NotFound, format!("the target directory {} cannot be used", directory.display()), error)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn bind_target_outside_or_with_dots_is_refused() {
        let root = tempfile::tempdir().expect("a directory");
        let allowed = [root.path().to_owned()];
        let locate = |path: &str| BindTarget::locate(&root.path().join(path), &allowed).map_err(|e| e.kind());
        assert_eq!(locate("pods/a/mount").expect("below").path(), root.path().join("pods/a/mount"));
        for (path, kind) in [
            ("../x", Kind::Invalid),
            ("a/../../x", Kind::Invalid),
            ("a/./x", Kind::Invalid),
            ("/etc/x", Kind::Refused),
            ("", Kind::Refused),
        ] {
            assert_eq!(locate(path), Err(kind), "{path}");
        }
        assert_eq!(BindTarget::locate(Path::new("x"), &allowed).map_err(|e| e.kind()), Err(Kind::Invalid));
    }

    #[test]
    fn bind_through_a_swapped_link_is_refused_and_leaves_nothing() {
        let root = tempfile::tempdir().expect("a directory");
        let (allowed, elsewhere) = (root.path().join("allowed"), root.path().join("elsewhere"));
        fs::create_dir_all(allowed.join("pod")).expect("made");
        fs::create_dir(&elsewhere).expect("made");
        let target =
            BindTarget::locate(&allowed.join("pod/mount"), std::slice::from_ref(&allowed)).expect("below");
        fs::rename(allowed.join("pod"), allowed.join("away")).expect("renamed");
        symlink(&elsewhere, allowed.join("pod")).expect("a link");
        let error = target.bind(root.path()).expect_err("a link");
        assert!(error.kind() == Kind::Refused && error.to_string().contains("symbolic link"), "{error}");
        assert_eq!(fs::read_dir(&elsewhere).expect("read").count(), 0);
        // The last part as well.
        fs::remove_file(allowed.join("pod")).expect("removed");
        fs::rename(allowed.join("away"), allowed.join("pod")).expect("renamed");
        symlink(&elsewhere, allowed.join("pod/mount")).expect("a link");
        assert_eq!(target.bind(root.path()).expect_err("a link").kind(), Kind::Refused);
        // And a directory that may be a link itself.
        let link = root.path().join("link");
        symlink(&allowed, &link).expect("a link");
        let through = BindTarget::locate(&link.join("pod/other"), &[link]).expect("below");
        assert_eq!(through.path(), allowed.join("pod/other"));
    }

    #[test]
    fn bind_without_its_parent_is_not_found_and_unbind_succeeds() {
        let root = tempfile::tempdir().expect("a directory");
        let target =
            BindTarget::locate(&root.path().join("gone/mount"), &[root.path().to_owned()]).expect("below");
        assert_eq!(target.bind(root.path()).expect_err("no parent").kind(), Kind::NotFound);
        target.unbind().expect("nothing there");
    }

    #[test]
    fn bind_for_a_kubelet_that_has_given_up_the_volume_is_not_found_and_leaves_nothing() {
        let root = tempfile::tempdir().expect("a directory");
        let parent = root.path().join("pod/volumes/kubernetes.io~csi/v");
        fs::create_dir_all(&parent).expect("made");
        let allowed = [root.path().to_owned()];
        let target = BindTarget::locate(&parent.join("mount"), &allowed).expect("below");
        let error = target.bind(root.path()).expect_err("given up");
        assert!(error.kind() == Kind::NotFound && error.to_string().contains("vol_data.json"), "{error}");
        assert!(target.is_unwanted() && fs::read_dir(&parent).expect("read").count() == 0);
        fs::write(parent.join("vol_data.json"), "{}").expect("written");
        assert!(!target.is_unwanted());
        fs::remove_dir_all(&parent).expect("removed");
        assert!(target.is_unwanted());
        assert!(!BindTarget::locate(&root.path().join("gone/mount"), &allowed).expect("below").is_unwanted());
    }
}
