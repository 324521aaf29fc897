//! Sizes that an origin may claim.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn content_of_an_absurd_size_is_read_past_the_cache() {
    let fixture = ContentFixture::new();
    for size in [(1 << 47) + 1, 1 << 62, (1 << 63) - 1] {
        let tier = ScriptedTier::new(&fixture.bytes, &[], false);
        let content = fixture.content(Blob { size, ..fixture.blob(false) }, None, &[&tier]);
        let read = content.read(0..10, None).await.expect("its first bytes");
        assert_eq!(read.concat(), fixture.bytes[..10]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn block_behind_the_end_of_a_content_is_no_flight() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[], false);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    let behind = block::count(SIZE);
    assert!(
        [behind, behind + 64, u64::MAX]
            .iter()
            .all(|index| { content.join_or_start(*index, 1, Urgency::Read).is_none() })
    );
}
