//! Tiers that are slow in every way, or refuse, on a clock that jumps.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use futures_util::{FutureExt, StreamExt, stream};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::*;
use crate::block::BLOCK;
use crate::tier::Body;
use crate::tier::memory::MemoryTier;

/// The behaviour of one response.
#[derive(Clone, Copy, Debug)]
enum ScriptedAnswer {
    /// At once.
    Prompt,
    /// At once, so many bytes a second.
    Slow(u64),
    /// After so many seconds.
    Late(u64),
    /// So many bytes at once, and no more.
    Stalled(u64),
    /// Fails at once.
    Fail(Kind),
}

/// A tier of zeros, which answers as scripted: the last response for all that follow.
#[derive(Debug)]
struct SlowTier {
    answers: Mutex<VecDeque<ScriptedAnswer>>,
    requests: AtomicUsize,
    at_once: AtomicUsize,
    most_at_once: AtomicUsize,
    /// Whether it takes one request after the other.
    serial: Option<tokio::sync::Mutex<()>>,
}

impl SlowTier {
    fn new(answers: &[ScriptedAnswer], serial: bool) -> Arc<Self> {
        Arc::new(Self {
            answers: Mutex::new(answers.iter().copied().collect()),
            requests: AtomicUsize::new(0),
            at_once: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
            serial: serial.then(tokio::sync::Mutex::default),
        })
    }

    fn answer(&self) -> ScriptedAnswer {
        let mut answers = self.answers.lock();
        if answers.len() > 1 { answers.pop_front().expect("two") } else { answers[0] }
    }
}

/// A request that the tier works on.
struct BusyTier<'a>(&'a AtomicUsize);

impl Drop for BusyTier<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Tier for SlowTier {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        _: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        async move {
            self.requests.fetch_add(1, Relaxed);
            let _busy = BusyTier(&self.at_once);
            self.most_at_once.fetch_max(self.at_once.fetch_add(1, Relaxed) + 1, Relaxed);
            let _turn = match &self.serial {
                Some(turn) => Some(turn.lock().await),
                None => None,
            };
            let len = range.end - range.start;
            let answer = self.answer();
            let rate = match answer {
                ScriptedAnswer::Prompt | ScriptedAnswer::Stalled(_) => u64::MAX,
                ScriptedAnswer::Slow(rate) => rate,
                ScriptedAnswer::Late(seconds) => {
                    sleep(Duration::from_secs(seconds)).await;
                    u64::MAX
                }
                ScriptedAnswer::Fail(kind) => return Err(Error::new(kind, format!("{kind:?}"))),
            };
            if let ScriptedAnswer::Stalled(sent) = answer {
                let sent = stream::iter([Ok(Bytes::from(vec![0; sent.min(len) as usize]))]);
                return Ok(Some(sent.chain(stream::pending()).boxed()));
            }
            let step = if rate == u64::MAX { BLOCK } else { rate };
            let pieces = stream::iter((0..len).step_by(step as usize)).then(move |at| async move {
                if rate < u64::MAX {
                    sleep(Duration::from_secs(1)).await;
                }
                Ok(Bytes::from(vec![0; step.min(len - at) as usize]))
            });
            Ok(Some(pieces.boxed()))
        }
        .boxed()
    }
}

fn blob() -> &'static Blob {
    static BLOB: OnceLock<Blob> = OnceLock::new();
    BLOB.get_or_init(|| {
        let memory = MemoryTier::new("test");
        memory.put(b"file", vec![0; 64 * BLOCK as usize]);
        memory.blob(b"file").expect("it was put")
    })
}

impl Ladder {
    /// Begins with the estimate `pace` of its tiers.
    pub(crate) fn with_pace(self, pace: Pace) -> Self {
        Self { pace: Mutex::new(pace), ..self }
    }
}

fn ladder(tier: &Arc<SlowTier>) -> Ladder {
    Ladder::new(vec![tier.clone()], Arc::default(), Arc::default())
}

async fn fetch(
    ladder: &Ladder,
    blocks: Range<u64>,
    urgency: Urgency,
    stall_limit: u64,
) -> Result<FetchOutcome> {
    let accept = async |arrival: Arrival| Ok(arrival.index);
    let stall_limit = Duration::from_secs(stall_limit);
    ladder
        .fetch(blob(), blocks.collect::<Vec<_>>(), (FetchScope::Direct, &|| urgency), stall_limit, accept)
        .await
}

