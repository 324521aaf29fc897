//! Drafts: large blobs under way, so that a run that was killed goes on where it was.
//!
//! The content of a large blob goes to the store as it passes, and has its digest only at the end. Beside it, the mirror
//! keeps a note of how far that is, `drafts/<recipe>/<id>-<turn>`, first written before there is anything to lose: the
//! checks of the blocks that are done are all that is needed to hash the rest without them. Whoever makes the same thing
//! later takes over a draft whose holder is gone, by making the note of its next turn, which only one can do. What nobody
//! takes over is given up by who collects.

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
use super::layout::{Shelf, fresh};
use super::lease::{Lease, Purpose};
use super::parts::Id;
use super::record::Record;
use super::upload::Upload;
use crate::blob::Stored;
use crate::block::Check;
use crate::digest::Digest;
use crate::error::Result;
use state::{State, stored};

/// A note is written again when this part of what is done is new: it grows with the blob, and costs a hundredth of it so.
const NEW: usize = 16;
/// The most parts that go without a note: little more than what is on its way anyway.
const MOST_NEW: usize = 16;

/// A blob under way.
#[derive(Debug)]
pub struct Draft {
    upload: Upload,
    note: Note,
    size: u64,
    checks: Vec<Check>,
    ends: Option<Vec<u8>>,
    marks: VecDeque<Mark>,
    noted: usize,
    noting: Option<JoinHandle<()>>,
    /// What another run had done.
    found: u64,
    continued: bool,
}

/// Where its state is noted.
#[derive(Clone, Debug)]
pub(super) struct Note {
    mirror: Mirror,
    recipe: Digest,
    key: Path,
    place: String,
    holder: String,
}

/// What is known where a part ends.
#[derive(Debug)]
struct Mark {
    parts: usize,
    blocks: usize,
    rest: Bytes,
    sha256: Option<Sha256>,
}

/// A note that was found: of the newest turn, and of those before it.
#[derive(Debug)]
pub(super) struct Found {
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
    pub async fn draft(&self, recipe: &Digest, size: u64, framed: bool, lease: &Lease) -> Result<Draft> {
        let place = format!("{}/{}", Shelf::Uploads.name(), fresh());
        let (upload, note) = self.announced(recipe, place, size, lease.name()).await?;
        let ends = framed.then(Vec::new);
        Ok(Draft::new(upload, note, size, Vec::new(), ends))
    }

    /// Begins the object that is to lie at `place`, and notes that.
    pub(super) async fn announced(
        &self,
        recipe: &Digest,
        place: String,
        size: u64,
        holder: &str,
    ) -> Result<(Upload, Note)> {
        let upload = Upload::begin(self, self.below(&place), size).await?;
        let note = Note {
            mirror: self.clone(),
            recipe: *recipe,
            key: self.note_key(recipe, &fresh(), 0),
            place,
            holder: holder.to_owned(),
        };
        let nothing = Mark { parts: 0, blocks: 0, rest: Bytes::new(), sha256: None };
        note.write(&upload, note.state(&upload, size, &[], None, &nothing)).await?;
        Ok((upload, note))
    }

