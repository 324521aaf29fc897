//! The cache on a real directory: restarts, unclean stops, eviction.

mod failed_writes;
mod map_rot;
mod rot_below_pages;
mod state_machine;
mod withdrawal;

use std::os::unix::fs::FileExt;
use std::sync::mpsc;

use bytes::Bytes;

use super::presence::BlockState;
use super::*;
use crate::block::{Arrival, BLOCK, Verified};
use crate::digest::Digest;

const UNLIMITED: Limits = Limits { capacity: None, reserve: 0 };

fn open(root: &Path, limits: Limits) -> Cache {
    let cache = Cache::open(root, "default", limits, SystemTime::now).expect("a cache");
    while cache.space().used().is_none() {
        std::thread::yield_now();
    }
    cache
}

fn content(size: u64, seed: u64) -> Vec<u8> {
    (0..size).map(|i| (i ^ (i >> 7) ^ seed) as u8).collect()
}

fn key(seed: u64) -> Key {
    Key::origin("test://", b"file", &seed.to_le_bytes())
}

fn block(content: &[u8], index: u64) -> Verified {
    let start = (index * BLOCK) as usize;
    let end = content.len().min(start + BLOCK as usize);
    let bytes = Bytes::copy_from_slice(&content[start..end]);
    Arrival { size: content.len() as u64, index, bytes }.verify(None).expect("the right length")
}

fn fill(cache: &Cache, seed: u64, size: u64) -> Result<File> {
    let content = content(size, seed);
    let partial = cache.begin(&key(seed), size)?;
    for index in 0..partial.presence().blocks() {
        partial.put(&block(&content, index))?;
    }
    let (done, whole) = mpsc::channel();
    cache.committer().commit(partial, move |file| done.send(file).expect("the test waits"));
    whole.recv().expect("an answer")
}

#[test]
fn partial_blob_after_restart_is_kept_and_committed() {
    let home = tempfile::tempdir().expect("a directory");
    let size = 3 * BLOCK + 17;
    let bytes = content(size, 1);
    {
        let cache = open(home.path(), UNLIMITED);
        cache.begin(&key(1), size).expect("a part").put(&block(&bytes, 3)).expect("room");
    }
    let cache = open(home.path(), UNLIMITED);
    assert!(cache.open_whole(&key(1), size).expect("disk").is_none());
    let partial = cache.resume(&key(1), size).expect("disk").expect("the part is there");
    let states = [0, 1, 2, 3].map(|i| partial.presence().state(i));
    assert_eq!(states, [BlockState::Absent, BlockState::Absent, BlockState::Absent, BlockState::Present]);
    assert_eq!(partial.read(3 * BLOCK, 17).expect("disk"), bytes[3 << 20..]);
    drop(partial);
    let file = fill(&cache, 1, size).expect("committed");
    let mut digest = [0; 32];
    rustix::fs::fgetxattr(&file, commit::DIGEST_XATTR, &mut digest[..]).expect("the note");
    assert_eq!(Digest(digest), Digest::of(&bytes));
    assert!(cache.has(&key(1), size) && !cache.has(&key(1), size + 1));
    assert!(cache.resume(&key(1), size).expect("disk").is_none(), "the map is gone");
}

#[test]
fn partial_blob_after_unclean_stop_verifies_each_block() {
    let home = tempfile::tempdir().expect("a directory");
    let size = 3 * BLOCK;
    let bytes = content(size, 2);
    let cache = open(home.path(), UNLIMITED);
    let partial = cache.begin(&key(2), size).expect("a part");
    for index in 0..3 {
        partial.put(&block(&bytes, index)).expect("room");
    }
    // What a power cut may leave: a map from another life of the machine, and a block that never reached the disk.
    let map = cache.layout().create_blob(&key(2), BlobFile::Map).expect("the map");
    map.write_all_at(&[7; 32], 24).expect("another stamp");
    partial.file().write_all_at(&[0; 4096], BLOCK + 4096).expect("lost bytes");
    drop(partial);
    let partial = cache.resume(&key(2), size).expect("disk").expect("the part is there");
    assert!((0..3).all(|i| partial.presence().state(i) == BlockState::Doubted));
    partial.verify_doubted(0, None);
    partial.verify_doubted(1, None);
    drop(partial);
    // A second restart, within this life now: what was settled stays so, and the doubt that is left is still one.
    let partial = cache.resume(&key(2), size).expect("disk").expect("the part is there");
    let states = [0, 1, 2].map(|i| partial.presence().state(i));
    assert_eq!(states, [BlockState::Present, BlockState::Absent, BlockState::Doubted]);
}

