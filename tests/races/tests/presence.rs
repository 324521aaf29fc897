//! Races for the presence of blocks.

use std::sync::Arc;

use bdnfs_races::presence::{BlockState, Presence};
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::{check_random, thread};

/// How many orders are tried: a bug of three steps in the wrong order shows within hundreds.
const ORDERS: usize = 3000;
const BLOCKS: u64 = 3;

fn missing(presence: &Presence) -> u64 {
    (0..BLOCKS).filter(|index| presence.state(*index) != BlockState::Present).count() as u64
}

#[test]
fn blocks_settled_by_racing_threads_are_reported_once_each() {
    let race = || {
        let (presence, news) = (Arc::new(Presence::none(BLOCKS)), Arc::new(AtomicU64::new(0)));
        let threads = [[0, 1], [1, 2], [2, 0]].map(|indexes| {
            let (presence, news) = (presence.clone(), news.clone());
            thread::spawn(move || {
                for index in indexes {
                    news.fetch_add(presence.set_present(index, true).into(), SeqCst);
                    assert_eq!(presence.state(index), BlockState::Present);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!((news.load(SeqCst), presence.missing(), missing(&presence)), (BLOCKS, 0, 0));
    };
    check_random(race, ORDERS);
}

#[test]
fn blocks_settled_and_doubted_at_once_are_counted_right() {
    let race = || {
        let presence = Arc::new(Presence::none(BLOCKS));
        presence.set_present(0, true);
        let threads = [0, 1, 2].map(|number| {
            let presence = presence.clone();
            thread::spawn(move || match number {
                0 => presence.doubt(0),
                1 => drop(presence.set_present(0, true)),
                _ => drop((presence.set_present(1, true), presence.set_present(0, false))),
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(presence.missing(), missing(&presence));
        assert_eq!(presence.state(1), BlockState::Present);
    };
    check_random(race, ORDERS);
}
