//! Races for the budget of bytes in flight.

use std::sync::Arc;

use bdnfs::tier::Urgency;
use bdnfs_races::budget::{Budget, BudgetUsage};
use shuttle::future::block_on;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::{check_random, thread};

/// How many orders are tried: a bug of three steps in the wrong order shows within hundreds.
const ORDERS: usize = 3000;
const BUDGET_BYTES: u64 = 16;

#[test]
fn budget_of_racing_threads_is_never_exceeded_and_comes_back_whole() {
    let race = || {
        let budget = Budget::new(BUDGET_BYTES);
        let held = Arc::new(AtomicU64::new(0));
        let urgencies = [Urgency::Stage, Urgency::Read, Urgency::Ahead, Urgency::Stage];
        let threads = urgencies.into_iter().enumerate().map(|(number, urgency)| {
            let (budget, held) = (budget.clone(), held.clone());
            thread::spawn(move || {
                let bytes = 3 + 3 * number as u64;
                let ticket = budget.queue(bytes, urgency);
                if number == 0 {
                    // It goes away without what it asked for.
                    return drop(ticket);
                }
                let permit = block_on(ticket.await_grant()).expect("the budget lives");
                assert!(held.fetch_add(bytes, SeqCst) + bytes <= BUDGET_BYTES, "more than there is");
                thread::yield_now();
                held.fetch_sub(bytes, SeqCst);
                drop(permit);
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(budget.usage(), BudgetUsage { total: BUDGET_BYTES, used: 0, waiting: 0 });
    };
    check_random(race, ORDERS);
}

#[test]
fn ticket_promoted_while_it_is_granted_or_dropped_loses_nothing() {
    let race = || {
        let budget = Budget::new(BUDGET_BYTES);
        // All that staging may have is taken, so the ticket waits for a promotion, or for this to come back.
        let taken = block_on(budget.queue(12, Urgency::Stage).await_grant()).expect("room");
        let ticket = budget.queue(4, Urgency::Stage);
        let number = ticket.number();
        let promoting = thread::spawn({
            let budget = budget.clone();
            move || budget.promote(number, Urgency::Read)
        });
        let returning = thread::spawn(move || drop(taken));
        let permit = block_on(ticket.await_grant()).expect("the budget lives");
        promoting.join().expect("no panic");
        returning.join().expect("no panic");
        assert_eq!(budget.usage().used, 4);
        drop(permit);
        assert_eq!(budget.usage(), BudgetUsage { total: BUDGET_BYTES, used: 0, waiting: 0 });
    };
    check_random(race, ORDERS);
}