#[test]
fn eviction_takes_the_least_recently_used_and_no_leased() {
    let home = tempfile::tempdir().expect("a directory");
    let cache = open(home.path(), Limits { capacity: Some(8 * BLOCK), reserve: 0 });
    for seed in 1..=4 {
        let file = fill(&cache, seed, 2 * BLOCK).expect("room");
        used_long_ago(&file, 1000 * seed as i64);
    }
    let lease = cache.leases().lease(key(1));
    fill(&cache, 5, 2 * BLOCK).expect("room was made");
    let here = |cache: &Cache| [1, 2, 3, 4, 5].map(|seed| cache.has(&key(seed), 2 * BLOCK));
    assert_eq!(here(&cache), [true, false, true, true, true]);
    let all: Vec<_> = (1..=5).map(|seed| cache.leases().lease(key(seed))).collect();
    let error = fill(&cache, 6, 2 * BLOCK).expect_err("all is leased");
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(error.to_string().contains("--cache-size"), "{error}");
    drop((lease, all));
    fill(&cache, 6, 2 * BLOCK).expect("room was made");
    assert_eq!(here(&cache), [false, false, true, true, true]);
}

fn node(root: &Path, limits: Limits, quotas: &[(&str, u64)]) -> NodeCache {
    let quotas = quotas.iter().map(|(tenant, quota)| (tenant.to_string(), *quota)).collect();
    let (node, _) = NodeCache::open(root, limits, quotas, SystemTime::now).expect("a cache");
    while node.evictor().used().is_none() {
        std::thread::yield_now();
    }
    node
}

fn used_long_ago(file: &File, seconds: i64) {
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec { tv_sec: seconds, tv_nsec: 0 },
        last_modification: rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
    };
    rustix::fs::futimens(file, &times).expect("an old time of use");
}

#[test]
fn mark_key_used_updates_only_stale_times() {
    let home = tempfile::tempdir().expect("a directory");
    let cache = open(home.path(), UNLIMITED);
    let file = fill(&cache, 1, BLOCK).expect("room");
    let used_at = || rustix::fs::fstat(&file).expect("a file").st_atime;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs() as i64;
    for (before, after) in [(1000, now..i64::MAX), (now - 1, now - 1..now)] {
        used_long_ago(&file, before);
        let modified = rustix::fs::fstat(&file).expect("a file").st_mtime;
        cache.mark_key_used(&key(1));
        assert!(after.contains(&used_at()), "{}", used_at());
        assert_eq!(rustix::fs::fstat(&file).expect("a file").st_mtime, modified);
    }
    // What is not here is not made.
    cache.mark_key_used(&key(2));
    assert!(!cache.has(&key(2), 0));
}

