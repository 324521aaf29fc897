//! Rot on the disk below pages that are still right in memory. Needs root, a loop device, and the programs `mkfs.ext4` and `mount`.

use std::path::PathBuf;
use std::process::Command;

use super::*;

const PAGE: usize = 4096;

/// A disk whose bytes can change unnoticed by the file system on it.
struct Disk {
    home: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        let disk = Self { home: tempfile::tempdir().expect("a directory") };
        let image = File::create(disk.image()).expect("an image");
        image.set_len(64 << 20).expect("a size");
        std::fs::create_dir(disk.mountpoint()).expect("made");
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-b", "4096"]).arg(disk.image()));
        run(Command::new("mount").args(["-o", "loop"]).arg(disk.image()).arg(disk.mountpoint()));
        disk
    }

    fn image(&self) -> PathBuf {
        self.home.path().join("image")
    }

    fn mountpoint(&self) -> PathBuf {
        self.home.path().join("disk")
    }

    /// Changes a byte of the last page of the file that has `content`.
    fn rot_last_page(&self, content: &[u8]) {
        let mut page = content[content.len() / PAGE * PAGE..].to_vec();
        page.resize(PAGE, 0);
        let bytes = std::fs::read(self.image()).expect("read");
        let image = File::options().write(true).open(self.image()).expect("open");
        let found = (0..).zip(bytes.chunks(PAGE)).filter(|(_, on_disk)| *on_disk == page);
        let rotten = found.map(|(number, _)| image.write_all_at(&[!page[0]], number * PAGE as u64));
        assert_eq!(rotten.map(|written| written.expect("written")).count(), 1);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(self.mountpoint()));
    }
}

fn run(command: &mut Command) {
    assert!(command.status().expect("a program").success(), "{command:?}");
}

#[test]
fn scrub_of_ends_that_rotted_below_right_pages_finds_them() {
    let disk = Disk::new();
    let cache = open(&disk.mountpoint().join("cache"), UNLIMITED);
    let sizes = [(1, 9), (2, 70_000), (3, 2 * BLOCK + 5000)];
    for (seed, size) in sizes {
        let mut file = fill(&cache, seed, size).expect("committed");
        // Other tests drop the machine's caches, but for pages that are mapped and were touched.
        // SAFETY: nobody makes the file shorter.
        let pages = unsafe { memmap2::Mmap::map(&file) }.expect("a mapping");
        assert!(pages[..] == content(size, seed)[..]);
        disk.rot_last_page(&content(size, seed));
        let mut read = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut read).expect("read");
        assert!(read == content(size, seed), "the pages are right");
        drop(pages);
    }
    let found = Vec::from_iter(sizes.iter().filter_map(|(seed, _)| cache.find(&key(*seed), BlobFile::Whole)));
    assert_eq!(scrub::verify(&cache, &found, &|_| true).expect("read").damaged.len(), 3);

    let bytes = content(BLOCK + 5000, 4);
    let part = cache.begin(&key(4), bytes.len() as u64).expect("a part");
    (0..2).for_each(|index| part.put(&block(&bytes, index)).expect("room"));
    part.file().sync_all().expect("written");
    assert!(part.is_block_right(0) && part.is_block_right(1));
    disk.rot_last_page(&bytes);
    assert!(part.is_block_right(0) && !part.is_block_right(1));
}
