//! `bdnfs cluster ls`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::cluster::{ClusterStatus, MemberState, MemberStatus};
use bdnfs_agent::api::socket;
use bdnfs_agent::runtime;

use crate::{cache, text};

/// Whom to ask, and how to tell it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Directory of the cache whose agent is asked; by default the node's agent
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Tell all that is known as JSON
    #[arg(long)]
    json: bool,
}

/// Tells who is in the cluster, as this machine's agent sees it.
pub fn run(args: &Args) -> Result<()> {
    let socket = match &args.cache_dir {
        Some(_) => Some(socket::of_cache(&cache::Args::new(args.cache_dir.clone(), None).make()?.dir)),
        None => socket::well_known(),
    };
    let client = Client::new(socket.context("no agent's socket is known; name its cache with --cache-dir")?);
    let cluster = runtime::block_on(async { Ok(client.cluster().await?) })?;
    let told = if args.json { serde_json::to_string(&cluster)? + "\n" } else { shown(&cluster) };
    Ok(std::io::stdout().lock().write_all(told.as_bytes())?)
}

fn shown(cluster: &ClusterStatus) -> String {
    let head = ["NODE", "ADDRESS", "ZONE", "CAPACITY", "PROTOCOL", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(cluster.members.iter().map(|member| row(member, member.id == cluster.id)));
    let mut out = text::table(&rows, &[3, 4]);
    if !cluster.secure {
        out.push_str(
            "WITHOUT TLS: whoever can connect reads every tenant's data; this is for tests on one machine\n",
        );
    }
    out
}

fn row(member: &MemberStatus, is_me: bool) -> Vec<String> {
    let state = match member.state {
        MemberState::Alive if is_me => "this node",
        MemberState::Alive => "alive",
        MemberState::Draining => "draining",
        MemberState::Suspected => "suspected",
        MemberState::Banned => "banned",
    };
    let until = member.until.and_then(|until| text::second(i64::try_from(until).ok()?));
    vec![
        member.id.clone(),
        member.address.to_string(),
        if member.zone.is_empty() { "-".to_owned() } else { member.zone.clone() },
        text::size(member.capacity),
        member.protocol.to_string(),
        until.map_or(state.to_owned(), |until| format!("{state} until {until}")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_a_row_and_what_is_not_safe_is_told() {
        let member = |id: &str, state, until| MemberStatus {
            id: id.into(),
            address: "10.0.0.1:7531".parse().expect("an address"),
            zone: String::new(),
            capacity: 2_000_000_000_000,
            protocol: 1,
            state,
            until,
        };
        let members = vec![
            member("a", MemberState::Alive, None),
            member("b", MemberState::Draining, None),
            member("liar", MemberState::Banned, Some(61)),
        ];
        let (name, id, asked) = ("c".to_owned(), "a".to_owned(), Default::default());
        let cluster = ClusterStatus { name, id, secure: false, members, sent: 0, asked };
        let text = "\
NODE  ADDRESS        ZONE  CAPACITY  PROTOCOL  STATE
a     10.0.0.1:7531  -       2.0 TB         1  this node
b     10.0.0.1:7531  -       2.0 TB         1  draining
liar  10.0.0.1:7531  -       2.0 TB         1  banned until 00:01:01 UTC
WITHOUT TLS: whoever can connect reads every tenant's data; this is for tests on one machine
";
        assert_eq!(shown(&cluster), text);
        let back: ClusterStatus =
            serde_json::from_str(&serde_json::to_string(&cluster).expect("JSON")).expect("JSON");
        assert_eq!(back.members, cluster.members);
    }
}
