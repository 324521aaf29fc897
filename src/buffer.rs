//! Buffers for blocks in flight, and the pool that reuses them.
//!
//! Each byte that is delivered passes through such a buffer once. Memory fresh from the kernel costs a fault and a zeroed page
//! for every 4 KiB: as much as hashing what comes to lie there. So the last reference to a block returns its buffer to the pool.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};

use crate::block::BLOCK;

/// The alignment, in bytes, from which a disk can take a block without copying it: a page, which no disk of today exceeds.
pub const ALIGNMENT: usize = 4096;

/// The fewest and the most idle buffers that are kept. In between as many as are in use, for their number swings by about as
/// much; never more than a node has under way that stages from its peers.
const IDLE_BUFFER_LIMITS: (usize, usize) = (16, 48);

/// The buffers that are free.
#[derive(Debug, Default)]
pub struct BufferPool {
    pool: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    idle: Vec<BytesMut>,
    /// The number of buffers in use.
    used: usize,
}

/// A buffer for some bytes, at first empty.
#[derive(Debug)]
pub struct Buffer {
    room: BytesMut,
    /// The pool that it returns to, if it holds a whole block.
    home: Option<Arc<BufferPool>>,
}

impl BufferPool {
    /// A buffer of `len` bytes, up to a block. One for a whole block is aligned for direct I/O.
    pub fn take(self: &Arc<Self>, len: u64) -> Buffer {
        if len != BLOCK {
            return Buffer { room: BytesMut::with_capacity(len as usize), home: None };
        }
        let mut pool = self.pool();
        pool.used += 1;
        let idle = pool.idle.pop();
        drop(pool);
        Buffer { room: idle.unwrap_or_else(block), home: Some(self.clone()) }
    }

    fn pool(&self) -> MutexGuard<'_, Idle> {
        self.pool.lock()
    }
}

/// A fresh, aligned buffer for a block.
pub fn block() -> BytesMut {
    let mut room = BytesMut::with_capacity(BLOCK as usize + ALIGNMENT);
    room.resize(room.as_ptr().align_offset(ALIGNMENT), 0);
    room.split_off(room.len())
}

impl Buffer {
    /// Makes the content immutable. The buffer returns to the pool with the last reference to any part of it.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl Deref for Buffer {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.room
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.room
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.room
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let mut room = std::mem::take(&mut self.room);
        room.clear();
        // What had to grow has moved.
        let fits =
            room.capacity() <= BLOCK as usize + ALIGNMENT && room.as_ptr().align_offset(ALIGNMENT) == 0;
        let mut pool = home.pool();
        pool.used -= 1;
        if fits {
            pool.idle.push(room);
        }
        let most = pool.used.clamp(IDLE_BUFFER_LIMITS.0, IDLE_BUFFER_LIMITS.1).min(pool.idle.len());
        let beyond = pool.idle.split_off(most);
        // It takes a while to give back room.
        drop(pool);
        drop(beyond);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_without_references_is_reused() {
        let buffers = Arc::new(BufferPool::default());
        let mut buffer = buffers.take(BLOCK);
        buffer.extend_from_slice(&[7; BLOCK as usize]);
        let place = buffer.as_ptr();
        assert_eq!(place.align_offset(ALIGNMENT), 0);
        let mut part = buffer.freeze();
        drop(part.split_to(100));
        assert_ne!(buffers.take(BLOCK).as_ptr(), place, "some of it is still in use");
        assert_eq!(part[0], 7);
        drop(part);
        let again = buffers.take(BLOCK);
        assert_eq!(again.as_ptr(), place);
        assert!(again.is_empty() && again.capacity() >= BLOCK as usize);
    }

    #[test]
    fn pool_keeps_few_idle_block_buffers() {
        let buffers = Arc::new(BufferPool::default());
        drop(buffers.take(100));
        let mut grown = buffers.take(BLOCK);
        grown.extend_from_slice(&[0; 2 * BLOCK as usize]);
        drop(grown);
        let idle = || buffers.pool().idle.len();
        assert_eq!(idle(), 0);
        let (some, most) = IDLE_BUFFER_LIMITS;
        let mut many: Vec<_> = (0..4 * most).map(|_| buffers.take(BLOCK)).collect();
        let small: Vec<_> = (0..4 * most).map(|_| buffers.take(1)).collect();
        many.truncate(2 * most);
        assert_eq!(idle(), most);
        many.truncate(some + 5);
        assert_eq!(idle(), some + 5, "as much as is in use");
        drop(many);
        assert_eq!(idle(), some, "but some in any case");
        drop(small);
        assert_eq!(idle(), some);
    }
}
