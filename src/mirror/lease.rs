//! Leases: objects that keep the collector from deleting what a publisher or a reader still needs.
//!
//! A run that adds or collects, and an agent that serves a snapshot, each keep one and write it again every minute. When that
//! stops, it lapses; on the machine where its holder was killed, at once. All times are the store's own, so no two clocks need to
//! agree.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use futures_util::TryStreamExt;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::keys::{ObjectKind, random_id};
use super::{Mirror, process_id};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The interval at which a lease is renewed.
const RENEW_INTERVAL: Duration = Duration::from_secs(60);
/// The time for which an unrenewed lease lasts: work goes on while a store is out of order for a few minutes.
const LEASE_TTL: Duration = Duration::from_secs(300);

/// The time that a release waits for the lease's object to be deleted.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The purpose of a lease, as listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Adding a source.
    Add,
    /// Collecting what no ref reaches.
    Sweep,
    /// Serving the snapshot with this manifest.
    Serve(Digest),
}

impl Purpose {
    /// Whether its holder writes what is mirrored.
    fn writes(self) -> bool {
        matches!(self, Self::Add | Self::Sweep)
    }
}

/// The lease of a run that adds or collects.
#[derive(Debug)]
pub struct MirrorLease {
    mirror: Mirror,
    key: Path,
    began: DateTime<Utc>,
    term: Arc<Mutex<LeaseTerm>>,
    renewal: LeaseRenewal,
}

/// The lease of who reads a snapshot. A deployment waits for it, so one request takes it: nobody asks when it began.
#[derive(Debug)]
pub struct ServeLease(LeaseRenewal);

/// The task that renews a lease every minute until this is released or dropped, and then deletes it.
#[derive(Debug)]
struct LeaseRenewal {
    held: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<()>>,
}

/// Whether a lease was renewed in time, by the store's clock: the one by which others judge it, and which does not stand still
/// while this machine sleeps.
#[derive(Debug)]
struct LeaseTerm {
    renewed: DateTime<Utc>,
    lapsed: bool,
}

impl LeaseTerm {
    /// Notes that the lease was renewed at the time `now` of the store. False when it had lapsed before.
    fn renew(&mut self, now: DateTime<Utc>) -> bool {
        self.lapsed |= !is_unexpired(self.renewed, now);
        self.renewed = self.renewed.max(now);
        !self.lapsed
    }
}

/// The content of a lease's object: when it began, where that is known already, and who holds it.
fn lease_text(began: Option<DateTime<Utc>>) -> String {
    format!("{} {}", began.map_or(String::new(), |began| began.to_rfc3339()), process_id::current())
}

/// Whether a lease that was last renewed at the time `renewed` of the store is unexpired at its time `now`.
fn is_unexpired(renewed: DateTime<Utc>, now: DateTime<Utc>) -> bool {
    renewed + TimeDelta::from_std(LEASE_TTL).unwrap_or_default() > now
}

/// A lease as listed in the mirror, of this or another process.
#[derive(Clone, Debug)]
pub(super) struct LeaseEntry {
    pub key: Path,
    pub purpose: Purpose,
    /// When it was first written, as far as is known.
    pub began: DateTime<Utc>,
    /// When it was last renewed.
    pub renewed: DateTime<Utc>,
    /// The process that holds it ([`process_id`]).
    holder: String,
}

impl LeaseEntry {
    /// Whether the lease is unexpired at the time `now` of the store.
    pub(super) fn is_live(&self, now: DateTime<Utc>) -> bool {
        is_unexpired(self.renewed, now) && !process_id::is_gone(&self.holder)
    }
}

impl Mirror {
    /// Takes a lease to add a source.
    ///
    /// # Errors
    /// [`Kind::Busy`] when an exclusive mirror has another writer; those of the store.
    pub async fn add_lease(&self) -> Result<MirrorLease> {
        self.write_lease("add").await
    }

    /// Takes a lease to collect what no ref reaches.
    ///
    /// # Errors
    /// As [`add_lease`](Self::add_lease).
    pub(super) async fn sweep_lease(&self) -> Result<MirrorLease> {
        self.write_lease("sweep").await
    }

    async fn write_lease(&self, name: &str) -> Result<MirrorLease> {
        let key = self.new_lease_key(name);
        let began = self.renew(&key, None).await?;
        // From now on the lease's object has its start.
        let renewed = self.renew(&key, Some(began)).await?;
        if self.is_exclusive()
            && let Err(error) = self.ensure_sole_writer(&key, began).await
        {
            self.delete(&key).await?;
            return Err(error);
        }
        let term = Arc::new(Mutex::new(LeaseTerm { renewed, lapsed: false }));
        let renewal = LeaseRenewal::start(self.clone(), key.clone(), Some((began, term.clone())));
        Ok(MirrorLease { mirror: self.clone(), key, began, term, renewal })
    }

