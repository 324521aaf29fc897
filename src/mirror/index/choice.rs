//! Chooses the saved checkpoint that a source `bt://` means, or lists what there is instead.

use std::borrow::Cow;
use std::collections::BTreeSet;

use futures_util::{StreamExt, TryStreamExt, stream};

use crate::checkpoint::group::{CheckpointGroup, group, superseded};
use crate::checkpoint::{CheckpointId, CheckpointSelector, SavedCheckpoint};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::mirror::Mirror;

/// The number of existing names that an error lists.
const MAX_LISTED_NAMES: usize = 10;
/// The number of refs of a checkpoint's ranks that are read at once.
const REF_READS_IN_FLIGHT: usize = 16;

/// The checkpoint that a source means now.
#[derive(Clone, Debug)]
pub struct ChosenCheckpoint {
    /// The rank's part of it.
    pub saved: SavedCheckpoint,
    /// All ranks of it.
    pub group: CheckpointGroup,
    /// The snapshot that is meant: its manifest's digest.
    pub manifest: Digest,
}

impl ChosenCheckpoint {
    /// A note for the user on what was `done` with it, such as `mounted`; `None` where it is whole, complete and the newest.
    pub fn note(&self, done: &str) -> Option<String> {
        let Self { saved, group, manifest } = self;
        if group.is_earlier() {
            let (generation, written) = (saved.generation, saved.written.format("%Y-%m-%d %H:%M"));
            return Some(format!(
                "{} is {done} as it was last complete, generation {generation} of {written} UTC: what was saved since is \
                 not complete",
                saved.id
            ));
        }
        // The ref may be of a later generation than the entry, which is written after it.
        let is_complete = group.is_whole() && group.is_complete() && *manifest == saved.manifest;
        (!is_complete)
            .then(|| format!("{} is {done} as it is saved so far: it may not be complete", saved.id))
    }
}

