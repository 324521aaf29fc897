//! Verifications that find damage at the same time.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use std::time::Duration;

use super::*;

/// A kernel that reads the file of each blob, and takes for one of them until that is sent.
#[derive(Debug)]
struct SlowReader(Key, parking_lot::Mutex<mpsc::Receiver<()>>);

impl removal::RemovalListener for SlowReader {
    fn blob_removed(&self, _: &removal_marks::Removal, _: Option<&File>) {}

    fn needs_file(&self, key: &Key, _: &File) -> bool {
        *key != self.0 || self.1.lock().recv_timeout(Duration::from_secs(60)).is_ok()
    }
}

#[test]
fn withdrawal_of_a_blob_does_not_wait_for_a_listener_that_reads_another() {
    let home = tempfile::tempdir().expect("a directory");
    let cache = open(home.path(), UNLIMITED);
    let (go_on, answer) = mpsc::channel();
    let kernel: Arc<dyn removal::RemovalListener> = Arc::new(SlowReader(key(1), answer.into()));
    cache.removal_listeners().add(Arc::downgrade(&kernel));
    let files = [1, 2].map(|seed| fill(&cache, seed, BLOCK).expect("committed"));
    let withdraw = |seed: usize| {
        let file = &files[seed - 1];
        let version = FileVersion::of(file).expect("a version");
        cache.withdraw(&key(seed as u64), file, &version).expect("a part again")
    };
    std::thread::scope(|scope| {
        let (first, again) = (scope.spawn(|| withdraw(1)), scope.spawn(|| withdraw(1)));
        let (done, second) = mpsc::channel();
        scope.spawn(move || done.send(withdraw(2)));
        let second = second.recv_timeout(Duration::from_secs(30));
        assert!(!first.is_finished() && !again.is_finished(), "the kernel reads it");
        go_on.send(()).expect("it waits");
        assert_eq!(second, Ok(true), "it does not wait for the first one");
        let withdrawn = [first, again].map(|thread| thread.join().expect("no panic"));
        assert_eq!(withdrawn.iter().filter(|done| **done).count(), 1, "one of two withdraws it");
    });
}

#[test]
fn blob_repaired_while_another_verification_reads_it_stays() {
    for is_read_by_kernel in [false, true] {
        let home = tempfile::tempdir().expect("a directory");
        let (cache, size) = (open(home.path(), UNLIMITED), 2 * BLOCK);
        let kernel: Arc<dyn removal::RemovalListener> = Arc::new(KernelReader);
        if is_read_by_kernel {
            cache.removal_listeners().add(Arc::downgrade(&kernel));
        }
        fill(&cache, 1, size).expect("committed");
        let used = cache.partition.used();
        let path = cache.layout().create_blob(&key(1), BlobFile::Whole).expect("a file");
        path.write_all_at(b"rot", BLOCK).expect("written");
        let found = Vec::from_iter(cache.find(&key(1), BlobFile::Whole));
        let damaged =
            |pace: scrub::ScrubPace<'_>| scrub::verify(&cache, &found, pace).expect("read").damaged.len();
        let (is_first, faster) = (AtomicBool::new(true), AtomicBool::new(false));
        let pace = |_| {
            // Once all of the damaged file is read, but for its end.
            if is_first.swap(false, Relaxed) {
                let is_damaged = damaged(&|_| true) == 1 && !cache.has(&key(1), size);
                faster.store(is_damaged, Relaxed);
            } else if faster.swap(false, Relaxed) {
                fill(&cache, 1, size).expect("fetched again");
            }
            true
        };
        assert_eq!(damaged(&pace), 0, "what was damaged is right by now");
        assert!(cache.has(&key(1), size));
        assert_eq!(cache.partition.used(), used);
    }
}

#[test]
fn part_with_a_block_found_damaged_while_its_commit_waits_does_not_become_whole() {
    let home = tempfile::tempdir().expect("a directory");
    let (cache, size) = (open(home.path(), UNLIMITED), 2 * BLOCK);
    let bytes = content(size, 1);
    let partial = cache.begin(&key(1), size).expect("a part");
    (0..2).for_each(|index| partial.put(&block(&bytes, index)).expect("put"));
    partial.file().write_all_at(b"rot", BLOCK).expect("written");
    assert!(!partial.recheck(1), "it is damaged");
    let commit = || {
        let (done, whole) = mpsc::channel();
        cache.committer().commit(partial.clone(), move |file| done.send(file).expect("the test waits"));
        whole.recv().expect("an answer")
    };
    assert_eq!(commit().expect_err("a block is missing").kind(), Kind::Corrupt);
    assert!(cache.open_whole(&key(1), size).expect("no fault").is_none());
    partial.put(&block(&bytes, 1)).expect("put again");
    let mut read = vec![0; size as usize];
    commit().expect("whole").read_exact_at(&mut read, 0).expect("read");
    assert_eq!(read, bytes);
}
