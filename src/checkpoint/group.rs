//! The ranks of a checkpoint together: which checkpoints are whole, and which is the latest.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};

use super::{CheckpointId, LOOSE, SavedCheckpoint};

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

    /// Whether every rank that saved checkpoints in its job saved this one. Loose files beside them are none: a rank that only logs
    /// makes nothing less whole.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether the job had finished it on every rank, as far as can be told, and what the ranks have is of one time.
    pub fn is_complete(&self) -> bool {
        self.ranks.iter().all(|saved| saved.complete) && self.are_of_one_time(&self.ranks)
    }

    /// Whether `other` is of the same checkpoint, in whatever state.
    pub fn is_same_checkpoint(&self, other: &Self) -> bool {
        self.has_name_of(&other.ranks[0].id)
    }

    /// Whether `id` is one of its ranks, or would be.
    fn has_name_of(&self, id: &CheckpointId) -> bool {
        (self.project(), self.job(), self.name()) == (id.project(), id.job(), id.name())
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

    /// Whether every rank has a complete state, but no complete states of all ranks are of one time. They make up no state of the
    /// job then: one rank has finished a state that another has not.
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

    /// Returns the number of its files.
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

/// The newest of `groups` that is or was whole and complete. One that is not complete any more on every rank counts in its [last
/// complete state](CheckpointGroup::last_complete).
pub fn latest<'a>(groups: impl IntoIterator<Item = &'a CheckpointGroup>) -> Option<CheckpointGroup> {
    let whole = groups.into_iter().filter(|group| group.is_whole());
    let complete = whole.filter_map(CheckpointGroup::last_complete);
    complete.max_by(|a, b| a.order(b)).map(Cow::into_owned)
}

/// The checkpoints that are older than the `keep` newest among `groups`, all of a project as [`group`] orders them. Only those that
/// are whole and complete count, and no loose files; the latest is never returned, nor that of which `entered` is a rank, nor one
/// of more ranks than each newer one: what the first ranks of a job have saved looks whole before the others have saved anything.
pub fn superseded<'a>(
    groups: &'a [CheckpointGroup],
    keep: usize,
    entered: &CheckpointId,
) -> impl Iterator<Item = &'a CheckpointGroup> + use<'a> {
    let complete = groups.iter().filter(|group| group.is_whole() && group.is_complete() && !group.rest);
    let (mut kept, mut most_ranks) = (0, 0);
    let mut superseded = Vec::new();
    for group in complete.rev() {
        let ranks = group.ranks.len();
        if kept < keep.max(1) || ranks > most_ranks {
            (kept, most_ranks) = (kept + 1, most_ranks.max(ranks));
        } else if !group.has_name_of(entered) {
            superseded.push(group);
        }
    }
    superseded.into_iter().rev()
}

/// The numbers in a name.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}
