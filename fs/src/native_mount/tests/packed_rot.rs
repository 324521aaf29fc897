//! Rot of small files and of the pack that is made of them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::cache::Cache;
use bdnfs::cache::layout::BlobFile;
use bdnfs::cache::scrub;
use bdnfs::snapshot::Snapshot;

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
        let mut rotten = 0;
        for shard in fs::read_dir(self.path("cache/tenants/default/blobs")).expect("a cache") {
            for blob in fs::read_dir(shard.expect("a directory").path()).expect("a directory") {
                let path = blob.expect("a file").path();
                let modified = fs::metadata(&path).expect("a file").modified().expect("a time");
                let blob = fs::File::options().write(true).open(&path).expect("open");
                blob.write_all_at(&[8], 5).expect("written");
                blob.set_modified(modified - Duration::from_secs(2 * 3600)).expect("set");
                rotten += 1;
            }
        }
        assert!(rotten > 0);
    }

    fn read(&self) -> Vec<u8> {
        fs::read(self.path("native/file")).expect("read")
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
        let cache = fixture.cache();
        let (pack, _) = native.devices_whole().expect("a manifest").pop().expect("the pack");
        let mut found = [pack, snapshot.manifest().key(0).expect("a blob")];
        if !is_pack_first {
            found.reverse();
        }
        for (number, key) in found.iter().enumerate() {
            let found = cache.find(key, BlobFile::Whole).into_iter().collect::<Vec<_>>();
            let damaged = scrub::verify(&cache, &found, &|_| true).expect("read").damaged;
            assert!(number == 1 || damaged.len() == 1, "{damaged:?}");
            if is_pack_first {
                // The repair has all the time in the world before the other is found.
                break;
            }
        }
        let repaired = async {
            while fixture.read() != CONTENT {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let repaired = async { tokio::time::timeout(Duration::from_secs(60), repaired).await };
        fixture.runtime.block_on(repaired).expect("repaired");
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
