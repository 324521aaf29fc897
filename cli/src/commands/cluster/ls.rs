//! `bdnfs cluster ls`: lists the members.

use std::path::PathBuf;

use anyhow::{Context, Result};
use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::cluster::{ClusterStatus, MemberState, MemberStatus};
use bdnfs_agent::api::socket;

use crate::cache::CacheArgs;
use crate::output::{print, print_json};
use crate::runtime;
use crate::text;

/// The arguments of `bdnfs cluster ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: bdnfs cluster ls")]
pub struct ClusterListArgs {
    /// Cache directory of the agent. Default: the agent of this node
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Print all details as JSON
    #[arg(long)]
    json: bool,
}

/// Prints the members, as the agent sees them.
pub fn run(args: &ClusterListArgs) -> Result<()> {
    let socket = match &args.cache_dir {
        Some(_) => Some(socket::of_cache(&CacheArgs::directory(args.cache_dir.clone()).open_existing()?.dir)),
        None => socket::well_known(),
    };
    let client = Client::new(
        socket
            .context("no directory for the control socket; name the cache of the agent with --cache-dir")?,
    );
    let cluster = runtime::block_on(async { Ok(client.cluster().await?) })?;
    if args.json { print_json(&cluster) } else { print(&format_members(&cluster)) }
}

fn format_members(cluster: &ClusterStatus) -> String {
    let head = ["NODE", "ADDRESS", "ZONE", "CAPACITY", "PROTOCOL", "STATE"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(cluster.members.iter().map(|member| row(member, member.id == cluster.id)));
    let mut out = text::table(&rows, &[3, 4]);
    if !cluster.secure {
        out.push_str(
            "WARNING: WITHOUT TLS everyone who can connect reads the data of all tenants; for tests on one machine only\n",
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
    let until = member.until.and_then(|until| text::time_of_day(i64::try_from(until).ok()?));
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
    fn format_members_without_tls_has_a_warning() {
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
WARNING: WITHOUT TLS everyone who can connect reads the data of all tenants; for tests on one machine only
";
        assert_eq!(format_members(&cluster), text);
        let back: ClusterStatus =
            serde_json::from_str(&serde_json::to_string(&cluster).expect("JSON")).expect("JSON");
        assert_eq!(back.members, cluster.members);
    }
}
