//! The table of pending requests and of their interruptions: the thread that takes a request out first replies to it.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

/// The number of interruptions that are remembered that came before their request began. Between the moment when one device thread
/// reads a request and the moment when it begins it, another may take its interruption; that is a matter of the time of a local
/// read, so this is far more than can come in between. Most of what is remembered belongs to requests that were answered at once,
/// and is soon pushed out.
const MAX_EARLY_INTERRUPTS: usize = 1024;

/// The pending requests, each with what is needed to abort it.
#[derive(Debug)]
pub(crate) struct RequestTable<T> {
    entries: Mutex<Entries<T>>,
}

#[derive(Debug)]
struct Entries<T> {
    requests: HashMap<u64, T>,
    early_interrupts: VecDeque<u64>,
}

impl<T> RequestTable<T> {
    /// An empty table.
    pub(crate) fn new() -> Self {
        Self { entries: Mutex::new(Entries { requests: HashMap::new(), early_interrupts: VecDeque::new() }) }
    }

    /// Adds the request `unique`. `false`: it has been interrupted already, so it is to be answered with EINTR now.
    #[must_use]
    pub(crate) fn begin(&self, unique: u64, request: T) -> bool {
        let mut table = self.entries.lock();
        if table.early_interrupts.contains(&unique) {
            return false;
        }
        table.requests.insert(unique, request);
        true
    }

    /// Removes the request `unique`: the caller that gets it replies to it.
    #[must_use]
    pub(crate) fn take(&self, unique: u64) -> Option<T> {
        self.entries.lock().requests.remove(&unique)
    }

    /// Removes the interrupted request `unique`: the caller aborts it and replies to it. `None`: it is
    /// answered already, or will be found interrupted when it begins. (The protocol's other way, to answer
    /// the interruption with EAGAIN, works only on the descriptor that the request was read from, which is
    /// unknown before it has begun.)
    #[must_use]
    pub(crate) fn interrupt(&self, unique: u64) -> Option<T> {
        let mut table = self.entries.lock();
        let request = table.requests.remove(&unique);
        if request.is_none() {
            if table.early_interrupts.len() == MAX_EARLY_INTERRUPTS {
                table.early_interrupts.pop_front();
            }
            table.early_interrupts.push_back(unique);
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
    fn request_taken_and_interrupted_goes_to_whoever_comes_first() {
        let table = RequestTable::new();
        assert!(table.begin(2, 'a'));
        assert_eq!(table.interrupt(2), Some('a'));
        assert_eq!(table.take(2), None);
        assert!(table.begin(4, 'b'));
        assert_eq!(table.take(4), Some('b'));
        assert_eq!(table.interrupt(4), None);
    }

    #[test]
    fn request_interrupted_before_it_begins_is_refused() {
        let table = RequestTable::new();
        assert_eq!(table.interrupt(2), None);
        assert!(!table.begin(2, 'a'));
        for other in 0..MAX_EARLY_INTERRUPTS as u64 {
            assert_eq!(table.interrupt(1000 + other), None);
        }
        assert!(table.begin(2, 'a'));
        assert_eq!(table.entries.lock().early_interrupts.len(), MAX_EARLY_INTERRUPTS);
    }

    #[test]
    fn request_in_a_race_is_taken_once() {
        let (table, answers) = (Arc::new(RequestTable::new()), Arc::new(AtomicUsize::new(0)));
        let count = 2000_u64;
        let run = |act: fn(&RequestTable<()>, u64) -> bool| {
            let (table, answers) = (table.clone(), answers.clone());
            move || {
                for unique in 0..count {
                    answers.fetch_add(act(&table, unique).into(), Ordering::Relaxed);
                }
            }
        };
        let serve = run(|table, unique| !table.begin(unique, ()) || table.take(unique).is_some());
        let interrupt = run(|table, unique| table.interrupt(unique).is_some());
        std::thread::scope(|scope| {
            scope.spawn(serve);
            scope.spawn(interrupt);
        });
        assert_eq!(answers.load(Ordering::Relaxed), count as usize);
    }
}
