//! Telemetry: metrics for Prometheus, and traces for a collector.

mod page;
mod process;
pub mod scrape;
pub mod traces;

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::registry::{Registry, Unit};

use page::{Labels, Page, sample};
use scrape::{SavingScrape, Scrape};

/// The content type of a page of metrics: OpenMetrics, which Prometheus reads.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// All metrics, as a page that Prometheus scrapes.
pub fn metrics(scrape: Scrape) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let mut text = String::new();
    text::encode(&mut text, &registry)?;
    Ok(text)
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        self.agent(&mut page)?;
        self.tiers(&mut page)?;
        self.memory(&mut page)?;
        self.cache(&mut page)?;
        self.cluster(&mut page)?;
        self.fuse(&mut page)?;
        self.mounts(&mut page)?;
        self.process.encode(&mut page)
    }
}

/// Each writes the metrics of one part. Every value that a label can have is one of a few, but for mountpoints and their
/// sources, of which there are as many as mounts.
impl Scrape {
    fn agent(&self, page: &mut Page<'_>) -> fmt::Result {
        page.info("bdnfs_build", "Build information.", &[("version", env!("CARGO_PKG_VERSION"))])?;
        let text = "Whether the mounts of the previous run are restored: 1 or 0.";
        page.gauge("bdnfs_ready", text, None, [sample([], u64::from(self.ready))])
    }

    fn tiers(&self, page: &mut Page<'_>) -> fmt::Result {
        let tiers = &self.metered.tiers;
        let text = "Bytes read, by tier. Of the cache, what the agent read; reads by the kernel itself are not counted.";
        let fetched = tiers.iter().map(|(tier, requests)| sample([("tier", *tier)], requests.bytes));
        let cached = sample([("tier", "cache")], self.metered.cached);
        page.counter("bdnfs_tier", text, Some(Unit::Bytes), std::iter::once(cached).chain(fetched))?;
        let outcomes = tiers.iter().flat_map(|(tier, requests)| {
            let failed = requests.failed.iter().sum();
            [("answered", requests.answered), ("missed", requests.missed), ("failed", failed)]
                .map(|(outcome, count)| sample([("tier", *tier), ("outcome", outcome)], count))
        });
        let text = "Completed requests to tiers, by outcome: answered in full, missed, or failed.";
        page.counter("bdnfs_tier_requests", text, None, outcomes)?;
        let errors = tiers.iter().flat_map(|(tier, requests)| {
            let kinds = scrape::kinds().zip(requests.failed);
            kinds.map(|(kind, count)| sample([("tier", *tier), ("kind", kind)], count))
        });
        page.counter("bdnfs_tier_errors", "Failed requests to tiers, by kind of error.", None, errors)?;
        let refuted = tiers.iter().map(|(tier, requests)| sample([("tier", *tier)], requests.wrong_blocks));
        let text = "Blocks that failed verification, by tier.";
        page.counter("bdnfs_verify_failures", text, None, refuted)?;
        let began = tiers.iter().map(|(tier, requests)| ([("tier", *tier)], &requests.began));
        let text = "Time to first byte of tier requests.";
        page.times("bdnfs_tier_first_byte", text, began)?;
        let text = "Fetches in progress.";
        page.gauge("bdnfs_flights", text, None, [sample([], self.metered.flights_in_progress)])?;
        let text = "Fetches started.";
        page.counter("bdnfs_flights_begun", text, None, [sample([], self.metered.flights_started)])
    }

    fn memory(&self, page: &mut Page<'_>) -> fmt::Result {
        let uses = ["fetch", "cluster", "peer_send"];
        let each = |tell: fn(&bdnfs::budget::BudgetUsage) -> u64| {
            uses.iter().zip(&self.memory).map(move |(of, memory)| sample([("use", *of)], tell(memory)))
        };
        let text = "Memory limit of data in transfer: fetches, fetches that may wait for other nodes, and data sent to \
                    other nodes.";
        page.gauge("bdnfs_memory_limit", text, Some(Unit::Bytes), each(|memory| memory.total))?;
        let text = "Memory used by data in transfer.";
        page.gauge("bdnfs_memory_used", text, Some(Unit::Bytes), each(|memory| memory.used))?;
        let text = "Memory that waiting fetches have requested.";
        page.gauge("bdnfs_memory_waiting", text, Some(Unit::Bytes), each(|memory| memory.waiting))
    }

    fn cache(&self, page: &mut Page<'_>) -> fmt::Result {
        let (usage, bytes) = (&self.usage, || Some(Unit::Bytes));
        let used = usage.used.map(|used| sample([], used));
        let text = "Space used by the cache's blobs; missing while it is counted after a start.";
        page.gauge("bdnfs_cache_used", text, bytes(), used)?;
        let capacity = usage.capacity.map(|capacity| sample([], capacity));
        let text = "Size limit of the cache's blobs; missing where only the free-space reserve limits them.";
        page.gauge("bdnfs_cache_capacity", text, bytes(), capacity)?;
        page.gauge("bdnfs_cache_free", "Free space of the cache's disk.", bytes(), [sample([], usage.free)])?;
        let text = "Free-space reserve of the cache's disk.";
        page.gauge("bdnfs_cache_reserve", text, bytes(), [sample([], usage.reserve)])?;
        let text = "Bytes evicted to make room.";
        page.counter("bdnfs_cache_evicted", text, bytes(), [sample([], usage.evicted)])?;
        let scrubbed = &self.scrubbed;
        let text = "Bytes that the scrubber has read and verified.";
        page.counter("bdnfs_scrub", text, bytes(), [sample([], scrubbed.bytes)])?;
        let text = "Blobs that the scrubber has read.";
        page.counter("bdnfs_scrub_blobs", text, None, [sample([], scrubbed.blobs)])?;
        let text = "Blobs that the scrubber found damaged and removed.";
        page.counter("bdnfs_scrub_damaged", text, None, [sample([], scrubbed.damaged)])?;
        let text = "Time of the last completed scrub, as a Unix timestamp; missing before the first.";
        let ended = scrubbed.last.as_ref().map(|pass| sample([], pass.ended));
        page.gauge("bdnfs_scrub_last_end", text, Some(Unit::Seconds), ended)?;
        let text = "Blobs that are read or fetched, and so not evicted.";
        page.gauge("bdnfs_leased_blobs", text, None, [sample([], self.leased_blobs)])?;
        let text = "Snapshots that are staged or pinned, and so not evicted.";
        page.gauge("bdnfs_leased_snapshots", text, None, [sample([], self.leased_snapshots)])
    }