#[test]
fn eviction_obeys_the_limit_and_each_quota() {
    let home = tempfile::tempdir().expect("a directory");
    let limits = Limits { capacity: Some(8 * BLOCK), reserve: 0 };
    let quotas = [("bob", 4 * BLOCK)];
    {
        let node = node(home.path(), limits, &quotas);
        let (alice, bob) = (node.tenant("alice").expect("a tenant"), node.tenant("bob").expect("a tenant"));
        for seed in 1..=2 {
            used_long_ago(&fill(&alice, seed, 2 * BLOCK).expect("room"), 1000 + seed as i64);
            used_long_ago(&fill(&bob, seed, 2 * BLOCK).expect("room"), 2000 + seed as i64);
        }
        assert!(node.tenant("a/b").is_err());
        // What the quota asks for goes from bob, however old what alice has is.
        used_long_ago(&fill(&bob, 3, 2 * BLOCK).expect("room was made"), 2003);
        let here = |cache: &Cache| [1, 2, 3].map(|seed| cache.has(&key(seed), 2 * BLOCK));
        assert_eq!((here(&alice), here(&bob)), ([true, true, false], [false, true, true]));
    }
    // A tenant without requests so far gives way like all others.
    let node = node(home.path(), limits, &quotas);
    let carol = node.tenant("carol").expect("a tenant");
    fill(&carol, 1, 2 * BLOCK).expect("room was made");
    let alice = node.tenant("alice").expect("a tenant");
    assert_eq!([1, 2].map(|seed| alice.has(&key(seed), 2 * BLOCK)), [false, true]);
    let leases: Vec<_> =
        (1..=3).map(|seed| node.tenant("bob").expect("a tenant").leases().lease(key(seed))).collect();
    let error = fill(&node.tenant("bob").expect("a tenant"), 4, 2 * BLOCK).expect_err("its quota is in use");
    assert!(error.kind() == Kind::NoSpace && error.to_string().contains("for the tenant bob"), "{error}");
    drop(leases);
}

#[test]
fn eviction_while_paused_waits() {
    let home = tempfile::tempdir().expect("a directory");
    fill(&open(home.path(), UNLIMITED), 1, 4 * BLOCK).expect("room");
    let limits = Limits { capacity: Some(4 * BLOCK), reserve: 0 };
    let (node, hold) =
        NodeCache::open(home.path(), limits, BTreeMap::new(), SystemTime::now).expect("a cache");
    let cache = node.tenant("default").expect("a tenant");
    while cache.space().used().is_none() {
        std::thread::yield_now();
    }
    let writer = std::thread::spawn({
        let cache = cache.clone();
        let lease = cache.leases().lease(key(2));
        move || fill(&cache, 2, 2 * BLOCK).map(|_| drop(lease))
    });
    // Time enough to do wrong.
    std::thread::sleep(Duration::from_millis(50));
    assert!(cache.has(&key(1), 4 * BLOCK) && !writer.is_finished());
    drop(hold);
    writer.join().expect("no panic").expect("room was made");
    assert!(!cache.has(&key(1), 4 * BLOCK));
}

#[test]
fn admit_beyond_the_limit_names_the_holders() {
    let home = tempfile::tempdir().expect("a directory");
    let node = node(home.path(), Limits { capacity: Some(8 * BLOCK), reserve: 0 }, &[("bob", 4 * BLOCK)]);
    let (alice, bob) = (node.tenant("alice").expect("a tenant"), node.tenant("bob").expect("a tenant"));
    let group = |what: &str, seeds: std::ops::Range<u64>| {
        leases::LeaseGroup::new(what, seeds.map(|seed| (key(seed), 2 * BLOCK)))
    };
    let one = alice.space().admit(vec![group("s3://one", 1..3)]).expect("room");
    let _two = alice.space().admit(vec![group("s3://two", 2..4)]).expect("what both have counts once");
    let error = alice.space().admit(vec![group("s3://three", 4..6)]).expect_err("too much").to_string();
    for word in ["s3://three", "s3://one (4194304 bytes)", "s3://two (4194304 bytes)", "--cache-size"] {
        assert!(error.contains(word), "{word} is not in {error}");
    }
    let error = bob.space().admit(vec![group("s3://four", 1..3)]).expect_err("too much").to_string();
    assert!(error.contains("other tenants (6291456 bytes)") && !error.contains("s3://one"), "{error}");
    drop(one);
    bob.space().admit(vec![group("s3://four", 1..3)]).expect("room");
    let error = bob.space().admit(vec![group("s3://five", 1..4)]).expect_err("over its quota");
    assert_eq!(error.kind(), Kind::NoSpace);
}

