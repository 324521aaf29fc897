//! Mounts that are unmounted while somebody looks at them, as `bdnfs status` and `df` do.

use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::process::eventually;
use bdnfs_tests::test_env::machine_with_tree;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

/// Keeps the mount at `point` in use by no process, as a path does that the kernel walks just then: by a descriptor on its way through a
/// socket, until that is dropped.
fn look_at(point: &Path) -> UnixStream {
    let (receiver, sender) = UnixStream::pair().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let root = File::open(point).unwrap();
    let sent = [root.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
    rustix::net::sendmsg(&sender, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
    receiver
}

#[test]
fn umount_of_a_mount_that_is_only_looked_at_waits_for_the_look() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount(&source, "mnt");
    let umount = ["umount", point.to_str().unwrap()];
    let look = look_at(&point);
    machine.run(&umount).fails(&["by nobody who can be seen here", "--lazy"]);
    drop(look);
    // It waits for a second, in which this process may get no processor.
    eventually("it waits for the look", || {
        let look = look_at(&point);
        let mut umount = machine.command(&umount).spawn().unwrap();
        sleep(Duration::from_millis(300));
        drop(look);
        umount.wait().unwrap().success()
    });
    assert!(!is_mounted(&point));
}
