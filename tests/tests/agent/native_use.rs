//! Native mounts in use: what programs do with them, what keeps their blobs, and what they leave.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{drop_caches, is_mounted, unmount};
use bdnfs_tests::process::eventually;
use bdnfs_tests::rot::largest_files;
use bdnfs_tests::test_env::machine_with_tree;
use bdnfs_tests::tree::{assert_same, assert_same_tree, write_file, write_tree};

/// The output of `command`, which succeeds.
fn prints(command: &mut Command) -> String {
    let ended = command.output().unwrap();
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8(ended.stdout).unwrap()
}

/// A git repository with a program and a large file.
fn repository(machine: &Machine) -> PathBuf {
    let source = machine.directory("source");
    write_tree(&source);
    write_file(&source, "large", 3 * MIB + 17);
    fs::copy("/bin/true", source.join("program")).unwrap();
    fs::write(source.join("script"), "#!/bin/sh\nexec \"$(dirname \"$0\")/program\"\n").unwrap();
    fs::set_permissions(source.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("large", source.join("link")).unwrap();
    let git = |arguments: &[&str]| {
        let names = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"];
        prints(Command::new("git").arg("-C").arg(&source).args(names).args(arguments));
    };
    git(&["init", "--quiet"]);
    git(&["add", "--all"]);
    git(&["commit", "--quiet", "--message", "all"]);
    source
}

#[test]
fn native_mount_serves_git_rsync_mappings_and_programs() {
    let machine = Machine::new();
    let source = repository(&machine);
    let point = machine.mount_with(&source, "model", &["--wait", "--via", "native"]);
    drop_caches();
    let git = |arguments: &[&str]| prints(Command::new("git").arg("-C").arg(&point).args(arguments));
    git(&["fsck", "--strict", "--full"]);
    assert_eq!(git(&["--no-optional-locks", "status", "--porcelain"]), "");
    let mut rsync = Command::new("rsync");
    rsync.args([
        "--recursive",
        "--links",
        "--times",
        "--omit-dir-times",
        "--checksum",
        "--dry-run",
        "--itemize-changes",
    ]);
    assert_eq!(prints(rsync.arg("--delete").arg(source.join("")).arg(&point)), "");
    prints(&mut Command::new(point.join("program")));
    prints(&mut Command::new(point.join("script")));
    // SAFETY: no process writes to a file of the mount.
    let mapped = unsafe { memmap2::Mmap::map(&File::open(point.join("large")).unwrap()) }.unwrap();
    assert_same(&fs::read(source.join("large")).unwrap(), &mapped, "what is mapped");
}

#[test]
fn native_mount_read_by_sixteen_processes_equals_the_original() {
    let machine = Machine::new();
    let source = repository(&machine);
    let points = ["one", "two"].map(|name| machine.mount_with(&source, name, &["--wait", "--via", "native"]));
    drop_caches();
    let diff = |point: &PathBuf| {
        let mut diff = Command::new("diff");
        diff.args(["--recursive", "--no-dereference"]).arg(&source).arg(point).stdout(Stdio::piped());
        diff.spawn().unwrap()
    };
    let running: Vec<_> = points.iter().cycle().take(16).map(diff).collect();
    for process in running {
        let ended = process.wait_with_output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    }
}

#[test]
fn native_mount_under_eviction_pressure_keeps_its_blobs_until_no_namespace_shows_it() {
    let (machine, source) = machine_with_tree();
    write_file(&source, "large", 3 * MIB + 17);
    let agent = machine.agent("cache_size = \"24MiB\"");
    let point = machine.mount_with(&source, "model", &["--wait", "--via", "native"]);
    let press = |name: &str| {
        let other = machine.directory(&format!("source-{name}"));
        (0..8).for_each(|number| drop(write_file(&other, format!("{name}-{number}"), 4 * MIB)));
        let other_point = machine.mount(&other, name);
        // More than fits beside what is leased.
        assert_same_tree(&other, &other_point);
        machine.umount(&other_point);
    };
    press("first");
    drop_caches();
    assert_same_tree(&source, &point);
    // A container that was made while it was mounted.
    let mut container = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let process = PathBuf::from(format!("/proc/{}", container.id()));
    eventually("it runs", || fs::read_to_string(process.join("comm")).is_ok_and(|name| name == "cat\n"));
    unmount(&point);
    assert!(!is_mounted(&point));
    press("second");
    let within = process.join("root").join(point.strip_prefix("/").unwrap());
    drop_caches();
    assert_same_tree(&source, &within);
    assert!(is_here(&machine, 3 * MIB + 17), "its blobs are kept");
    drop(container.stdin.take());
    container.wait().unwrap();
    eventually("it has ended", || agent.status()["mounts"].as_array().is_some_and(Vec::is_empty));
    press("third");
    eventually("its blobs are evicted", || !is_here(&machine, 3 * MIB + 17));
    agent.stop();
}

/// Whether the cache has a whole blob of `size` bytes.
fn is_here(machine: &Machine, size: usize) -> bool {
    !largest_files(&machine.cache().join("tenants"), size as u64)
        .iter()
        .all(|blob| blob.metadata().is_ok_and(|blob| blob.len() != size as u64))
}

/// The file systems of type `kind` that this machine has mounted anywhere, by the paths of their sources below `directory`.
fn mounted_images(directory: &Path) -> usize {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table
        .lines()
        .filter(|line| line.contains(" - erofs ") && line.contains(directory.to_str().unwrap()))
        .count()
}

#[test]
fn native_mount_that_is_unmounted_leaves_nothing() {
    let machine = Machine::new();
    let source = repository(&machine);
    let agent = machine.agent("");
    let points = ["one", "two"].map(|name| machine.mount_with(&source, name, &["--wait", "--via", "native"]));
    assert_eq!(mounted_images(machine.cache()), 2);
    let images = machine.cache().join("images");
    assert_eq!(fs::read_dir(&images).unwrap().count(), 0, "an image has no name");
    for point in &points {
        machine.umount(point);
    }
    assert_eq!(mounted_images(machine.cache()), 0);
    assert_eq!(fs::read_dir(&images).unwrap().count(), 0);
    // Another process of this machine may have made a mount namespace meanwhile, which shows them until that process ends.
    eventually("no blob is open", || {
        let open = fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap();
        let mut open = open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        !open.any(|path| path.starts_with(machine.cache().join("tenants/default/blobs/")) && !path.is_dir())
    });
    // Nothing holds what it was made of.
    let cache = machine.cache().to_str().unwrap();
    machine.run(&["cache", "evict", "--all", "--cache-dir", cache]).succeeds();
    assert_eq!(largest_files(&machine.cache().join("tenants/default/blobs"), 1), Vec::<PathBuf>::new());
    agent.stop();
}
