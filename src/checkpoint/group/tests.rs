//! Groups of checkpoints: the latest, and those that newer ones supersede.

use proptest::prelude::*;

use super::*;
use crate::digest::Digest;

fn saved(job: &str, name: &str, rank: u32, written: i64, complete: bool) -> SavedCheckpoint {
    let at = |seconds| DateTime::from_timestamp(seconds, 0).expect("a time");
    SavedCheckpoint {
        id: CheckpointId::new("p", job, name, rank).expect("an id"),
        manifest: Digest([2; 32]),
        generation: 1,
        complete,
        files: 1,
        bytes: 10,
        written: at(written),
        // As when the newest is saved first.
        saved: at(1_000_000 - written),
        seconds: 1.0,
        previous_complete: None,
    }
}

/// Saves a rank again.
fn again(before: &SavedCheckpoint, written: i64, complete: bool) -> SavedCheckpoint {
    let next = saved(before.id.job(), before.id.name(), before.id.rank(), written, complete);
    SavedCheckpoint { manifest: Digest::of(&written.to_le_bytes()), ..next }.succeed(Some(before))
}

/// Saves a rank again, in a state that is not complete.
fn rewritten(before: &SavedCheckpoint, written: i64) -> SavedCheckpoint {
    again(before, written, false)
}

fn latest_of(all: &[SavedCheckpoint]) -> Option<String> {
    latest(&group(all.to_vec())).map(|group| format!("{}/{}", group.job(), group.name()))
}

#[test]
fn latest_is_the_newest_that_is_whole_and_complete() {
    let mut all = vec![
        saved("a", "step-9", 0, 100, true),
        saved("a", "step-9", 1, 101, true),
        saved("a", "step-10", 0, 200, true),
        saved("a", "step-10", 1, 201, true),
    ];
    assert_eq!(latest_of(&all).as_deref(), Some("a/step-10"));
    all[3].complete = false;
    assert_eq!(latest_of(&all).as_deref(), Some("a/step-9"), "rank 1 is still at it");
    all[3].complete = true;
    all.push(saved("a", "step-11", 1, 300, true));
    assert_eq!(latest_of(&all).as_deref(), Some("a/step-10"), "rank 0 has not saved step-11");
    all.push(saved("b", "step-1", 0, 400, true));
    assert_eq!(latest_of(&all).as_deref(), Some("b/step-1"), "of the newest job");
    assert_eq!(latest_of(&[]), None);
}

#[test]
fn latest_of_the_same_second_is_that_with_the_higher_number() {
    let all = [saved("a", "step-9", 0, 100, true), saved("a", "step-10", 0, 100, true)];
    assert_eq!(latest_of(&all).as_deref(), Some("a/step-10"));
}

#[test]
fn loose_files_are_the_latest_only_where_there_is_nothing_else() {
    let mut all = vec![saved("a", ".", 0, 900, true)];
    assert_eq!(latest_of(&all).as_deref(), Some("a/."));
    all.extend([saved("a", "out", 0, 800, true), saved("a", "out/checkpoint-5", 0, 100, true)]);
    assert_eq!(latest_of(&all).as_deref(), Some("a/out/checkpoint-5"));
}

#[test]
fn latest_is_whole_without_the_rank_that_only_logs() {
    let all = [
        saved("a", "out/checkpoint-9", 0, 100, true),
        saved("a", ".", 1, 900, true),
        saved("a", "out", 2, 900, true),
    ];
    assert_eq!(latest_of(&all).as_deref(), Some("a/out/checkpoint-9"));
    assert_eq!(latest_of(&all[1..2]).as_deref(), Some("a/."));
}

