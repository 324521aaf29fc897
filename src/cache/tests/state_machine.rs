//! The cache against a model of it: blocks that come, commits, refutations, restarts and power cuts, in any order.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::Config;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use tempfile::TempDir;

use super::*;

/// The blobs: of one block, which has no map; of some blocks, which can become whole; and of more than a word of the map.
const BLOB_SIZES: [u64; 3] = [17, 2 * BLOCK + 17, 66 * BLOCK];
/// The blocks of each that are put.
const PUT_BLOCKS: [&[u64]; 3] = [&[0], &[0, 1, 2], &[0, 63, 64, 65]];

/// The bytes of a block, none of them zero: zeros are what a power cut leaves.
fn bytes(blob: usize, index: u64) -> Bytes {
    let len = crate::block::len(BLOB_SIZES[blob], index) as usize;
    vec![(blob as u8) << 6 | (index as u8) << 1 | 1; len].into()
}

#[derive(Clone, Debug)]
enum CacheStep {
    Put(usize, u64),
    Commit(usize),
    Discard(usize),
    /// Hold a doubted block against its check.
    Settle(usize, u64),
    /// End, in whatever way, and begin again.
    Restart,
    /// The same with the machine, which loses what was not on the disk yet: one block.
    PowerCut(usize, u64),
}

/// The expected state of one blob.
#[derive(Clone, Debug, Default)]
struct BlobModel {
    whole: bool,
    /// The blocks that are there or said to be, and whether their bytes are.
    blocks: BTreeMap<u64, (BlockState, bool)>,
}

#[derive(Clone, Debug, Default)]
struct CacheModel([BlobModel; 3]);

impl CacheModel {
    /// The cache begins again; `doubt` says that the machine did, too.
    fn restart(&mut self, doubt: bool) {
        for (blob, model) in self.0.iter_mut().enumerate() {
            if BLOB_SIZES[blob] <= BLOCK {
                // A part without a map is unknown.
                model.blocks.clear();
            }
            if doubt {
                model.blocks.values_mut().for_each(|(state, _)| *state = BlockState::Doubted);
            }
        }
    }

    fn state(&self, blob: usize, index: u64) -> BlockState {
        self.0[blob].blocks.get(&index).map_or(BlockState::Absent, |(state, _)| *state)
    }
}

impl ReferenceStateMachine for CacheModel {
    type State = Self;
    type Transition = CacheStep;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<CacheStep> {
        let block = || (0..3usize).prop_flat_map(|blob| (Just(blob), prop::sample::select(PUT_BLOCKS[blob])));
        prop_oneof![
            8 => block().prop_map(|(blob, index)| CacheStep::Put(blob, index)),
            3 => (0..2usize).prop_map(CacheStep::Commit),
            1 => (0..3usize).prop_map(CacheStep::Discard),
            4 => block().prop_map(|(blob, index)| CacheStep::Settle(blob, index)),
            2 => Just(CacheStep::Restart),
            2 => block().prop_map(|(blob, index)| CacheStep::PowerCut(blob, index)),
        ]
        .boxed()
    }

    fn preconditions(model: &Self, step: &CacheStep) -> bool {
        match *step {
            CacheStep::Put(blob, _) | CacheStep::Discard(blob) => !model.0[blob].whole,
            CacheStep::Commit(blob) => {
                let present = |index: &u64| model.state(blob, *index) == BlockState::Present;
                !model.0[blob].whole && PUT_BLOCKS[blob].iter().all(present)
            }
            CacheStep::Settle(blob, index) => model.state(blob, index) == BlockState::Doubted,
            CacheStep::Restart | CacheStep::PowerCut(..) => true,
        }
    }

    fn apply(mut model: Self, step: &CacheStep) -> Self {
        match *step {
            CacheStep::Put(blob, index) => {
                model.0[blob].blocks.insert(index, (BlockState::Present, true));
            }
            CacheStep::Commit(blob) => model.0[blob] = BlobModel { whole: true, blocks: BTreeMap::new() },
            CacheStep::Discard(blob) => model.0[blob].blocks.clear(),
            CacheStep::Settle(blob, index) => match model.0[blob].blocks.get_mut(&index) {
                Some((state, true)) => *state = BlockState::Present,
                _ => drop(model.0[blob].blocks.remove(&index)),
            },
            CacheStep::Restart => model.restart(false),
            CacheStep::PowerCut(blob, index) => {
                model.restart(true);
                model.0[blob].blocks.entry(index).and_modify(|(_, there)| *there = false);
            }
        }
        model
    }
}

/// The cache itself, and the parts that are in use.
struct RealCache {
    home: TempDir,
    cache: Option<Cache>,
    parts: BTreeMap<usize, Arc<PartialBlob>>,
}

