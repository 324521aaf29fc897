//! Rot in the map of a part.

use std::os::unix::fs::FileExt;

use super::*;

#[test]
fn partial_blob_whose_map_has_bits_without_checks_lacks_their_blocks() {
    let home = tempfile::tempdir().expect("a directory");
    let size = 70 * BLOCK;
    let bytes = content(size, 4);
    let cache = open(home.path(), UNLIMITED);
    let partial = cache.begin(&key(4), size).expect("a part");
    for index in [1, 65] {
        partial.put(&block(&bytes, index)).expect("room");
    }
    drop(partial);
    let map = cache.layout().create_blob(&key(4), BlobFile::Map).expect("the map");
    for word in [0, 1] {
        map.write_all_at(&[0xff; 8], presence::MAP_HEADER_BYTES + word * 16).expect("rot");
    }
    let partial = cache.resume(&key(4), size).expect("disk").expect("the part is there");
    let present = (0..70).filter(|i| partial.presence().state(*i) != BlockState::Absent);
    assert_eq!(present.collect::<Vec<_>>(), [1, 65]);
    assert_eq!(partial.presence().missing(), 68);
}