    fn savings(&self, page: &mut Page<'_>) -> fmt::Result {
        fn each<V>(
            all: &[SavingScrape],
            value: fn(&SavingScrape) -> V,
        ) -> impl Iterator<Item = (Labels<'_>, V)> {
            all.iter().map(move |one| sample([("project", &*one.project), ("job", &*one.id)], value(one)))
        }
        let (all, bytes, seconds) = (&self.savings, || Some(Unit::Bytes), || Some(Unit::Seconds));
        let text = "Size of a job's checkpoints that have settled and are not saved.";
        page.gauge("bdnfs_checkpoint_backlog", text, bytes(), each(all, |one| one.report.backlog))?;
        let text = "Size of a job's checkpoints that were saved.";
        page.counter("bdnfs_checkpoint_saved", text, bytes(), each(all, |one| one.report.saved))?;
        let text = "Failed attempts to save checkpoints of a job.";
        page.counter("bdnfs_checkpoint_failures", text, None, each(all, |one| one.report.failures))?;
        let text = "Time of the last saved checkpoint of a job, or of the start of its commands, as a Unix timestamp.";
        let last = |one: &SavingScrape| one.report.last.map_or(one.began, |last| last.timestamp() as f64);
        page.gauge("bdnfs_checkpoint_last_save", text, seconds(), each(all, last))?;
        let text = "Time between the newest two complete checkpoints of a job; 0 before there are two.";
        page.gauge(
            "bdnfs_checkpoint_save_interval",
            text,
            seconds(),
            each(all, |one| one.report.interval.unwrap_or(0.0)),
        )
    }

    fn cluster(&self, page: &mut Page<'_>) -> fmt::Result {
        let Some(cluster) = &self.cluster else { return Ok(()) };
        let peer_stats = &cluster.peer_stats;
        let text = "Requests to peers, by outcome: asked (all of them), missed (not found), busy (told to retry later), failed.";
        let outcomes = [
            ("asked", peer_stats.asked),
            ("missed", peer_stats.missed),
            ("busy", peer_stats.busy),
            ("failed", peer_stats.failed),
        ];
        page.counter("bdnfs_peer_requests", text, None, outcomes.map(|(o, n)| sample([("outcome", o)], n)))?;
        let text = "Bans of peers that sent wrong bytes.";
        page.counter("bdnfs_peer_bans", text, None, [sample([], peer_stats.bans)])?;
        page.gauge(
            "bdnfs_peers_banned",
            "Peers that are currently banned.",
            None,
            [sample([], cluster.banned)],
        )
    }

    fn fuse(&self, page: &mut Page<'_>) -> fmt::Result {
        let operations =
            self.requests.operations.iter().map(|(name, spread)| ([("operation", *name)], spread));
        let text = "Latency of FUSE requests.";
        page.times("bdnfs_fuse_request", text, operations)?;
        let errors = self.requests.errors.iter().map(|(errno, count)| sample([("errno", *errno)], *count));
        page.counter("bdnfs_fuse_errors", "FUSE requests that failed, by errno.", None, errors)?;
        let opens = [("passthrough", self.requests.passthrough), ("cached", self.requests.cached)];
        let text = "Opens of files, by mode: read by the kernel itself (passthrough), or served by the agent (cached). Mounts \
                    of small files have no opens.";
        page.counter("bdnfs_opens", text, None, opens.map(|(mode, count)| sample([("mode", mode)], count)))
    }

    fn mounts(&self, page: &mut Page<'_>) -> fmt::Result {
        let states = scrape::STAGING_STATES.map(|state| {
            let count = self.mounts.iter().filter(|mount| mount.state == state).count();
            sample([("state", state)], count as u64)
        });
        page.gauge("bdnfs_mounts", "Mounts, by staging state.", None, states)?;
        let text = "Mounts of the previous run that could not be restored.";
        page.gauge("bdnfs_mounts_lost", text, None, [sample([], self.lost)])?;
        let published = self.publications.map(|(state, count)| sample([("state", state)], count));
        self.savings(page)?;
        page.gauge("bdnfs_publications", "Publications for containers, by state.", None, published)?;
        let sizes = self.mounts.iter().map(|mount| (mount.labels().to_vec(), mount.bytes));
        let text = "Total size of the files of a mount.";
        page.gauge("bdnfs_mount_size", text, Some(Unit::Bytes), sizes)?;
        let fetched = self.mounts.iter().flat_map(|mount| {
            let traffic = &mount.traffic;
            [("peer", traffic.peer), ("mirror", traffic.mirror), ("origin", traffic.origin)]
                .map(|(tier, bytes)| ([&mount.labels()[..], &[("tier", tier)]].concat(), bytes))
        });
        let text = "Bytes that were fetched for a mount since it was made, or the agent started.";
        page.counter("bdnfs_mount_fetched", text, Some(Unit::Bytes), fetched)
    }
}
