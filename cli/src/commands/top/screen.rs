//! Renders a view as lines of text.

use std::time::Duration;

use bdnfs::metrics::Traffic;
use bdnfs_agent::api::publication::PublicationStatus;

use super::view::{AgentView, MountView, Rates, View};
use crate::text;

/// The width without a terminal, in columns.
pub const MAX_WIDTH: usize = 160;
/// The least width with a column of sources.
const MIN_WIDTH_WITH_SOURCES: usize = 110;
/// The greatest width of a path or source.
const MAX_NAME_WIDTH: usize = 44;
/// The width of a bar.
const BAR_WIDTH: usize = 20;

/// A view for a terminal, with a head line.
pub fn live(view: &View, width: usize, refresh: Duration) -> Vec<String> {
    let mounts: usize = view.agents.iter().map(|seen| seen.mounts.len()).sum();
    let left = format!(
        "bdnfs top: {}, {}",
        text::count(view.agents.len() as u64, "agent"),
        text::count(mounts as u64, "mount")
    );
    let right = format!("every {}, q to quit", humantime::format_duration(refresh));
    let gap = width.saturating_sub(left.chars().count() + right.chars().count()).max(1);
    let mut lines = vec![format!("{left}{}{right}", " ".repeat(gap)), String::new()];
    lines.extend(self::lines(view, width));
    lines
}

/// A view as lines of at most `width` columns.
pub fn lines(view: &View, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if view.agents.is_empty() && view.errors.is_empty() {
        lines.push("no agent is running".to_owned());
    }
    for seen in &view.agents {
        lines.extend(agent_lines(seen));
        lines.push(String::new());
        if !seen.mounts.is_empty() {
            lines.extend(mounts(&seen.mounts, width));
            lines.push(String::new());
        }
        if !seen.publications.is_empty() {
            lines.extend(seen.publications.iter().map(publication));
            lines.push(String::new());
        }
    }
    lines.extend(view.errors.iter().cloned());
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.into_iter().map(|line| fit(&line, width)).collect()
}

fn agent_lines(seen: &AgentView) -> Vec<String> {
    let agent = &seen.agent;
    let (kind, ready) = (
        if agent.persistent { "agent" } else { "on-demand agent" },
        if agent.ready || !agent.persistent { "" } else { ", not ready" },
    );
    let (usage, work) = (&agent.usage, &agent.work);
    let most =
        usage.capacity.unwrap_or_else(|| usage.used.unwrap_or(0) + usage.free.saturating_sub(usage.reserve));
    let fill = match usage.used {
        Some(used) => format!("{} {} of {}", bar(used, most), text::size(used), text::size(most)),
        None => "usage not known yet".to_owned(),
    };
    let memory = &work.memory;
    let waiting = match memory.waiting {
        0 => String::new(),
        waiting => format!(", {} queued", text::size(waiting)),
    };
    vec![
        format!("cache {} ({kind} {}{ready})", agent.cache.display(), agent.pid),
        format!("  {fill}, {} free, {} evicted", text::size(usage.free), text::size(usage.evicted)),
        format!(
            "  {}, {} of {} in flight{waiting}",
            fetches(work.flights),
            text::size(memory.used),
            text::size(memory.total)
        ),
        format!("  per second  {}", format_traffic(&whole_bytes(&seen.rates))),
        format!("  total       {}", format_traffic(&work.traffic)),
    ]
}

/// The line of a pending publication: its requester and its progress.
fn publication(pending: &PublicationStatus) -> String {
    let consumer = pending.consumer.as_deref().unwrap_or(&pending.key);
    let message = if pending.message.is_empty() { &pending.source } else { &pending.message };
    text::printable(format!("{consumer}: {}: {message}", pending.state).as_bytes())
}

fn fetches(count: u64) -> String {
    if count == 1 { "1 fetch".to_owned() } else { format!("{count} fetches") }
}

/// Rates in whole bytes per second.
fn whole_bytes(rates: &Rates) -> Traffic {
    let Rates { cache, peer, mirror, origin } = *rates;
    Traffic {
        cache: cache as u64,
        peer: peer as u64,
        mirror: mirror as u64,
        origin: origin as u64,
        requests: 0,
    }
}

fn format_traffic(traffic: &Traffic) -> String {
    let tiers = [
        ("cache", traffic.cache),
        ("peers", traffic.peer),
        ("mirror", traffic.mirror),
        ("origin", traffic.origin),
    ];
    tiers.map(|(tier, bytes)| format!("{tier} {:<9}", text::size(bytes))).join(" ").trim_end().to_owned()
}

