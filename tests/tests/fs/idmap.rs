//! Idmapped mounts, as container runtimes make them of volumes for pods in user namespaces.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::tools::{cannot_run, program};
use bdnfs_tests::tree::write_file;
use rustix::fs::{AtFlags, CWD};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use rustix::process::{Pid, Signal, kill_process};

/// Where the ids of the user namespace begin outside of it.
const FIRST_ID: u32 = 100_000;
/// The first Linux whose FUSE takes an id mapping.
const MIN_LINUX: (u32, u32) = (6, 12);

/// The version of Linux.
fn linux() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// A user namespace that maps its ids from [`FIRST_ID`] on.
fn user_namespace() -> File {
    let mut holder = program("unshare").args(["--user", "sleep", "infinity"]).spawn().unwrap();
    let process = Path::new("/proc").join(holder.id().to_string());
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    bdnfs_tests::process::eventually("a user namespace", || {
        fs::read_link(process.join("ns/user")).is_ok_and(|namespace| namespace != own)
    });
    for map in ["uid_map", "gid_map"] {
        fs::write(process.join(map), format!("0 {FIRST_ID} 65536")).unwrap();
    }
    let namespace = File::open(process.join("ns/user")).unwrap();
    // The descriptor keeps it.
    kill_process(Pid::from_child(&holder), Signal::KILL).unwrap();
    holder.wait().unwrap();
    namespace
}

/// Binds `from` on `to` with the ids of the user namespace.
fn bind_idmapped(from: &Path, to: &Path, namespace: &File) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(CWD, from, flags)?;
    // struct mount_attr: attr_set, attr_clr, propagation, userns_fd.
    let attributes: [u64; 4] = [MOUNT_ATTR_IDMAP, 0, 0, u64::try_from(namespace.as_raw_fd()).unwrap()];
    // SAFETY: the path is a C string, the attributes are those of `struct mount_attr` in its first version, and both outlive
    // the call, which writes to neither.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            AtFlags::EMPTY_PATH.bits(),
            attributes.as_ptr(),
            size_of_val(&attributes),
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    move_mount(&tree, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    Ok(())
}

/// From include/uapi/linux/mount.h.
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;

/// Unmounts a bind when it is dropped.
struct Bind<'a>(&'a Path);

impl Drop for Bind<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn idmapped_mount_shows_ids_of_its_user_namespace() {
    if linux() < MIN_LINUX {
        return cannot_run("Linux is older than 6.12, whose FUSE has no idmapped mounts");
    }
    let machine = Machine::new();
    let source = machine.directory("source");
    let content = write_file(&source, "file", 3 << 20);
    let point = machine.mount_with(&source, "mnt", &["--uid", "0", "--gid", "7", "--allow-other"]);
    let volume = machine.directory("volume");
    bind_idmapped(&point, &volume, &user_namespace()).expect("an idmapped mount");
    let _bind = Bind(&volume);
    // Before the file is local, and when the kernel reads it by itself.
    for _ in 0..2 {
        let meta = fs::metadata(volume.join("file")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (FIRST_ID, FIRST_ID + 7));
        assert_eq!(fs::read(volume.join("file")).unwrap(), content);
        machine.run(&["wait", point.to_str().unwrap()]).succeeds();
    }
    let meta = fs::metadata(point.join("file")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (0, 7));
}
