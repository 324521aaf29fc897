//! `reader`: reads a mount at random, in all the ways that programs do, and holds every byte against the original. A process
//! of its own, since one that is stuck in a mount, or killed by it, must not be the test.

use std::fs::{self, File, OpenOptions, ReadDir};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bdnfs_tests::tree::{Rng, regular_files};
use clap::Parser;
use memmap2::Mmap;

/// The most files and mappings that stay open at once.
const MAX_OPEN_FILES: usize = 12;
/// The longest read, in bytes.
const MAX_READ_BYTES: u64 = 700 << 10;
/// What takes so long is a stall.
const STALL_LIMIT: Duration = Duration::from_millis(100);
/// What O_DIRECT wants offsets, lengths and memory to be multiples of.
const DIRECT_IO_ALIGNMENT: usize = 4096;

/// Reads the mount at MOUNT, which ORIGINAL was mounted at, until the file STOP is there; ends with 1 at the first thing that
/// is not as it should be.
#[derive(Parser)]
struct ReaderArgs {
    original: PathBuf,
    mount: PathBuf,
    /// Told here how many times something was done, and behind it how many milliseconds each took that was a stall.
    progress: PathBuf,
    stop: PathBuf,
    seed: u64,
    /// Milliseconds to wait after each thing that is done: a hundred readers would keep a machine busy by themselves.
    #[arg(long, default_value_t = 0)]
    pause: u64,
}

fn main() {
    let arguments = ReaderArgs::parse();
    let progress = OpenOptions::new().write(true).open(&arguments.progress).expect("a file");
    let names: Vec<PathBuf> = regular_files(&arguments.original).into_iter().map(|(path, _)| path).collect();
    let mut reader = RandomReader {
        names,
        rng: Rng(arguments.seed),
        open: Vec::new(),
        mapped: Vec::new(),
        listing: None,
        arguments,
    };
    let mut end = size_of::<u64>() as u64;
    for turn in 1_u64.. {
        let begin = Instant::now();
        reader.turn();
        let took = begin.elapsed();
        if took >= STALL_LIMIT {
            let millis = u32::try_from(took.as_millis()).unwrap_or(u32::MAX).to_le_bytes();
            progress.write_all_at(&millis, end).expect("written");
            end += millis.len() as u64;
        }
        std::thread::sleep(Duration::from_millis(reader.arguments.pause));
        progress.write_all_at(&turn.to_le_bytes(), 0).expect("written");
        if turn % 16 == 0 && reader.arguments.stop.exists() {
            reader.last();
            return;
        }
    }
}

struct RandomReader {
    arguments: ReaderArgs,
    names: Vec<PathBuf>,
    rng: Rng,
    open: Vec<(File, PathBuf)>,
    mapped: Vec<(Mmap, PathBuf)>,
    /// A listing in the middle, of which directory, and what it gave.
    listing: Option<(ReadDir, PathBuf, usize)>,
}

impl RandomReader {
    fn turn(&mut self) {
        match self.rng.below(20) {
            0..4 => self.read_shortly(),
            4..8 => self.open_and_keep(),
            8..12 => self.read_kept(),
            12 => self.open_once_more(),
            13 => self.map(),
            14..16 => self.read_mapped(),
            16 => self.read_direct(),
            17 => self.list(),
            18 => self.look(),
            _ => std::thread::sleep(Duration::from_millis(self.rng.below(10))),
        }
    }

    /// Everything that is open once more, to the end.
    fn last(&mut self) {
        for (file, name) in std::mem::take(&mut self.open) {
            let len = file.metadata().expect("a file").len();
            self.right(&name, 0, &read(&file, 0, len as usize, &name));
        }
        for (mapped, name) in std::mem::take(&mut self.mapped) {
            self.right(&name, 0, &mapped);
        }
    }

    fn name(&mut self) -> PathBuf {
        self.names[self.rng.below(self.names.len() as u64) as usize].clone()
    }

    fn opened(&self, name: &Path) -> File {
        File::open(self.arguments.mount.join(name)).unwrap_or_else(|e| panic!("open {}: {e}", name.display()))
    }

    fn read_shortly(&mut self) {
        let name = self.name();
        self.read(&self.opened(&name), &name);
    }

    fn open_and_keep(&mut self) {
        let name = self.name();
        let file = self.opened(&name);
        self.read(&file, &name);
        if self.open.len() == MAX_OPEN_FILES {
            let which = self.rng.below(MAX_OPEN_FILES as u64) as usize;
            self.open.swap_remove(which);
        }
        self.open.push((file, name));
    }

    fn read_kept(&mut self) {
        if let Some((file, name)) = self.kept() {
            self.read(&file, &name);
        }
    }

    /// Opens a file that is open by its descriptor, whatever its name leads to by now.
    fn open_once_more(&mut self) {
        if let Some((file, name)) = self.kept() {
            let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
            self.read(&again.unwrap_or_else(|e| panic!("open {} again: {e}", name.display())), &name);
        }
    }

