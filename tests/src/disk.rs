//! A disk of its own, whose power can be cut, and which can be frozen or hang: ext4 in a file, on a loop device.
//!
//! The cut is the kernel's own way to shut a file system down at once: from then on nothing reaches the disk, what lay in
//! memory alone is lost, and the next mount replays the journal as after a reset. What a drive keeps in a cache of its own
//! is not lost by that. It takes root, loop devices, and the programs `mkfs.ext4` and `mount`.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use rustix::fs::FallocateFlags;
use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::process::eventually;
use crate::tools::{cannot_run, program, run};

/// EXT4_IOC_SHUTDOWN (fs/ext4/ext4.h).
const EXT4_IOC_SHUTDOWN: libc::c_ulong = 0x8004_587d;
/// FIBMAP and FIGETBSZ (linux/fs.h): the number of a block of a file on its device, and the size of a block.
const FIBMAP: libc::c_ulong = 1;
const FIGETBSZ: libc::c_ulong = 2;
/// How much of a store is filled at once, in bytes: a page.
const FILLER_STEP: u64 = 4096;
/// Without writing the journal first.
static EXT4_GOING_FLAGS_NOLOGFLUSH: u32 = 2;

/// Freezes the file system `$1` until the input ends, which is at the latest when the test does, however that ends.
const FREEZE: &str = r#"fsfreeze -f "$1" || exit; echo begun; read -r line; fsfreeze -u "$1""#;

/// Lets one byte a second be read from the device `$1`, until the input ends.
const HANG: &str = r#"echo "$1 1" >"$2" || exit; echo begun; read -r line; echo "$1 0" >"$2""#;

/// The limits of devices in control groups of version 1 (blkio-controller.rst), in bytes of reads a second: 0 is none.
const READ_LIMITS: &str = "/sys/fs/cgroup/blkio/blkio.throttle.read_bps_device";

/// A fault of a disk, from now on. It ends when this is dropped, and who waits for the disk goes on.
#[derive(Debug)]
pub struct DiskFault(Child);

impl DiskFault {
    /// The fault that `script` causes, which gets these arguments.
    fn begin(script: &str, arguments: &[&OsStr]) -> Self {
        // In a session of its own: what kills a test kills the processes of its group.
        let mut process = program("setsid");
        process.args(["sh", "-c", script, "sh"]).args(arguments);
        let mut process = process.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("setsid");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let fault = Self(process);
        assert_eq!(line, "begun\n", "the disk has no such fault: {script}");
        fault
    }
}

