//! Verifications that find damage at the same time.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::*;

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