#[test]
fn latest_that_is_rewritten_is_as_it_was_when_it_was_last_complete() {
    let last = saved("a", "last", 0, 300, true);
    let mut all = vec![saved("a", "step-1", 0, 200, true), rewritten(&last, 900)];
    let found = latest(&group(all.clone())).expect("one");
    assert_eq!((found.ranks(), found.is_earlier(), found.is_complete()), (&[last][..], true, true));
    all.push(saved("a", "step-2", 0, 400, true));
    assert_eq!(latest_of(&all).as_deref(), Some("a/step-2"), "it is newer than what was complete");
    all.push(saved("a", "step-3", 0, 1000, false));
    assert_eq!(latest_of(&all).as_deref(), Some("a/step-2"), "step-3 never was");
    all.push(saved("a", "last", 1, 300, false));
    assert_eq!(latest_of(&all).as_deref(), None, "rank 1 has saved no step");
}

#[test]
fn latest_never_mixes_ranks_of_different_times() {
    let [first, second] = [0, 1].map(|rank| saved("a", "last", rank, 100 + i64::from(rank), true));
    let of = |all: [SavedCheckpoint; 2]| {
        let groups = group(all);
        assert_eq!(groups[0].has_mixed_ranks(), latest(&groups).is_none());
        latest(&groups).map(|found| found.ranks().iter().map(|rank| rank.written.timestamp()).collect())
    };
    let states: Option<Vec<_>> = of([rewritten(&first, 300), rewritten(&second, 301)]);
    assert_eq!(states, Some(vec![100, 101]));
    assert_eq!(of([rewritten(&first, 300), second.clone()]), Some(vec![100, 101]), "rank 1 is not at it yet");
    assert_eq!(
        of([again(&first, 100, true), second.clone()]),
        Some(vec![100, 101]),
        "a copy with its time was added"
    );
    let done = again(&first, 300, true);
    for (behind, why) in [
        (rewritten(&second, 301), "rank 1 has not finished what rank 0 has"),
        (second.clone(), "rank 1 is not at it yet"),
        (rewritten(&rewritten(&second, 301), 500), "rank 1 is at the one after that"),
    ] {
        assert_eq!(of([done.clone(), behind]), Some(vec![100, 101]), "{why}");
    }
    assert_eq!(of([first.clone(), again(&second, 301, true)]), Some(vec![100, 101]), "the other way");
    let both = [done.clone(), again(&second, 301, true)];
    assert_eq!(of(both.clone()), Some(vec![300, 301]));
    assert_eq!(of([rewritten(&both[0], 500), both[1].clone()]), Some(vec![300, 301]));
    assert_eq!(of([done.clone(), again(&second, 450, true)]), Some(vec![300, 450]), "rank 1 took longer");
    assert_eq!(of([again(&done, 500, true), second.clone()]), None, "100 of rank 0 is gone");
    let behind = rewritten(&rewritten(&second, 301), 1000);
    assert_eq!(of([again(&done, 500, true), behind]), None, "however often rank 1 was saved since");
    let next = rewritten(&done, 500);
    assert_eq!(of([next.clone(), rewritten(&second, 501)]), None, "neither side goes back on its own");
    let groups = group([next, rewritten(&second, 501)]);
    let whole = group([saved("a", "step-1", 0, 50, true), saved("a", "step-1", 1, 50, true)]);
    let found = latest(groups.iter().chain(&whole)).expect("an older one");
    assert_eq!(found.name(), "step-1");
}

/// The id of a checkpoint that is not there.
fn elsewhere() -> CheckpointId {
    CheckpointId::new("p", "elsewhere", "step-1", 0).expect("an id")
}

