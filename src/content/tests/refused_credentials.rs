//! Mounts of one source whose credentials differ.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn content_whose_first_mount_is_refused_is_read_with_the_credentials_of_another() {
    let fixture = ContentFixture::new();
    let refused = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Refused)], true);
    let changed = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Changed)], true);
    let mirrored = fixture.content(fixture.blob(true), None, &[&refused, &changed]);
    let healthy = ScriptedTier::new(&fixture.bytes, &[], false);
    let tiers: Vec<Arc<dyn Tier>> = vec![healthy.clone()];
    let right = Arc::new(Ladder::new(tiers, Arc::default(), Arc::default()));
    mirrored.add_ladder(&right);
    fixture.expect(&mirrored, 0..10).await;
    drop(mirrored);

    let fixture = ContentFixture::new();
    let refused = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Refused)], true);
    let content = fixture.content(fixture.blob(false), None, &[&refused]);
    let read = async || content.read(0..10, Some(0)).await.map(|pieces| pieces.concat());
    assert_eq!(read().await.expect_err("revoked").kind(), Kind::Refused);
    let ladder = |tier: &Arc<ScriptedTier>| {
        Arc::new(Ladder::new(vec![Arc::clone(tier) as Arc<dyn Tier>], Arc::default(), Arc::default()))
    };
    let also_refused = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Refused)], true);
    let valid = ScriptedTier::new(&fixture.bytes, &[], false);
    let (other, right) = (ladder(&also_refused), ladder(&valid));
    content.add_ladder(&other);
    assert_eq!(read().await.expect_err("all are").kind(), Kind::Refused);
    content.add_ladder(&right);
    fixture.expect(&content, 0..SIZE).await;
    let asked = [&refused, &also_refused].map(|tier| tier.requests.load(Relaxed));
    fixture.expect(&content, 0..SIZE).await;
    assert_eq!(asked, [&refused, &also_refused].map(|tier| tier.requests.load(Relaxed)));
}

#[tokio::test(flavor = "multi_thread")]
async fn content_does_not_keep_the_ladders_of_mounts_that_are_gone() {
    let fixture = ContentFixture::new();
    let tier = ScriptedTier::new(&fixture.bytes, &[Fault::Fail(Kind::Refused)], true);
    let content = fixture.content(fixture.blob(false), None, &[&tier]);
    let gone = Arc::new(Ladder::new(vec![tier.clone()], Arc::default(), Arc::default()));
    content.add_ladder(&gone);
    let left = Arc::downgrade(&gone);
    drop(gone);
    assert!(left.upgrade().is_none());
    assert_eq!(content.read(0..10, Some(0)).await.expect_err("revoked").kind(), Kind::Refused);
}
