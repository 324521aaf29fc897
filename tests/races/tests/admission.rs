//! Races for room in the cache. No time passes here: a waiting job is woken by a lease that ends, never by a timer.

use std::sync::Arc;

use bdnfs_races::admission::AdmissionQueue;
use bdnfs_races::room::ModelCache;
use shuttle::future::block_on;
use shuttle::{check_random, future, thread};

/// How many orders are tried: a bug of three steps in the wrong order shows within hundreds.
const ORDERS: usize = 3000;
const CACHE_BYTES: u64 = 10;

#[test]
fn jobs_racing_for_room_are_all_admitted_and_never_hold_more_than_there_is() {
    let race = || {
        let (room, queue) = (ModelCache::new(CACHE_BYTES), Arc::new(AdmissionQueue::default()));
        let jobs = [("small", 4), ("half", 5), ("more", 6), ("all", CACHE_BYTES)].map(|(name, bytes)| {
            let (room, queue) = (room.clone(), queue.clone());
            thread::spawn(move || {
                let snapshots = [room.snapshot(name, bytes)];
                let permit = block_on(queue.admit(name, &snapshots, || Ok(None), |_| ()))
                    .expect("there is room for it");
                assert!((bytes..=CACHE_BYTES).contains(&room.leased()), "{} are leased", room.leased());
                thread::yield_now();
                // In this order: its mounts are gone.
                drop(snapshots);
                drop(permit);
            })
        });
        jobs.into_iter().for_each(|job| job.join().expect("no panic"));
        assert_eq!(room.leased(), 0);
    };
    check_random(race, ORDERS);
}

#[test]
fn job_behind_one_that_is_cancelled_is_admitted() {
    let race = || {
        let (room, queue) = (ModelCache::new(CACHE_BYTES), Arc::new(AdmissionQueue::default()));
        let first = room.snapshot("first", CACHE_BYTES);
        let permit =
            block_on(queue.admit("first", std::slice::from_ref(&first), || Ok(None), |_| ())).expect("room");
        let cancelled = future::spawn({
            let (snapshots, queue) = ([room.snapshot("cancelled", CACHE_BYTES)], queue.clone());
            async move {
                let permit = queue.admit("cancelled", &snapshots, || Ok(None), |_| ()).await;
                drop(snapshots);
                drop(permit);
            }
        });
        let last = thread::spawn({
            let (room, queue) = (room.clone(), queue.clone());
            move || {
                let snapshots = [room.snapshot("last", CACHE_BYTES)];
                block_on(queue.admit("last", &snapshots, || Ok(None), |_| ())).map(drop).expect("room");
            }
        });
        let ending = thread::spawn(move || {
            drop(first);
            drop(permit);
        });
        cancelled.abort();
        ending.join().expect("no panic");
        last.join().expect("it is not forgotten");
        let _ = block_on(cancelled);
        assert_eq!(room.leased(), 0);
    };
    check_random(race, ORDERS);
}

#[test]
fn first_job_is_woken_while_a_publication_waits_beside_the_queue() {
    let race = || {
        let (room, queue) = (ModelCache::new(CACHE_BYTES), Arc::new(AdmissionQueue::default()));
        let pinned = room.snapshot("pinned", 2);
        pinned.hold().expect("held");
        let first = room.snapshot("first", 8);
        let admitted = queue.admit("first", std::slice::from_ref(&first), || Ok(None), |_| ());
        let permit = block_on(admitted).expect("room");
        // It does not fit beside what is pinned.
        let publication = future::spawn({
            let (snapshots, queue) = ([room.snapshot("publication", 9)], queue.clone());
            async move { queue.admit_beside_queue("publication", &snapshots, |_| ()).await }
        });
        let job = thread::spawn({
            let (room, queue) = (room.clone(), queue.clone());
            move || {
                let snapshots = [room.snapshot("job", 8)];
                block_on(queue.admit("job", &snapshots, || Ok(None), |_| ())).map(drop).expect("room");
            }
        });
        let ending = thread::spawn(move || {
            drop(first);
            drop(permit);
        });
        ending.join().expect("no panic");
        job.join().expect("it is woken");
        drop(pinned);
        block_on(publication).expect("no panic").expect("room");
    };
    check_random(race, ORDERS);
}
