//! Buffers: room for blocks on their way, which is used again and again.
//!
//! Each byte that is delivered passes through such room once. Room fresh from the kernel costs a fault and a zeroed page for
//! every 4 KiB: as much as hashing what comes to lie there. So whoever lets go of a block last puts its room aside, for the next
//! one that comes.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

use crate::block::BLOCK;

/// Where a disk can take a block from without copying it, in bytes: a page, which no disk of today exceeds.
pub const ALIGNMENT: usize = 4096;

/// Room for how many blocks may be put aside, however few are in use: the number of those in use swings by about this much.
const ASIDE: usize = 16;

/// The room that nobody uses now: for as many blocks as are in use at most, or [`ASIDE`].
#[derive(Debug, Default)]
pub struct Buffers {
    rooms: Mutex<Rooms>,
}

#[derive(Debug, Default)]
struct Rooms {
    aside: Vec<BytesMut>,
    /// How many there are besides.
    used: usize,
}

/// Some room, at first empty.
#[derive(Debug)]
pub struct Buffer {
    room: BytesMut,
    home: Arc<Buffers>,
}

impl Buffers {
    /// Room for `len` bytes, up to a block. That for a whole block begins where a disk can take it from.
    pub fn take(self: &Arc<Self>, len: u64) -> Buffer {
        let mut rooms = self.rooms();
        rooms.used += 1;
        let aside = if len == BLOCK { rooms.aside.pop() } else { None };
        drop(rooms);
        let fresh = || if len == BLOCK { block() } else { BytesMut::with_capacity(len as usize) };
        Buffer { room: aside.unwrap_or_else(fresh), home: self.clone() }
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        // Nothing panics while it is held.
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fresh room for a block, which begins where a disk can take it from.
pub fn block() -> BytesMut {
    let mut room = BytesMut::with_capacity(BLOCK as usize + ALIGNMENT);
    room.resize(room.as_ptr().align_offset(ALIGNMENT), 0);
    room.split_off(room.len())
}

impl Buffer {
    /// What it holds, which can't change any more. The room is put aside when the last part of that is let go of.
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
        let mut room = std::mem::take(&mut self.room);
        room.clear();
        // Less was for less than a block, and what had to grow has moved.
        let fits = (BLOCK as usize..=BLOCK as usize + ALIGNMENT).contains(&room.capacity());
        let fits = fits && room.as_ptr().align_offset(ALIGNMENT) == 0;
        let mut rooms = self.home.rooms();
        rooms.used -= 1;
        if fits {
            rooms.aside.push(room);
        }
        let most = rooms.used.max(ASIDE);
        rooms.aside.truncate(most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_used_again_once_nobody_has_a_part_of_it() {
        let buffers = Arc::new(Buffers::default());
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
    fn only_room_for_blocks_is_put_aside_and_not_much_of_it() {
        let buffers = Arc::new(Buffers::default());
        drop(buffers.take(100));
        let mut grown = buffers.take(BLOCK);
        grown.extend_from_slice(&[0; 2 * BLOCK as usize]);
        drop(grown);
        let aside = || buffers.rooms().aside.len();
        assert_eq!(aside(), 0);
        let mut many: Vec<_> = (0..4 * ASIDE).map(|_| buffers.take(BLOCK)).collect();
        many.truncate(ASIDE + 5);
        assert_eq!(aside(), ASIDE + 5, "as much as is in use");
        drop(many);
        assert_eq!(aside(), ASIDE, "but some in any case");
    }
}
