//! The arguments that say which part of which training job a job is.

use anyhow::{Context, Result};
use bdnfs_agent::api::job::TrainingIdentity;

/// The arguments that identify a training job. What is missing, the `BT_` variables of this environment say.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct TrainingArgs {
    /// Project of the job. Default: that of SPEC, else BT_TRAINING_PROJECT_NAME, else "default"
    #[arg(long)]
    project: Option<String>,
    /// Team of the project. Default: that of SPEC
    #[arg(long)]
    team: Option<String>,
    /// Id of the training job, the same on all its nodes. Default: BT_TRAINING_JOB_ID, else a random one
    #[arg(long)]
    id: Option<String>,
    /// Rank of this node, from 0 on. Default: BT_NODE_RANK, else 0
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Number of nodes of the training job. Default: BT_GROUP_SIZE, else 1
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Address of rank 0. Default: BT_LEADER_ADDR, else this node
    #[arg(long, value_name = "ADDRESS")]
    leader: Option<String>,
}

impl TrainingArgs {
    /// The identity that they, the specification's `project` and `team`, and the environment amount to.
    pub fn identity(
        &self,
        project: Option<String>,
        team: Option<String>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<TrainingIdentity> {
        let env = |name: &str| env(name).filter(|value| !value.is_empty());
        let number = |own: Option<u32>, name| own.map_or_else(|| number(name, env), |own| Ok(Some(own)));
        let identity = TrainingIdentity {
            project: self.project.clone().or(project).or_else(|| env("BT_TRAINING_PROJECT_NAME")),
            team: self.team.clone().or(team),
            id: self.id.clone().or_else(|| env("BT_TRAINING_JOB_ID")),
            rank: number(self.rank, "BT_NODE_RANK")?.unwrap_or(0),
            nodes: number(self.nodes, "BT_GROUP_SIZE")?.unwrap_or(1),
            leader: self.leader.clone().or_else(|| env("BT_LEADER_ADDR")),
        };
        identity.check()?;
        Ok(identity)
    }
}

/// Returns the number of times that the job was submitted before, as the environment says.
pub fn retries(env: impl Fn(&str) -> Option<String>) -> Result<u32> {
    Ok(number("BT_RETRY_COUNT", env)?.unwrap_or(0))
}

/// The number that a variable holds, unless it is empty.
fn number(name: &str, env: impl Fn(&str) -> Option<String>) -> Result<Option<u32>> {
    let text = env(name).filter(|text| !text.is_empty());
    text.map(|text| text.parse().with_context(|| format!("{name}={text}"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_takes_options_before_the_specification_before_the_environment() {
        let env = |name: &str| match name {
            "BT_NODE_RANK" => Some("1".to_owned()),
            "BT_GROUP_SIZE" => Some("2".to_owned()),
            "BT_TRAINING_JOB_ID" => Some(String::new()),
            "BT_TRAINING_PROJECT_NAME" | "BT_LEADER_ADDR" => Some("env".to_owned()),
            _ => None,
        };
        let of = |args: TrainingArgs, project: Option<&str>| {
            args.identity(project.map(str::to_owned), Some("team".to_owned()), env)
        };
        let plain = of(TrainingArgs::default(), None).unwrap();
        assert_eq!((plain.project(), plain.rank, plain.nodes, plain.id.as_deref()), ("env", 1, 2, None));
        assert_eq!((plain.leader.as_deref(), plain.team.as_deref()), (Some("env"), Some("team")));
        assert_eq!(of(TrainingArgs::default(), Some("spec")).unwrap().project(), "spec");
        let named = TrainingArgs { project: Some("arg".to_owned()), rank: Some(0), ..Default::default() };
        let named = of(named, Some("spec")).unwrap();
        assert_eq!((named.project(), named.rank), ("arg", 0));
        assert!(of(TrainingArgs { rank: Some(2), ..Default::default() }, None).is_err());
    }

    #[test]
    fn retries_are_those_of_the_environment() {
        for (text, retries) in
            [(None, Some(0)), (Some(""), Some(0)), (Some("3"), Some(3)), (Some("-1"), None)]
        {
            assert_eq!(super::retries(|_| text.map(str::to_owned)).ok(), retries, "{text:?}");
        }
    }
}
