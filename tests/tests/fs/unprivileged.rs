//! Mounts of users who are not root.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mount_namespace::MountNamespace;
use bdnfs_tests::tree::write_file;

/// A user and group with no rights: nobody.
const USER: u32 = 65534;

/// A machine, and a directory of [`USER`] with a source and a mount point.
struct UserMachine {
    machine: Machine,
    namespace: MountNamespace,
    home: PathBuf,
    content: Vec<u8>,
}

impl UserMachine {
    /// Where /dev/fuse has these permissions.
    fn new(mode: &str) -> Self {
        let namespace = MountNamespace::with_helpers();
        let machine = Machine::new().in_mounts(&namespace);
        let home = machine.directory("user");
        fs::set_permissions(home.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        let content = write_file(&home, "source/file", 3 << 20);
        fs::create_dir(home.join("mnt")).unwrap();
        for directory in [home.clone(), home.join("mnt")] {
            chown(directory, Some(USER), Some(USER)).unwrap();
        }
        let machine = machine.with_cache(&home.join("cache"));
        let device = "mknod /srv/fuse c 10 229 && chmod $0 /srv/fuse && mount --bind /srv/fuse /dev/fuse";
        machine.run_command(machine.program("sh", &["-c", device, mode])).succeeds();
        Self { machine, namespace, home, content }
    }

    /// Runs a command as the user.
    fn run(&self, words: &[&str]) -> CommandOutput {
        let user = USER.to_string();
        let who = ["--reuid", &user, "--regid", &user, "--clear-groups", "--"];
        self.machine.run_command(self.machine.program("setpriv", &[&who, words].concat()))
    }

    /// Mounts the source as the user.
    fn mount(&self, point: &str, options: &[&str]) -> CommandOutput {
        let (source, cache) = (self.home.join("source"), self.machine.cache());
        let paths = [source.to_str().unwrap(), point, "--cache-dir", cache.to_str().unwrap()];
        self.run(&[&["bdnfs", "mount"], &paths[..], options].concat())
    }

    fn point(&self) -> String {
        self.home.join("mnt").to_str().unwrap().to_owned()
    }
}

#[test]
fn unprivileged_user_with_access_to_the_device_mounts_and_unmounts() {
    let user = UserMachine::new("666");
    let point = user.point();
    user.mount(&point, &["--wait"]).succeeds();
    assert_eq!(user.namespace.mounted(), [point.as_str()]);
    let read = user.run(&["sha256sum", &format!("{point}/file")]).succeeds();
    let original = user.run(&["sha256sum", user.home.join("source/file").to_str().unwrap()]).succeeds();
    assert_eq!(read.split(' ').next(), original.split(' ').next());
    assert_eq!(user.content.len(), 3 << 20);
    user.run(&["bdnfs", "umount", &point]).succeeds();
    assert_eq!(user.namespace.mounted(), [""; 0]);
    // By the helper of mount(8), too.
    let source = user.home.join("source").to_str().unwrap().to_owned();
    let options = format!("rw,exec,user=nobody,cache_dir={}", user.machine.cache().display());
    for _ in 0..2 {
        user.run(&["mount.fuse.bdnfs", &source, &point, "-o", &options]).succeeds();
    }
    assert_eq!(user.namespace.mounted(), [point.as_str()]);
    user.run(&["bdnfs", "umount", &point]).succeeds();
}

#[test]
fn mount_without_permission_says_why() {
    let user = UserMachine::new("666");
    let point = user.namespace.directory("/mnt/of-root");
    user.mount(point, &[]).fails(&["cannot mount at /mnt/of-root", "fusermount3", "no write access"]);
    user.mount(&user.point(), &["--allow-other"]).fails(&["user_allow_other", "/etc/fuse.conf"]);
    let user = UserMachine::new("600");
    user.mount(&user.point(), &[]).fails(&["permission denied on /dev/fuse", "chmod 666 /dev/fuse"]);
    assert_eq!(user.namespace.mounted(), [""; 0]);
}

#[test]
fn mount_where_dev_fuse_is_missing_says_so() {
    let namespace = MountNamespace::new();
    let machine = Machine::new().in_mounts(&namespace);
    let source = machine.directory("source");
    write_file(&source, "file", 5000);
    machine.run_command(machine.program("mount", &["-t", "tmpfs", "tmpfs", "/dev"])).succeeds();
    assert!(!namespace.path("/dev/fuse").exists());
    let point = machine.directory("mnt");
    for options in [&[][..], &["--foreground"]] {
        let ran = machine.try_mount(&source, &point, options);
        assert!(!ran.err.contains("Invalid argument"), "{}", ran.err);
        ran.fails(&["/dev/fuse not found", "modprobe fuse", "--device /dev/fuse"]);
    }
    assert_eq!(namespace.mounted(), [""; 0]);
    assert!(machine.agent_pids().is_empty());
}

#[test]
fn mount_where_dev_fuse_is_another_file_says_so() {
    for file in ["/dev/null", "/etc/hostname"] {
        let namespace = MountNamespace::new();
        let machine = Machine::new().in_mounts(&namespace);
        let source = machine.directory("source");
        write_file(&source, "file", 5000);
        machine.run_command(machine.program("mount", &["--bind", file, "/dev/fuse"])).succeeds();
        let point = machine.directory("mnt");
        machine
            .try_mount(&source, &point, &[])
            .fails(&["/dev/fuse is not the FUSE device", "--device /dev/fuse"]);
    }
}