    /// Takes a lease on the snapshot with the manifest `digest`, to read it.
    ///
    /// # Errors
    /// Those of the store; [`Kind::Refused`] where it may only be read.
    pub async fn serve_lease(&self, digest: &Digest) -> Result<ServeLease> {
        let key = self.new_lease_key(&format!("serve-{digest}"));
        self.put(&key, lease_text(None).into()).await?;
        Ok(ServeLease(LeaseRenewal::start(self.clone(), key, None)))
    }

    fn new_lease_key(&self, name: &str) -> Path {
        self.tenant_key(&format!("{}/{name}-{}", ObjectKind::Leases.name(), random_id()))
    }

    /// Makes sure that only the holder of the lease `own` writes to an exclusive mirror. Of two that begin at
    /// once, each may be refused: the store's clock does not tell which was first.
    async fn ensure_sole_writer(&self, own: &Path, now: DateTime<Utc>) -> Result<()> {
        let others = self.leases().await?;
        let is_other =
            |found: &&LeaseEntry| found.purpose.writes() && found.key != *own && found.is_live(now);
        match others.iter().find(is_other) {
            None => Ok(()),
            Some(other) => Err(Error::new(
                Kind::Busy,
                format!(
                    "the mirror {} is exclusive, and another process has written to it since {}; try again when that has \
                     ended ({})",
                    self.name,
                    other.began.to_rfc3339_opts(SecondsFormat::Secs, true),
                    self.url_of(&other.key)
                ),
            )),
        }
    }

    /// Writes a lease, and returns the store's time.
    async fn renew(&self, key: &Path, began: Option<DateTime<Utc>>) -> Result<DateTime<Utc>> {
        self.put(key, lease_text(began).into()).await?;
        let gone = || Error::new(Kind::Unavailable, format!("{} was deleted", self.url_of(key)));
        Ok(self.head(key).await?.ok_or_else(gone)?.last_modified)
    }

    /// All leases, lapsed ones too.
    pub(super) async fn leases(&self) -> Result<Vec<LeaseEntry>> {
        let mut found = Vec::new();
        let mut listed = self.list(self.tenant_key(ObjectKind::Leases.name()));
        while let Some(meta) = listed.try_next().await? {
            let name = meta.location.filename().unwrap_or_default();
            let purpose = match name.split('-').collect::<Vec<_>>()[..] {
                ["add", _] => Purpose::Add,
                ["sweep", _] => Purpose::Sweep,
                ["serve", digest, _] if digest.parse::<Digest>().is_ok() => Purpose::Serve(digest.parse()?),
                _ => continue,
            };
            let Some(got) = self.get(&meta.location).await? else { continue };
            let text = str::from_utf8(&got.bytes).unwrap_or_default();
            let (began, holder) = text.split_once(' ').unwrap_or((text, ""));
            // A lease without its start was first written just now.
            let began = began.parse().unwrap_or(meta.last_modified);
            let holder = holder.to_owned();
            found.push(LeaseEntry { key: meta.location, purpose, began, renewed: got.written, holder });
        }
        Ok(found)
    }
}

impl MirrorLease {
    /// When it began, by the store's clock.
    pub fn began(&self) -> DateTime<Utc> {
        self.began
    }

    /// The last part of its key.
    pub(super) fn name(&self) -> &str {
        self.key.filename().unwrap_or_default()
    }

    /// The key of its object.
    pub(super) fn key(&self) -> &Path {
        &self.key
    }

    /// Renews it, and returns the store's time.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when it has lapsed meanwhile; those of the store.
    pub async fn renew_now(&self) -> Result<DateTime<Utc>> {
        let now = self.mirror.renew(&self.key, Some(self.began)).await?;
        if !self.term.lock().renew(now) {
            let text = format!(
                "the lease {} could not be renewed for {LEASE_TTL:?}; try again: what was copied is kept",
                self.mirror.url_of(&self.key)
            );
            return Err(Error::new(Kind::Unavailable, text));
        }
        Ok(now)
    }

    /// Releases the lease, and waits until its object is deleted.
    pub async fn release(self) {
        self.renewal.release().await;
    }
}

impl ServeLease {
    /// Releases the lease, and waits until its object is deleted.
    pub async fn release(self) {
        self.0.release().await;
    }
}

impl LeaseRenewal {
    /// Starts the task. `writer`: when the lease of a writer began, and its term, which the task keeps.
    fn start(mirror: Mirror, key: Path, writer: Option<(DateTime<Utc>, Arc<Mutex<LeaseTerm>>)>) -> Self {
        let (held, mut released) = oneshot::channel();
        let task = tokio::spawn(async move {
            while timeout(RENEW_INTERVAL, &mut released).await.is_err() {
                let renewed = match &writer {
                    Some((began, term)) => {
                        mirror.renew(&key, Some(*began)).await.map(|now| _ = term.lock().renew(now))
                    }
                    None => mirror.put(&key, lease_text(None).into()).await,
                };
                if let Err(error) = renewed {
                    tracing::warn!(%error, "a lease of the mirror could not be renewed");
                }
            }
            if let Err(error) = mirror.delete(&key).await {
                tracing::debug!(%error, "a lease is left to lapse");
            }
        });
        Self { held: Some(held), task: Some(task) }
    }

