//! Drafts: unfinished large blobs, with a journal that lets the next run resume a killed one.
//!
//! The content of a large blob goes to the store as it passes, and has its digest only at the end. Beside it, the mirror
//! keeps a journal of how far that is, `drafts/<recipe>/<id>-<turn>`, first written before there is anything to lose: the
//! checks of the blocks that are done are all that is needed to hash the rest without them. A later run that makes the same
//! blob takes over a draft whose process is gone: it creates the journal's next turn, which only one process can. The
//! garbage collection deletes drafts that no run takes over.

mod journal;
mod state;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::TryStreamExt;
use object_store::path::Path;
use sha2::Sha256;
use tokio::task::JoinHandle;

use super::Mirror;
use super::keys::{ObjectKind, random_id};
use super::lease::{MirrorLease, Purpose};
use super::multipart::UploadId;
use super::record::MirrorRecord;
use super::upload::Upload;
use crate::blob::MirrorLocation;
use crate::block::Check;
use crate::digest::Digest;
use crate::error::Result;
use journal::{Journal, PartBoundary};
use state::{DraftState, stored};

/// The journal is written again when one part in this many is new: it grows with the blob, and so costs a hundredth of it.
const JOURNAL_FRACTION: usize = 16;
/// The most uploaded parts that the journal may lack: little more than what is on its way anyway.
const MAX_UNJOURNALED_PARTS: usize = 16;

/// A large blob that is being uploaded.
#[derive(Debug)]
pub struct Draft {
    upload: Upload,
    journal: Journal,
    size: u64,
    checks: Vec<Check>,
    ends: Option<Vec<u8>>,
    boundaries: VecDeque<PartBoundary>,
    journaled: usize,
    journaling: Option<JoinHandle<()>>,
    /// The state that another run left.
    found: u64,
    continued: bool,
}

/// A journal as listed in the mirror: of the newest turn, and of those before it.
#[derive(Debug)]
pub(super) struct JournalEntry {
    pub key: Path,
    pub written: DateTime<Utc>,
    pub size: u64,
    pub earlier: Vec<Path>,
    recipe: Digest,
    id: String,
    turn: u64,
}