    /// Goes on with a blob of `size` bytes that is made from `recipe`, where somebody left one who is gone; with the
    /// SHA-256 of what is done, where that is wanted.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn resume(
        &self,
        recipe: &Digest,
        size: u64,
        lease: &Lease,
    ) -> Result<Option<(Draft, Option<Sha256>)>> {
        let below = self.below(&format!("{}/{recipe}", Shelf::Drafts.name()));
        let drafts = self.drafts(below).await?;
        if drafts.is_empty() {
            return Ok(None);
        }
        let busy = self.at_work(lease).await?;
        let mut best: Option<(Found, State)> = None;
        for found in drafts {
            let Some(state) = self.state(&found).await? else { continue };
            if state.size != size || busy.contains(&state.holder) {
                continue;
            }
            match best.as_ref().map_or(0, |(_, state)| state.checks.len()) {
                // Nobody ever goes on with nothing.
                _ if state.checks.is_empty() => self.give_up(found).await?,
                most if state.checks.len() > most => best = Some((found, state)),
                _ => {}
            }
        }
        let Some((found, mut state)) = best else { return Ok(None) };
        state.holder = lease.name().to_owned();
        let key = self.note_key(recipe, &found.id, found.turn + 1);
        if !self.create(&key, state.encode(recipe).into()).await? {
            return Ok(None);
        }
        self.delete(&found.key).await?;
        let (place, holder) = (state.place.clone(), state.holder.clone());
        let note = Note { mirror: self.clone(), recipe: *recipe, key, place, holder };
        let id = Id { key: self.below(&state.place), upload: state.upload.clone() };
        let (found, sha256) = (state.stored(), state.sha256.take());
        let noted = state.parts.len();
        let upload = Upload::after(self, id, state.part, state.parts, state.rest);
        let draft = Draft::new(upload, note, size, state.checks, state.ends);
        Ok(Some((Draft { found, noted, continued: true, ..draft }, sha256)))
    }

    /// Who adds now, but for the holder of `lease`.
    async fn at_work(&self, lease: &Lease) -> Result<HashSet<String>> {
        let now = lease.now().await?;
        let living = self.leases().await?.into_iter().filter(|found| found.lives(now));
        let adding = living.filter(|found| found.purpose == Purpose::Add && &found.key != lease.key());
        Ok(adding.filter_map(|found| found.key.filename().map(str::to_owned)).collect())
    }

    /// The drafts below `key`.
    pub(super) async fn drafts(&self, key: Path) -> Result<Vec<Found>> {
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
        let newest = drafts.into_iter().filter_map(|((recipe, id), mut turns)| {
            let (turn, meta) = turns.pop_last()?;
            let earlier = turns.into_values().map(|meta| meta.location).collect();
            let (key, written, size) = (meta.location, meta.last_modified, meta.size);
            Some(Found { key, written, size, earlier, recipe, id, turn })
        });
        Ok(newest.collect())
    }

    async fn state(&self, found: &Found) -> Result<Option<State>> {
        let got = self.get(&found.key).await?;
        Ok(got.and_then(|got| State::decode(&got.bytes, &found.recipe)))
    }

    /// How many bytes a service keeps of a draft's object. In a directory it is a file like others that were left.
    pub(super) async fn uploaded(&self, found: &Found) -> Result<u64> {
        let state = if self.local.is_none() { self.state(found).await? } else { None };
        Ok(state.map_or(0, |state| state.parts.len() as u64 * state.part))
    }

    /// Gives up a draft that was found.
    pub(super) async fn give_up(&self, found: Found) -> Result<()> {
        if self.local.is_none()
            && let Some(state) = self.state(&found).await?
        {
            let id = Id { key: self.below(&state.place), upload: state.upload };
            let aborted = self.store.parts.abort(&id).await;
            aborted.map_err(|e| self.failure("give up the upload of", &id.key, &e))?;
        }
        for key in found.earlier.iter().chain([&found.key]) {
            self.delete(key).await?;
        }
        Ok(())
    }

    fn note_key(&self, recipe: &Digest, id: &str, turn: u64) -> Path {
        self.below(&format!("{}/{recipe}/{id}-{turn}", Shelf::Drafts.name()))
    }
}

impl Note {
    fn state(&self, upload: &Upload, size: u64, checks: &[Check], ends: Option<&[u8]>, mark: &Mark) -> State {
        State {
            size,
            checks: checks[..mark.blocks].to_vec(),
            ends: ends.map(|ends| ends[..8 * mark.blocks].to_vec()),
            sha256: mark.sha256.clone(),
            part: upload.part(),
            parts: upload.parts(mark.parts).map(str::to_owned).collect(),
            rest: mark.rest.clone(),
            place: self.place.clone(),
            upload: upload.id().upload.clone(),
            holder: self.holder.clone(),
        }
    }

    /// Writes what is known, when the parts that it speaks of are durable.
    fn write(&self, upload: &Upload, state: State) -> impl Future<Output = Result<()>> + Send + 'static {
        let (note, id) = (self.clone(), upload.id().clone());
        async move {
            let settled = note.mirror.store.parts.settle(&id).await;
            settled.map_err(|e| note.mirror.failure("write", &id.key, &e))?;
            note.mirror.put(&note.key, state.encode(&note.recipe).into()).await
        }
    }

    /// Deletes it: nothing is under way any more.
    pub(super) async fn delete(self) {
        if let Err(error) = self.mirror.delete(&self.key).await {
            tracing::debug!(%error, "a note of a draft is left to who collects");
        }
    }
}

