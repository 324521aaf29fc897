//! Mirroring: what jobs read is copied into the mirror, each source once, however many jobs read it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::publish::{PublishConfig, PublishProgress, Published, publish_uri};
use bdnfs::source::{Patterns, Uri};
use bdnfs::task::blocking;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Mutex as Turn, Semaphore, oneshot};

use crate::api::{Failure, MountRequest};
use crate::jobs::Known;
use crate::mirror;
use crate::mounts::host::Host;
use crate::text;

/// How many sources are copied at once, and the memory that the content of each may hold, in bytes: together as much as
/// fetches may.
const AT_ONCE: usize = 2;
const CONFIG: PublishConfig = PublishConfig { memory: 128 << 20 };
/// As much of a snapshot's id as tells snapshots apart.
const ID_SHOWN: usize = 12;

/// The copying that is under way.
#[derive(Debug)]
pub struct Mirrors {
    turns: Mutex<HashMap<String, Weak<Turn<()>>>>,
    slots: Semaphore,
}

impl Default for Mirrors {
    fn default() -> Self {
        Self { turns: Mutex::default(), slots: Semaphore::new(AT_ONCE) }
    }
}

impl Mirrors {
    /// The turn of those who copy what has this key: who comes second finds it copied.
    fn turn(&self, key: String) -> Arc<Turn<()>> {
        let mut turns = self.turns.lock();
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(&key).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(key, Arc::downgrade(&turn));
        turn
    }
}

impl Host {
    /// Makes sure that the mirror of `request`, if it has one, has its source as it is now.
    pub(crate) async fn mirror(
        &self,
        job: &Known,
        request: &MountRequest,
    ) -> std::result::Result<(), Failure> {
        let request = self.equip(request);
        let uri: Uri = request.weights.source.expose().parse()?;
        let Some(at) = &request.mirror else { return Ok(()) };
        let patterns = Patterns::filter(request.weights.allow.as_deref(), &request.weights.ignore)?;
        let mirror = mirror::open(at, self.cache.clone())?;
        let key = source_key(&uri.identity(&request.weights.access), &patterns);
        let turn = self.jobs().mirrors.turn(format!("{}\0{}\0{key}", at.tenant, mirror.name()));
        let _turn = match turn.try_lock() {
            Ok(turn) => turn,
            Err(_) => {
                job.note(format!("waits for another job that mirrors {uri}"), |_| ());
                turn.lock().await
            }
        };
        let slots = &self.jobs().mirrors.slots;
        if slots.available_permits() == 0 {
            job.note(
                format!("waits for its turn to mirror {uri}: {AT_ONCE} sources are copied at once"),
                |_| (),
            );
        }
        let _slot = slots.acquire().await;
        match add(&mirror, &uri, patterns, &request).await {
            Ok(published) => job.note(summarize(&published), |_| ()),
            Err(error) => {
                let away = matches!(error.kind(), Kind::Unavailable | Kind::Timeout);
                let found = if away { mirror.find(&key).await.ok().flatten() } else { None };
                let Some(Ref { listed, .. }) = found else {
                    return Err(error.within(format!("cannot mirror {uri}")).into());
                };
                let listed = text::minute(listed.timestamp());
                job.note(format!("{uri} can't be mirrored anew, so it is as of {listed}: {error}"), |_| ());
            }
        }
        Ok(())
    }
}

/// Copies the source of `request`. Dropping the future cancels that.
async fn add(mirror: &Mirror, uri: &Uri, patterns: Patterns, request: &MountRequest) -> Result<Published> {
    let (stay, gone) = oneshot::channel::<()>();
    let (mirror, uri, request, runtime) = (mirror.clone(), uri.clone(), request.clone(), Handle::current());
    // On a thread of its own: the compiler can't see that it may move between threads.
    let added = blocking(move || {
        let progress = PublishProgress::default();
        runtime.block_on(async {
            tokio::select! {
                published = publish_uri(&mirror, &uri, &request.weights.access, patterns, CONFIG, &progress) => published,
                _ = gone => Err(Error::new(Kind::Interrupted, "the job was cancelled")),
            }
        })
    });
    let added = added.await;
    drop(stay);
    added
}

/// Says in one line what a publication came to.
pub fn summarize(published: &Published) -> String {
    let Published { found, new, repaired, read, written, .. } = published;
    let id: String = found.manifest.to_string().chars().take(ID_SHOWN).collect();
    let (files, bytes) = (text::files(found.files), text::size(found.bytes));
    let what = format!("{}: {files}, {bytes} (snapshot {id})", found.source);
    let moved = format!("read {}, wrote {}", text::size(*read), text::size(*written));
    match (*new, repaired.count) {
        (true, _) => format!("mirrored {what}; {moved} in {:.1} s", found.took),
        (false, 0) => format!("unchanged {what}"),
        (false, _) => format!("repaired {what}; {moved}"),
    }
}
