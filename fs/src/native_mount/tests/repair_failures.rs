//! Repair of what the kernel reads, where not every mount may.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use bdnfs::blob::Blob;
use bdnfs::cache::removal::RemovalListener;
use bdnfs::cache::scrub::scrub;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::manifest::Listing;
use bdnfs::tier::{Body, Origin, Tier, TierKind, Urgency};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};

use super::{NativeFixture, NativeMount, superblocks};
use crate::Options;

/// An origin that refuses its credentials from some time on.
#[derive(Debug)]
struct RevocableOrigin {
    inner: Arc<dyn Origin>,
    revoked: AtomicBool,
}

impl Tier for RevocableOrigin {
    fn kind(&self) -> TierKind {
        self.inner.kind()
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        urgency: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        if self.revoked.load(Relaxed) {
            return ready(Err(Error::new(Kind::Refused, "the credentials are revoked"))).boxed();
        }
        self.inner.fetch(blob, range, urgency)
    }
}

impl Origin for RevocableOrigin {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        self.inner.list(listing)
    }
}

#[test]
fn native_mount_whose_credentials_are_revoked_is_repaired_with_those_of_another() {
    let fixture = NativeFixture::new();
    let bytes = vec![7; 3 << 20];
    fs::write(fixture.path("source/file"), &bytes).expect("written");
    let origin = Arc::new(RevocableOrigin { inner: fixture.origin(), revoked: AtomicBool::new(false) });
    let native = fixture.native(&fixture.staged_from(origin.clone()));
    let first = fixture.mount(&native, &Options::default());
    let another = fixture.native(&fixture.staged());
    let second = NativeMount::new(&fixture.superblocks, &another, &fixture.path("fuse"), &Options::default())
        .expect("mounted");
    let device = |name: &str| fs::metadata(fixture.path(name)).expect("mounted").dev();
    assert_eq!(device("native"), device("fuse"));
    let blob = native.devices().expect("whole").pop().expect("a device");
    let blob = fs::File::options().write(true).open(blob).expect("open");
    blob.write_all_at(&[8], 5).expect("written");
    origin.revoked.store(true, Relaxed);
    let is_right = || fs::read(fixture.path("native/file")).expect("read") == bytes;
    assert!(!is_right());
    let cache = fixture.engine.cache().tenant("default").expect("a tenant");
    assert!(!scrub(&cache, &AtomicBool::new(false)).expect("read").damaged.is_empty());
    fixture.await_repair(is_right);
    drop((first, second));
}

#[test]
fn native_mount_whose_file_in_the_cache_was_replaced_fails_to_be_repaired() {
    let fixture = NativeFixture::new();
    fs::write(fixture.path("source/file"), vec![7; 3 << 20]).expect("written");
    let native = fixture.native(&fixture.staged());
    let mounted = fixture.mount(&native, &Options::default());
    let file = native.devices().expect("whole").pop().expect("a device");
    let read_by_kernel = fs::metadata(&file).expect("there").ino();
    fs::remove_file(file).expect("removed");
    let (key, is_whole) = native.devices_whole().expect("a manifest").pop().expect("the device");
    assert!(!is_whole);
    let repair = |inode| fixture.runtime.block_on(mounted.superblock.try_repair(key, inode));
    for inode in [Some(read_by_kernel), native.device_inode(&key)] {
        let error = repair(inode).expect_err("the kernel reads the old one").to_string();
        assert!(error.contains("unmount it and mount it again"), "{error}");
    }
    repair(native.device_inode(&key)).expect("the same file");
}

#[test]
fn native_mount_whose_agent_died_between_repair_and_drop_is_read_right() {
    let fixture = NativeFixture::new();
    let bytes = vec![7; 3 << 20];
    fs::write(fixture.path("source/file"), &bytes).expect("written");
    let native = fixture.native(&fixture.staged());
    let mounted = fixture.mount(&native, &Options::default());
    let blob = native.devices().expect("whole").pop().expect("a device");
    let (key, _) = native.devices_whole().expect("a manifest").pop().expect("the device");
    let blob = fs::File::options().write(true).open(blob).expect("open");
    let is_right = || fs::read(fixture.path("native/file")).expect("read") == bytes;
    let mark = mounted.superblock.mark(&key);
    blob.write_all_at(&[8], 5).expect("written");
    assert!(!is_right());
    assert!(mounted.superblock.needs_file(&key, &blob));
    blob.write_all_at(&[7], 5).expect("written");
    assert!(!is_right() && mark.exists(), "the disk is right, and the page cache is not");
    mounted.keep();
    drop(mounted);
    let unmounted = fixture.path("images/gone.bdnfs.key");
    fs::write(&unmounted, "1").expect("written");
    let foreign = fixture.path("images/notes.txt");
    fs::write(&foreign, "of somebody else").expect("written");
    let superblocks = superblocks(fixture.home.path());
    assert!(mark.exists() && !unmounted.exists() && foreign.exists());
    let native = fixture.native(&fixture.staged());
    let taken = NativeMount::resume(&superblocks, &native, &fixture.path("native"), &Options::default());
    let taken = taken.expect("a table").expect("it is there");
    fixture.await_repair(|| is_right() && !mark.exists());
    taken.unmount().expect("unmounted");
}
