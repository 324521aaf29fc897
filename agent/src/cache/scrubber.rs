//! The scrubber: verifies what lies in the cache again and again, on a thread that gives way to all others.
//!
//! Each file has the time of its last verification ([`verification_time`]), so the next agent goes on where this one ends.

use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bdnfs::cache::directory::CacheDirectory;
use bdnfs::cache::inventory;
use bdnfs::cache::scrub::{self, ScrubPace};
use bdnfs::cache::verification_time;
use bdnfs::engine::Engine;
use bdnfs::error::{Kind, Result};
use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;
use rustix::fs::OFlags;

use crate::api::cache::ScrubPass;
use crate::context::Context;
use crate::durable::STATE_DIRECTORY;
use crate::runtime;

/// The default interval at which everything in the cache is verified.
pub const DEFAULT_SCRUB_INTERVAL: Duration = Duration::from_secs(30 * 24 * 3600);
/// The file with the last pass, in the state directory.
const LAST_PASS_FILE: &str = "scrub";
/// The number of bytes that are read per second: a few percent of what an NVMe disk reads, and 160 TB in thirty days.
const SCRUB_BYTES_PER_SECOND: u64 = 64 << 20;
/// The number of times per interval that the cache is scanned for blobs that are due.
const PASSES_PER_INTERVAL: u32 = 30;
/// The delay of the first scan after a start: an agent that starts has better things to do.
const FIRST_SCRUB_DELAY: Duration = Duration::from_secs(60);

/// The scrubber of an agent. It ends when this is [stopped](Self::stop), or dropped.
#[derive(Debug)]
pub struct Scrubber {
    stats: Arc<ScrubStats>,
    stop: Mutex<Option<Sender<()>>>,
}

/// The counts of a scrubber since it was started.
#[derive(Debug)]
struct ScrubStats {
    directory: CacheDirectory,
    blobs: AtomicU64,
    bytes: AtomicU64,
    damaged: AtomicU64,
    last: Mutex<Option<ScrubPass>>,
}

/// Counts of a scrubber.
#[derive(Clone, Debug, Default)]
pub struct ScrubCounts {
    /// Blobs that were read.
    pub blobs: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// Blobs that were damaged.
    pub damaged: u64,
    /// The last pass that read something.
    pub last: Option<ScrubPass>,
}

impl Scrubber {
    /// Starts to verify everything in the cache of `engine` once in each `interval`, as soon as it `is_ready`: a native mount of
    /// the last run can be repaired only when it is taken up. Never where the interval is 0.
    ///
    /// # Errors
    /// Those of [`CacheDirectory::open`]; [`Kind::Disk`] where there is no thread for it.
    pub fn start(
        engine: &Engine,
        is_ready: impl Fn() -> bool + Send + 'static,
        interval: Duration,
    ) -> Result<Self> {
        let (stop, stopped) = channel::bounded(0);
        let root = engine.cache().root();
        let stats = Arc::new(ScrubStats {
            directory: CacheDirectory::open(root)?,
            blobs: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            last: Mutex::new(last_pass(root)),
        });
        if !interval.is_zero() {
            let (engine, counted) = (engine.clone(), Arc::clone(&stats));
            let serve = move || serve(&engine, is_ready, interval, &counted, &stopped);
            let thread = thread::Builder::new().name("bdnfs-scrub".to_owned());
            thread.spawn(serve).context("cannot start a thread")?;
        }
        Ok(Self { stats, stop: Mutex::new(Some(stop)) })
    }

    /// Stops it after the block that it reads.
    pub fn stop(&self) {
        self.stop.lock().take();
    }

    /// The counts of the scrubber.
    pub fn counts(&self) -> ScrubCounts {
        let ScrubStats { blobs, bytes, damaged, last, .. } = &*self.stats;
        let (blobs, bytes, damaged) = (blobs.load(Relaxed), bytes.load(Relaxed), damaged.load(Relaxed));
        ScrubCounts { blobs, bytes, damaged, last: last.lock().clone() }
    }
}

