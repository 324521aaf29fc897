//! Memory of a ledger that can be copied at any step, as another process finds it when its process is killed there.

use std::io;
use std::sync::Arc;

use shuttle::sync::atomic::AtomicU64;

/// Words that a killed process left.
pub type Words = Arc<[AtomicU64]>;

/// The memory.
#[derive(Debug)]
pub struct CopiedMemory(Words);

impl CopiedMemory {
    /// So many `words`, all 0.
    pub fn new(words: usize) -> io::Result<Self> {
        Ok(Self((0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    /// The memory that was left.
    pub fn open(left: Words, words: usize) -> io::Result<Option<Self>> {
        Ok((left.len() == words).then_some(Self(left)))
    }

    /// All words.
    pub fn words(&self) -> &[AtomicU64] {
        &self.0
    }

    /// What is left if the process is killed now: no other thread takes a step meanwhile.
    pub fn copy(&self) -> Words {
        // SAFETY: Shuttle runs one thread at a time, and this does not let another run.
        self.0.iter().map(|word| AtomicU64::new(unsafe { word.raw_load() })).collect()
    }
}
