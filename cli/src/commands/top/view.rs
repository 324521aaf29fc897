//! The view: the status of all agents, and transfer rates between two refreshes.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, bail};
use bdnfs::metrics::Traffic;
use bdnfs_agent::api::publication::{PublicationState, PublicationStatus};
use bdnfs_agent::api::{AgentInfo, AgentStatus, MountStatus};
use serde::Serialize;
use tokio::time::Instant;

use crate::agents;
use crate::commands::status;

/// Bytes per second by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Served from the cache by the agent; reads of the kernel by itself are not counted.
    pub cache: f64,
    /// Fetched from other nodes.
    pub peer: f64,
    /// Fetched from the mirror.
    pub mirror: f64,
    /// Fetched from the origin.
    pub origin: f64,
}

impl Rates {
    /// The rates over a number of seconds.
    fn between(before: &Traffic, now: &Traffic, seconds: f64) -> Self {
        // An agent that restarted counts from 0.
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        Self {
            cache: rate(before.cache, now.cache),
            peer: rate(before.peer, now.peer),
            mirror: rate(before.mirror, now.mirror),
            origin: rate(before.origin, now.origin),
        }
    }

    /// The rate of all tiers but the cache.
    pub fn fetched(&self) -> f64 {
        self.peer + self.mirror + self.origin
    }
}

/// The agents of this machine and their rates since the last refresh.
#[derive(Debug, Default)]
pub struct View {
    refreshed_at: Option<Instant>,
    /// The traffic at the last refresh: of agents by process id, and of their mounts by id.
    last_traffic: HashMap<(u32, Option<u64>), Traffic>,
    /// The agents.
    pub agents: Vec<AgentView>,
    /// Agents that do not answer, a line each.
    pub errors: Vec<String>,
}

/// An agent and its mounts.
#[derive(Debug, Serialize)]
pub struct AgentView {
    /// The status of the agent.
    #[serde(flatten)]
    pub agent: AgentInfo,
    /// The transfer rates.
    pub rates: Rates,
    /// The mounts of the agent.
    pub mounts: Vec<MountView>,
    /// Publications that are pending or failed.
    pub publications: Vec<PublicationStatus>,
}

/// A mount.
#[derive(Debug, Serialize)]
pub struct MountView {
    /// The status of the mount.
    #[serde(flatten)]
    pub status: MountStatus,
    /// The transfer rates.
    pub rates: Rates,
    /// The state in a few words.
    #[serde(rename = "doing")]
    pub state: String,
}

/// The JSON form of a view.
#[derive(Debug, Serialize)]
pub struct JsonView<'a> {
    #[serde(rename = "daemons")]
    agents: &'a [AgentView],
    #[serde(rename = "troubles")]
    errors: &'a [String],
}

impl View {
    /// Queries all agents, or only that of `cache`.
    pub async fn refresh(&mut self, cache: Option<&Path>, now: Instant) -> Result<()> {
        let seconds = self.refreshed_at.map_or(f64::INFINITY, |at| (now - at).as_secs_f64().max(1e-3));
        let before = std::mem::take(&mut self.last_traffic);
        let answers = agents::query_all(cache).await?;
        (self.agents, self.errors) = (Vec::new(), Vec::new());
        for (socket, answer) in answers {
            match answer {
                // An agent may listen on two sockets.
                Ok(status) if self.agents.iter().any(|seen| seen.agent.pid == status.agent.pid) => {}
                Ok(status) => self.agents.push(self.agent_view(status, &before, seconds)),
                Err(error) => self.errors.push(format!("{}: {error}", socket.display())),
            }
        }
        for seen in &self.agents {
            self.last_traffic.insert((seen.agent.pid, None), seen.agent.work.traffic);
            for mount in &seen.mounts {
                let traffic = mount.status.traffic;
                self.last_traffic.insert((seen.agent.pid, Some(mount.status.mounted.id)), traffic);
            }
        }
        self.refreshed_at = Some(now);
        Ok(())
    }

    /// Fails where an agent did not respond.
    pub fn check_answers(&self) -> Result<()> {
        if self.errors.is_empty() { Ok(()) } else { bail!("{}", self.errors.join("; ")) }
    }

    fn agent_view(
        &self,
        status: AgentStatus,
        before: &HashMap<(u32, Option<u64>), Traffic>,
        seconds: f64,
    ) -> AgentView {
        let pid = status.agent.pid;
        let rates = |id: Option<u64>, now: &Traffic| {
            // All traffic of a new mount falls into the interval; on the first refresh there are no rates.
            let zero = Traffic::default();
            Rates::between(before.get(&(pid, id)).unwrap_or(&zero), now, seconds)
        };
        let mounts = status.mounts.into_iter().map(|mount| MountView {
            rates: rates(Some(mount.mounted.id), &mount.traffic),
            state: status::format_state(&mount),
            status: mount,
        });
        let is_settled = |one: &PublicationStatus| one.state == PublicationState::Published;
        AgentView {
            publications: status.publications.into_iter().filter(|one| !is_settled(one)).collect(),
            mounts: mounts.collect(),
            rates: rates(None, &status.agent.work.traffic),
            agent: status.agent,
        }
    }

    /// For JSON output.
    pub fn as_json(&self) -> JsonView<'_> {
        JsonView { agents: &self.agents, errors: &self.errors }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_rates_after_an_agent_restart_are_not_negative() {
        let before = Traffic { mirror: 100, origin: 50, ..Traffic::default() };
        let now = Traffic { mirror: 300, origin: 20, cache: 8, ..Traffic::default() };
        let rates = Rates::between(&before, &now, 2.0);
        assert_eq!(rates, Rates { cache: 4.0, mirror: 100.0, ..Rates::default() });
        assert_eq!(rates.fetched(), 100.0);
        assert_eq!(Rates::between(&before, &now, f64::INFINITY), Rates::default());
    }
}
