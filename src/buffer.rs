//! Buffers: room for blocks on their way, which is used again and again.
//!
//! Each byte that is delivered passes through such room once. Room fresh from the kernel costs a fault and a zeroed page for
//! every 4 KiB: as much as hashing what comes to lie there. So whoever lets go of a block last puts its room aside, for the next
//! one that comes.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, MutexGuard};

use crate::block::BLOCK;

/// Where a disk can take a block from without copying it, in bytes: a page, which no disk of today exceeds.
pub const ALIGNMENT: usize = 4096;

/// Room for how many blocks may be put aside: as many as are in use, for their number swings by about as much; but this many in
/// any case, and no more than a node has under way that stages from its peers.
const ASIDE: (usize, usize) = (16, 48);

/// The room that nobody uses now.
#[derive(Debug, Default)]
pub struct Buffers {
    rooms: Mutex<Rooms>,
}

#[derive(Debug, Default)]
struct Rooms {
    aside: Vec<BytesMut>,
    /// How many blocks have the others.
    used: usize,
}

/// Some room, at first empty.
#[derive(Debug)]
pub struct Buffer {
    room: BytesMut,
    /// Where it goes, if it is for a block.
    home: Option<Arc<Buffers>>,
}

impl Buffers {
    /// Room for `len` bytes, up to a block. That for a whole block begins where a disk can take it from.
    pub fn take(self: &Arc<Self>, len: u64) -> Buffer {
        if len != BLOCK {
            return Buffer { room: BytesMut::with_capacity(len as usize), home: None };
        }
        let mut rooms = self.rooms();
        rooms.used += 1;
        let aside = rooms.aside.pop();
        drop(rooms);
        Buffer { room: aside.unwrap_or_else(block), home: Some(self.clone()) }
    }

    fn rooms(&self) -> MutexGuard<'_, Rooms> {
        // Nothing panics while it is held.
        self.rooms.lock()
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
        let Some(home) = self.home.take() else { return };
        let mut room = std::mem::take(&mut self.room);
        room.clear();
        // What had to grow has moved.
        let fits =
            room.capacity() <= BLOCK as usize + ALIGNMENT && room.as_ptr().align_offset(ALIGNMENT) == 0;
        let mut rooms = home.rooms();
        rooms.used -= 1;
        if fits {
            rooms.aside.push(room);
        }
        let most = rooms.used.clamp(ASIDE.0, ASIDE.1).min(rooms.aside.len());
        let beyond = rooms.aside.split_off(most);
        // It takes a while to give back room.
        drop(rooms);
        drop(beyond);
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
        let (some, most) = ASIDE;
        let mut many: Vec<_> = (0..4 * most).map(|_| buffers.take(BLOCK)).collect();
        let small: Vec<_> = (0..4 * most).map(|_| buffers.take(1)).collect();
        many.truncate(2 * most);
        assert_eq!(aside(), most);
        many.truncate(some + 5);
        assert_eq!(aside(), some + 5, "as much as is in use");
        drop(many);
        assert_eq!(aside(), some, "but some in any case");
        drop(small);
        assert_eq!(aside(), some);
    }
}