impl Mirror {
    /// Begins a blob of `size` bytes that is made from `recipe`, `framed` or as it is.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn begin_draft(
        &self,
        recipe: &Digest,
        size: u64,
        framed: bool,
        lease: &MirrorLease,
    ) -> Result<Draft> {
        let place = format!("{}/{}", ObjectKind::Uploads.name(), random_id());
        let (upload, journal) = self.begin_journaled(recipe, place, size, lease.name()).await?;
        let ends = framed.then(Vec::new);
        Ok(Draft::new(upload, journal, size, Vec::new(), ends))
    }

    /// Begins the upload of an object to `place`, and its journal.
    pub(super) async fn begin_journaled(
        &self,
        recipe: &Digest,
        place: String,
        size: u64,
        holder: &str,
    ) -> Result<(Upload, Journal)> {
        let upload = Upload::begin(self, self.tenant_key(&place), size).await?;
        let journal = Journal {
            mirror: self.clone(),
            recipe: *recipe,
            key: self.journal_key(recipe, &random_id(), 0),
            place,
            holder: holder.to_owned(),
        };
        let nothing = PartBoundary { parts: 0, blocks: 0, rest: Bytes::new(), sha256: None };
        journal.write(&upload, journal.state(&upload, size, &[], None, &nothing)).await?;
        Ok((upload, journal))
    }

    /// Resumes the upload of a blob of `size` bytes made from `recipe`, if an ended process left one. Returns it with the SHA-256
    /// of the finished part, where that is wanted.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn resume_draft(
        &self,
        recipe: &Digest,
        size: u64,
        lease: &MirrorLease,
    ) -> Result<Option<(Draft, Option<Sha256>)>> {
        let below = self.tenant_key(&format!("{}/{recipe}", ObjectKind::Drafts.name()));
        let drafts = self.drafts(below).await?;
        if drafts.is_empty() {
            return Ok(None);
        }
        let live = self.live_add_leases(lease).await?;
        let mut best: Option<(JournalEntry, DraftState)> = None;
        for found in drafts {
            let Some(state) = self.state(&found).await? else { continue };
            if state.size != size || live.contains(&state.holder) {
                continue;
            }
            match best.as_ref().map_or(0, |(_, state)| state.checks.len()) {
                // An empty draft is never resumed.
                _ if state.checks.is_empty() => self.discard_draft(found).await?,
                most if state.checks.len() > most => best = Some((found, state)),
                _ => {}
            }
        }
        let Some((found, mut state)) = best else { return Ok(None) };
        state.holder = lease.name().to_owned();
        let key = self.journal_key(recipe, &found.id, found.turn + 1);
        if !self.create(&key, state.encode(recipe).into(), Some(lease)).await? {
            return Ok(None);
        }
        self.delete(&found.key).await?;
        let (place, holder) = (state.place.clone(), state.holder.clone());
        let journal = Journal { mirror: self.clone(), recipe: *recipe, key, place, holder };
        let id = UploadId { key: self.tenant_key(&state.place), upload: state.upload.clone() };
        let (found, sha256) = (state.stored(), state.sha256.take());
        let journaled = state.parts.len();
        let upload = Upload::resume(self, id, state.part, state.parts, state.rest);
        let draft = Draft::new(upload, journal, size, state.checks, state.ends);
        Ok(Some((Draft { found, journaled, continued: true, ..draft }, sha256)))
    }

    /// The holders of live leases to add, but for that of `lease`.
    async fn live_add_leases(&self, lease: &MirrorLease) -> Result<HashSet<String>> {
        let now = lease.renew_now().await?;
        let live_leases = self.leases().await?.into_iter().filter(|found| found.is_live(now));
        let add_leases =
            live_leases.filter(|found| found.purpose == Purpose::Add && &found.key != lease.key());
        Ok(add_leases.filter_map(|found| found.key.filename().map(str::to_owned)).collect())
    }

    /// The drafts below `key`.
    pub(super) async fn drafts(&self, key: Path) -> Result<Vec<JournalEntry>> {
        let mut drafts = BTreeMap::<_, BTreeMap<u64, _>>::new();
        let mut listed = self.list(key);
        while let Some(meta) = listed.try_next().await? {
            let mut words = meta.location.as_ref().rsplit('/');
            let (name, recipe) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if let (Some((id, turn)), Ok(recipe)) = (name.rsplit_once('-'), recipe.parse::<Digest>())
                && let Ok(turn) = turn.parse()
            {
                drafts.entry((recipe, id.to_owned())).or_default().insert(turn, meta);
            }
        }
        let latest = drafts.into_iter().filter_map(|((recipe, id), mut turns)| {
            let (turn, meta) = turns.pop_last()?;
            let earlier = turns.into_values().map(|meta| meta.location).collect();
            let (key, written, size) = (meta.location, meta.last_modified, meta.size);
            Some(JournalEntry { key, written, size, earlier, recipe, id, turn })
        });
        Ok(latest.collect())
    }

    async fn state(&self, found: &JournalEntry) -> Result<Option<DraftState>> {
        let got = self.get(&found.key).await?;
        Ok(got.and_then(|got| DraftState::decode(&got.bytes, &found.recipe)))
    }

    /// Returns the number of bytes of a draft's object that a service keeps. In a directory it is a file like others that were
    /// left.
    pub(super) async fn uploaded(&self, found: &JournalEntry) -> Result<u64> {
        let state = if self.local.is_none() { self.state(found).await? } else { None };
        Ok(state.map_or(0, |state| state.parts.len() as u64 * state.part))
    }

    /// Gives up a draft that was found.
    pub(super) async fn discard_draft(&self, found: JournalEntry) -> Result<()> {
        if self.local.is_none()
            && let Some(state) = self.state(&found).await?
        {
            let id = UploadId { key: self.tenant_key(&state.place), upload: state.upload };
            let aborted = self.store.parts.abort(&id).await;
            aborted.map_err(|e| self.failure("give up the upload of", &id.key, &e))?;
        }
        for key in found.earlier.iter().chain([&found.key]) {
            self.delete(key).await?;
        }
        Ok(())
    }

    fn journal_key(&self, recipe: &Digest, id: &str, turn: u64) -> Path {
        self.tenant_key(&format!("{}/{recipe}/{id}-{turn}", ObjectKind::Drafts.name()))
    }
}

impl Draft {
    fn new(upload: Upload, journal: Journal, size: u64, checks: Vec<Check>, ends: Option<Vec<u8>>) -> Self {
        let (boundaries, journaled, journaling) = (VecDeque::new(), 0, None);
        Self {
            upload,
            journal,
            size,
            checks,
            ends,
            boundaries,
            journaled,
            journaling,
            found: 0,
            continued: false,
        }
    }

    /// Returns the number of blocks that are done.
    pub fn blocks(&self) -> u64 {
        self.checks.len() as u64
    }