    /// Waits until the lease's object is deleted.
    async fn release(mut self) {
        self.held = None;
        if let Some(task) = self.task.take() {
            // A lease that can't be deleted lapses.
            timeout(RELEASE_TIMEOUT, task).await.ok();
        }
    }
}

impl MirrorLease {
    /// Waits until no collector is at work. What was collected since this lease began must be looked for again afterwards;
    /// a collector that begins later spares what was written since.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn wait_for_collectors(&self) -> Result<()> {
        loop {
            let now = self.renew_now().await?;
            let leases = self.mirror.leases().await?;
            if !leases.iter().any(|found| found.purpose == Purpose::Sweep && found.is_live(now)) {
                return Ok(());
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;

    use super::*;
    use crate::mirror::catalog::Ref;
    use crate::source::{Access, Uri};

    fn listed(at: DateTime<Utc>, source: &str) -> Ref {
        Ref {
            source: source.into(),
            identity: source.into(),
            resolved: source.into(),
            allow: None,
            ignore: Vec::new(),
            removed: false,
            manifest: Digest::of(at.to_rfc3339().as_bytes()),
            listing: Digest::of(b""),
            files: 0,
            bytes: 0,
            blobs: 0,
            stored: 0,
            listed: at,
            took: 0.0,
            tool: String::new(),
        }
    }

    /// Makes it as if the lease had last been renewed longer ago than it lasts, as of a machine that slept.
    fn let_lapse(lease: &MirrorLease, directory: &Path) {
        lease.term.lock().renewed -= TimeDelta::from_std(LEASE_TTL).expect("minutes");
        let object =
            File::options().write(true).open(directory.join(lease.key.as_ref())).expect("its object");
        let then = object.metadata().and_then(|meta| meta.modified()).expect("a time") - LEASE_TTL;
        object.set_modified(then).expect("dated back");
    }

    #[tokio::test]
    async fn collector_whose_lease_lapsed_deletes_nothing() {
        let directory = tempfile::tempdir().expect("directory");
        let uri = Uri::File(directory.path().to_owned());
        let mirror = Mirror::open(&uri, &Access::default(), "t", std::env::temp_dir()).expect("a directory");
        mirror.init().await.expect("made");
        let key = mirror.tenant_key(&format!("{}/left", ObjectKind::Uploads.name()));
        mirror.put(&key, "x".into()).await.expect("written");
        let left = File::options().write(true).open(directory.path().join(key.as_ref())).expect("there");
        left.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("dated back");
        let lease = mirror.sweep_lease().await.expect("leased");
        let_lapse(&lease, directory.path());
        let error = mirror.sweep(&lease, Duration::ZERO, false).await.expect_err("lapsed");
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(mirror.head(&key).await.expect("asked").is_some());
        let report = mirror.collect(Duration::ZERO, false).await.expect("collected");
        assert!(mirror.head(&key).await.expect("asked").is_none(), "{report:?}");
    }

    #[tokio::test]
    async fn lapsed_lease_in_exclusive_mirror_changes_no_ref_after_another_writer() {
        let directory = tempfile::tempdir().expect("directory");
        let uri = Uri::File(directory.path().to_owned());
        let mirror = Mirror::open(&uri, &Access::default(), "t", std::env::temp_dir()).expect("a directory");
        assert!(mirror.init_exclusive().await.expect("made"));
        let first = mirror.add_lease().await.expect("leased");
        assert_eq!(mirror.add_lease().await.expect_err("one at a time").kind(), Kind::Busy);
        let now = first.renew_now().await.expect("held");
        let_lapse(&first, directory.path());
        let second = mirror.add_lease().await.expect("the first has lapsed");
        let theirs = mirror.commit_ref(&listed(now, "s3://b"), Some(&second)).await.expect("published");
        let later = now + TimeDelta::seconds(1);
        for source in ["s3://b", "s3://new"] {
            let error = mirror.commit_ref(&listed(later, source), Some(&first)).await.expect_err("lapsed");
            assert!(error.kind() == Kind::Unavailable && error.to_string().contains("try again"), "{error}");
        }
        assert_eq!(mirror.refs().await.expect("listed").len(), 1);
        assert_eq!(mirror.find(&theirs.key()).await.expect("found"), Some(theirs));
        let key = object_store::path::Path::from("x");
        mirror.create(&key, "x".into(), Some(&first)).await.expect_err("lapsed");
        assert!(mirror.head(&key).await.expect("looked at").is_none());
        assert!(mirror.create(&key, "x".into(), Some(&second)).await.expect("held"));
        // It stays so, however often it is renewed.
        first.renew_now().await.expect_err("lapsed");
        second.renew_now().await.expect("held");
    }
}