impl Draft {
    fn new(upload: Upload, note: Note, size: u64, checks: Vec<Check>, ends: Option<Vec<u8>>) -> Self {
        let (marks, noted, noting) = (VecDeque::new(), 0, None);
        Self { upload, note, size, checks, ends, marks, noted, noting, found: 0, continued: false }
    }

    /// How many blocks are done.
    pub fn blocks(&self) -> u64 {
        self.checks.len() as u64
    }

    /// Whether its blocks are compressed.
    pub fn is_framed(&self) -> bool {
        self.ends.is_some()
    }

    /// Where its object lies, below the tenant's.
    pub(super) fn place(&self) -> &str {
        &self.note.place
    }

    /// How many bytes of its stored form this run has written.
    pub fn written(&self) -> u64 {
        self.stored() - self.found
    }

    /// The length of the stored form of the blocks that are done.
    pub(super) fn stored(&self) -> u64 {
        stored(self.size, self.blocks(), self.ends.as_deref())
    }

    /// Whether it was left by another run, and the store takes nothing more of it: it is to be begun anew.
    pub fn is_useless(&self) -> bool {
        self.continued && self.upload.is_refused()
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
            self.marks.push_back(Mark { parts, blocks, rest, sha256 });
            self.note();
        }
        Ok(())
    }

    /// Notes how far it is, where that is worth it and nobody is at it.
    fn note(&mut self) {
        let landed = self.upload.landed();
        while self.marks.get(1).is_some_and(|next| next.parts <= landed) {
            self.marks.pop_front();
        }
        let due = self.noted + 1 + (landed / NEW).min(MOST_NEW - 1);
        let busy = self.noting.as_ref().is_some_and(|noting| !noting.is_finished());
        let Some(mark) = self.marks.front().filter(|mark| mark.parts <= landed) else { return };
        if mark.parts < due || busy {
            return;
        }
        self.noted = mark.parts;
        let state = self.note.state(&self.upload, self.size, &self.checks, self.ends.as_deref(), mark);
        let written = self.note.write(&self.upload, state);
        self.noting = Some(tokio::spawn(async move {
            if let Err(error) = written.await {
                tracing::debug!(%error, "a draft can't be noted: if this breaks off, more is read again");
            }
        }));
    }

    /// Leaves it to another run.
    pub async fn leave(mut self) {
        if self.upload.land_all().await.is_ok() {
            self.quiet().await;
            self.noted = 0;
            self.note();
        }
        self.quiet().await;
    }

    /// Gives it up.
    pub async fn abandon(mut self) {
        self.quiet().await;
        self.upload.abort().await;
        self.note.delete().await;
    }

    /// Waits until nothing is being noted.
    async fn quiet(&mut self) {
        if let Some(noting) = self.noting.take() {
            noting.await.ok();
        }
    }

    /// How it is kept, when all of its blocks are done, as long as its object has no other name.
    ///
    /// # Errors
    /// [`Kind::Corrupt`](crate::error::Kind::Corrupt) when blocks lack.
    pub fn record(&self) -> Result<Record> {
        let stored =
            Stored { place: self.place().to_owned().into(), ends: self.ends.clone().map(Bytes::from) };
        let (digest, checks) = (Check::combine(self.size, &self.checks)?, Arc::from(&self.checks[..]));
        Ok(Record { digest, size: self.size, checks, stored })
    }

    /// Makes an object of it, when all of its blocks are done. Its note says so first: from then on nothing is read again.
    pub(super) async fn finish(&mut self, sha256: Option<Sha256>) -> Result<()> {
        self.upload.drain().await?;
        self.quiet().await;
        let (parts, blocks) = (self.upload.landed(), self.checks.len());
        let end = Mark { parts, blocks, rest: Bytes::new(), sha256 };
        let state = self.note.state(&self.upload, self.size, &self.checks, self.ends.as_deref(), &end);
        self.note.write(&self.upload, state).await?;
        self.upload.complete(self.stored()).await
    }

    /// Ends it, when its object needs it no more.
    pub async fn end(self) {
        self.note.delete().await;
    }
}
