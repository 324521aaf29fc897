//! The files that processes of a job are writing: a signal that ends these leaves the files half written.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::api::job::{FileId, WrittenFiles};

/// The permission of a descriptor's entry in /proc by which it is open for writing.
const WRITABLE_DESCRIPTOR: u32 = 0o200;
/// The time that it may take to find the files, as so many ticks of a clock: a process that waits for a broken disk may not let
/// itself be looked at. A tick that comes late counts once: this process got no processor meanwhile.
const FIND_TICKS: u32 = 100;
const FIND_TICK: Duration = Duration::from_millis(20);
/// The number of processes that may be looked at before what was found of them is taken.
const FOUND_QUEUE_LENGTH: usize = 16;

/// Finds the files on `device` that the processes `pids` are writing, as far as that takes no longer than two seconds.
pub async fn find(pids: BTreeSet<i32>, device: u64) -> WrittenFiles {
    let (sender, found) = mpsc::channel(FOUND_QUEUE_LENGTH);
    let look = move || {
        let mut is_complete = true;
        // Descriptors first: to look at mappings may take long where a process waits for a disk.
        for files in [opened, mapped] {
            for pid in &pids {
                let files = files(*pid, device).unwrap_or_else(|error| {
                    is_complete &= is_unseen(&error);
                    BTreeSet::new()
                });
                if sender.blocking_send(Some(files)).is_err() {
                    return;
                }
            }
        }
        if is_complete {
            let _ = sender.blocking_send(None);
        }
    };
    // Where no thread can be started, nothing is found.
    let _ = std::thread::Builder::new().name("bdnfs-look".into()).spawn(look);
    collect(found).await
}

/// Collects what is `found` until `None` says that this is all, or until it takes too long.
async fn collect(mut found: mpsc::Receiver<Option<BTreeSet<FileId>>>) -> WrittenFiles {
    let mut written = WrittenFiles { is_incomplete: true, ..WrittenFiles::default() };
    let mut clock = interval(FIND_TICK);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ticks = 0;
    // The first one is at once.
    while ticks <= FIND_TICKS {
        tokio::select! {
            biased;
            files = found.recv() => match files {
                Some(Some(files)) => written.files.extend(files),
                Some(None) => {
                    written.is_incomplete = false;
                    break;
                }
                None => break,
            },
            _ = clock.tick() => ticks += 1,
        }
    }
    written
}

/// Whether `error` means that there is nothing to be seen of a process: it has ended, or belongs to somebody else.
fn is_unseen(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
        || Errno::from_io_error(error) == Some(Errno::SRCH)
}

/// The files on `device` that the process `pid` has open for writing.
fn opened(pid: i32, device: u64) -> io::Result<BTreeSet<FileId>> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let writable =
        descriptors.filter(|entry| entry.metadata().is_ok_and(|link| link.mode() & WRITABLE_DESCRIPTOR != 0));
    Ok(writable.filter_map(|entry| file_on(device, &entry.path())).collect())
}

/// The files on `device` that the process `pid` has mapped for writing.
fn mapped(pid: i32, device: u64) -> io::Result<BTreeSet<FileId>> {
    let maps = fs::read(format!("/proc/{pid}/maps"))?;
    let ranges = maps.split(|byte| *byte == b'\n').filter_map(writable_mapping);
    let links =
        ranges.map(|range| Path::new(&format!("/proc/{pid}/map_files")).join(OsStr::from_bytes(range)));
    Ok(links.filter_map(|link| file_on(device, &link)).collect())
}

/// The range in a line of `/proc/<pid>/maps`, of a mapping through which a file is written.
fn writable_mapping(line: &[u8]) -> Option<&[u8]> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (range, permissions) = (fields.next()?, fields.next()?);
    matches!(permissions, [_, b'w', _, b's']).then_some(range)
}

/// The file that a link of /proc leads to, if it lies on `device`. It asks no other file system: one that does not answer would
/// hold the process that asks, also when that is killed.
fn file_on(device: u64, link: &Path) -> Option<FileId> {
    let (flags, wanted) = (AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE | StatxFlags::INO);
    let file = rustix::fs::statx(CWD, link, flags, wanted).ok()?;
    let is_file = FileType::from_raw_mode(file.stx_mode.into()) == FileType::RegularFile;
    let on = rustix::fs::makedev(file.stx_dev_major, file.stx_dev_minor);
    (is_file && on == device).then_some((on, file.stx_ino))
}