impl Drop for DiskFault {
    fn drop(&mut self) {
        // Its input ends.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// A disk, and where it is mounted. It is gone when it is dropped.
#[derive(Debug)]
pub struct LoopDisk {
    home: TempDir,
}

impl LoopDisk {
    /// An empty disk of `size` bytes, of which the file takes no more than what is written; `None` where there are no
    /// loop devices.
    ///
    /// # Panics
    /// When it can't be made, and in CI also where there are no loop devices.
    pub fn new(size: u64) -> Option<Self> {
        let disk = Self::bare()?;
        File::create(disk.image()).and_then(|image| image.set_len(size)).expect("an image");
        run(program("mkfs.ext4").args(["-q", "-F"]).arg(disk.image()));
        disk.mount();
        Some(disk)
    }

    /// An empty disk of `size` bytes, as of a thin pool: blocks for what is written to files are taken from a store when they are first
    /// written, and while that [is full](Self::fill_store), these writes fail. Its memory is the machine's.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn thin(size: u64) -> Option<Self> {
        let disk = Self::bare()?;
        fs::create_dir(disk.store()).expect("a directory");
        let limit = format!("size={}", size + (1 << 20));
        run(program("mount").args(["-t", "tmpfs", "-o", &limit, "tmpfs"]).arg(disk.store()));
        let image = File::create(disk.image()).expect("an image");
        image.set_len(size).expect("an image");
        let whole = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        run(program("mkfs.ext4").args(["-q", "-F", "-E", whole]).arg(disk.image()));
        // The file system's own blocks stay, also those that it has zeroed by a hole, as its journal: it goes on while its files can't be
        // written.
        rustix::fs::fallocate(&image, FallocateFlags::empty(), 0, size).expect("room in memory");
        disk.mount();
        run(program("fstrim").arg(disk.path()));
        Some(disk)
    }

    /// An empty disk of `size` bytes [of which an end can be lost](Self::lose_last_bytes).
    ///
    /// # Panics
    /// As [`new`](Self::new).
    pub fn without_journal(size: u64) -> Option<Self> {
        let disk = Self::bare()?;
        File::create(disk.image()).and_then(|image| image.set_len(size)).expect("an image");
        // A journal lies in the middle of the disk, and what is written to it would grow the image again.
        run(program("mkfs.ext4").args(["-q", "-F", "-O", "^has_journal"]).arg(disk.image()));
        disk.mount();
        Some(disk)
    }

    /// Makes the last `len` bytes that any of `files` has on the disk unreadable, and returns the one whose they are. What is written there
    /// can be read again.
    ///
    /// # Panics
    /// When these do not lie together, or it has a journal.
    pub fn lose_last_bytes<'a>(&self, files: &'a [PathBuf], len: u64) -> &'a Path {
        run(program("sync").arg("-f").arg(self.path()));
        let extents = files.iter().map(|path| (device_blocks(path), path));
        let ((mut blocks, block_bytes), path) =
            extents.max_by_key(|((blocks, _), _)| blocks.iter().max().copied()).expect("a file");
        blocks.sort_unstable();
        let count = (len / block_bytes) as usize;
        let lost = &blocks[blocks.len() - count..];
        assert_eq!(lost[count - 1] - lost[0] + 1, count as u64, "{} is in pieces", path.display());
        let image = File::options().write(true).open(self.image()).expect("an image");
        image.set_len(lost[0] * block_bytes).expect("an image");
        path
    }

    /// The length of its image, in bytes: it grows when something is written behind what was [lost](Self::lose_last_bytes).
    ///
    /// # Panics
    /// When there is none.
    pub fn image_bytes(&self) -> u64 {
        fs::metadata(self.image()).expect("an image").len()
    }

    /// A disk that is still to be made.
    fn bare() -> Option<Self> {
        if !Path::new("/dev/loop-control").exists() {
            cannot_run("there is no /dev/loop-control; load the module loop, or start the container with it");
            return None;
        }
        let disk = Self { home: TempDir::with_prefix("bdnfs-disk-").expect("a temporary directory") };
        fs::create_dir(disk.path()).expect("a directory");
        Some(disk)
    }

    /// Fills the store of a thin disk.
    ///
    /// # Panics
    /// When that fails.
    pub fn fill_store(&self) {
        let filler = File::create(self.store().join("filler")).expect("a file");
        let mut len = 0;
        while rustix::fs::fallocate(&filler, FallocateFlags::empty(), len, FILLER_STEP).is_ok() {
            len += FILLER_STEP;
        }
        assert!(len > 0, "the store of the disk was full");
    }

    /// Makes room in the store of a thin disk again.
    ///
    /// # Panics
    /// When it was not filled.
    pub fn empty_store(&self) {
        fs::remove_file(self.store().join("filler")).expect("a filler");
    }

    fn store(&self) -> PathBuf {
        self.home.path().join("store")
    }

    /// Where it is mounted.
    pub fn path(&self) -> PathBuf {
        self.home.path().join("disk")
    }

    fn image(&self) -> PathBuf {
        let home = self.home.path();
        if self.store().exists() { self.store().join("image") } else { home.join("image") }
    }

    fn mount(&self) {
        run(program("mount").args(["-t", "ext4", "-o", "loop"]).arg(self.image()).arg(self.path()));
        // A loop device takes a write for whole of which the store had room for the first blocks only: that of a thin disk gets each by
        // itself, and no other has what is left of that.
        let (thin, (major, minor)) = (self.store().exists(), self.device());
        let limit = format!("/sys/dev/block/{major}:{minor}/queue/max_sectors_kb");
        let limited = fs::write(limit, if thin { "4" } else { "0" });
        assert!(limited.is_ok() || !thin, "the blocks of the disk cannot be written one by one: {limited:?}");
    }

    /// Cuts its power: nothing more is written, and nothing can be read.
    ///
    /// # Panics
    /// When that fails.
    pub fn cut(&self) {
        let disk = File::open(self.path()).expect("the disk");
        // SAFETY: the request reads one u32 through the pointer, which points to one that outlives the call.
        let done = unsafe {
            libc::ioctl(disk.as_raw_fd(), EXT4_IOC_SHUTDOWN, &raw const EXT4_GOING_FLAGS_NOLOGFLUSH)
        };
        assert_eq!(done, 0, "cannot cut the power: {}", std::io::Error::last_os_error());
    }

    /// Freezes it: writers wait until what is returned is dropped.
    ///
    /// # Panics
    /// When that fails.
    #[must_use = "it thaws at once"]
    pub fn freeze(&self) -> DiskFault {
        DiskFault::begin(FREEZE, &[self.path().as_os_str()])
    }

    /// Makes its reads hang: whoever reads what is not in memory waits until what is returned is dropped. `None` where the kernel can't
    /// do that.
    ///
    /// # Panics
    /// When it fails, and in CI also where the kernel can't do that.
    #[must_use = "it answers at once"]
    pub fn hang(&self) -> Option<DiskFault> {
        if !Path::new(READ_LIMITS).exists() {
            cannot_run(
                "there are no control groups of version 1 that limit devices: mount them with -o blkio",
            );
            return None;
        }
        let (major, minor) = self.device();
        let device = format!("{major}:{minor}");
        Some(DiskFault::begin(HANG, &[device.as_ref(), READ_LIMITS.as_ref()]))
    }

    /// The number of its device.
    fn device(&self) -> (u32, u32) {
        let device = rustix::fs::stat(self.path()).expect("the disk").st_dev;
        (rustix::fs::major(device), rustix::fs::minor(device))
    }

    /// Brings it back as it was left, when it is no longer in use.
    ///
    /// # Panics
    /// When it stays in use, or can't be mounted.
    pub fn restore(&self) {
        eventually("the disk is let go", || unmount(self.path(), UnmountFlags::empty()).is_ok());
        self.mount();
    }
}

/// The numbers of all blocks of the file at `path` on its device, and the size of a block in bytes.
fn device_blocks(path: &Path) -> (Vec<u64>, u64) {
    let file = File::open(path).expect("a file");
    let ask = |request, mut value: libc::c_int| {
        // SAFETY: both requests read and write one int through the pointer, which points to one that outlives the call.
        let done = unsafe { libc::ioctl(file.as_raw_fd(), request, &raw mut value) };
        assert_eq!(done, 0, "{}: {}", path.display(), std::io::Error::last_os_error());
        u64::try_from(value).expect("a number")
    };
    let block_bytes = ask(FIGETBSZ, 0);
    let count = file.metadata().expect("a file").len().div_ceil(block_bytes);
    ((0..count).map(|index| ask(FIBMAP, index as libc::c_int)).collect(), block_bytes)
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let _ = unmount(self.path(), UnmountFlags::DETACH);
        let _ = unmount(self.store(), UnmountFlags::DETACH);
    }
}
