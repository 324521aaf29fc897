//! A mount namespace: a machine's directories that a test may change, and mounts that no other process sees.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use crate::tools::{program, target};

/// What is its own: directories with the files of this machine that can be changed, and directories that are empty. `bdnfs` is
/// installed.
const SETUP: &str = r#"
set -e
# Copies of other tests' mounts would keep those alive. One that such a test has just removed is no failure.
umount --all --lazy --types fuse.bdnfs,erofs 2>/dev/null || true
mount -t tmpfs tmpfs "$1"
for directory in /etc /usr/local/bin /usr/sbin; do
    mkdir -p "$1/upper$directory" "$1/work$directory"
    mount -t overlay overlay -o "lowerdir=$directory,upperdir=$1/upper$directory,workdir=$1/work$directory" "$directory"
done
for directory in /mnt /run /srv /var/cache; do
    mount -t tmpfs -o mode=755 tmpfs "$directory"
done
# Not a link: a user need not reach where it was built.
touch /usr/local/bin/bdnfs
mount --bind "$2" /usr/local/bin/bdnfs
echo ready
exec sleep infinity
"#;

/// A mount namespace. It lives until it is dropped, and for as long as a process is in it.
#[derive(Debug)]
pub struct MountNamespace {
    holder: Child,
    _directory: tempfile::TempDir,
}

impl MountNamespace {
    /// A namespace of its own, with `bdnfs` in `/usr/local/bin`, no helper of mount(8), and nothing below `/mnt`, `/run`, `/srv`
    /// and `/var/cache`.
    ///
    /// # Panics
    /// When it can't be made, as without root.
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut command = program("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", SETUP, "sh"]);
        command.arg(directory.path()).arg(target().join("bdnfs"));
        let mut holder = command.stdout(Stdio::piped()).spawn().expect("unshare");
        let mut line = String::new();
        BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n", "a mount namespace could not be made");
        Self { holder, _directory: directory }
    }

    /// The same, with the helpers of mount(8).
    pub fn with_helpers() -> Self {
        let namespace = Self::new();
        for name in ["mount.bdnfs", "mount.fuse.bdnfs"] {
            let link = namespace.path("/usr/sbin").join(name);
            std::os::unix::fs::symlink("/usr/local/bin/bdnfs", link).expect("a link");
        }
        namespace
    }

    /// The arguments of nsenter(1).
    pub fn handle(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/mnt", self.holder.id()))
    }

    /// Where `path` of the namespace is to be found from outside.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let inside = path.as_ref().strip_prefix("/").expect("an absolute path").to_owned();
        Path::new("/proc").join(self.holder.id().to_string()).join("root").join(inside)
    }

    /// A new directory of the namespace, and its name there.
    ///
    /// # Panics
    /// When it can't be made.
    pub fn directory<'a>(&self, path: &'a str) -> &'a str {
        std::fs::create_dir(self.path(path)).expect("a directory");
        path
    }

    /// The mount points in it of the type `fuse.bdnfs`, oldest first.
    ///
    /// # Panics
    /// When /proc can't be read.
    pub fn mounted(&self) -> Vec<String> {
        let table = std::fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.id()));
        let table = table.expect("mountinfo");
        let ours = table.lines().filter(|line| line.contains(" - fuse.bdnfs "));
        ours.filter_map(|line| line.split(' ').nth(4)).map(str::to_owned).collect()
    }
}

impl Default for MountNamespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
