//! Mounts that were moved to another path (`mount --move`).

use bdnfs_tests::mounts::{is_mounted, unmount};
use bdnfs_tests::process::eventually;
use bdnfs_tests::test_env::machine_with_tree;
use bdnfs_tests::tree::assert_same_tree;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change, mount_move};

#[test]
fn moved_mount_reads_right_and_is_unmounted_at_its_new_path() {
    let (machine, source) = machine_with_tree();
    // What lies on a shared mount can't be moved.
    let private = machine.directory("private");
    mount("none", &private, "tmpfs", MountFlags::empty(), c"").unwrap();
    mount_change(&private, MountPropagationFlags::PRIVATE).unwrap();
    let old = machine.mount(&source, "private/old");
    let new = machine.directory("private/new");
    mount_move(&old, &new).unwrap();
    assert_same_tree(&source, &new);
    // An agent that is slow to answer is not known to have moved.
    eventually("it is listed as moved", || {
        let status = machine.run(&["status"]).out;
        let row = status.lines().find(|line| line.contains(new.to_str().unwrap()));
        row.is_some_and(|row| row.contains("moved, bound, or being unmounted"))
    });
    eventually("wait says so, too", || {
        let waited = machine.run(&["wait", new.to_str().unwrap(), "--timeout", "10s"]);
        waited.code != Some(0) && waited.err.contains("moved, bound, or being unmounted")
    });
    machine.umount(&new);
    eventually("its agent ends with it", || machine.agent_pids().is_empty());
    assert!(!is_mounted(&old));
    unmount(&private);
}