#[test]
fn superseded_are_the_oldest_that_are_whole_and_complete() {
    let mut all: Vec<_> = (1..=4).map(|step| saved("a", &format!("step-{step}"), 0, step, true)).collect();
    all.push(saved("b", "step-0", 0, 0, false));
    all.push(saved("a", ".", 0, 0, true));
    let of = |keep| {
        let groups = group(all.clone());
        superseded(&groups, keep, &elsewhere()).map(|group| group.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of(2), ["step-1", "step-2"]);
    assert_eq!(of(0), of(1), "the latest stays");
    assert_eq!(of(1), ["step-1", "step-2", "step-3"]);
    assert_eq!(of(4), [""; 0]);
}

#[test]
fn superseded_spares_what_was_just_entered() {
    // As where the clock of the node that wrote step-2 was ahead.
    let groups = group((1..=2).map(|step| saved("a", &format!("step-{step}"), 0, step, true)));
    let of = |name: &str, rank| {
        let entered = CheckpointId::new("p", "a", name, rank).expect("an id");
        superseded(&groups, 1, &entered).map(|group| group.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of("step-1", 0), [""; 0]);
    assert_eq!(of("step-1", 1), [""; 0], "another rank of it");
    assert_eq!(of("step-2", 0), ["step-1"]);
}

#[test]
fn superseded_counts_no_mixture_of_ranks() {
    let [first, second] = [0, 1].map(|rank| saved("a", "last", rank, 100, true));
    let step = [0, 1].map(|rank| saved("a", "step-1", rank, 50, true));
    let of = |ranks: [SavedCheckpoint; 2]| {
        let groups = group(step.iter().cloned().chain(ranks));
        superseded(&groups, 1, &elsewhere()).map(|group| group.name().to_owned()).collect::<Vec<_>>()
    };
    let [done, other] = [again(&first, 300, true), again(&second, 301, true)];
    assert_eq!(of([done.clone(), second]), [""; 0]);
    assert_eq!(of([done, other]), ["step-1"]);
}

#[test]
fn superseded_spares_a_checkpoint_of_more_ranks_than_each_newer_one() {
    let of_ranks = |job: &str, step: i64, ranks: std::ops::Range<u32>| {
        let (job, name) = (job.to_owned(), format!("step-{step}"));
        ranks.map(move |rank| saved(&job, &name, rank, step, true))
    };
    let mut all: Vec<_> = of_ranks("a", 1, 0..2).chain(of_ranks("a", 2, 0..2)).collect();
    let of = |all: &[SavedCheckpoint], keep| {
        let groups = group(all.to_vec());
        superseded(&groups, keep, &elsewhere()).map(|group| group.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(of(&all, 1), ["step-1"]);
    all.extend(of_ranks("b", 3, 0..1));
    assert_eq!(of(&all, 1), ["step-1"], "rank 1 of the new job has saved nothing yet");
    all.extend(of_ranks("b", 4, 0..1));
    assert_eq!(of(&all, 1), ["step-1", "step-3"]);
    assert_eq!(of(&all, 2), ["step-1"]);
    all.extend(of_ranks("b", 3, 1..2).chain(of_ranks("b", 4, 1..2)));
    assert_eq!(of(&all, 1), ["step-1", "step-2", "step-3"]);
}

proptest! {
    #[test]
    fn group_keeps_every_rank_and_latest_is_no_older_than_any_other_whole_one(
        all in proptest::collection::vec((0..3u32, 0..4u32, 0..3u32, 0..50i64, any::<bool>()), 0..30),
    ) {
        let all: BTreeMap<_, _> = all
            .into_iter()
            .map(|(job, name, rank, at, complete)| {
                let saved = saved(&format!("j{job}"), &format!("step-{name}"), rank, at, complete);
                (saved.id.clone(), saved)
            })
            .collect();
        let groups = group(all.values().cloned());
        let kept: BTreeMap<_, _> = groups.iter().flat_map(|g| g.ranks()).map(|s| (s.id.clone(), s.clone())).collect();
        prop_assert_eq!(&kept, &all);
        let whole = |group: &&CheckpointGroup| {
            let ranks = |ids: Vec<&CheckpointId>| ids.iter().map(|id| id.rank()).collect::<BTreeSet<_>>();
            let of_job = all.keys().filter(|id| id.job() == group.job()).collect();
            ranks(group.ranks().iter().map(|saved| &saved.id).collect()) == ranks(of_job)
        };
        let newest = groups.iter().filter(whole).filter(|group| group.is_complete()).map(|g| g.written()).max();
        prop_assert_eq!(latest(&groups).map(|group| group.written()), newest);
    }
}