impl RealCache {
    fn cache(&self) -> &Cache {
        self.cache.as_ref().expect("between two steps there is one")
    }

    fn part(&mut self, blob: usize) -> Arc<PartialBlob> {
        let cache = self.cache.as_ref().expect("between two steps there is one");
        let begin = || cache.begin(&key(blob as u64), BLOB_SIZES[blob]).expect("room");
        self.parts.entry(blob).or_insert_with(begin).clone()
    }

    /// Ends the cache, does to its directory what the power cut does, and begins again.
    fn restart(&mut self, damage: impl FnOnce(&Cache)) {
        self.parts.clear();
        damage(self.cache());
        self.cache = None;
        // A thread of the one before may have the lock for a moment yet.
        self.cache = Some(loop {
            match Cache::open(self.home.path(), "default", UNLIMITED, SystemTime::now) {
                Err(error) if error.kind() == Kind::Busy => std::thread::yield_now(),
                cache => break cache.expect("a cache"),
            }
        });
    }
}

impl StateMachineTest for RealCache {
    type SystemUnderTest = Self;
    type Reference = CacheModel;

    fn init_test(_: &CacheModel) -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let cache = Some(open(home.path(), UNLIMITED));
        Self { home, cache, parts: BTreeMap::new() }
    }

    fn apply(mut real: Self, model: &CacheModel, step: CacheStep) -> Self {
        match step {
            CacheStep::Put(blob, index) => {
                let arrival = Arrival { size: BLOB_SIZES[blob], index, bytes: bytes(blob, index) };
                real.part(blob).put(&arrival.verify(None).expect("the right length")).expect("room");
            }
            CacheStep::Commit(blob) => {
                let (part, (done, whole)) = (real.part(blob), mpsc::channel());
                real.parts.remove(&blob);
                real.cache().committer().commit(part, move |file| done.send(file).expect("the test waits"));
                whole.recv().expect("an answer").expect("committed");
            }
            CacheStep::Discard(blob) => {
                real.part(blob).discard().expect("the disk works");
                real.parts.remove(&blob);
            }
            CacheStep::Settle(blob, index) => real.part(blob).verify_doubted(index, None),
            CacheStep::Restart => real.restart(|_| ()),
            CacheStep::PowerCut(lost, index) => real.restart(|cache| {
                for blob in 0..BLOB_SIZES.len() {
                    let here = |file| cache.layout().stat(&key(blob as u64), file).is_some();
                    if here(BlobFile::Map) {
                        let map =
                            cache.layout().create_blob(&key(blob as u64), BlobFile::Map).expect("the map");
                        map.write_all_at(&[7; 32], 24).expect("another stamp");
                    }
                    if blob == lost && here(BlobFile::Part) && model.state(lost, index) != BlockState::Absent
                    {
                        let part =
                            cache.layout().create_blob(&key(blob as u64), BlobFile::Part).expect("the part");
                        let zeros = vec![0; bytes(lost, index).len()];
                        part.write_all_at(&zeros, index * BLOCK).expect("lost bytes");
                    }
                }
            }),
        }
        real
    }

    fn check_invariants(real: &Self, model: &CacheModel) {
        for (blob, expected) in model.0.iter().enumerate() {
            let (key, size) = (key(blob as u64), BLOB_SIZES[blob]);
            assert_eq!(real.cache().has(&key, size), expected.whole, "blob {blob}");
            if let Some(file) = real.cache().open_whole(&key, size).expect("the disk works") {
                for &index in PUT_BLOCKS[blob] {
                    let mut read = vec![0; bytes(blob, index).len()];
                    file.read_exact_at(&mut read, index * BLOCK).expect("a whole blob");
                    assert!(read == bytes(blob, index), "wrong bytes in the whole blob {blob}");
                }
                continue;
            }
            let part = match real.parts.get(&blob) {
                Some(part) => Some(part.clone()),
                None => real.cache().resume(&key, size).expect("the disk works"),
            };
            for &index in PUT_BLOCKS[blob] {
                let state = part.as_ref().map_or(BlockState::Absent, |part| part.presence().state(index));
                assert_eq!(state, model.state(blob, index), "block {index} of blob {blob}");
                if let (Some(part), BlockState::Present) = (&part, state) {
                    let read = part.read(index * BLOCK, bytes(blob, index).len()).expect("the disk works");
                    assert!(read == bytes(blob, index), "wrong bytes in block {index} of blob {blob}");
                }
            }
        }
    }
}

prop_state_machine! {
    #![proptest_config(Config { cases: 48, failure_persistence: None, ..Config::default() })]

    #[test]
    fn cache_after_any_steps_restarts_and_power_cuts_equals_its_model(sequential 1..40 => RealCache);
}
