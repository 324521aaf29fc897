//! The screen: a view as lines of text.

use bdnfs::metrics::Traffic;

use super::view::{Rates, Seen, SeenMount, View};
use crate::text;

/// How wide it is where nobody limits it.
pub const WIDE: usize = 160;
/// The narrowest that has room for sources.
const WITH_SOURCES: usize = 110;
/// The most cells that a path or a source takes.
const LONGEST: usize = 44;
/// The cells of a bar.
const BAR: usize = 20;

/// For a terminal: with the time between two looks, and how to leave.
pub fn live(view: &View, width: usize, seconds: f64) -> Vec<String> {
    let mounts: usize = view.daemons.iter().map(|seen| seen.mounts.len()).sum();
    let left = format!(
        "bdnfs top: {}, {}",
        text::count(view.daemons.len() as u64, "daemon"),
        text::count(mounts as u64, "mount")
    );
    let right = format!("every {seconds} s, q quits");
    let gap = width.saturating_sub(left.chars().count() + right.chars().count()).max(1);
    let mut lines = vec![format!("{left}{}{right}", " ".repeat(gap)), String::new()];
    lines.extend(self::lines(view, width));
    lines
}

/// A view, in lines of up to so many cells.
pub fn lines(view: &View, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    if view.daemons.is_empty() && view.troubles.is_empty() {
        lines.push("no daemon runs, and nothing is mounted".to_owned());
    }
    for seen in &view.daemons {
        lines.extend(daemon(seen));
        lines.push(String::new());
        if !seen.mounts.is_empty() {
            lines.extend(mounts(&seen.mounts, width));
            lines.push(String::new());
        }
    }
    lines.extend(view.troubles.iter().cloned());
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines.into_iter().map(|line| fit(&line, width)).collect()
}

fn daemon(seen: &Seen) -> Vec<String> {
    let daemon = &seen.daemon;
    let (kind, ready) = (
        if daemon.agent { "agent" } else { "daemon" },
        if daemon.ready || !daemon.agent { "" } else { ", not ready" },
    );
    let (usage, work) = (&daemon.usage, &daemon.work);
    let most =
        usage.capacity.unwrap_or_else(|| usage.used.unwrap_or(0) + usage.free.saturating_sub(usage.reserve));
    let fill = match usage.used {
        Some(used) => format!("{} {} of {}", bar(used, most), text::size(used), text::size(most)),
        None => "being counted".to_owned(),
    };
    let memory = &work.memory;
    let waiting = match memory.waiting {
        0 => String::new(),
        waiting => format!(", {} waited for", text::size(waiting)),
    };
    vec![
        format!("cache {} ({kind} {}{ready})", daemon.cache.display(), daemon.pid),
        format!("  {fill}, {} free, {} evicted", text::size(usage.free), text::size(usage.evicted)),
        format!(
            "  {}, {} of {} in flight{waiting}",
            fetches(work.flights),
            text::size(memory.used),
            text::size(memory.total)
        ),
        format!("  a second  {}", by_tier(&rated(&seen.rates))),
        format!("  in all    {}", by_tier(&work.traffic)),
    ]
}

fn fetches(count: u64) -> String {
    if count == 1 { "1 fetch".to_owned() } else { format!("{count} fetches") }
}

/// Rates in whole bytes.
fn rated(rates: &Rates) -> Traffic {
    let Rates { cache, peer, mirror, origin } = *rates;
    Traffic {
        cache: cache as u64,
        peer: peer as u64,
        mirror: mirror as u64,
        origin: origin as u64,
        requests: 0,
    }
}

fn by_tier(traffic: &Traffic) -> String {
    let tiers = [
        ("cache", traffic.cache),
        ("peers", traffic.peer),
        ("mirror", traffic.mirror),
        ("origin", traffic.origin),
    ];
    tiers.map(|(tier, bytes)| format!("{tier} {:<9}", text::size(bytes))).join(" ").trim_end().to_owned()
}

fn mounts(mounts: &[SeenMount], width: usize) -> Vec<String> {
    let sources = width >= WITH_SOURCES;
    let mut head = vec!["MOUNTPOINT", "SIZE", "LOCAL", "CACHE/s", "FETCH/s", "STATE"];
    if sources {
        head.insert(1, "SOURCE");
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(mounts.iter().map(|mount| {
        let status = &mount.status;
        let bytes = status.mounted.bytes;
        let local = status.local.map_or("-".to_owned(), |local| text::percent(local.min(bytes), bytes));
        let place =
            tail(&text::name(status.mounted.mountpoint.as_os_str().as_encoded_bytes()), most(width, sources));
        let mut row = vec![
            place,
            text::size(bytes),
            local,
            text::size(mount.rates.cache as u64),
            text::size(mount.rates.fetched() as u64),
            mount.doing.clone(),
        ];
        if sources {
            row.insert(1, tail(&text::name(status.mounted.source.as_bytes()), LONGEST));
        }
        row
    }));
    let right: &[usize] = if sources { &[2, 3, 4, 5] } else { &[1, 2, 3, 4] };
    text::table(&rows, right).lines().map(str::to_owned).collect()
}

/// How many cells there are for a mountpoint beside the other columns.
fn most(width: usize, sources: bool) -> usize {
    if sources { LONGEST } else { width.saturating_sub(54).clamp(12, LONGEST) }
}

/// The end of a text, which tells more than its beginning.
fn tail(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        text.to_owned()
    } else {
        format!("~{}", text.chars().skip(count - most + 1).collect::<String>())
    }
}

fn fit(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

fn bar(part: u64, whole: u64) -> String {
    let full =
        if whole == 0 { 0 } else { (u128::from(part.min(whole)) * BAR as u128 / u128::from(whole)) as usize };
    format!("[{}{}]", "#".repeat(full), "-".repeat(BAR - full))
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
            mountpoint: "/mnt/a/rather/long/place/for/a/model/of/today".into(),
            snapshot: String::new(),
            files: 12,
            bytes: 1000,
            passthrough: true,
            warnings: Vec::new(),
        };
        let traffic = Traffic { mirror: 450, ..Traffic::default() };
        let status = MountStatus { mounted, local: Some(450), since: 0, traffic, stage: None };
        let rates = Rates { mirror: 2_500_000.0, ..Rates::default() };
        let daemon = AgentInfo {
            version: "1".into(),
            pid: 7,
            cache: "/c".into(),
            agent: true,
            ready: true,
            usage: Usage { used: Some(500), capacity: Some(2000), free: 9000, reserve: 100, evicted: 0 },
            work: FetchStats {
                traffic,
                flights: 1,
                memory: BudgetUsage { total: 1000, used: 64, waiting: 0 },
            },
        };
        let mounts = vec![SeenMount { status, rates, doing: "staging 45 %".to_owned() }];
        let mut view = View::default();
        view.daemons.push(Seen { daemon, rates, mounts });
        view
    }

    #[test]
    fn eighty_cells_are_enough_for_all_but_the_source() {
        let text = live(&view(), 80, 1.0).join("\n");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        for part in [
            "1 daemon, 1 mount",
            "[#####---------------] 500 B of 2.0 kB",
            "mirror 2.5 MB",
            "model/of/today",
            "45 %",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(
            !text.contains("s3://bucket") && lines(&view(), 120).join("\n").contains("s3://bucket/prefix")
        );
    }

    #[test]
    fn nothing_is_told_too() {
        assert_eq!(lines(&View::default(), 80), ["no daemon runs, and nothing is mounted"]);
    }
}
