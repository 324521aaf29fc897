//! Directories of many small files: staged fast, and each right by itself.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Instant;

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{drop_caches, is_local};
use bdnfs_tests::process::{kill_and_wait, wait_for_exit};
use bdnfs_tests::rot::{flip_byte, largest_files};
use bdnfs_tests::tree::{Rng, assert_same_tree, content, write_file};

const FILES: usize = 1500;

/// A machine, and a directory of many small files, a large one, and what has no content.
fn machine_with_source() -> (Machine, PathBuf) {
    let machine = Machine::new();
    let source = machine.directory("source");
    for number in 0..FILES {
        write_file(&source, format!("d{}/{number}", number % 7), 1 + number * 11);
    }
    write_file(&source, "d3/large", 3 * MIB + 5);
    write_file(&source, "d3/empty", 0);
    symlink("d3/10", source.join("link")).unwrap();
    (machine, source)
}

/// The files that hold the content of blobs, whole or not.
fn blobs(machine: &Machine) -> Vec<PathBuf> {
    largest_files(&machine.cache().join("tenants/default/blobs"), 0)
}

fn cache(machine: &Machine, command: &[&str]) -> bdnfs_tests::command_output::CommandOutput {
    machine.run(&[&["cache"][..], command, &["--cache-dir", machine.cache().to_str().unwrap()]].concat())
}

#[test]
fn staged_small_files_outlive_their_source() {
    let (machine, source) = machine_with_source();
    let point = machine.mount_with(&source, "mnt", &["--wait"]);
    let away = machine.directory("elsewhere").join("source");
    fs::rename(&source, &away).unwrap();
    drop_caches();
    assert_same_tree(&away, &point);
    assert!(is_local(&point.join("d1/1")) && is_local(&point.join("d3/large")));
    let verified = cache(&machine, &["verify"]).succeeds();
    assert!(verified.starts_with(&format!("{} blobs verified", blobs(&machine).len())), "{verified}");
    // What is leased stays, and nothing else.
    cache(&machine, &["evict", "--all"]).succeeds();
    assert_same_tree(&away, &point);
    machine.umount(&point);
    cache(&machine, &["evict", "--all"]).succeeds();
    assert!(blobs(&machine).is_empty());
}

#[test]
fn small_file_changed_under_mount_fails_alone() {
    let (machine, source) = machine_with_source();
    let point = machine.mount(&source, "mnt");
    let changed = ["d0/700", "d1/8", "d2/1003"];
    fs::write(source.join(changed[0]), "other").unwrap();
    fs::remove_file(source.join(changed[1])).unwrap();
    write_file(&source, "new", 1 + 1003 * 11);
    fs::rename(source.join("new"), source.join(changed[2])).unwrap();
    let mut failed = Vec::new();
    for number in 0..FILES {
        let path = format!("d{}/{number}", number % 7);
        match fs::read(point.join(&path)) {
            Ok(read) => assert_eq!(read, content(&number.to_string(), 1 + number * 11), "{path}"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EBADMSG), "{path}: {error}");
                failed.push(path);
            }
        }
    }
    failed.sort();
    assert_eq!(failed, changed);
    // What changed is what a new mount has.
    assert_same_tree(&source, &machine.mount_with(&source, "again", &["--wait"]));
}

#[test]
fn stage_of_small_files_killed_at_any_moment_is_completed_by_the_next() {
    let (machine, source) = machine_with_source();
    let point = machine.directory("mnt");
    let stage = ["mount", source.to_str().unwrap(), point.to_str().unwrap(), "--wait", "--cache-dir"];
    let stage = [&stage[..], &[machine.cache().to_str().unwrap()]].concat();
    let begin = Instant::now();
    machine.run(&stage).succeeds();
    let whole = begin.elapsed();
    machine.umount(&point);
    let mut rng = Rng(3);
    for round in 0..6 {
        fs::remove_dir_all(machine.cache()).unwrap();
        let mut staging =
            machine.command(&stage).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(whole * rng.below(100) as u32 / 100);
        kill_and_wait(&machine.agent_pids());
        let _ = staging.kill();
        wait_for_exit(&mut staging, "a stage without an agent");
        machine.reset();
        machine.run(&stage).succeeds();
        drop_caches();
        assert_same_tree(&source, &point);
        let verified = cache(&machine, &["verify"]).succeeds();
        assert!(verified.contains("blobs verified") && !verified.contains("damaged"), "{round}: {verified}");
        machine.umount(&point);
    }
}

#[test]
fn rotten_small_file_is_found_and_repaired() {
    let (machine, source) = machine_with_source();
    let point = machine.mount_with(&source, "mnt", &["--wait"]);
    let rotten = [3, 700, 1499];
    for number in rotten {
        // Each has a size of its own.
        let size = 1 + number as u64 * 11;
        let blob = blobs(&machine).into_iter().find(|blob| blob.metadata().unwrap().len() == size).unwrap();
        flip_byte(&blob, size / 2);
    }
    let found = cache(&machine, &["verify"]);
    for number in rotten {
        assert!(found.out.contains(&format!("d{}/{number}", number % 7)), "{}", found.out);
    }
    found.fails(&["damaged"]);
    assert_same_tree(&source, &point);
    machine.umount(&point);
    let point = machine.mount_with(&source, "mnt", &["--wait"]);
    drop_caches();
    assert_same_tree(&source, &point);
    cache(&machine, &["verify"]).succeeds();
}
