//! `bt://project[@job|@latest][/checkpoint]`: which checkpoint is meant.

use std::fmt;
use std::str::FromStr;

use super::group::{CheckpointGroup, latest};
use super::{
    CheckpointId, LATEST, LOOSE, SCHEME, check_job, check_name, check_project, encoded_name, invalid,
};
use crate::error::{Error, Result};

/// The suffix that selects another rank than 0.
const RANK_SUFFIX: &str = "?rank=";

/// A selector of a checkpoint: by its project and, where they are named, its job and name; else the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointSelector {
    /// The project.
    pub project: String,
    /// The ID of the job; `None`: any.
    pub job: Option<String>,
    /// The name of the checkpoint; `None`: the latest.
    pub name: Option<String>,
    /// The rank whose part is meant.
    pub rank: u32,
}

impl CheckpointSelector {
    /// The one that it names, if it leaves nothing open.
    pub fn pinned(&self) -> Option<CheckpointId> {
        CheckpointId::new(&self.project, self.job.as_deref()?, self.name.as_deref()?, self.rank).ok()
    }

    /// Chooses among `groups`, oldest first. Without a name, the [`latest`], as it was when it was last complete. A name stands
    /// for what is saved under it now, by the job whose checkpoint of the name is the latest, or else the newest.
    pub fn choose(&self, groups: &[CheckpointGroup]) -> Option<CheckpointGroup> {
        let selected: Vec<_> = groups.iter().filter(|group| self.selects(group)).collect();
        let latest = latest(selected.iter().copied());
        if self.name.is_none() {
            return latest;
        }
        let now = latest.and_then(|latest| selected.iter().find(|group| group.job() == latest.job()));
        now.or(selected.last()).map(|group| (*group).clone())
    }

    /// Whether it may mean `group`.
    pub fn selects(&self, group: &CheckpointGroup) -> bool {
        self.selects_id(&group.ranks()[0].id)
    }

    /// Whether it may mean the checkpoint of which `id` is a rank's part.
    pub fn selects_id(&self, id: &CheckpointId) -> bool {
        self.project == id.project()
            && self.job.as_deref().is_none_or(|job| job == id.job())
            && self.name.as_deref().is_none_or(|name| name == id.name())
    }
}

impl From<CheckpointId> for CheckpointSelector {
    fn from(CheckpointId { project, job, name, rank }: CheckpointId) -> Self {
        Self { project, job: Some(job), name: Some(name), rank }
    }
}

impl FromStr for CheckpointSelector {
    type Err = Error;

    /// # Errors
    /// [`Kind::Invalid`](crate::error::Kind::Invalid), which says what is wrong with it.
    fn from_str(text: &str) -> Result<Self> {
        let rest = text.strip_prefix(SCHEME).and_then(|rest| rest.strip_prefix("://")).unwrap_or(text);
        let (rest, rank) = match rest.rsplit_once(RANK_SUFFIX) {
            Some((rest, rank)) => {
                (rest, rank.parse().map_err(|_| invalid(format!("{rank:?} is not a rank of a node")))?)
            }
            None => (rest, 0),
        };
        if let Some(c) = rest.chars().find(|c| matches!(c, '?' | '#')) {
            return Err(invalid(format!("{c:?} is written as %{:02X}", u32::from(c))));
        }
        let decode = |text: &str| {
            encoded_name::decode(text)
                .ok_or_else(|| invalid(format!("{text:?} is not UTF-8 when it is decoded")))
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (project, job) = match authority.split_once('@') {
            Some((project, job)) => (decode(project)?, Some(job).filter(|job| *job != LATEST)),
            None => (decode(authority)?, None),
        };
        check_project(&project)?;
        job.map_or(Ok(()), check_job)?;
        let path = if path == LOOSE { path } else { path.strip_suffix('/').unwrap_or(path) };
        let name = if path.is_empty() { None } else { Some(decode(path)?) };
        name.as_deref().map_or(Ok(()), check_name)?;
        Ok(Self { project, job: job.map(str::to_owned), name, rank })
    }
}

impl fmt::Display for CheckpointSelector {
    /// The canonical form, which parses to the same again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}://{}", encoded_name::encode(&self.project))?;
        if let Some(job) = &self.job {
            write!(f, "@{job}")?;
        }
        if let Some(name) = &self.name {
            write!(f, "/{}", encoded_name::encode_path(name))?;
        }
        if self.rank == 0 { Ok(()) } else { write!(f, "{RANK_SUFFIX}{}", self.rank) }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::checkpoint::SavedCheckpoint;
    use crate::checkpoint::group::group;
    use crate::digest::Digest;

