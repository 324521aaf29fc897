//! Rot of small files and of the pack that is made of them.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bdnfs::blob::Key;
use bdnfs::cache::Cache;
use bdnfs::cache::commit::DIGEST_XATTR;
use bdnfs::cache::layout::{BlobFile, Layout};
use bdnfs::cache::{scrub, verification_time};
use bdnfs::snapshot::Snapshot;
use rustix::fs::{Mode, OFlags};

use super::NativeFixture;
use crate::Options;

static CONTENT: [u8; 70_000] = [7; 70_000];

impl NativeFixture {
    fn staged_small_file(&self) -> Arc<Snapshot> {
        fs::write(self.path("source/file"), CONTENT).expect("written");
        self.staged()
    }

    fn cache(&self) -> Cache {
        self.engine.cache().tenant("default").expect("a tenant")
    }

    /// Changes a byte of every blob, as rot does: none looks newer for it.
    fn rot(&self) {
        self.rot_since(5, Duration::from_secs(2 * 3600));
    }

    /// Changes the byte at `offset` of every blob, and lets all look as if they had been verified `age` before they were.
    fn rot_since(&self, offset: u64, age: Duration) {
        let mut rotten = 0;
        for shard in fs::read_dir(self.path("cache/tenants/default/blobs")).expect("a cache") {
            for blob in fs::read_dir(shard.expect("a directory").path()).expect("a directory") {
                let path = blob.expect("a file").path();
                let modified = fs::metadata(&path).expect("a file").modified().expect("a time");
                let blob = fs::File::options().write(true).open(&path).expect("open");
                blob.write_all_at(&[8], offset).expect("written");
                blob.set_modified(modified - age).expect("set");
                rotten += 1;
            }
        }
        assert!(rotten > 0);
    }

    fn read(&self) -> Vec<u8> {
        fs::read(self.path("native/file")).expect("read")
    }

    /// Verifies the blob `key`, and returns how many were damaged.
    fn verify(&self, key: &Key) -> usize {
        let found = self.cache().find(key, BlobFile::Whole).into_iter().collect::<Vec<_>>();
        scrub::verify(&self.cache(), &found, &|_| true).expect("read").damaged.len()
    }

    fn await_content(&self, content: &[u8]) {
        self.await_repair(|| self.read() == content);
    }
}

#[test]
fn native_mount_of_a_file_that_rots_together_with_its_pack_is_repaired_whichever_is_found_first() {
    for is_pack_first in [true, false] {
        let fixture = NativeFixture::new();
        let snapshot = fixture.staged_small_file();
        let native = fixture.native(&snapshot);
        let mounted = fixture.mount(&native, &Options::default());
        fixture.rot();
        assert_ne!(fixture.read(), CONTENT, "the kernel reads what lies on the disk");
        let (pack, _) = native.devices_whole().expect("a manifest").pop().expect("the pack");
        let mut found = [pack, snapshot.manifest().key(0).expect("a blob")];
        if !is_pack_first {
            found.reverse();
        }
        for (number, key) in found.iter().enumerate() {
            let damaged = fixture.verify(key);
            assert!(number == 1 || damaged == 1);
            if is_pack_first {
                // The repair has all the time in the world before the other is found.
                break;
            }
        }
        fixture.await_content(&CONTENT);
        drop(mounted);
    }
}

#[test]
fn native_mount_of_a_file_that_rotted_before_its_pack_was_made_reads_right() {
    let fixture = NativeFixture::new();
    let snapshot = fixture.staged_small_file();
    fixture.rot();
    let _mounted = fixture.mount(&fixture.native(&snapshot), &Options::default());
    assert_eq!(fixture.read(), CONTENT);
}

#[test]
fn native_mount_of_a_blob_found_damaged_after_its_pack_was_made_is_repaired() {
    // A small file, and the end of a large one, which is in the pack as well.
    for (size, offset) in [(70_000, 5), ((3 << 20) + 9, (3 << 20) + 5)] {
        let fixture = NativeFixture::new();
        let content = vec![7; size];
        fs::write(fixture.path("source/file"), &content).expect("written");
        let snapshot = fixture.staged();
        // Recently verified, and so not read again.
        fixture.rot_since(offset, Duration::ZERO);
        let native = fixture.native(&snapshot);
        let mounted = fixture.mount(&native, &Options::default());
        assert_ne!(fixture.read(), content, "the pack has a copy of the rot");
        assert_eq!(fixture.verify(&snapshot.manifest().key(0).expect("a blob")), 1);
        fixture.await_content(&content);
        drop(mounted);
    }
}

#[test]
fn pack_that_is_not_mounted_when_its_file_is_found_damaged_is_made_again() {
    let fixture = NativeFixture::new();
    let snapshot = fixture.staged_small_file();
    fixture.rot_since(5, Duration::ZERO);
    let native = fixture.native(&snapshot);
    let pack = || fs::metadata(&native.devices().expect("whole")[0]).expect("a pack").ino();
    let wrong = pack();
    fixture.native(&snapshot);
    assert_eq!(pack(), wrong, "nothing has changed");
    assert_eq!(fixture.verify(&snapshot.manifest().key(0).expect("a blob")), 1);
    snapshot.stage_again();
    fixture.runtime.block_on(snapshot.stage().done()).expect("staged");
    let _mounted = fixture.mount(&fixture.native(&snapshot), &Options::default());
    assert_eq!(fixture.read(), CONTENT);
}

#[test]
fn native_mount_of_a_rotten_file_without_a_known_digest_reads_right() {
    let fixture = NativeFixture::new();
    let snapshot = fixture.staged_small_file();
    let file = fixture.cache().open_whole(&snapshot.manifest().key(0).expect("a blob"), CONTENT.len() as u64);
    let file = file.expect("read").expect("whole");
    rustix::fs::fremovexattr(&file, DIGEST_XATTR).expect("removed");
    fixture.rot();
    let _mounted = fixture.mount(&fixture.native(&snapshot), &Options::default());
    assert_eq!(fixture.read(), CONTENT);
}

#[test]
fn stage_again_of_a_whole_pack_reads_no_small_file() {
    let fixture = NativeFixture::new();
    let snapshot = fixture.staged_small_file();
    let native = fixture.native(&snapshot);
    fixture.rot();
    let (pack, _) = native.devices_whole().expect("a manifest").pop().expect("the pack");
    let (owner, _) = native.device_of(&pack).expect("a manifest").expect("a device");
    fixture.runtime.block_on(native.stage_again(&owner)).expect("whole");
    assert_eq!(fixture.verify(&snapshot.manifest().key(0).expect("a blob")), 1, "nobody has read it before");
}

#[test]
fn native_mount_of_a_rotten_file_verified_in_the_future_reads_right() {
    let fixture = NativeFixture::new();
    let snapshot = fixture.staged_small_file();
    fixture.rot();
    let path = fixture.cache().layout().blobs().try_clone().expect("a directory");
    let name = Layout::name(&snapshot.manifest().key(0).expect("a blob"), BlobFile::Whole);
    let file = rustix::fs::openat(path, name, OFlags::RDWR, Mode::empty()).expect("open");
    verification_time::mark(&fs::File::from(file), SystemTime::now() + Duration::from_secs(3600));
    let _mounted = fixture.mount(&fixture.native(&snapshot), &Options::default());
    assert_eq!(fixture.read(), CONTENT);
}