    /// Whether its blocks are compressed.
    pub fn is_framed(&self) -> bool {
        self.ends.is_some()
    }

    /// The path of its object, below the tenant's.
    pub(super) fn object_key(&self) -> &str {
        &self.journal.place
    }

    /// Returns the number of bytes of its stored form that this run has written.
    pub fn written(&self) -> u64 {
        self.stored() - self.found
    }

    /// The length of the stored form of the blocks that are done.
    pub(super) fn stored(&self) -> u64 {
        stored(self.size, self.blocks(), self.ends.as_deref())
    }

    /// Whether the draft was left by another run and the store takes nothing more of it: it has to be begun anew.
    pub fn is_stale(&self) -> bool {
        self.continued && self.upload.is_rejected()
    }

    /// Writes the next block in its stored form. `sha256` is that of all blocks up to it, where it is wanted.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn push(&mut self, check: Check, bytes: Bytes, sha256: Option<Sha256>) -> Result<()> {
        let end = self.stored() + bytes.len() as u64;
        self.checks.push(check);
        if let Some(ends) = &mut self.ends {
            ends.extend_from_slice(&end.to_le_bytes());
        }
        if let Some(cut) = self.upload.write(bytes).await? {
            let (parts, rest, blocks) = (cut.parts, cut.rest, self.checks.len());
            self.boundaries.push_back(PartBoundary { parts, blocks, rest, sha256 });
            self.journal_progress();
        }
        Ok(())
    }

    /// Writes the journal if enough was uploaded since the last time and no write is under way.
    fn journal_progress(&mut self) {
        let uploaded = self.upload.uploaded();
        while self.boundaries.get(1).is_some_and(|next| next.parts <= uploaded) {
            self.boundaries.pop_front();
        }
        let due = self.journaled + 1 + (uploaded / JOURNAL_FRACTION).min(MAX_UNJOURNALED_PARTS - 1);
        let busy = self.journaling.as_ref().is_some_and(|journaling| !journaling.is_finished());
        let Some(boundary) = self.boundaries.front().filter(|boundary| boundary.parts <= uploaded) else {
            return;
        };
        if boundary.parts < due || busy {
            return;
        }
        self.journaled = boundary.parts;
        let state = self.journal.state(&self.upload, self.size, &self.checks, self.ends.as_deref(), boundary);
        let written = self.journal.write(&self.upload, state);
        self.journaling = Some(tokio::spawn(async move {
            if let Err(error) = written.await {
                tracing::debug!(%error, "cannot write the journal of an upload; a resumed run would read more again");
            }
        }));
    }

    /// Suspends the draft, for another run to resume.
    pub async fn suspend(mut self) {
        if self.upload.await_parts().await.is_ok() {
            self.await_journal().await;
            self.journaled = 0;
            self.journal_progress();
        }
        self.await_journal().await;
    }

    /// Discards the draft with its upload.
    pub async fn discard(mut self) {
        self.await_journal().await;
        self.upload.abort().await;
        self.journal.delete().await;
    }

    /// Waits until the journal is not being written.
    async fn await_journal(&mut self) {
        if let Some(journaling) = self.journaling.take() {
            journaling.await.ok();
        }
    }

    /// The record of the blob when all of its blocks are done, as long as its object has no other name.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) when blocks lack.
    pub fn record(&self) -> Result<MirrorRecord> {
        let stored = MirrorLocation {
            object_key: self.object_key().to_owned().into(),
            ends: self.ends.clone().map(Bytes::from),
        };
        let (digest, checks) = (Check::combine(self.size, &self.checks)?, Arc::from(&self.checks[..]));
        Ok(MirrorRecord { digest, size: self.size, checks, stored })
    }

    /// Makes an object of it, when all of its blocks are done. Its note says so first: from then on nothing is read again.
    pub(super) async fn finish(&mut self, sha256: Option<Sha256>) -> Result<()> {
        self.upload.flush().await?;
        self.await_journal().await;
        let (parts, blocks) = (self.upload.uploaded(), self.checks.len());
        let end = PartBoundary { parts, blocks, rest: Bytes::new(), sha256 };
        let state = self.journal.state(&self.upload, self.size, &self.checks, self.ends.as_deref(), &end);
        self.journal.write(&self.upload, state).await?;
        self.upload.complete(self.stored()).await
    }

    /// Deletes the journal of a finished draft.
    pub async fn close(self) {
        self.journal.delete().await;
    }
}
