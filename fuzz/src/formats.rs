//! The smaller formats: of the mirror, of the cache, and of the kernel.

use std::sync::Arc;

use bdnfs::block::{self, BLOCK, Check};
use bdnfs::cache::presence::{self, BlockState, Presence};
use bdnfs::checkpoint::{CheckpointId, SavedCheckpoint};
use bdnfs::digest::Digest;
use bdnfs::error::Kind;
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::Ref;
use bdnfs::mirror::frames;
use bdnfs::mirror::homes::HomeReport;
use bdnfs::mirror::multipart::MirrorStore;
use bdnfs::mirror::record::MirrorRecord;
use chrono::DateTime;
use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};

use crate::services::block_on;

/// Where a record has its size, and its checks.
const RECORD_SIZE: std::ops::Range<usize> = 16..24;
const RECORD_CHECKS: usize = 32;

/// Where the journal of a draft has its recipe, and its size.
const DRAFT_RECIPE: std::ops::Range<usize> = 16..48;
const DRAFT_SIZE: usize = 48;

/// The record of a blob in the mirror. The bytes get the right digests, or nothing else would ever be met.
pub(crate) fn record(bytes: &[u8]) {
    let size = bytes.get(RECORD_SIZE).and_then(|size| size.try_into().ok()).map_or(0, u64::from_le_bytes);
    let checks = bytes.get(RECORD_CHECKS..).unwrap_or_default().as_chunks::<32>().0.iter();
    let count = usize::try_from(block::count(size)).unwrap_or(usize::MAX);
    let checks: Vec<Check> = checks.take(count).map(|check| Check(*check)).collect();
    let blob = Check::combine(size, &checks).unwrap_or(Digest::of(bytes));
    let whole = [bytes, &Digest::of(bytes).0].concat();
    let Some(record) = MirrorRecord::decode(&whole.clone().into(), &blob) else { return };
    assert_eq!(record.encode(), whole, "a record that is accepted has one form");
    for index in 0..block::count(size) {
        let _ = record.stored.range(size, index..index + 1);
    }
}

/// A ref of the mirror, found where it would lie if it were one.
pub(crate) fn mirror_ref(bytes: &[u8]) {
    let key = serde_json::from_slice::<Ref>(bytes).map_or(Digest::of(bytes), |found| found.key());
    let store = Arc::new(InMemory::new());
    let mirror = Mirror::new(MirrorStore::service(store.clone(), ""), "memory", "t", std::env::temp_dir());
    let mirror = mirror.expect("a tenant");
    block_on(async {
        let object = Path::from(format!("tenants/t/refs/{key}/1"));
        store.put(&object, PutPayload::from(bytes.to_vec())).await.expect("memory");
        if let Ok(Some(found)) = mirror.find(&key).await {
            assert_eq!(found.key(), key);
        }
        store.put(&Path::from("format.json"), PutPayload::from(bytes.to_vec())).await.expect("memory");
        let _ = mirror.exists().await;
    });
}

/// An entry of the index of checkpoints and a report on a home, which have the same form. The bytes get the right check, or
/// nothing else would ever be met.
pub(crate) fn mirror_json(bytes: &[u8]) {
    let text = bytes.trim_ascii_end();
    let all = text.strip_suffix(b"}").unwrap_or(text).trim_ascii_end();
    let check = format!(",\n  \"check\": \"{}\"\n}}\n", Digest::of(all));
    let whole = [all, check.as_bytes()].concat();
    let id = CheckpointId::new("p", "j", "step-1", 0).expect("an id");
    let store = Arc::new(InMemory::new());
    let mirror = Mirror::new(MirrorStore::service(store.clone(), ""), "memory", "t", std::env::temp_dir());
    let (mirror, cache) = (mirror.expect("a tenant"), Digest::of(b"cache"));
    let now = DateTime::UNIX_EPOCH;
    let saved = SavedCheckpoint {
        id: id.clone(),
        manifest: cache,
        generation: 1,
        complete: true,
        files: 1,
        bytes: 1,
        written: now,
        saved: now,
        seconds: 1.,
        previous_complete: None,
    };
    let report = HomeReport {
        beginning: false,
        node: "n".to_owned(),
        host: "h".to_owned(),
        manifest: None,
        saved: None,
        unsaved_since: None,
        in_use: false,
        reported: now,
    };
    block_on(async {
        mirror.enter_checkpoint(saved).await.expect("memory");
        mirror.put_home_report(&cache, &report).await.expect("memory");
        let objects: Vec<_> = store.list(None).try_collect().await.expect("memory");
        for object in objects {
            store.put(&object.location, PutPayload::from(whole.clone())).await.expect("memory");
        }
        if let Ok(Some(found)) = mirror.checkpoint(&id).await {
            assert_eq!(found.id, id);
        }
        let _ = mirror.checkpoints(None, None).await;
        let _ = mirror.home_reports(&cache).await;
    });
}