    #[test]
    fn selector_with_a_name_chooses_what_is_saved_now_and_else_what_was_last_complete() {
        let state = |name: &str, content: u8, complete| SavedCheckpoint {
            id: CheckpointId::new("p", "j", name, 0).expect("an id"),
            manifest: Digest([content; 32]),
            generation: 1,
            complete,
            files: 1,
            bytes: 1,
            written: DateTime::from_timestamp(i64::from(content), 0).expect("a time"),
            saved: DateTime::UNIX_EPOCH,
            seconds: 1.0,
            previous_complete: None,
        };
        let of_job = |job, saved: SavedCheckpoint| SavedCheckpoint {
            id: CheckpointId::new("p", job, saved.id.name(), 0).expect("an id"),
            ..saved
        };
        let groups = group([
            state("last", 9, false).succeed(Some(&state("last", 3, true))),
            state("step", 1, true),
            of_job("older", state("last", 2, true)),
            of_job("newer", state("last", 10, false)),
        ]);
        let chosen = |text: &str| {
            let selector: CheckpointSelector = text.parse().expect(text);
            let chosen = selector.choose(&groups).map(|group| group.ranks()[0].clone());
            chosen.map(|saved| (saved.id.name().to_owned(), saved.manifest.0[0], saved.complete))
        };
        for latest in ["bt://p", "bt://p@j"] {
            assert_eq!(chosen(latest), Some(("last".to_owned(), 3, true)));
        }
        for named in ["bt://p/last", "bt://p@j/last"] {
            assert_eq!(chosen(named), Some(("last".to_owned(), 9, false)));
        }
        assert_eq!(chosen("bt://p/step"), Some(("step".to_owned(), 1, true)));
        assert_eq!(chosen("bt://p/none"), None);
    }

    #[test]
    fn selector_has_a_canonical_form() {
        for (text, canonical) in [
            ("bt://llama", "bt://llama"),
            ("bt://llama@latest/", "bt://llama"),
            ("bt://llama@abc12345", "bt://llama@abc12345"),
            ("bt://my project@a1/out/checkpoint-5/", "bt://my%20project@a1/out/checkpoint-5"),
            ("bt://a%40b%2Fc/step%2520", "bt://a%40b%2Fc/step%2520"),
            ("bt://p@j/.", "bt://p@j/."),
            ("bt://p@j/x?rank=3", "bt://p@j/x?rank=3"),
            ("bt://p/x?rank=0", "bt://p/x"),
        ] {
            let selector: CheckpointSelector = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(selector.to_string(), canonical);
            assert_eq!(canonical.parse::<CheckpointSelector>().expect(canonical), selector);
        }
        let odd: CheckpointSelector = "bt://a%40b%2Fc/step%2520".parse().expect("encoded");
        assert_eq!((&odd.project[..], odd.name.as_deref()), ("a@b/c", Some("step%20")));
    }

    #[test]
    fn selector_that_is_wrong_is_refused() {
        for (text, said) in [
            ("bt://", "project is empty"),
            ("bt://@j", "project is empty"),
            ("bt://p@", "bad job ID"),
            ("bt://p@a.b", "bad job ID"),
            ("bt://p/a//b", "not the path"),
            ("bt://p/../b", "not the path"),
            ("bt://p/x?rank=x", "not a rank"),
            ("bt://p/x?r=1", "%3F"),
            ("bt://p/x#y", "%23"),
            ("bt://p/%FF", "UTF-8"),
            ("bt://p/%0A", "control character"),
        ] {
            let error = text.parse::<CheckpointSelector>().expect_err(text);
            assert!(error.to_string().contains(said), "{text}: {error}");
        }
    }
}
