//! Races for leases: what is held is not removed, and what is removed is not held.

use std::sync::Arc;

use bdnfs::blob::Key;
use bdnfs::digest::Digest;
use bdnfs_races::leases::{LeaseGroup, LeaseTable};
use shuttle::sync::atomic::{AtomicBool, Ordering::SeqCst};
use shuttle::{check_random, thread};

/// How many orders are tried: a bug of three steps in the wrong order shows within hundreds.
const ORDERS: usize = 3000;

#[test]
fn blob_leased_while_it_is_evicted_is_there_or_known_to_be_gone() {
    let race = || {
        let (leases, there) = (Arc::new(LeaseTable::default()), Arc::new(AtomicBool::new(true)));
        let key = Key::Content(Digest::of(b"blob"));
        let readers = [false, true].map(|whole| {
            let (leases, there) = (leases.clone(), there.clone());
            thread::spawn(move || {
                let (mut one, mut set) = (None, None);
                if whole {
                    set = Some(leases.lease_all(LeaseGroup::new("snapshot", [(key, 1)].into_iter())));
                } else {
                    one = Some(leases.lease(key));
                }
                // As it is found after it was leased, so it stays.
                let found = there.load(SeqCst);
                thread::yield_now();
                assert!(leases.is_leased(&key));
                assert_eq!(there.load(SeqCst), found, "it was removed under a lease");
                drop((one, set));
            })
        });
        let evictor = thread::spawn({
            let (leases, there) = (leases.clone(), there.clone());
            move || leases.unless_leased(&key, || there.store(false, SeqCst)).is_some()
        });
        readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
        let evicted = evictor.join().expect("no panic");
        assert_eq!(evicted, !there.load(SeqCst));
        assert!(!leases.is_leased(&key) && leases.single_leases() == 0 && leases.groups().is_empty());
    };
    check_random(race, ORDERS);
}