#[test]
fn admit_beside_claims_of_volumes_has_what_they_leave() {
    const GIB: u64 = 1 << 30;
    let home = tempfile::tempdir().expect("a directory");
    let node = node(home.path(), UNLIMITED, &[]);
    let (evictor, alice) = (node.evictor(), node.tenant("alice").expect("a tenant"));
    let free = evictor.free();
    let group = |bytes| vec![leases::LeaseGroup::new("s3://one", [(key(1), bytes)].into_iter())];
    let claim = evictor.claim_volume(free - 2 * GIB).expect("room");
    let error = alice.space().admit(group(4 * GIB)).expect_err("it may be written").to_string();
    assert!(error.contains("jobs may still write"), "{error}");
    alice.space().ensure_fits(&group(4 * GIB)).expect("the volume will be gone");
    assert!(alice.space().ensure_fits(&group(2 * free)).is_err());
    // What it has written is not free any more, as the file system says. Here it has written nothing.
    claim.set_occupied(free - 2 * GIB);
    let lease = alice.space().admit(group(4 * GIB)).expect("room");
    let error = evictor.claim_volume(free - 2 * GIB).expect_err("it is leased").to_string();
    assert!(error.contains("4294967296 are leased"), "{error}");
    drop((claim, lease));
    evictor.claim_volume(free - 2 * GIB).expect("room");
    assert!(evictor.ensure_volume_fits(2 * free).is_err());
}

#[test]
fn restore_reserve_after_others_wrote_evicts_what_is_not_leased() {
    let home = tempfile::tempdir().expect("a directory");
    let is_all_here = {
        let cache = open(home.path(), UNLIMITED);
        (1..=2).for_each(|seed| drop(fill(&cache, seed, 2 * BLOCK).expect("room")));
        cache.space().evictor().restore_reserve().expect("there is room");
        cache.has(&key(1), 2 * BLOCK) && cache.has(&key(2), 2 * BLOCK)
    };
    assert!(is_all_here, "nothing had to go");
    // As if others had filled the disk.
    let cache = open(home.path(), Limits { capacity: None, reserve: u64::MAX / 4 });
    let _lease = cache.leases().lease(key(1));
    let error = cache.space().evictor().restore_reserve().expect_err("more is needed than there is");
    assert_eq!(error.kind(), Kind::NoSpace);
    assert!(cache.has(&key(1), 2 * BLOCK) && !cache.has(&key(2), 2 * BLOCK));
}

#[test]
fn pinned_snapshot_after_restart_is_not_evicted() {
    use crate::manifest::{ListedFile, Listing};
    use crate::source::Patterns;

    let home = tempfile::tempdir().expect("a directory");
    let limits = Limits { capacity: Some(4 * BLOCK), reserve: 0 };
    let id = {
        let node = node(home.path(), limits, &[]);
        let cache = node.tenant("default").expect("a tenant");
        let mut listing = Listing::new("test://", Patterns::default(), home.path());
        let version = &1u64.to_le_bytes();
        let (path, size, mtime, executable, sha256) = (b"file", 2 * BLOCK, (0, 0), false, None);
        listing.file(ListedFile { path, size, mtime, executable, version, sha256 });
        let mut manifest = Vec::new();
        let id = listing.finish(&mut manifest).expect("a manifest");
        std::fs::write(cache.layout().manifests().join(id.to_string()), manifest).expect("kept");
        fill(&cache, 1, 2 * BLOCK).expect("room");
        let partition = &node.partitions()[0];
        assert!(pins::pin(partition, &Digest::of(b"another")).is_err());
        pins::pin(partition, &id).expect("pinned");
        id
    };
    let node = node(home.path(), limits, &[]);
    let (cache, partition) = (node.tenant("default").expect("a tenant"), &node.partitions()[0]);
    assert_eq!(pins::list(partition).expect("read"), [id]);
    fill(&cache, 2, 2 * BLOCK).expect("room");
    fill(&cache, 3, 2 * BLOCK).expect("the other one went");
    assert!(cache.has(&key(1), 2 * BLOCK) && !cache.has(&key(2), 2 * BLOCK));
    assert!(
        pins::unpin(partition, &id).expect("unpinned") && !pins::unpin(partition, &id).expect("not there")
    );
    used_long_ago(&cache.open_whole(&key(1), 2 * BLOCK).expect("read").expect("here"), 1000);
    let forget = |before| inventory::forget_gone(partition, &partition.scan(), before).expect("read");
    let later = SystemTime::now() + Duration::from_secs(60);
    assert_eq!(forget(later), 0, "it is here");
    fill(&cache, 4, 2 * BLOCK).expect("room was made");
    assert!(!cache.has(&key(1), 2 * BLOCK));
    // Nothing of it is here any more.
    assert_eq!(forget(SystemTime::UNIX_EPOCH), 0, "it came recently");
    let used = cache.leases().lease_manifest(id);
    assert_eq!(forget(later), 0, "it is in use");
    drop(used);
    assert_eq!((forget(later), forget(later)), (1, 0));
}

