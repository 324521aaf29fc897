//! Interrupts: a process that waits for a silent origin ends when it is killed, however it reads.
//!
//! docs/decisions/kernel-protocol.md rests on the two tests of `O_DIRECT` and `MADV_RANDOM`: the kernel itself lets go of a
//! reader that waits for the page cache, but of these two only when FUSE_INTERRUPT is answered.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{program, python};
use bdnfs_tests::tree::assert_same_tree;

/// How long a process may live after SIGKILL. A read that is not interrupted lasts until its deadline of 30 s.
const KILL_LIMIT: Duration = Duration::from_secs(1);

const O_DIRECT: &str = "
import mmap, os, sys
os.preadv(os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT), [mmap.mmap(-1, 1 << 20)], 0)";
const MADV_RANDOM: &str = "
import mmap, os, sys
pages = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)
pages.madvise(mmap.MADV_RANDOM)
pages[5_000_000]";
const MAPPED: &str = "
import mmap, os, sys
mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, prot=mmap.PROT_READ)[5_000_000]";

/// Whether `process` sleeps in a request to a file system, or for a page of one.
fn waits_for_mount(process: &Child) -> bool {
    let wchan = std::fs::read_to_string(format!("/proc/{}/wchan", process.id()));
    wchan.is_ok_and(|at| at.contains("request_wait") || at.contains("folio"))
}

/// Kills what `readers` are of a file whose origin is silent, which must end at once and leave the mount as it was.
fn assert_killed_readers_end(readers: impl Fn() -> Vec<Command>) {
    let env = TestEnv::new();
    env.put("file", 8 << 20);
    let file: PathBuf = env.machine.mount("s3://bucket", "mnt").join("file");
    env.proxy.set(NetworkFault { frozen: true, ..NetworkFault::default() });
    let spawn = |mut reader: Command| {
        reader.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    // A busy machine may be late with the end of one, but not of each that waits.
    eventually("readers end at once when they are killed", || {
        let readers: Vec<Child> = readers().into_iter().map(spawn).collect();
        eventually("all readers wait", || readers.iter().all(waits_for_mount));
        let ends_at_once = |mut reader: Child| {
            let killed = Instant::now();
            reader.kill().unwrap();
            let status = wait_for_exit(&mut reader, "a reader that was killed");
            assert_eq!(status.signal(), Some(libc::SIGKILL));
            killed.elapsed() < KILL_LIMIT
        };
        // Each of them, also after one that did not.
        let ended: Vec<bool> = readers.into_iter().map(ends_at_once).collect();
        ended.into_iter().all(|at_once| at_once)
    });
    env.proxy.set(NetworkFault::default());
    assert_same_tree(&env.bucket(), file.parent().unwrap());
}

#[test]
fn reader_on_frozen_server_when_killed_ends() {
    assert_killed_readers_end(|| (0..4).map(|_| program("cat")).chain([python(MAPPED)]).collect());
}

#[test]
fn o_direct_reader_on_frozen_server_when_killed_ends_within_a_second() {
    assert_killed_readers_end(|| vec![python(O_DIRECT)]);
}

#[test]
fn madv_random_fault_on_frozen_server_when_killed_ends_within_a_second() {
    assert_killed_readers_end(|| vec![python(MADV_RANDOM)]);
}