#[tokio::test(start_paused = true)]
async fn fetch_with_one_slow_request_is_hedged() {
    for rate in [5, 20_000] {
        let tier = SlowTier::new(&[ScriptedAnswer::Slow(rate), ScriptedAnswer::Prompt], false);
        let began = Instant::now();
        fetch(&ladder(&tier), 0..8, Urgency::Read, 30).await.expect("the second request");
        assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        assert_eq!(tier.requests.load(Relaxed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn stage_that_waited_long_for_its_turn_outlasts_a_failure() {
    let tier = SlowTier::new(&[ScriptedAnswer::Fail(Kind::Unavailable), ScriptedAnswer::Prompt], false);
    let ladder = ladder(&tier);
    (0..10).for_each(|_| ladder.parallelism.shrink());
    let slots: Vec<_> = std::iter::from_fn(|| ladder.parallelism.try_acquire()).collect();
    let free = async {
        sleep(Duration::from_secs(60)).await;
        drop(slots);
    };
    let (fetched, ()) = tokio::join!(fetch(&ladder, 0..1, Urgency::Stage, 30), free);
    fetched.expect("the second request");
    assert_eq!(tier.requests.load(Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn fetch_that_stalls_within_a_block_is_hedged_five_seconds_after_its_last_byte() {
    use ScriptedAnswer::{Fail, Prompt, Slow, Stalled};
    for sent in [0, BLOCK / 2, BLOCK - 1, 2 * BLOCK - 1] {
        let tier = SlowTier::new(&[Stalled(sent), Prompt], false);
        let began = Instant::now();
        fetch(&ladder(&tier), 0..8, Urgency::Read, 30).await.expect("the second request");
        assert!(began.elapsed() < Duration::from_millis(5100), "{sent}: {:?}", began.elapsed());
    }
    // The second one fails at once, and so does the next.
    for bad in [Fail(Kind::Refused), Fail(Kind::Unavailable), Fail(Kind::NotFound)] {
        let tier = SlowTier::new(&[Stalled(BLOCK / 2), bad, bad, Prompt], false);
        let began = Instant::now();
        fetch(&ladder(&tier), 0..8, Urgency::Read, 30).await.expect("the fourth request");
        assert!(began.elapsed() < Duration::from_secs(10), "{bad:?}: {:?}", began.elapsed());
        assert_eq!(tier.requests.load(Relaxed), 4);
    }
    let tier = SlowTier::new(&[Stalled(BLOCK / 2), Stalled(BLOCK / 4), Slow(5), Prompt], false);
    let began = Instant::now();
    fetch(&ladder(&tier), 0..8, Urgency::Read, 30).await.expect("each second one is replaced");
    assert!(began.elapsed() < Duration::from_secs(26), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn fetch_whose_second_requests_all_fail_sends_few() {
    let tier =
        SlowTier::new(&[ScriptedAnswer::Stalled(BLOCK / 2), ScriptedAnswer::Fail(Kind::Unavailable)], false);
    let began = Instant::now();
    let error = fetch(&ladder(&tier), 0..8, Urgency::Read, 30).await.expect_err("nothing comes");
    assert_eq!((error.kind(), began.elapsed().as_secs()), (Kind::Timeout, 30));
    assert!((5..12).contains(&tier.requests.load(Relaxed)), "{tier:?}");
}

#[tokio::test(start_paused = true)]
async fn fetch_slower_than_its_siblings_is_hedged() {
    let tier = SlowTier::new(&[ScriptedAnswer::Slow(100_000), ScriptedAnswer::Slow(10_000_000)], false);
    let ladder = ladder(&tier);
    let began = Instant::now();
    let fetches = [0..4, 4..36, 36..64].map(|blocks| fetch(&ladder, blocks, Urgency::Stage, 120));
    join_all(fetches).await.into_iter().for_each(|fetched| _ = fetched.expect("all"));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(tier.requests.load(Relaxed), 4);
}

#[tokio::test(start_paused = true)]
async fn fetch_on_a_slow_link_is_not_hedged() {
    let tier = SlowTier::new(&[ScriptedAnswer::Slow(100_000)], false);
    fetch(&ladder(&tier), 0..3, Urgency::Read, 30).await.expect("slowly");
    assert_eq!(tier.requests.load(Relaxed), 1);
    let tier = SlowTier::new(&[ScriptedAnswer::Slow(60_000)], false);
    let ladder = ladder(&tier);
    join_all((0..8).map(|block| fetch(&ladder, block..block + 1, Urgency::Stage, 120))).await;
    assert_eq!(tier.requests.load(Relaxed), 8);
}

#[tokio::test(start_paused = true)]
async fn fetch_from_a_late_server_waits_until_the_deadline() {
    let tier = SlowTier::new(&[ScriptedAnswer::Late(20)], false);
    fetch(&ladder(&tier), 0..2, Urgency::Read, 30).await.expect("late");
    assert!(tier.requests.load(Relaxed) <= 3);
    let tier = SlowTier::new(&[ScriptedAnswer::Late(100)], false);
    let began = Instant::now();
    let error = fetch(&ladder(&tier), 0..2, Urgency::Read, 30).await.expect_err("too late for a reader");
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());
    fetch(&ladder(&tier), 0..2, Urgency::Stage, 120).await.expect("a stage waits longer");
}

#[tokio::test(start_paused = true)]
async fn fetch_from_a_server_too_slow_for_many_sends_fewer() {
    let tier = SlowTier::new(&[ScriptedAnswer::Late(6)], true);
    let ladder = ladder(&tier);
    let stage = |blocks: Range<u64>| join_all(blocks.map(|b| fetch(&ladder, b..b + 1, Urgency::Stage, 120)));
    // As many as a stage begins with; these are all sent before it is known.
    stage(0..8).await.into_iter().for_each(|fetched| _ = fetched.expect("in turn"));
    tier.most_at_once.store(0, Relaxed);
    stage(8..40).await.into_iter().for_each(|fetched| _ = fetched.expect("in turn"));
    assert!(tier.most_at_once.load(Relaxed) <= 4, "{tier:?}");
}

/// Fetches two blocks from tiers that answer so; how that ended and how long it took, and how many requests each tier got.
async fn fetch_from(tiers: [&[ScriptedAnswer]; 2]) -> (Result<FetchOutcome>, u64, [usize; 2]) {
    let tiers = tiers.map(|answers| SlowTier::new(answers, false));
    let dyns = tiers.iter().map(|tier| tier.clone() as Arc<dyn Tier>).collect();
    let ladder = Ladder::new(dyns, Arc::default(), Arc::default());
    let began = Instant::now();
    let fetched = fetch(&ladder, 0..2, Urgency::Read, 30).await;
    (fetched, began.elapsed().as_secs(), tiers.map(|tier| tier.requests.load(Relaxed)))
}

#[tokio::test(start_paused = true)]
async fn fetch_from_a_slow_tier_above_one_that_is_of_no_help_waits_for_it() {
    use ScriptedAnswer::{Fail, Late, Prompt};
    for (upper, lower, within, lower_requests) in [
        (&[Late(6)][..], Fail(Kind::Refused), 12, 1),
        (&[Late(100), Prompt], Fail(Kind::Refused), 6, 1),
        (&[Fail(Kind::Unavailable), Fail(Kind::Unavailable), Prompt], Fail(Kind::NotFound), 3, 1),
        (&[Late(20)], Fail(Kind::Unsupported), 36, 2),
        (&[Late(6)], Fail(Kind::Unavailable), 12, 1),
    ] {
        let (fetched, took, requests) = fetch_from([upper, &[lower]]).await;
        assert!(took <= within, "{upper:?} {lower:?}: {took}");
        match (upper, lower) {
            // Two of the tries were given up for the other tier.
            ([Late(20)], _) => assert_eq!(fetched.expect_err("late").kind(), Kind::Timeout),
            _ => _ = fetched.expect("from the upper tier"),
        }
        assert_eq!(requests[1], lower_requests, "{upper:?} {lower:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn fetch_refused_below_a_silent_tier_times_out_naming_both() {
    use ScriptedAnswer::{Fail, Late};
    let (fetched, took, requests) = fetch_from([&[Late(100)], &[Fail(Kind::Refused)]]).await;
    let error = fetched.expect_err("nobody has it");
    assert_eq!((error.kind(), took, requests[1]), (Kind::Timeout, 30, 1));
    assert!(
        error.to_string().contains("did not respond within") && error.to_string().contains("Refused"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn fetch_refused_by_all_tiers_fails_at_once_as_the_last_one_did() {
    use ScriptedAnswer::Fail;
    let (fetched, took, requests) = fetch_from([&[Fail(Kind::NotFound)], &[Fail(Kind::Refused)]]).await;
    assert_eq!((fetched.expect_err("refused").kind(), took, requests), (Kind::Refused, 0, [1, 1]));
    let (fetched, _, requests) = fetch_from([&[Fail(Kind::Refused)], &[Fail(Kind::Changed)]]).await;
    assert_eq!((fetched.expect_err("changed").kind(), requests), (Kind::Changed, [1, 2]));
}

#[tokio::test(start_paused = true)]
async fn fetch_that_fails_at_once_many_times_leaves_the_lower_tier_its_turn() {
    use ScriptedAnswer::{Fail, Late, Prompt};
    let unavailable = Fail(Kind::Unavailable);
    let (fetched, took, _) = fetch_from([
        &[unavailable, unavailable, unavailable, Late(100)],
        &[unavailable, unavailable, unavailable, Prompt],
    ])
    .await;
    fetched.expect("from the lower tier, which is back");
    assert!(took <= 10, "{took}");
    let tier = SlowTier::new(&[unavailable], false);
    let failed = fetch(&ladder(&tier), 0..2, Urgency::Stage, 120).await.expect_err("it stays away");
    assert_eq!(failed.kind(), Kind::Unavailable);
    assert!(tier.requests.load(Relaxed) > 60, "the stall timeout would have overflowed: {tier:?}");
}
