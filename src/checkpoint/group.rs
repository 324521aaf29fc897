//! The ranks of a checkpoint together: which checkpoints are whole, and which is the latest.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::{LOOSE, SavedCheckpoint};

/// A checkpoint with what each rank saved of it.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointGroup {
    /// By rank; never empty.
    ranks: Vec<SavedCheckpoint>,
    whole: bool,
    rest: bool,
    earlier: bool,
}

impl CheckpointGroup {
    /// The part of each rank, by rank; never empty.
    pub fn ranks(&self) -> &[SavedCheckpoint] {
        &self.ranks
    }

    /// The part of `rank`.
    pub fn rank(&self, rank: u32) -> Option<&SavedCheckpoint> {
        self.ranks.iter().find(|saved| saved.id.rank() == rank)
    }

    /// The project.
    pub fn project(&self) -> &str {
        self.ranks[0].id.project()
    }

    /// The job's ID.
    pub fn job(&self) -> &str {
        self.ranks[0].id.job()
    }

    /// The checkpoint's name.
    pub fn name(&self) -> &str {
        self.ranks[0].id.name()
    }

    /// Whether every rank that saved checkpoints in its job saved this one. Loose files beside them are none: a rank that only logs makes
    /// nothing less whole.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether the job had finished it on every rank, as far as can be told, and what the ranks have is of one time.
    pub fn is_complete(&self) -> bool {
        self.ranks.iter().all(|saved| saved.complete) && self.are_of_one_time(&self.ranks)
    }

    /// Whether `other` is of the same checkpoint, in whatever state.
    pub fn is_same_checkpoint(&self, other: &Self) -> bool {
        (self.project(), self.job(), self.name()) == (other.project(), other.job(), other.name())
    }

    /// Whether it is the state in which it was last complete, and what was saved since is not complete.
    pub fn is_earlier(&self) -> bool {
        self.earlier
    }

    /// The state in which the job had last finished it on every rank: of each rank what is saved now or what its entry keeps.
    /// `None` where a rank has none, or where no states of the ranks are of one time.
    pub fn last_complete(&self) -> Option<Cow<'_, Self>> {
        if self.is_complete() {
            return Some(Cow::Borrowed(self));
        }
        // States of one time are nearer to each other than to any other state of their ranks.
        self.ranks[0].complete_states().find_map(|first| {
            let distance = |state: &SavedCheckpoint| (state.written - first.written).abs();
            let nearest = |saved: &SavedCheckpoint| saved.complete_states().min_by_key(distance);
            let ranks: Vec<_> = self.ranks.iter().map(nearest).collect::<Option<_>>()?;
            self.are_of_one_time(&ranks).then_some(Cow::Owned(Self { ranks, earlier: true, ..*self }))
        })
    }

    /// Whether every rank has a complete state, but these are of different times, so that they make up no state that there ever
    /// was: one rank has finished a state that another has not.
    pub fn has_mixed_ranks(&self) -> bool {
        let has_state = |saved: &SavedCheckpoint| saved.complete_states().next().is_some();
        self.ranks.iter().all(has_state) && self.last_complete().is_none()
    }

    /// Whether `states`, one of each rank, are of one time. A rank that was saved once can't tell; for another, they must be
    /// nearer to its own than half the time that it took from its previous complete generation to the next one. What comes after
    /// the newest one is not another, so other ranks may finish that later.
    fn are_of_one_time(&self, states: &[SavedCheckpoint]) -> bool {
        let written = states.iter().map(|state| state.written);
        let (Some(first), Some(last)) = (written.clone().min(), written.max()) else { return true };
        self.ranks.iter().zip(states).all(|(saved, state)| {
            // One that brought no later time, as by a rename or a copy with its times, tells nothing.
            let previous =
                saved.previous_complete.as_ref().filter(|previous| previous.until > previous.written);
            previous.is_none_or(|previous| {
                let tolerance = previous.tolerance();
                let is_newest = state.generation == saved.generation;
                state.written - first <= tolerance && (is_newest || last - state.written <= tolerance)
            })
        })
    }

    /// When a file of it was last changed.
    pub fn written(&self) -> DateTime<Utc> {
        self.ranks.iter().map(|saved| saved.written).max().unwrap_or_default()
    }

    /// When the last of its ranks was in the mirror.
    pub fn saved(&self) -> DateTime<Utc> {
        self.ranks.iter().map(|saved| saved.saved).max().unwrap_or_default()
    }

    /// How many files it has.
    pub fn files(&self) -> u64 {
        self.ranks.iter().map(|saved| saved.files).sum()
    }

    /// Total size of the files, in bytes.
    pub fn bytes(&self) -> u64 {
        self.ranks.iter().map(|saved| saved.bytes).sum()
    }

    /// Oldest first; of the same age, by the numbers in their names.
    fn order(&self, other: &Self) -> Ordering {
        let place = |group: &Self| (!group.rest, group.written(), numbers(group.name()));
        place(self).cmp(&place(other)).then_with(|| self.ranks[0].id.cmp(&other.ranks[0].id))
    }
}