/// The last pass over the cache in the directory `root`, of whichever agent.
pub fn last_pass(root: &Path) -> Option<ScrubPass> {
    let path = Path::new(STATE_DIRECTORY).join(LAST_PASS_FILE);
    serde_json::from_reader(CacheDirectory::open(root).ok()?.file(path, OFlags::RDONLY).ok()?).ok()
}

/// The times that are no longer ago than `interval`, in seconds since 1970; all where it is 0. One that is far ahead is that of
/// a clock that was wrong.
pub fn recent(interval: Duration) -> RangeInclusive<i64> {
    if interval.is_zero() {
        return i64::MIN..=i64::MAX;
    }
    let (now, seconds) = (verification_time::seconds(SystemTime::now()), interval.as_secs() as i64);
    now.saturating_sub(seconds)..=now.saturating_add(seconds)
}

fn serve(
    engine: &Engine,
    is_ready: impl Fn() -> bool,
    interval: Duration,
    stats: &ScrubStats,
    stopped: &Receiver<()>,
) {
    runtime::lower_priority();
    // True when it was not stopped meanwhile.
    let wait = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
    let pause = interval / PASSES_PER_INTERVAL;
    let delay = pause.min(FIRST_SCRUB_DELAY);
    let mut goes_on = wait(delay);
    while goes_on && !is_ready() {
        goes_on = wait(delay);
    }
    while goes_on {
        let (start, read) = (Instant::now(), AtomicU64::new(0));
        let pace = |bytes| {
            let read = read.fetch_add(bytes, Relaxed) + bytes;
            wait(
                Duration::from_secs_f64(read as f64 / SCRUB_BYTES_PER_SECOND as f64)
                    .saturating_sub(start.elapsed()),
            )
        };
        if let Err(error) = scrub_due(engine, interval, stats, &pace)
            && error.kind() != Kind::Interrupted
        {
            tracing::warn!("cannot scrub the cache: {error}");
        }
        goes_on = wait(pause);
    }
}