fn mounts(mounts: &[MountView], width: usize) -> Vec<String> {
    let sources = width >= MIN_WIDTH_WITH_SOURCES;
    let mut head = vec!["MOUNTPOINT", "SIZE", "LOCAL", "CACHE/s", "FETCH/s", "STATE"];
    if sources {
        head.insert(1, "SOURCE");
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(mounts.iter().map(|mount| {
        let status = &mount.status;
        let bytes = status.mounted.bytes;
        let local = status.local.map_or("-".to_owned(), |local| text::percent(local.min(bytes), bytes));
        let mountpoint = tail(
            &text::printable(status.mounted.mountpoint.as_os_str().as_encoded_bytes()),
            mountpoint_width(width, sources),
        );
        let mut row = vec![
            mountpoint,
            text::size(bytes),
            local,
            text::size(mount.rates.cache as u64),
            text::size(mount.rates.fetched() as u64),
            mount.state.clone(),
        ];
        if sources {
            row.insert(1, tail(&text::printable(status.mounted.source.as_bytes()), MAX_NAME_WIDTH));
        }
        row
    }));
    let right: &[usize] = if sources { &[2, 3, 4, 5] } else { &[1, 2, 3, 4] };
    text::table(&rows, right).lines().map(str::to_owned).collect()
}

/// The width of the column of mount points.
fn mountpoint_width(width: usize, sources: bool) -> usize {
    if sources { MAX_NAME_WIDTH } else { width.saturating_sub(54).clamp(12, MAX_NAME_WIDTH) }
}

/// The end of a text that is too long: it says more than the beginning.
fn tail(text: &str, max: usize) -> String {
    let count = text.chars().count();
    if count <= max {
        text.to_owned()
    } else {
        format!("~{}", text.chars().skip(count - max + 1).collect::<String>())
    }
}

fn fit(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

fn bar(part: u64, whole: u64) -> String {
    let full = if whole == 0 {
        0
    } else {
        (u128::from(part.min(whole)) * BAR_WIDTH as u128 / u128::from(whole)) as usize
    };
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR_WIDTH - full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bdnfs::budget::BudgetUsage;
    use bdnfs::engine::Usage;
    use bdnfs_agent::api::{AgentInfo, FetchStats, MountInfo, MountStatus};

    fn view() -> View {
        let mounted = MountInfo {
            id: 1,
            source: "s3://bucket/prefix".to_owned(),
            requested: None,
            mountpoint: "/mnt/a/rather/long/place/for/a/model/of/today".into(),
            snapshot: String::new(),
            files: 12,
            bytes: 1000,
            passthrough: true,
            via: bdnfs_agent::api::MountBackend::Fuse,
            warnings: Vec::new(),
        };
        let traffic = Traffic { mirror: 450, ..Traffic::default() };
        let status = MountStatus { mounted, local: Some(450), since: 0, traffic, stage: None };
        let rates = Rates { mirror: 2_500_000.0, ..Rates::default() };
        let agent = AgentInfo {
            version: "1".into(),
            pid: 7,
            cache: "/c".into(),
            persistent: true,
            ready: true,
            usage: Usage { used: Some(500), capacity: Some(2000), free: 9000, reserve: 100, evicted: 0 },
            work: FetchStats {
                traffic,
                flights: 1,
                memory: BudgetUsage { total: 1000, used: 64, waiting: 0 },
            },
        };
        let mounts = vec![MountView { status, rates, state: "staging 45 %".to_owned() }];
        let mut view = View::default();
        let pending = r#"{"key": "csi-1", "state": "staging", "source": "hf://o/m", "holder": "pod default/a",
            "message": "staging hf://o/m: 1 B of 2 B", "abnormal": false}"#;
        let publications = vec![serde_json::from_str(pending).expect("a publication")];
        view.agents.push(AgentView { agent, rates, mounts, publications });
        view
    }

    #[test]
    fn top_screen_of_80_columns_omits_the_source() {
        let text = live(&view(), 80, Duration::from_secs(1)).join("\n");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "1 agent, 1 mount",
            "[#####---------------] 500 B of 2.0 kB",
            "mirror 2.5 MB",
            "model/of/today",
            "45 %",
            "pod default/a: staging: staging hf://o/m: 1 B of 2 B",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(
            !text.contains("s3://bucket") && lines(&view(), 120).join("\n").contains("s3://bucket/prefix")
        );
    }

    #[test]
    fn top_screen_without_agents_says_so() {
        assert_eq!(lines(&View::default(), 80), ["no agent is running"]);
    }
}