#[test]
fn open_of_a_cache_in_use_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let _first = open(home.path(), UNLIMITED);
    let error = Cache::open(home.path(), "default", UNLIMITED, SystemTime::now).expect_err("owned");
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().ends_with(&format!("in use by process {}", std::process::id())), "{error}");
}

#[test]
fn open_of_another_format_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    std::fs::write(home.path().join("format"), "bdnfs cache 9\n").expect("written");
    let error = Cache::open(home.path(), "default", UNLIMITED, SystemTime::now).expect_err("newer");
    assert_eq!(error.kind(), Kind::Unsupported);
}

/// The kernel, which reads the files of all blobs.
#[derive(Debug)]
struct KernelReader;

impl removal::RemovalListener for KernelReader {
    fn blob_removed(&self, _: &removal_marks::Removal, _: Option<&File>) {}

    fn needs_file(&self, _: &Key, _: &File) -> bool {
        true
    }
}

#[test]
fn blob_that_the_kernel_reads_is_fetched_again_into_the_same_file() {
    let home = tempfile::tempdir().expect("a directory");
    let (cache, size) = (open(home.path(), UNLIMITED), 2 * BLOCK + 9);
    let inode = |form| cache.layout().stat(&key(1), form).map(|stat| stat.st_ino);
    let kernel: Arc<dyn removal::RemovalListener> = Arc::new(KernelReader);
    cache.removal_listeners().add(Arc::downgrade(&kernel));
    // The part that became whole is still in use.
    let part = cache.begin(&key(1), size).expect("a part");
    let whole = fill(&cache, 1, size).expect("committed");
    let first = inode(BlobFile::Whole).expect("whole");
    let version = FileVersion::of(&whole).expect("a version");
    assert!(cache.withdraw(&key(1), &whole, &version).expect("a part again"));
    assert_eq!((inode(BlobFile::Whole), inode(BlobFile::Part)), (None, Some(first)));
    // That of before says that all is here.
    assert_eq!(part.presence().missing(), 0);
    let again = cache.begin(&key(1), size).expect("a part");
    assert_eq!(again.presence().missing(), 3);
    again.put(&block(&content(size, 1), 0)).expect("room");
    cache.discard(&again).expect("forgotten");
    assert_eq!(inode(BlobFile::Part), Some(first));
    assert_eq!(cache.begin(&key(1), size).expect("a part").presence().missing(), 3);
    drop(again);
    fill(&cache, 1, size).expect("committed");
    assert_eq!(inode(BlobFile::Whole), Some(first));
    drop(kernel);
    let part = cache.begin(&key(2), size).expect("a part");
    cache.discard(&part).expect("removed");
    assert!(cache.layout().stat(&key(2), BlobFile::Part).is_none());
}