/// Verifies what was not verified within the `interval`, what is due for longest first. What can't be verified keeps nothing else
/// from it.
fn scrub_due(engine: &Engine, interval: Duration, stats: &ScrubStats, pace: ScrubPace<'_>) -> Result<()> {
    let (node, period) = (engine.cache(), recent(interval));
    let mut pass = ScrubPass::default();
    for partition in node.partitions() {
        let cache = node.tenant(partition.layout.tenant())?;
        let manifests = scrub::verify_manifests(&cache, Some(&period), pace)?;
        stats.bytes.fetch_add(manifests.bytes, Relaxed);
        pass.bytes += manifests.bytes;
        for damaged in manifests.damaged_manifests.into_iter().chain(manifests.mounts_to_renew) {
            tracing::warn!("the scrubber found damaged data in the cache: {damaged}");
            stats.damaged.fetch_add(1, Relaxed);
            pass.damaged.push(damaged);
        }
        let mut due = partition.scan();
        if let Some(before) = SystemTime::now().checked_sub(interval)
            && let Err(error) = inventory::forget_gone(&partition, &due, before)
        {
            tracing::warn!("cannot forget what the cache has nothing of any more: {error}");
        }
        due.retain(|found| found.is_due(&period));
        due.sort_by_key(|found| found.verified_at);
        for found in due {
            let totals = match scrub::verify(&cache, std::slice::from_ref(&found), pace) {
                Err(error) if error.kind() != Kind::Interrupted => {
                    tracing::warn!("the scrubber cannot verify a blob: {error}");
                    continue;
                }
                verified => verified?,
            };
            stats.blobs.fetch_add(totals.blobs, Relaxed);
            stats.bytes.fetch_add(totals.bytes, Relaxed);
            stats.damaged.fetch_add(totals.damaged.len() as u64, Relaxed);
            pass.blobs += totals.blobs;
            pass.bytes += totals.bytes;
            pass.unknown += totals.unknown;
            for damaged in totals.damaged {
                tracing::warn!("the scrubber found damaged data in the cache and removed it: {damaged}");
                pass.damaged.push(damaged);
            }
        }
    }
    if pass.blobs > 0 || !pass.damaged.is_empty() {
        pass.ended = verification_time::seconds(SystemTime::now()).unsigned_abs();
        let text = serde_json::to_vec(&pass).context("cannot write the last scrub")?;
        let write = || {
            let directory = stats.directory.subdirectory(STATE_DIRECTORY)?;
            directory.file(LAST_PASS_FILE, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?.write_all(&text)
        };
        write().context("cannot write the last scrub")?;
        *stats.last.lock() = Some(pass);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bdnfs::blob::Key;
    use bdnfs::block::Arrival;
    use bdnfs::cache::{Cache, Limits};
    use bdnfs::engine::Config;

    use super::*;

    const LONG_AGO: SystemTime = SystemTime::UNIX_EPOCH;

    /// Puts a blob of one block into `cache`, and returns its file.
    fn put(cache: &Cache, number: u8) -> std::fs::File {
        let bytes = vec![number; 1000];
        let part = cache.begin(&Key::origin("test://", b"file", &[number]), 1000).expect("a part");
        part.put(&Arrival { size: 1000, index: 0, bytes: bytes.into() }.verify(None).expect("a block"))
            .expect("room");
        let (done, whole) = channel::bounded(1);
        cache.committer().commit(part, move |file| done.send(file).expect("the test waits"));
        whole.recv().expect("an answer").expect("a file")
    }

    #[test]
    fn scrub_after_an_interruption_resumes_where_it_stopped() {
        let home = tempfile::tempdir().expect("a directory");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let config = Config {
            cache: home.path().into(),
            tenant: "test".into(),
            limits: Limits { capacity: None, reserve: 0 },
            quotas: Default::default(),
            memory: 1 << 20,
            now: SystemTime::now,
        };
        let engine = Engine::open(&config, runtime.handle().clone()).expect("an engine");
        let cache = engine.cache().tenant("test").expect("a tenant");
        let scrubber = Scrubber::start(&engine, || true, Duration::ZERO).expect("it is off");
        let scrub = |pace: ScrubPace<'_>| {
            let read = scrubber.counts().blobs;
            let outcome = scrub_due(&engine, DEFAULT_SCRUB_INTERVAL, &scrubber.stats, pace);
            (scrubber.counts().blobs - read, outcome.err().map(|error| error.kind()))
        };
        let files = [1, 2, 3].map(|number| put(&cache, number));
        assert_eq!(scrub(&|_| true), (0, None), "all was verified when it came");
        files.iter().for_each(|file| verification_time::mark(file, LONG_AGO));
        let calls = AtomicU64::new(0);
        assert_eq!(scrub(&|_| calls.fetch_add(1, Relaxed) == 0), (1, Some(Kind::Interrupted)));
        assert_eq!(scrubber.counts().last, None);
        assert_eq!(scrub(&|_| true), (2, None));
        assert_eq!(scrub(&|_| true), (0, None));
        assert_eq!(last_pass(home.path()).map(|pass| (pass.blobs, pass.damaged)), Some((2, Vec::new())));
        // A file that was written to is due, whenever it was verified.
        files[0].set_modified(SystemTime::now() + Duration::from_nanos(1)).expect("a time");
        assert_eq!(scrub(&|_| true), (1, None));
        // What can't be opened comes first, as what is due for longest.
        let planted = home.path().join("tenants/test/blobs/00");
        std::fs::create_dir_all(&planted).expect("a shard");
        // As root would after a bad restore of a backup; a path for a socket would be too long.
        std::fs::create_dir_all(planted.join("0".repeat(64))).expect("a directory");
        files[1].set_modified(SystemTime::now() + Duration::from_nanos(1)).expect("a time");
        assert_eq!(scrub(&|_| true), (1, None));
    }
}
