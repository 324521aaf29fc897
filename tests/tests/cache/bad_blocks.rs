//! A cache disk of which some blocks cannot be read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::disk::LoopDisk;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{drop_caches, is_local};
use bdnfs_tests::process::eventually;
use bdnfs_tests::rot::largest_files;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::assert_same;

const DISK_BYTES: u64 = 1 << 30;
const LOST_BYTES: u64 = 64 << 10;
const FILES: usize = 3;

/// A staged mount on a disk that has lost the end of a blob.
struct BadDisk {
    disk: LoopDisk,
    env: TestEnv,
    machine: Machine,
    agent: AgentProcess,
    point: PathBuf,
    contents: Vec<Vec<u8>>,
    /// The number of the file whose blob it is.
    lost: usize,
    /// What is left of the image.
    image_bytes: u64,
}

impl BadDisk {
    fn new(size: usize, config: &str) -> Option<Self> {
        let disk = LoopDisk::without_journal(DISK_BYTES)?;
        let env = TestEnv::new();
        let contents: Vec<_> = (0..FILES).map(|number| env.put(&number.to_string(), size)).collect();
        let machine = env.second_machine().with_cache(&disk.path().join("cache"));
        let agent = machine.agent(config);
        let point = machine.mount_with("s3://bucket", "mnt", &["--wait"]);
        let blobs = largest_files(&machine.cache().join("tenants"), size as u64);
        assert_eq!(blobs.len(), FILES, "{blobs:?}");
        let mut first = [0; 4096];
        File::open(disk.lose_last_bytes(&blobs, LOST_BYTES)).unwrap().read_exact_at(&mut first, 0).unwrap();
        let lost = contents.iter().position(|content| content.starts_with(&first)).unwrap();
        drop_caches();
        let image_bytes = disk.image_bytes();
        Some(Self { disk, env, machine, agent, point, contents, lost, image_bytes })
    }

    fn path(&self, number: usize) -> PathBuf {
        self.point.join(number.to_string())
    }

    fn assert_others_are_right(&self) {
        for number in (0..FILES).filter(|number| *number != self.lost) {
            assert_same(&self.contents[number], &fs::read(self.path(number)).unwrap(), "another file");
        }
    }
}

/// Reads the file at `path` piece by piece, and returns the errors.
fn read_pieces(path: &Path, bytes: &[u8]) -> Vec<i32> {
    let (file, mut piece) = (File::open(path).unwrap(), vec![0; LOST_BYTES as usize]);
    let mut errors = Vec::new();
    for (index, expected) in bytes.chunks(LOST_BYTES as usize).enumerate() {
        match file.read_exact_at(&mut piece, index as u64 * LOST_BYTES) {
            Ok(()) => assert_same(expected, &piece, "a piece"),
            Err(error) => errors.push(error.raw_os_error().unwrap()),
        }
    }
    errors
}

#[test]
fn bad_blocks_of_a_file_that_the_kernel_reads_fail_with_eio_until_they_are_found() {
    for is_scrubbed in [false, true] {
        let Some(bad) = BadDisk::new(24 * MIB, "scrub_interval = \"0s\"") else { return };
        let (path, bytes) = (bad.path(bad.lost), &bad.contents[bad.lost]);
        let errors = read_pieces(&path, bytes);
        // The kernel reads ahead of who reads, and fails that as a whole.
        assert!((1..=32).contains(&errors.len()), "{errors:?}");
        assert!(errors.iter().all(|errno| *errno == libc::EIO), "{errors:?}");
        assert_eq!(fs::read(&path).unwrap_err().raw_os_error(), Some(libc::EIO));
        bad.assert_others_are_right();
        // What is written behind what is lost makes zeros of it.
        assert_eq!(bad.disk.image_bytes(), bad.image_bytes, "it can be read again");
        let BadDisk { machine, agent, .. } = bad;
        let agent = if is_scrubbed {
            agent.end();
            machine.agent("scrub_interval = \"2s\"")
        } else {
            let cache = machine.cache().to_str().unwrap();
            let verify = ["cache", "verify", "--cache-dir", cache];
            machine.run(&verify).fails(&["1 blob damaged"]);
            machine.run(&verify).succeeds();
            agent
        };
        eventually("it is read right again", || fs::read(&path).is_ok_and(|read| read == *bytes));
        eventually("it is local again", || is_local(&path));
        machine.umount(&bad.point);
        agent.stop();
    }
}

#[test]
fn bad_blocks_that_the_agent_reads_come_from_the_next_tier() {
    // Without a large file, no file of a mount is read by the kernel.
    let Some(bad) = BadDisk::new(3 * MIB, "") else { return };
    let before = bad.env.fetched("").bytes;
    for _ in 0..2 {
        assert_eq!(read_pieces(&bad.path(bad.lost), &bad.contents[bad.lost]), [0; 0]);
    }
    // Twice, where a machine that is busy has a second request follow a late one.
    let fetched = bad.env.fetched("").bytes - before;
    assert!(
        (MIB as u64..=2 * MIB as u64).contains(&fetched),
        "more than the block with the bad ones: {fetched}"
    );
    bad.assert_others_are_right();
    assert_eq!(bad.disk.image_bytes(), bad.image_bytes, "the disk can be read again");
    bad.machine.umount(&bad.point);
    bad.agent.stop();
}
