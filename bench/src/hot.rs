//! The functions that every read passes, each by itself: for criterion, which takes its time, and for callgrind, which counts
//! its instructions.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;

use bdnfs::block::{self, Arrival, Check};
use bdnfs::cache::presence::Presence;
use bdnfs::digest::Digest;
use bdnfs::error::Result;
use bdnfs::manifest::{ListedFile, Listing, Manifest};
use bdnfs::peer::Member;
use bdnfs::peer::rendezvous::{self, BlockGroup};
use bdnfs::source::Patterns;
use bytes::Bytes;

/// One piece of work, ready to be repeated; its result keeps it from being optimized away.
pub type HotFunction = Box<dyn FnMut() -> u64>;
/// The maker of a piece of work.
type MakeHotFunction = fn() -> Result<HotFunction>;

/// All of them, by name.
pub fn all() -> BTreeMap<&'static str, MakeHotFunction> {
    BTreeMap::from([
        ("verify", verify as MakeHotFunction),
        ("presence", presence as MakeHotFunction),
        ("lookup", lookup as MakeHotFunction),
        ("rank", rank as MakeHotFunction),
    ])
}

/// One block of 1 MiB is held against its check.
fn verify() -> Result<HotFunction> {
    // The first of two: what stands alone in its blob is hashed in another way.
    let (size, bytes) = (2 * block::BLOCK, Bytes::from(vec![7; block::BLOCK as usize]));
    let check = Check::of(size, 0, &bytes);
    Ok(Box::new(move || {
        let arrival = Arrival { size, index: 0, bytes: bytes.clone() };
        u64::from(black_box(arrival).verify(Some(&check)).is_ok())
    }))
}

/// The 4,096 blocks of a blob of 4 GiB are looked for, noted and doubted again.
fn presence() -> Result<HotFunction> {
    let presence = Presence::none(4096);
    Ok(Box::new(move || {
        let mut news = 0;
        for index in 0..presence.blocks() {
            black_box(presence.state(index));
            news += u64::from(presence.set_present(index, true));
        }
        (0..presence.blocks()).for_each(|index| presence.doubt(index));
        news + presence.missing()
    }))
}

/// A hundred names are looked up in a directory of 10,000.
fn lookup() -> Result<HotFunction> {
    const FILES: usize = 10_000;
    let name = |index: usize| format!("sample-{index:08}.bin").into_bytes();
    let mut listing = Listing::new("file:///", Patterns::default(), &std::env::temp_dir());
    for index in 0..FILES {
        let (path, version) = (name(index), index.to_le_bytes());
        let (size, mtime, executable) = (1, (0, 0), false);
        listing.file(ListedFile { path: &path, size, mtime, executable, version: &version, sha256: None });
    }
    let mut bytes = Vec::new();
    listing.finish(&mut bytes)?;
    let manifest = Manifest::from_bytes(bytes)?;
    let names: Vec<_> = (0..FILES).step_by(100).map(name).collect();
    Ok(Box::new(move || {
        let found = names.iter().filter(|name| matches!(manifest.lookup(0, name), Ok(Some(_))));
        found.count() as u64
    }))
}

/// The owners of one group of blocks among 200 nodes.
fn rank() -> Result<HotFunction> {
    let member = |index: u16| {
        Arc::new(Member {
            id: format!("node-{index}"),
            address: SocketAddr::from(([127, 0, 0, 1], 1000 + index)),
            zone: format!("zone-{}", index % 4),
            capacity: 1 << 40,
            protocol: 1,
            draining: false,
            tenants: Vec::new(),
            holds: Vec::new(),
        })
    };
    let members: Vec<_> = (0..200).map(member).collect();
    let (digest, size) = (Digest::of(b"blob"), 4 << 30);
    let mut index = 0;
    Ok(Box::new(move || {
        index = (index + 1) % block::count(size);
        let group = BlockGroup::of("tenant", &digest, size, index);
        rendezvous::owners(group, &members).iter().flatten().map(|owner| owner.capacity & 1 | 1).sum()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hot_functions_return_the_expected_counts() {
        let done: BTreeMap<_, _> = all().into_iter().map(|(name, make)| (name, make().unwrap()())).collect();
        assert_eq!(
            done,
            BTreeMap::from([("verify", 1), ("presence", 2 * 4096), ("lookup", 100), ("rank", 2)])
        );
    }
}
