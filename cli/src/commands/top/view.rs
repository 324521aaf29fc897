//! What is seen: what the daemons say of themselves, and how fast it changes.

use std::collections::HashMap;
use std::path::Path;

use anyhow::Result;
use bdnfs::metrics::Traffic;
use bdnfs_agent::api::{AgentInfo, AgentStatus, MountStatus};
use serde::Serialize;
use tokio::time::Instant;

use crate::agents;
use crate::commands::status;

/// Bytes a second by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Out of the node's cache, by the daemon; what the kernel reads by itself is not known.
    pub cache: f64,
    /// From other nodes.
    pub peer: f64,
    /// From the mirror.
    pub mirror: f64,
    /// From the origin.
    pub origin: f64,
}

impl Rates {
    /// What came within so many seconds.
    fn between(before: &Traffic, now: &Traffic, seconds: f64) -> Self {
        // A daemon that has started anew counts from 0.
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        Self {
            cache: rate(before.cache, now.cache),
            peer: rate(before.peer, now.peer),
            mirror: rate(before.mirror, now.mirror),
            origin: rate(before.origin, now.origin),
        }
    }

    /// What came from elsewhere.
    pub fn fetched(&self) -> f64 {
        self.peer + self.mirror + self.origin
    }
}

/// The daemons at one moment, and since the one before.
#[derive(Debug, Default)]
pub struct View {
    at: Option<Instant>,
    /// What had come at that moment: to daemons by their process, and to their mounts by number.
    before: HashMap<(u32, Option<u64>), Traffic>,
    pub daemons: Vec<Seen>,
    /// Daemons that do not answer, a line each.
    pub troubles: Vec<String>,
}

/// A daemon and its mounts.
#[derive(Debug, Serialize)]
pub struct Seen {
    /// What it says of itself.
    #[serde(flatten)]
    pub daemon: AgentInfo,
    /// How much comes to it.
    pub rates: Rates,
    /// Its mounts.
    pub mounts: Vec<SeenMount>,
}

/// A mount.
#[derive(Debug, Serialize)]
pub struct SeenMount {
    /// What its daemon says of it.
    #[serde(flatten)]
    pub status: MountStatus,
    /// How much comes to it.
    pub rates: Rates,
    /// One or a few words for a person.
    pub doing: String,
}

/// All of it, for machines.
#[derive(Debug, Serialize)]
pub struct Told<'a> {
    daemons: &'a [Seen],
    troubles: &'a [String],
}

impl View {
    /// Asks all daemons, or only the one of `cache`.
    pub async fn look(&mut self, cache: Option<&Path>, now: Instant) -> Result<()> {
        let seconds = self.at.map_or(f64::INFINITY, |at| (now - at).as_secs_f64().max(1e-3));
        let before = std::mem::take(&mut self.before);
        let found = agents::daemons(cache).await?;
        (self.daemons, self.troubles) = (Vec::new(), Vec::new());
        for (socket, answer) in found {
            match answer {
                // One may listen at two places.
                Ok(status) if self.daemons.iter().any(|seen| seen.daemon.pid == status.daemon.pid) => {}
                Ok(status) => self.daemons.push(self.seen(status, &before, seconds)),
                Err(trouble) => self.troubles.push(trouble_at(&socket, &trouble)),
            }
        }
        for seen in &self.daemons {
            self.before.insert((seen.daemon.pid, None), seen.daemon.work.traffic);
            for mount in &seen.mounts {
                let traffic = mount.status.traffic;
                self.before.insert((seen.daemon.pid, Some(mount.status.mounted.id)), traffic);
            }
        }
        self.at = Some(now);
        Ok(())
    }

    fn seen(&self, status: AgentStatus, before: &HashMap<(u32, Option<u64>), Traffic>, seconds: f64) -> Seen {
        let pid = status.daemon.pid;
        let rates = |id: Option<u64>, now: &Traffic| {
            // What is new has come within that time; on the first look nothing is known.
            let zero = Traffic::default();
            Rates::between(before.get(&(pid, id)).unwrap_or(&zero), now, seconds)
        };
        let mounts = status.mounts.into_iter().map(|mount| SeenMount {
            rates: rates(Some(mount.mounted.id), &mount.traffic),
            doing: status::state(&mount),
            status: mount,
        });
        Seen {
            mounts: mounts.collect(),
            rates: rates(None, &status.daemon.work.traffic),
            daemon: status.daemon,
        }
    }

    /// For machines.
    pub fn told(&self) -> Told<'_> {
        Told { daemons: &self.daemons, troubles: &self.troubles }
    }
}

fn trouble_at(socket: &Path, trouble: &str) -> String {
    format!("{}: {trouble}", socket.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_what_came_in_a_second_and_never_negative() {
        let before = Traffic { mirror: 100, origin: 50, ..Traffic::default() };
        let now = Traffic { mirror: 300, origin: 20, cache: 8, ..Traffic::default() };
        let rates = Rates::between(&before, &now, 2.0);
        assert_eq!(rates, Rates { cache: 4.0, mirror: 100.0, ..Rates::default() });
        assert_eq!(rates.fetched(), 100.0);
        assert_eq!(Rates::between(&before, &now, f64::INFINITY), Rates::default());
    }
}
