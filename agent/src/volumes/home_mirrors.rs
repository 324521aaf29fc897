//! The mirrors that homes are saved in, which are asked before a home is evicted: what is on the node may be the only copy left.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};

use super::Volumes;
use super::cache_home::CacheHome;
use super::cache_sync::SyncState;
use crate::api::MirrorRequest;

/// The time in which all mirrors of a round have to confirm what homes are saved as: whoever needs the room waits for them.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// The time that a home that was not confirmed stays before its mirror is asked again.
const CONFIRM_RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// The number of mirrors that are asked at once.
const CONFIRMATIONS_IN_FLIGHT: usize = 16;

/// Opens the agent's own mirror for a tenant; `None` where it has none. Reads secrets.
pub type MirrorOpener = Box<dyn Fn(&str) -> Result<Option<Mirror>> + Send + Sync>;

/// The mirrors of a node's homes.
#[derive(Default)]
pub(super) struct HomeMirrors {
    /// The mirror of the agent.
    own: OnceLock<MirrorOpener>,
    /// Those that users of homes named last, by the directories of the homes. A restart of the agent forgets them, and their
    /// secrets.
    named: Mutex<HashMap<PathBuf, NamedMirror>>,
    /// When homes were last not confirmed, and why, by their directories.
    refusals: Mutex<HashMap<PathBuf, (Instant, String)>>,
}

/// A mirror that a user of a home has named.
#[derive(Clone, Debug)]
pub struct NamedMirror {
    /// The mirror.
    pub mirror: Mirror,
    /// The request that named it.
    pub request: MirrorRequest,
}

/// A home that may be evicted if its mirror has it.
#[derive(Clone, Debug)]
pub(super) struct EvictionCandidate {
    pub tenant: String,
    pub home: CacheHome,
    pub state: SyncState,
}

impl HomeMirrors {
    /// Sets the mirror that is asked where no user of a home has named one. The first one stays.
    pub fn set_own(&self, own: MirrorOpener) {
        let _ = self.own.set(own);
    }

    /// Notes the mirror that a user of `home` has named. Touches the local disk.
    pub fn note_named(&self, home: &CacheHome, named: NamedMirror) {
        let mut all = self.named.lock();
        all.retain(|path, _| path.exists());
        all.insert(home.path().to_owned(), named);
    }

    /// Those of `homes` that their mirrors have, and why others stay, where that was not told before. All mirrors are asked at
    /// once, and have a few seconds together; one that did not confirm a home is not asked for it again within a minute. Call it on
    /// a blocking thread of a runtime, without a lock.
    pub fn confirm(&self, homes: Vec<EvictionCandidate>) -> (Vec<EvictionCandidate>, Vec<String>) {
        let (now, is_listed) =
            (Instant::now(), |path: &PathBuf| homes.iter().any(|one| one.home.path() == path));
        let due: Vec<_> = {
            let mut refusals = self.refusals.lock();
            refusals.retain(|path, _| is_listed(path));
            let is_due = |one: &&EvictionCandidate| {
                let refused = refusals.get(one.home.path());
                refused.is_none_or(|(at, _)| now.duration_since(*at) >= CONFIRM_RETRY_INTERVAL)
            };
            homes.iter().filter(is_due).cloned().collect()
        };
        let give_up = now + CONFIRM_TIMEOUT;
        let ask = |one: EvictionCandidate| async move {
            let silent = || Error::new(Kind::Timeout, "its mirror did not answer");
            let asked = timeout_at(give_up, self.ask(&one)).await.unwrap_or_else(|_| Err(silent()));
            (one, asked)
        };
        let asked = stream::iter(due.into_iter().map(ask)).buffer_unordered(CONFIRMATIONS_IN_FLIGHT);
        let answers: Vec<_> = Handle::current().block_on(asked.collect());
        let (mut confirmed, mut spared, mut refusals) = (Vec::new(), Vec::new(), self.refusals.lock());
        for (one, answer) in answers {
            let path = one.home.path().to_owned();
            let Err(error) = answer else {
                refusals.remove(&path);
                confirmed.push(one);
                continue;
            };
            let why = format!("{} is not removed from this node to make room: {error}", one.home);
            let told = refusals.insert(path, (Instant::now(), why.clone()));
            if told.is_none_or(|(_, told)| told != why) {
                spared.push(why);
            }
        }
        (confirmed, spared)
    }

    /// Asks the mirror of a home whether what it has is saved.
    async fn ask(&self, EvictionCandidate { tenant, home, state }: &EvictionCandidate) -> Result<()> {
        let named = self.named.lock().get(home.path()).map(|named| named.mirror.clone());
        let mirror = match (named, self.own.get()) {
            (None, Some(open)) => open(tenant)?,
            (named, _) => named,
        };
        // What another one has of a cache of this name says nothing.
        let is_its = |mirror: &Mirror| state.mirror.as_deref().is_none_or(|name| name == mirror.name());
        let unknown =
            || Error::new(Kind::NotFound, "a job named its mirror, which this agent does not know any more");
        let mirror = mirror.filter(is_its).ok_or_else(unknown)?;
        mirror.ensure_exists().await?;
        let lacks = |what| Error::new(Kind::NotFound, format!("the mirror {} lacks {what}", mirror.name()));
        let latest = mirror.latest(&home.key()).await?;
        let found = latest.content?.filter(|found| !found.removed).ok_or_else(|| lacks("its snapshot"))?;
        // The state of a later generation was merged with this one.
        if latest.generation <= state.generation && state.manifest != Some(found.manifest.to_string()) {
            return Err(lacks("its snapshot"));
        }
        if mirror.has_manifest(&found.manifest).await? {
            Ok(())
        } else {
            Err(lacks("the manifest of its snapshot"))
        }
    }
}

impl Volumes {
    /// Sets the mirror that is asked for a home before it is evicted, where its users have named none since the agent began.
    pub fn set_own_mirror(&self, own: MirrorOpener) {
        self.mirrors.set_own(own);
    }

    /// The mirror that a user of `home` has named last, if one has since the agent began.
    pub fn mirror_named_for(&self, home: &CacheHome) -> Option<NamedMirror> {
        self.mirrors.named.lock().get(home.path()).cloned()
    }

    /// Notes the mirror that a user of `home` has named, which is asked before it is evicted. Touches the local disk.
    pub fn note_mirror(&self, home: &CacheHome, named: NamedMirror) {
        self.mirrors.note_named(home, named);
    }
}

impl fmt::Debug for HomeMirrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HomeMirrors").field("named", &self.named).finish_non_exhaustive()
    }
}
