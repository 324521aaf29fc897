//! `bdnfs status`.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use bdnfs_agent::api::{AgentInfo, AgentStatus, MountStatus, StageState};
use bdnfs_agent::{api::socket, runtime};
use bdnfs_fs::mounts;
use serde::Serialize;

use crate::agents;
use crate::pulse::{self, Pulse};
use crate::text;

/// How to tell it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Tell all that is known as JSON
    #[arg(long)]
    json: bool,
    /// Only the mounts that use this cache
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

const EXAMPLES: &str = "Examples:
  bdnfs status
  bdnfs status --json | jq '.mounts[].state'";

/// All that is known of this machine.
#[derive(Debug, Serialize)]
struct Report {
    mounts: Vec<Seen>,
    daemons: Vec<AgentInfo>,
}

/// A mount as the kernel lists it, and what its daemon says of it.
#[derive(Debug, Serialize)]
struct Seen {
    mountpoint: PathBuf,
    source: String,
    /// One or a few words for a person.
    state: String,
    /// What the daemon says, where it can be asked.
    status: Option<MountStatus>,
}

/// Tells what is mounted.
pub fn run(args: &Args) -> Result<()> {
    // A cache that isn't there has no mounts.
    let cache = args.cache_dir.as_ref().map(|dir| dir.canonicalize().unwrap_or_else(|_| dir.clone()));
    let report = runtime::block_on(report(cache))?;
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&report)?)?;
    } else {
        out.write_all(shown(&report).as_bytes())?;
    }
    Ok(())
}

async fn report(cache: Option<PathBuf>) -> Result<Report> {
    let mounts = mounts::list()?;
    let pulses = pulse::all(mounts.iter().map(|mounted| mounted.mountpoint.as_path()));
    let wanted = |pulse: &Pulse| match (&cache, pulse) {
        (None, _) => true,
        (Some(cache), Pulse::Alive(socket)) => *socket == socket::of_cache(cache),
        (Some(_), _) => false,
    };
    let mounts: Vec<_> = mounts.into_iter().zip(pulses).filter(|(_, pulse)| wanted(pulse)).collect();
    let mut sockets: Vec<PathBuf> = mounts.iter().filter_map(|(_, pulse)| pulse.socket().cloned()).collect();
    // An agent is there without a mount, too.
    sockets.extend(cache.as_deref().map_or_else(socket::well_known, |cache| Some(socket::of_cache(cache))));
    let daemons = agents::asked(sockets).await?;
    let mounts = mounts.into_iter().map(|(mounted, pulse)| {
        let (state, status) = match &pulse {
            Pulse::Alive(socket) => answered(daemons.get(socket), &mounted.mountpoint),
            Pulse::Dead => ("dead: its daemon is gone".to_owned(), None),
            Pulse::Silent => ("does not answer".to_owned(), None),
            Pulse::Unknown(error) => (format!("unknown: {error}"), None),
        };
        Seen { mountpoint: mounted.mountpoint, source: mounted.source, state, status }
    });
    let mounts = mounts.collect();
    let mut daemons: Vec<_> = daemons.into_values().flatten().map(|status| status.daemon).collect();
    // One may listen at two places.
    daemons.sort_by_key(|daemon| daemon.pid);
    daemons.dedup_by_key(|daemon| daemon.pid);
    Ok(Report { mounts, daemons })
}

fn answered(
    daemon: Option<&Result<AgentStatus, String>>,
    mountpoint: &Path,
) -> (String, Option<MountStatus>) {
    match daemon {
        Some(Ok(status)) => {
            let found = status.at(mountpoint);
            (found.map_or("ending".to_owned(), state), found.cloned())
        }
        Some(Err(trouble)) => (format!("unknown: {trouble}"), None),
        None => ("unknown".to_owned(), None),
    }
}

/// How a mount is doing, in one or a few words.
pub fn state(mount: &MountStatus) -> String {
    match &mount.stage {
        None => "ready".to_owned(),
        Some(staging) => match &staging.state {
            StageState::Running => {
                format!("staging {}", text::percent(staging.progress.bytes_done, staging.progress.bytes))
            }
            StageState::Done => "staged".to_owned(),
            StageState::Failed(failure) => format!("staging failed: {failure}"),
        },
    }
}