/// Groups the ranks of each checkpoint, oldest first. All that their jobs saved must be among them, or what
/// is whole is not known. What lies loose beside the checkpoints, as a tracker does, comes before them
/// however new it is: no job resumes from it while there is anything else.
pub fn group(saved: impl IntoIterator<Item = SavedCheckpoint>) -> Vec<CheckpointGroup> {
    let mut named: BTreeMap<_, BTreeMap<u32, SavedCheckpoint>> = BTreeMap::new();
    let mut parents = BTreeSet::new();
    for saved in saved {
        let (id, rank) = (saved.id.clone(), saved.id.rank());
        let job = (id.project().to_owned(), id.job().to_owned());
        if let Some((parent, _)) = id.name().rsplit_once('/') {
            parents.insert((job.clone(), parent.to_owned()));
        }
        named.entry((job, id.name().to_owned())).or_default().insert(rank, saved);
    }
    let is_rest = |(job, name): &((String, String), String)| {
        name == LOOSE || parents.contains(&(job.clone(), name.clone()))
    };
    // By job: the ranks that saved checkpoints, and those that saved what lies beside them.
    let mut saving: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
    for (key, ranks) in &named {
        saving.entry((key.0.clone(), is_rest(key))).or_default().extend(ranks.keys());
    }
    let mut groups: Vec<_> = named
        .into_iter()
        .map(|(key, ranks)| {
            let rest = is_rest(&key);
            let whole = saving[&(key.0, rest)].len() == ranks.len();
            CheckpointGroup { whole, rest, earlier: false, ranks: ranks.into_values().collect() }
        })
        .collect();
    groups.sort_by(CheckpointGroup::order);
    groups
}

/// The newest of `groups` that is whole and complete, or was: one that is not complete any more, on every rank, counts as what it
/// was when it last was ([`CheckpointGroup::last_complete`]).
pub fn latest<'a>(groups: impl IntoIterator<Item = &'a CheckpointGroup>) -> Option<CheckpointGroup> {
    let whole = groups.into_iter().filter(|group| group.is_whole());
    let complete = whole.filter_map(CheckpointGroup::last_complete);
    complete.max_by(|a, b| a.order(b)).map(Cow::into_owned)
}

/// The checkpoints that are older than the `keep` newest among `groups`, all of a project as [`group`] orders them. Only those that
/// are whole and complete count, and no loose files; the latest is never returned.
pub fn superseded(groups: &[CheckpointGroup], keep: usize) -> impl Iterator<Item = &CheckpointGroup> {
    let complete = groups.iter().filter(|group| group.is_whole() && group.is_complete() && !group.rest);
    let count = complete.clone().count();
    complete.take(count.saturating_sub(keep.max(1)))
}

/// The numbers in a name.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::checkpoint::CheckpointId;
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
        assert_eq!(
            of([rewritten(&first, 300), second.clone()]),
            Some(vec![100, 101]),
            "rank 1 is not at it yet"
        );
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

    #[test]
    fn superseded_are_the_oldest_that_are_whole_and_complete() {
        let mut all: Vec<_> =
            (1..=4).map(|step| saved("a", &format!("step-{step}"), 0, step, true)).collect();
        all.push(saved("b", "step-0", 0, 0, false));
        all.push(saved("a", ".", 0, 0, true));
        let of = |keep| {
            let groups = group(all.clone());
            superseded(&groups, keep).map(|group| group.name().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of(2), ["step-1", "step-2"]);
        assert_eq!(of(0), of(1), "the latest stays");
        assert_eq!(of(1), ["step-1", "step-2", "step-3"]);
        assert_eq!(of(4), [""; 0]);
    }

    #[test]
    fn superseded_counts_no_mixture_of_ranks() {
        let [first, second] = [0, 1].map(|rank| saved("a", "last", rank, 100, true));
        let step = [0, 1].map(|rank| saved("a", "step-1", rank, 50, true));
        let of = |ranks: [SavedCheckpoint; 2]| {
            let groups = group(step.iter().cloned().chain(ranks));
            superseded(&groups, 1).map(|group| group.name().to_owned()).collect::<Vec<_>>()
        };
        let [done, other] = [again(&first, 300, true), again(&second, 301, true)];
        assert_eq!(of([done.clone(), second]), [""; 0]);
        assert_eq!(of([done, other]), ["step-1"]);
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
}
