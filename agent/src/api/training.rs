//! The identity of a training job: what its commands find in `BT_` variables, and what its checkpoints are called by.

use bdnfs::checkpoint::{CheckpointId, DEFAULT_PROJECT, LOOSE};
use bdnfs::error::{Error, Kind, Result};
use serde::{Deserialize, Serialize};

use super::cache_scope::CacheScope;
use crate::random;

/// The team of a job that names none.
pub const DEFAULT_TEAM: &str = "default";
/// The length of a generated id: as many letters and digits as tell a trillion jobs apart.
const TRAINING_ID_LEN: usize = 8;

/// The identity of a job: which rank of which training job it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainingIdentity {
    /// The project; default: [`DEFAULT_PROJECT`].
    pub project: Option<String>,
    /// The team that the project belongs to.
    pub team: Option<String>,
    /// The id of the training job, one for all its ranks; default: a random one.
    pub id: Option<String>,
    /// The rank of this node, counted from 0.
    pub rank: u32,
    /// The number of nodes of the training job.
    pub nodes: u32,
    /// The address of rank 0; default: this node.
    pub leader: Option<String>,
}

impl Default for TrainingIdentity {
    fn default() -> Self {
        Self { project: None, team: None, id: None, rank: 0, nodes: 1, leader: None }
    }
}

impl TrainingIdentity {
    /// The name of the project.
    pub fn project(&self) -> &str {
        self.project.as_deref().unwrap_or(DEFAULT_PROJECT)
    }

    /// The name of the team.
    pub fn team(&self) -> &str {
        self.team.as_deref().unwrap_or(DEFAULT_TEAM)
    }

    /// The id of the training job; empty until one is [chosen](Self::choose_id).
    pub fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
    }

    /// Chooses an id where there is none, out of random bytes.
    pub fn choose_id(&mut self, random: [u8; TRAINING_ID_LEN]) {
        const LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let letter = |byte: u8| char::from(LETTERS[usize::from(byte) % LETTERS.len()]);
        self.id.get_or_insert_with(|| random.into_iter().map(letter).collect());
    }

    /// A random id of a training job.
    ///
    /// # Errors
    /// [`Kind::Disk`] where the kernel has nothing random.
    pub fn random_id() -> Result<String> {
        let mut identity = Self::default();
        identity.choose_id(random::bytes()?);
        Ok(identity.id().to_owned())
    }

    /// Makes sure that its id can be the name of a directory, its project has a name, and its rank is one of its nodes.
    ///
    /// # Errors
    /// [`Kind::Invalid`].
    pub fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::new(Kind::Invalid, text));
        // The words of all of its checkpoints.
        CheckpointId::new(self.project(), self.id.as_deref().unwrap_or("any"), LOOSE, self.rank)?;
        self.team.as_deref().map_or(Ok(()), |team| CacheScope::Team.check_name(team))?;
        if self.rank < self.nodes {
            return Ok(());
        }
        invalid(format!("rank {} of {} nodes: ranks are counted from 0", self.rank, self.nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choose_id_without_an_id_sets_eight_letters_or_digits() {
        let mut training = TrainingIdentity::default();
        training.choose_id([0, 25, 26, 35, 36, 71, 255, 7]);
        assert_eq!(training.id(), "az09a9dh");
        training.choose_id([1; 8]);
        assert_eq!(training.id(), "az09a9dh");
    }

    #[test]
    fn training_identity_with_a_path_or_rank_out_of_range_is_refused() {
        let of = |id: &str| TrainingIdentity { id: Some(id.into()), ..Default::default() };
        for id in ["ab12cd34", "my-job_2"] {
            assert!(of(id).check().is_ok(), "{id}");
        }
        for id in ["", ".", "..", "a/b", "a.b", "a@b", "ä", "latest"] {
            assert!(of(id).check().is_err(), "{id}");
        }
        for project in [String::new(), "a\nb".to_owned(), "p".repeat(241)] {
            assert!(TrainingIdentity { project: Some(project), ..Default::default() }.check().is_err());
        }
        assert!(TrainingIdentity { rank: 2, nodes: 2, ..Default::default() }.check().is_err());
    }
}
