//! Requests that are answered later, and their interruption: each gets exactly one answer, whoever comes
//! first.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

/// How many interruptions are remembered that came before their request was entered here. Between the moment
/// when one device thread takes a request and the moment when it enters it, another may take its
/// interruption; that is a matter of the time of a local read, so this is far more than can come in between.
/// Most of what is remembered belongs to requests that were answered at once, and is soon pushed out.
const EARLY: usize = 1024;

/// The requests under way, each with what is needed to give it up.
#[derive(Debug)]
pub(crate) struct Pending<T> {
    table: Mutex<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    requests: HashMap<u64, T>,
    early: VecDeque<u64>,
}

impl<T> Pending<T> {
    /// Nothing is under way.
    pub(crate) fn new() -> Self {
        Self { table: Mutex::new(Table { requests: HashMap::new(), early: VecDeque::new() }) }
    }

    /// The request `unique` will be answered later. `false`: it has been interrupted already, so it is to be
    /// answered with EINTR now.
    #[must_use]
    pub(crate) fn begin(&self, unique: u64, request: T) -> bool {
        let mut table = self.table.lock();
        if table.early.contains(&unique) {
            return false;
        }
        table.requests.insert(unique, request);
        true
    }

    /// Takes the request `unique` out: whoever gets it answers it.
    #[must_use]
    pub(crate) fn take(&self, unique: u64) -> Option<T> {
        self.table.lock().requests.remove(&unique)
    }

    /// The request `unique` is interrupted: takes it out, so that the caller gives it up and answers it.
    /// `None`: it is answered already, or will be found interrupted when it begins. (The protocol's other
    /// way, to answer the interruption with EAGAIN, works only on the descriptor that the request was read
    /// from, which nobody knows before it has begun.)
    #[must_use]
    pub(crate) fn interrupt(&self, unique: u64) -> Option<T> {
        let mut table = self.table.lock();
        let request = table.requests.remove(&unique);
        if request.is_none() {
            if table.early.len() == EARLY {
                table.early.pop_front();
            }
            table.early.push_back(unique);
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn whoever_comes_first_answers() {
        let pending = Pending::new();
        assert!(pending.begin(2, 'a'));
        assert_eq!(pending.interrupt(2), Some('a'));
        assert_eq!(pending.take(2), None);
        assert!(pending.begin(4, 'b'));
        assert_eq!(pending.take(4), Some('b'));
        assert_eq!(pending.interrupt(4), None);
    }

    #[test]
    fn an_interruption_may_come_before_its_request() {
        let pending = Pending::new();
        assert_eq!(pending.interrupt(2), None);
        assert!(!pending.begin(2, 'a'));
        for other in 0..EARLY as u64 {
            assert_eq!(pending.interrupt(1000 + other), None);
        }
        assert!(pending.begin(2, 'a'));
        assert_eq!(pending.table.lock().early.len(), EARLY);
    }

    #[test]
    fn every_race_has_one_winner() {
        let (pending, answers) = (Arc::new(Pending::new()), Arc::new(AtomicUsize::new(0)));
        let count = 2000_u64;
        let run = |act: fn(&Pending<()>, u64) -> bool| {
            let (pending, answers) = (pending.clone(), answers.clone());
            move || {
                for unique in 0..count {
                    answers.fetch_add(act(&pending, unique).into(), Ordering::Relaxed);
                }
            }
        };
        let serve = run(|pending, unique| !pending.begin(unique, ()) || pending.take(unique).is_some());
        let interrupt = run(|pending, unique| pending.interrupt(unique).is_some());
        std::thread::scope(|scope| {
            scope.spawn(serve);
            scope.spawn(interrupt);
        });
        assert_eq!(answers.load(Ordering::Relaxed), count as usize);
    }
}
