//! The files that processes of a job are writing: a signal that ends these leaves the files half written.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::process::Signal;

use crate::api::job::FileId;

/// The permission of a descriptor's entry in /proc by which it is open for writing.
const WRITABLE_DESCRIPTOR: u32 = 0o200;

/// The files on `device` that the process `pid` has open for writing.
pub fn opened(pid: i32, device: u64) -> BTreeSet<FileId> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let writable =
        descriptors.filter(|entry| entry.metadata().is_ok_and(|link| link.mode() & WRITABLE_DESCRIPTOR != 0));
    writable.filter_map(|entry| file_on(device, &entry.path())).collect()
}

/// The files on `device` that the process `pid` has mapped for writing.
pub fn mapped(pid: i32, device: u64) -> BTreeSet<FileId> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let ranges = maps.split(|byte| *byte == b'\n').filter_map(writable_mapping);
    let links =
        ranges.map(|range| Path::new(&format!("/proc/{pid}/map_files")).join(OsStr::from_bytes(range)));
    links.filter_map(|link| file_on(device, &link)).collect()
}

/// The range in a line of `/proc/<pid>/maps`, of a mapping through which a file is written.
fn writable_mapping(line: &[u8]) -> Option<&[u8]> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (range, permissions) = (fields.next()?, fields.next()?);
    matches!(permissions, [_, b'w', _, b's']).then_some(range)
}

/// The file that a link of /proc leads to, if it lies on `device`. It asks no other file system: one that does not answer would hold
/// the process that asks, also when that is killed.
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

    #[test]
    fn opened_files_of_a_process_are_those_that_it_writes_on_the_device() {
        let home = tempfile::tempdir().expect("a directory");
        fs::write(home.path().join("read"), "").expect("a file");
        let child = process(home.path(), "exec 3> written 4< read 5> /dev/null; touch ready; exec sleep 60");
        let (pid, device) = (child.id() as i32, fs::metadata(home.path()).expect("there").dev());
        let written = fs::metadata(home.path().join("written")).expect("there").ino();
        // Beside it only what the runner of the test has given it.
        let found = opened(pid, device);
        assert!(found.contains(&(device, written)), "{found:?}");
        assert!(!found.contains(&(device, fs::metadata(home.path().join("read")).expect("there").ino())));
        assert_eq!(opened(pid, device + 1), BTreeSet::new());
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
            let found = mapped(pid, id.expect("a file").0);
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