    fn kept(&mut self) -> Option<(File, PathBuf)> {
        let which = self.rng.below(self.open.len().max(1) as u64) as usize;
        self.open.get(which).map(|(file, name)| (file.try_clone().expect("a descriptor"), name.clone()))
    }

    fn read(&mut self, file: &File, name: &Path) {
        let (offset, len) = self.range(file.metadata().expect("a file").len());
        self.right(name, offset, &read(file, offset, len, name));
    }

    fn range(&mut self, len: u64) -> (u64, usize) {
        let offset = self.rng.below(len.max(1));
        let most = MAX_READ_BYTES.min(len - offset);
        (offset, (1 + self.rng.below(most.max(1))).min(most) as usize)
    }

    fn map(&mut self) {
        let name = self.name();
        let file = self.opened(&name);
        if file.metadata().expect("a file").len() == 0 {
            return;
        }
        // SAFETY: nothing in the mount ever changes; that it doesn't is what is tested.
        let mapped = unsafe { Mmap::map(&file) }.unwrap_or_else(|e| panic!("map {}: {e}", name.display()));
        if self.mapped.len() == MAX_OPEN_FILES {
            let which = self.rng.below(MAX_OPEN_FILES as u64) as usize;
            self.mapped.swap_remove(which);
        }
        self.mapped.push((mapped, name));
        self.read_mapped();
    }

    fn read_mapped(&mut self) {
        let which = self.rng.below(self.mapped.len().max(1) as u64) as usize;
        let Some(len) = self.mapped.get(which).map(|(mapped, _)| mapped.len()) else { return };
        let (offset, len) = self.range(len as u64);
        let (mapped, name) = &self.mapped[which];
        self.right(name, offset, &mapped[offset as usize..][..len]);
    }

    fn read_direct(&mut self) {
        let name = self.name();
        let file =
            OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(self.arguments.mount.join(&name));
        let file = file.unwrap_or_else(|e| panic!("open {} with O_DIRECT: {e}", name.display()));
        let (offset, _) = self.range(file.metadata().expect("a file").len());
        let offset = offset / DIRECT_IO_ALIGNMENT as u64 * DIRECT_IO_ALIGNMENT as u64;
        let mut memory = vec![0; 33 * DIRECT_IO_ALIGNMENT];
        let skew = memory.as_ptr().align_offset(DIRECT_IO_ALIGNMENT);
        let buffer = &mut memory[skew..][..32 * DIRECT_IO_ALIGNMENT];
        let len = file
            .read_at(buffer, offset)
            .unwrap_or_else(|e| panic!("read {} with O_DIRECT: {e}", name.display()));
        self.right(&name, offset, &buffer[..len]);
    }

    /// Goes on with a listing, or begins one.
    fn list(&mut self) {
        let (mut listing, directory, mut found) = self.listing.take().unwrap_or_else(|| {
            let directory = self.name().parent().expect("a directory").to_owned();
            let listing = fs::read_dir(self.arguments.mount.join(&directory));
            (listing.unwrap_or_else(|e| panic!("list {}: {e}", directory.display())), directory, 0)
        });
        for _ in 0..self.rng.below(200) {
            match listing.next() {
                Some(entry) => {
                    entry.unwrap_or_else(|e| panic!("list {}: {e}", directory.display()));
                    found += 1;
                }
                None => {
                    let original =
                        fs::read_dir(self.arguments.original.join(&directory)).expect("a directory");
                    assert_eq!(found, original.count(), "entries of {}", directory.display());
                    return;
                }
            }
        }
        self.listing = Some((listing, directory, found));
    }

    fn look(&mut self) {
        let name = self.name();
        let of = |root: &Path| {
            fs::metadata(root.join(&name)).unwrap_or_else(|e| panic!("stat {}: {e}", name.display()))
        };
        assert_eq!(of(&self.arguments.mount).len(), of(&self.arguments.original).len(), "{}", name.display());
        let missing = self.arguments.mount.join(format!("missing-{}", self.rng.below(1 << 40)));
        let error = fs::metadata(missing).expect_err("missing");
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }

    /// Holds `bytes` against the original.
    fn right(&self, name: &Path, offset: u64, bytes: &[u8]) {
        let original = File::open(self.arguments.original.join(name)).expect("the original");
        let expected = read(&original, offset, bytes.len(), name);
        assert!(
            expected == bytes,
            "wrong bytes in {} from {offset}, {} of them",
            name.display(),
            bytes.len()
        );
    }
}

fn read(file: &File, offset: u64, len: usize, name: &Path) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = file.read_exact_at(&mut bytes, offset);
    read.unwrap_or_else(|e| panic!("read {len} bytes of {} from {offset}: {e}", name.display()));
    bytes
}
