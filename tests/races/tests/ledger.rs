//! Races for the ledger of a mount, whose process may be killed at any step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use bdnfs_races::ledger::{Ledger, LedgerItem, MountFeatures};
use shuttle::{check_random, thread};

/// How many orders are tried: a bug of three steps in the wrong order shows within hundreds.
const ORDERS: usize = 3000;
/// The same number again and again: what the kernel knows of a file.
const ROUNDS: u64 = 3;

/// What the kernel knows, and what it ever knew.
#[derive(Clone, Debug, Default)]
struct Kernel {
    open: BTreeMap<u64, u64>,
    gone: BTreeSet<u64>,
}

#[test]
fn ledger_of_a_killed_process_has_all_that_the_kernel_knows_and_nothing_that_is_gone() {
    let race = || {
        let features = MountFeatures { passthrough: true, stateless: false };
        let ledger = Arc::new(Ledger::new(features).expect("a ledger"));
        // The standard library's lock: to look at it takes no step.
        let kernel = Arc::new(Mutex::new(Kernel::default()));
        // More at once than there are slots.
        let threads = [1, 2, 3, 4, 5].map(|thread| {
            let (ledger, kernel) = (ledger.clone(), kernel.clone());
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let node = thread * ROUNDS + round;
                    let Some(number) = ledger.insert(node, node * 2, LedgerItem::Cached) else { continue };
                    let before = kernel.lock().expect("a lock").open.insert(number, node);
                    assert_eq!(before, None, "the number {number} came twice");
                    thread::yield_now();
                    kernel.lock().expect("a lock").open.remove(&number);
                    ledger.remove(number);
                    kernel.lock().expect("a lock").gone.insert(number);
                }
            })
        });
        for _ in 0..ROUNDS {
            thread::yield_now();
            let (words, known) = (ledger.memory().copy(), kernel.lock().expect("a lock").clone());
            let (next, entries) = Ledger::open(words).expect("a ledger");
            assert_eq!(next.features(), features);
            let entries: BTreeMap<_, _> = entries.iter().map(|entry| (entry.number, *entry)).collect();
            for (number, node) in &known.open {
                assert_eq!(entries.get(number).map(|entry| entry.node), Some(*node), "{number} is lost");
            }
            for (number, entry) in &entries {
                assert!(entry.unique == entry.node * 2, "{entry:?} is of two");
                assert!(!known.gone.contains(number), "{entry:?} is gone");
            }
            if let Some(number) = next.insert(7, 14, LedgerItem::Cached) {
                assert!(
                    !known.open.contains_key(&number) && !known.gone.contains(&number),
                    "{number} comes twice"
                );
            }
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let (_, entries) = Ledger::open(ledger.memory().copy()).expect("a ledger");
        assert_eq!(entries, []);
    };
    check_random(race, ORDERS);
}