/// Whether `signal` ends the process `pid` at once: it neither handles it nor ignores it.
pub fn is_ended_by(signal: Signal, pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or_default()
    };
    (mask("SigIgn") | mask("SigCgt")) & (1 << (signal.as_raw() - 1)) == 0
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Child, Command};

    use super::*;

    /// A process that runs `script`, once it has written the file `ready`.
    fn process(directory: &Path, script: &str) -> Child {
        let child =
            Command::new("sh").args(["-c", script]).current_dir(directory).spawn().expect("a process");
        while !directory.join("ready").exists() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child
    }

    fn end(mut child: Child) {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }

    #[tokio::test(start_paused = true)]
    async fn find_that_is_given_up_is_incomplete() {
        let (sender, found) = mpsc::channel(FOUND_QUEUE_LENGTH);
        sender.send(Some(BTreeSet::from([(1, 2)]))).await.expect("received");
        assert_eq!(
            collect(found).await,
            WrittenFiles { files: BTreeSet::from([(1, 2)]), is_incomplete: true },
            "a process does not let itself be looked at"
        );
        let (sender, found) = mpsc::channel(FOUND_QUEUE_LENGTH);
        drop(sender);
        assert!(collect(found).await.is_incomplete, "there was no thread");
    }

    #[tokio::test(start_paused = true)]
    async fn find_without_a_processor_is_not_given_up() {
        let (sender, found) = mpsc::channel(FOUND_QUEUE_LENGTH);
        let collected = tokio::spawn(collect(found));
        for number in 1..4 {
            // As if nothing of this process had run for so long.
            tokio::time::advance(FIND_TICK * FIND_TICKS * 10).await;
            sender.send(Some(BTreeSet::from([(1, number)]))).await.expect("it is not given up");
        }
        sender.send(None).await.expect("it is not given up");
        let files = BTreeSet::from([(1, 1), (1, 2), (1, 3)]);
        assert_eq!(collected.await.expect("no panic"), WrittenFiles { files, is_incomplete: false });
    }

    #[test]
    fn opened_files_of_a_process_are_those_that_it_writes_on_the_device() {
        let home = tempfile::tempdir().expect("a directory");
        fs::write(home.path().join("read"), "").expect("a file");
        let child = process(home.path(), "exec 3> written 4< read 5> /dev/null; touch ready; exec sleep 60");
        let (pid, device) = (child.id() as i32, fs::metadata(home.path()).expect("there").dev());
        let written = fs::metadata(home.path().join("written")).expect("there").ino();
        // Beside it only what the runner of the test has given it.
        let found = opened(pid, device).expect("it may be looked at");
        assert!(found.contains(&(device, written)), "{found:?}");
        assert!(!found.contains(&(device, fs::metadata(home.path().join("read")).expect("there").ino())));
        assert_eq!(opened(pid, device + 1).expect("it may be looked at"), BTreeSet::new());
        end(child);
    }

    #[test]
    fn mapped_files_of_a_process_are_those_that_it_writes() {
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("a file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        file.set_len(4096).expect("a length");
        let (pid, id) = (std::process::id() as i32, file_on(file.metadata().expect("there").dev(), &path));
        let is_mapped = |protection| {
            // SAFETY: the address is the kernel's choice, and nothing reads through the mapping.
            let map = unsafe { mmap(std::ptr::null_mut(), 4096, protection, MapFlags::SHARED, &file, 0) };
            let found = mapped(pid, id.expect("a file").0).expect("it may be looked at");
            // SAFETY: it was mapped above, and no pointer into it is held.
            unsafe { munmap(map.expect("a mapping"), 4096) }.expect("unmapped");
            found.contains(&id.expect("a file"))
        };
        assert!(is_mapped(ProtFlags::READ | ProtFlags::WRITE));
        assert!(!is_mapped(ProtFlags::READ));
    }

    #[test]
    fn process_that_handles_or_ignores_a_signal_is_not_ended_by_it() {
        for (script, is_ended) in [
            ("touch ready; exec sleep 60", true),
            ("trap '' TERM; touch ready; exec sleep 60", false),
            ("trap 'exit 1' TERM; touch ready; while :; do :; done", false),
        ] {
            let home = tempfile::tempdir().expect("a directory");
            let child = process(home.path(), script);
            assert_eq!(is_ended_by(Signal::TERM, child.id() as i32), is_ended, "{script}");
            end(child);
        }
    }
}
