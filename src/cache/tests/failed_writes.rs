//! Parts of which a disk failed to write something, while other work of the kernel keeps their pages in memory.

use std::os::unix::fs::MetadataExt;

use memmap2::Mmap;

use super::*;

/// The last page of a file, which the kernel keeps.
fn pinned(file: &File) -> Mmap {
    // SAFETY: the test makes the file shorter nowhere.
    let pages = unsafe { Mmap::map(file) }.expect("a mapping");
    std::hint::black_box(pages[pages.len() - 1]);
    pages
}

#[test]
fn block_that_the_disk_failed_to_keep_leaves_neither_disk_nor_memory_to_the_next_write() {
    let home = tempfile::tempdir().expect("a directory");
    let cache = open(home.path(), UNLIMITED);
    // One block, which has no check beside it.
    let bytes = content(BLOCK / 3, 1);
    let partial = cache.begin(&key(1), BLOCK / 3).expect("a part");
    partial.put(&block(&bytes, 0)).expect("room");
    partial.file().sync_all().expect("the disk");
    let _pages = pinned(partial.file());
    partial.doubt_all();
    assert_eq!(partial.presence().state(0), BlockState::Absent);
    assert_eq!(partial.file().metadata().expect("the part").blocks(), 0);
    partial.put(&block(&bytes, 0)).expect("room");
    assert_eq!(partial.read(0, bytes.len()).expect("disk"), bytes);
}

#[test]
fn doubted_block_that_is_wrong_on_the_disk_leaves_nothing_to_the_next_write() {
    let home = tempfile::tempdir().expect("a directory");
    let cache = open(home.path(), UNLIMITED);
    let size = BLOCK + BLOCK / 3;
    let bytes = content(size, 2);
    let partial = cache.begin(&key(2), size).expect("a part");
    (0..2).for_each(|index| partial.put(&block(&bytes, index)).expect("room"));
    partial.file().write_all_at(&[0; 4096], BLOCK).expect("lost bytes");
    partial.file().sync_all().expect("the disk");
    let _pages = pinned(partial.file());
    partial.doubt_all();
    (0..2).for_each(|index| partial.verify_doubted(index, None));
    assert_eq!(
        [0, 1].map(|index| partial.presence().state(index)),
        [BlockState::Present, BlockState::Absent]
    );
    assert_eq!(partial.file().metadata().expect("the part").blocks(), BLOCK / 512);
    partial.put(&block(&bytes, 1)).expect("room");
    assert_eq!(partial.read(0, size as usize).expect("disk"), bytes);
}
