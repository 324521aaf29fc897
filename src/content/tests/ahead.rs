//! Fetches ahead of readers, and their requests.

use super::*;
use crate::extent::{MAX_EXTENT_BLOCKS, Pace};

/// The longest requests, as for a fast and distant service.
fn longest_requests(ladder: Ladder) -> Ladder {
    let mut pace = Pace::default();
    (0..50).for_each(|_| pace.observe(Duration::from_millis(200), 8 << 20, Duration::from_millis(8)));
    assert_eq!(pace.blocks(), MAX_EXTENT_BLOCKS);
    ladder.with_pace(pace)
}

#[tokio::test(flavor = "multi_thread")]
async fn content_prefetched_is_cut_by_half_requests_and_by_the_groups_of_a_cluster() {
    for (group, first_blocks) in [(None, 8), (Some(10), 10), (Some(4), 4)] {
        let fixture = ContentFixture::new();
        let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Silence], true);
        let ladder = longest_requests(Ladder::new(vec![tier], Arc::default(), Arc::default()));
        let ladder = ladder.with_placement(group.and_then(ForeignPlacement::with_group));
        let content = fixture.content_of(fixture.blob(true), None, ladder);
        content.prefetch(0..SIZE);
        let flight = content.join_or_start(0, u64::MAX, Urgency::Ahead).expect("nothing is here");
        assert_eq!(flight.extent().blocks, first_blocks, "{group:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn content_of_an_origin_that_sends_all_of_it_is_known_as_such() {
    let fixture = ContentFixture::new();
    for (version, is_sent_whole) in [
        ("whole 1".to_owned(), true),
        ("0123456789".repeat(4), true),
        ("a".repeat(64), false),
        ("1".to_owned(), false),
    ] {
        for proved in [false, true] {
            let blob = Blob { version: version.clone().into(), ..fixture.blob(proved) };
            let content = fixture.content(blob, None, &[]);
            assert_eq!(content.is_sent_whole(), is_sent_whole && !proved, "{version}, {proved}");
        }
    }
}