impl Mirror {
    /// The checkpoints of `project`, and there of `job`, or all, oldest first; and damaged entries with their errors.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn checkpoint_groups(
        &self,
        project: Option<&str>,
        job: Option<&str>,
    ) -> Result<(Vec<CheckpointGroup>, Vec<(CheckpointId, Error)>)> {
        let (mut saved, mut damaged) = (Vec::new(), Vec::new());
        for (id, found) in self.checkpoints(project, job).await? {
            match found {
                Ok(found) => saved.push(found),
                Err(error) => damaged.push((id, error)),
            }
        }
        Ok((group(saved), damaged))
    }

    /// The checkpoint that `selector` means now. Where it names one, that need not be whole or complete; else it is
    /// the latest, as it was when it was last complete.
    ///
    /// # Errors
    /// [`Kind::NotFound`], which names what there is; those of the store.
    pub async fn choose_checkpoint(&self, selector: &CheckpointSelector) -> Result<ChosenCheckpoint> {
        let (groups, damaged) =
            self.checkpoint_groups(Some(&selector.project), selector.job.as_deref()).await?;
        let Some(group) = self.choose_group(selector, &groups).await? else {
            return Err(match damaged.into_iter().next() {
                Some((_, error)) => error.context(format!("cannot tell what {selector} is")),
                None => self.explain_missing(selector, &groups).await?,
            });
        };
        let Some(saved) = group.rank(selector.rank).cloned() else {
            let ranks = group.ranks().iter().map(|saved| saved.id.rank().to_string());
            let text = format!(
                "rank {} saved nothing of {}; these ranks did: {}",
                selector.rank,
                group.ranks()[0].id,
                names(ranks)
            );
            return Err(Error::new(Kind::NotFound, text));
        };
        let manifest = self.chosen_manifest(selector, &saved).await?;
        Ok(ChosenCheckpoint { group, saved, manifest })
    }

    /// The one of `groups` that `selector` means ([`CheckpointSelector::choose`]). What was last complete and is not in the
    /// mirror any more is passed over.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn choose_group(
        &self,
        selector: &CheckpointSelector,
        groups: &[CheckpointGroup],
    ) -> Result<Option<CheckpointGroup>> {
        let mut groups = Cow::Borrowed(groups);
        while let Some(chosen) = selector.choose(&groups) {
            if !chosen.is_earlier() || self.has_manifests(&chosen).await? {
                return Ok(Some(chosen));
            }
            groups.to_mut().retain(|group| !group.is_same_checkpoint(&chosen));
        }
        Ok(None)
    }

    /// Whether the manifests that the entries of all ranks name are there.
    async fn has_manifests(&self, group: &CheckpointGroup) -> Result<bool> {
        let lookups: Vec<_> = group.ranks().iter().map(|saved| self.has_manifest(&saved.manifest)).collect();
        stream::iter(lookups).buffered(REF_READS_IN_FLIGHT).try_all(std::future::ready).await
    }

    /// The snapshot of each rank of the `group` that `selector` has chosen, in the order of the ranks.
    ///
    /// # Errors
    /// Those of [`checkpoint_ref`](Self::checkpoint_ref).
    pub async fn chosen_manifests(
        &self,
        selector: &CheckpointSelector,
        group: &CheckpointGroup,
    ) -> Result<Vec<Digest>> {
        let lookups: Vec<_> =
            group.ranks().iter().map(|saved| self.chosen_manifest(selector, saved)).collect();
        stream::iter(lookups).buffered(REF_READS_IN_FLIGHT).try_collect().await
    }

    /// Returns the snapshot of a rank that `selector` has chosen. Of a named checkpoint it is that of its ref, which is written
    /// first; of the latest that of its entry, which alone tells what is complete.
    async fn chosen_manifest(
        &self,
        selector: &CheckpointSelector,
        saved: &SavedCheckpoint,
    ) -> Result<Digest> {
        // In any case: without a ref, the checkpoint was removed.
        let found = self.checkpoint_ref(&saved.id).await?;
        Ok(if selector.name.is_some() { found.manifest } else { saved.manifest })
    }

    /// Removes the oldest whole and complete checkpoints of a project. The `keep` newest of these stay, and that of `entered`,
    /// which was just saved; so do damaged entries. Returns the removed ones.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn prune_checkpoints(&self, entered: &CheckpointId, keep: usize) -> Result<Vec<CheckpointId>> {
        let (groups, _) = self.checkpoint_groups(Some(entered.project()), None).await?;
        let mut removed = Vec::new();
        for saved in superseded(&groups, keep, entered).flat_map(CheckpointGroup::ranks) {
            // Another saver may have removed it, or its job have saved it again, so that it is the newest.
            if self.remove_unchanged(saved).await? {
                removed.push(saved.id.clone());
            }
        }
        Ok(removed)
    }

    /// The error for a selector that means none of `groups`, those of its project and job.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn explain_missing(
        &self,
        selector: &CheckpointSelector,
        groups: &[CheckpointGroup],
    ) -> Result<Error> {
        let CheckpointSelector { project, job, name, .. } = selector;
        let owner = job.as_ref().map_or_else(|| format!("project {project:?}"), |job| format!("job {job}"));
        let newest = groups.iter().rfind(|group| selector.selects(group));
        let text = if let Some(newest) = newest {
            let ranks = newest.ranks().len();
            let lacks = match (newest.is_whole(), newest.has_mixed_ranks()) {
                (true, false) => "its job may still write it".to_owned(),
                (true, true) => "what its ranks last completed is of different times".to_owned(),
                (false, _) => format!("only {ranks} of its job's ranks saved it"),
            };
            let id = &newest.ranks()[0].id;
            format!(
                "{owner} has no complete checkpoint; the newest is {id}, and {lacks}: name it to take it as it is"
            )
        } else if let (Some(name), false) = (name, groups.is_empty()) {
            let there = names(groups.iter().rev().map(|group| group.name().to_owned()));
            format!("{owner} has no checkpoint {name:?} in the mirror {}; it has {there}", self.name())
        } else {
            let (all, _) = self.checkpoint_groups(job.as_ref().map(|_| &project[..]), None).await?;
            let there: Vec<_> = match job {
                Some(_) if !all.is_empty() => all.iter().rev().map(|group| group.job().to_owned()).collect(),
                _ => {
                    let all = self.checkpoint_groups(None, None).await?.0;
                    all.iter().rev().map(|group| group.project().to_owned()).collect()
                }
            };
            let what = if job.is_some() && !all.is_empty() { "jobs" } else { "projects" };
            match there.is_empty() {
                true => format!("the mirror {} has no checkpoint at all", self.name()),
                false => format!(
                    "{owner} has no checkpoint in the mirror {}; {what} that have: {}",
                    self.name(),
                    names(there)
                ),
            }
        };
        Ok(Error::new(Kind::NotFound, format!("{selector}: {text}")))
    }
}

/// The first of some names, each once.
fn names(all: impl IntoIterator<Item = String>) -> String {
    let mut seen = BTreeSet::new();
    let distinct: Vec<_> = all.into_iter().filter(|name| seen.insert(name.clone())).collect();
    match distinct.len().checked_sub(MAX_LISTED_NAMES) {
        None | Some(0) => distinct.join(", "),
        Some(more) => format!("{} and {more} more", distinct[..MAX_LISTED_NAMES].join(", ")),
    }
}