fn shown(report: &Report) -> String {
    let head = ["MOUNTPOINT", "SOURCE", "FILES", "SIZE", "LOCAL", "FETCHED", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(report.mounts.iter().map(row));
    let mut out = match rows.len() {
        1 => "nothing is mounted\n".to_owned(),
        _ => text::table(&rows, &[2, 3, 4, 5]),
    };
    for daemon in &report.daemons {
        out.push_str(&cache(daemon));
    }
    out
}

fn row(seen: &Seen) -> Vec<String> {
    let told = |tell: &dyn Fn(&MountStatus) -> String| seen.status.as_ref().map_or("-".to_owned(), tell);
    let local = |mount: &MountStatus| match mount.local {
        Some(local) => text::percent(local.min(mount.mounted.bytes), mount.mounted.bytes),
        None => "-".to_owned(),
    };
    vec![
        seen.mountpoint.display().to_string(),
        seen.source.clone(),
        told(&|mount| mount.mounted.files.to_string()),
        told(&|mount| text::size(mount.mounted.bytes)),
        told(&local),
        told(&|mount| text::size(mount.traffic.peer + mount.traffic.mirror + mount.traffic.origin)),
        seen.state.clone(),
    ]
}

fn cache(daemon: &AgentInfo) -> String {
    let usage = &daemon.usage;
    let used = usage.used.map_or("being counted".to_owned(), |used| format!("{} used", text::size(used)));
    let limit = usage.capacity.map_or(String::new(), |limit| format!(" of {}", text::size(limit)));
    let (free, reserve) = (text::size(usage.free), text::size(usage.reserve));
    format!("cache {}: {used}{limit}; {free} free on its disk, {reserve} kept free\n", daemon.cache.display())
}

#[cfg(test)]
mod tests {
    use bdnfs::engine::Usage;
    use bdnfs::stage::Progress;

    use super::*;
    use bdnfs_agent::api::{Failure, MountInfo, StageStatus};

    fn mount(stage: Option<StageStatus>) -> MountStatus {
        let mounted = MountInfo {
            id: 1,
            source: "s3://b/p".to_owned(),
            mountpoint: "/mnt/p".into(),
            snapshot: String::new(),
            files: 12,
            bytes: 1000,
            passthrough: true,
            warnings: Vec::new(),
        };
        let traffic = bdnfs::metrics::Traffic { origin: 450, ..Default::default() };
        MountStatus { mounted, local: Some(450), since: 0, traffic, stage }
    }

    #[test]
    fn a_mount_is_a_row_and_a_cache_a_line() {
        let progress = Progress { bytes: 1000, bytes_done: 450, ..Progress::default() };
        let status = mount(Some(StageStatus { progress, state: StageState::Running }));
        let usage = Usage { used: Some(450), capacity: Some(2000), free: 9000, reserve: 100, evicted: 0 };
        let report = Report {
            mounts: vec![
                Seen {
                    mountpoint: "/mnt/p".into(),
                    source: "s3://b/p".into(),
                    state: state(&status),
                    status: Some(status),
                },
                Seen {
                    mountpoint: "/mnt/q".into(),
                    source: "s3://b/q".into(),
                    state: "dead".into(),
                    status: None,
                },
            ],
            daemons: vec![AgentInfo {
                version: "1".into(),
                pid: 7,
                cache: "/c".into(),
                agent: true,
                ready: true,
                usage,
                work: Default::default(),
            }],
        };
        let text = "\
MOUNTPOINT  SOURCE    FILES    SIZE  LOCAL  FETCHED  STATE
/mnt/p      s3://b/p     12  1.0 kB   45 %    450 B  staging 45 %
/mnt/q      s3://b/q      -       -      -        -  dead
cache /c: 450 B used of 2.0 kB; 9.0 kB free on its disk, 100 B kept free
";
        assert_eq!(shown(&report), text);
    }

    #[test]
    fn a_status_crosses_json_whole() {
        let failure = Failure { kind: "refused".into(), message: "no".into() };
        let status =
            mount(Some(StageStatus { progress: Progress::default(), state: StageState::Failed(failure) }));
        assert_eq!(state(&status), "staging failed: no");
        let text = serde_json::to_string(&status).expect("JSON");
        let back: MountStatus = serde_json::from_str(&text).expect("JSON");
        assert_eq!(back.stage, status.stage);
        assert_eq!(back.mounted.files, 12);
        assert_eq!(state(&mount(None)), "ready");
    }
}
