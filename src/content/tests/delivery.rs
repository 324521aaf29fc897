//! When readers get what comes.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn block_that_came_is_delivered_before_the_next() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::HangAfter(BLOCK + 5)], true);
    let content = fixture.content(fixture.blob(true), None, &[&tier]);
    let _staging = content.join_or_start(0, 4, Urgency::Stage).expect("nothing is here");
    fixture.expect(&content, 0..BLOCK).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_with_stalled_owner_is_hedged() {
    let fixture = ContentFixture::new();
    let mirror = ScriptedTier::new(&fixture.bytes, &[], false);
    let ladder = Ladder::new(vec![mirror.clone()], Arc::default(), Arc::default());
    let ladder = ladder.with_placement(ForeignPlacement::with_group(4));
    let content = fixture.content_of(fixture.blob(true), None, ladder);
    // Staging waits; a reader that comes to wait for the same does not.
    let staging = content.join_or_start(0, u64::MAX, Urgency::Stage).expect("nothing is here");
    fixture.expect(&content, BLOCK - 5..2 * BLOCK + 5).await;
    assert_eq!(mirror.sent.load(Relaxed), 3 * BLOCK, "what it reads, and no more");
    assert!(staging.block(3).now_or_never().is_none(), "the rest is waited for");
}