/// The journal of an unfinished upload. The bytes get the right digest.
pub(crate) fn mirror_draft(bytes: &[u8]) {
    let field = |at: usize| bytes.get(at..at + 8).and_then(|field| field.try_into().ok());
    let size = field(DRAFT_SIZE).map_or(0, u64::from_le_bytes);
    let recipe =
        bytes.get(DRAFT_RECIPE).and_then(|recipe| recipe.try_into().ok()).map_or(Digest([0; 32]), Digest);
    let whole = [bytes, &Digest::of(bytes).0].concat();
    let store = Arc::new(InMemory::new());
    let mirror = Mirror::new(MirrorStore::service(store.clone(), ""), "memory", "t", std::env::temp_dir());
    let mirror = mirror.expect("a tenant");
    block_on(async {
        let journal = Path::from(format!("tenants/t/drafts/{recipe}/1-1"));
        store.put(&journal, PutPayload::from(whole)).await.expect("memory");
        let lease = mirror.add_lease().await.expect("memory");
        if let Ok(Some((draft, _))) = mirror.resume_draft(&recipe, size, &lease).await {
            assert!(draft.blocks() <= block::count(size));
        }
        lease.release().await;
    });
}

/// The object of a known recipe, found where it would lie. The bytes get the right digest.
pub(crate) fn recipe(bytes: &[u8]) {
    let mut words = bytes.trim_ascii_end().splitn(3, |byte| *byte == b' ');
    let (made, named) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let recipe = str::from_utf8(named).ok().and_then(|named| named.parse().ok());
    let recipe: Digest = recipe.unwrap_or(Digest::of(bytes));
    let checked = [made, b" ", named].concat();
    let right = [&checked[..], format!(" {}\n", Digest::of(&checked)).as_bytes()].concat();
    let store = Arc::new(InMemory::new());
    let mirror = Mirror::new(MirrorStore::service(store.clone(), ""), "memory", "t", std::env::temp_dir());
    let mirror = mirror.expect("a tenant");
    block_on(async {
        let object = Path::from(format!("tenants/t/recipes/{:02x}/{recipe}", recipe.0[0]));
        for text in [bytes.to_vec(), right] {
            store.put(&object, PutPayload::from(text)).await.expect("memory");
            let found = mirror.find_by_recipe(&recipe, DateTime::UNIX_EPOCH).await.expect("memory");
            assert_eq!(found, None, "there is no blob");
        }
    });
}

/// The lease of another process: the name of its object in the first line, then the object. A writer of an exclusive mirror reads
/// all of them.
pub(crate) fn lease(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == b'\n');
    let name = String::from_utf8_lossy(parts.next().unwrap_or_default());
    let text = parts.next().unwrap_or_default();
    if name.is_empty() {
        return;
    }
    let store = Arc::new(InMemory::new());
    let mirror = Mirror::new(MirrorStore::service(store.clone(), ""), "memory", "t", std::env::temp_dir());
    let mirror = mirror.expect("a tenant");
    block_on(async {
        mirror.init_exclusive().await.expect("memory");
        let object = Path::from_iter(["tenants", "t", "leases", &*name]);
        store.put(&object, PutPayload::from(text.to_vec())).await.expect("memory");
        match mirror.add_lease().await {
            Ok(lease) => lease.release().await,
            Err(error) => {
                assert_eq!(error.kind(), Kind::Busy, "{error}");
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    });
}

/// A block as the mirror compresses it: the bytes after the first four, which say how long it should be.
pub(crate) fn zstd_frame(bytes: &[u8]) {
    let Some((len, frame)) = bytes.split_first_chunk() else { return };
    let len = u32::from_le_bytes(*len) as usize % (BLOCK as usize + 1);
    if let Ok(block) = frames::decompress(frame, len) {
        assert_eq!(block.len(), len);
    }
}

/// The map beside a part in the cache, read in the machine's life that wrote it and in another one.
pub(crate) fn presence_map(bytes: &[u8]) {
    let size = bytes.get(16..24).and_then(|size| size.try_into().ok()).map_or(0, u64::from_le_bytes);
    let written = bytes.get(24..56).and_then(|stamp| stamp.try_into().ok()).map_or(Digest([0; 32]), Digest);
    for (stamp, believed) in [(written, true), (Digest::of(bytes), false)] {
        let Some(map) = presence::read(bytes, size, &stamp) else { continue };
        let states = (0..map.blocks()).map(|index| map.state(index));
        let missing = states.filter(|state| *state != BlockState::Present).count() as u64;
        assert_eq!((map.blocks(), map.missing()), (block::count(size), missing));
        assert!(believed || missing == map.blocks(), "what another life wrote is doubted");
        settle_all(&map);
    }
}

/// However a map begins, it ends whole.
fn settle_all(map: &Presence) {
    for index in 0..map.blocks() {
        map.doubt(index);
        assert!(map.set_present(index, true));
    }
    assert_eq!(map.missing(), 0);
}

/// A request of the kernel.
pub(crate) fn fuse_request(bytes: &[u8]) {
    bdnfs_fs::decode_request(bytes);
}
