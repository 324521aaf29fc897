//! Blobs of the mirror: put, found by digest or recipe, and forgotten.
//!
//! A blob is there when its record is. Its content is written first, so a record never points at nothing; and records are
//! made on condition that there is none, so of two that put one blob at once, the first to finish says how it is kept.
//! Whatever is found is dated anew, because the garbage collection goes by dates ([`super::gc`]).

use bytes::Bytes;
use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutPayload};
use sha2::Sha256;

use super::Mirror;
use super::draft::Draft;
use super::keys::ObjectKind;
use super::record::{MirrorRecord, decode_recipe, encode_recipe};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The largest object that a store copies by one request: 5 GiB on S3.
const MAX_COPY_BYTES: u64 = 5 << 30;
/// The number of attempts to create a record that is said to be there and is not: one that was deleted meanwhile, or damaged.
const RECORD_ATTEMPT_LIMIT: u32 = 2;

impl Mirror {
    /// The blob that was made from `recipe`; `None` when it isn't there. It is dated `since` or later.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn find_by_recipe(
        &self,
        recipe: &Digest,
        since: DateTime<Utc>,
    ) -> Result<Option<MirrorRecord>> {
        let Some(got) = self.get(&self.key(ObjectKind::Recipes, recipe)).await? else { return Ok(None) };
        match decode_recipe(&got.bytes, recipe) {
            Some(digest) => self.record(&digest, since).await,
            None => Ok(None),
        }
    }

    /// The record of a blob; `None` when it isn't there. It is dated `since` or later.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn record(&self, digest: &Digest, since: DateTime<Utc>) -> Result<Option<MirrorRecord>> {
        let key = self.key(ObjectKind::Records, digest);
        let Some(got) = self.get(&key).await? else { return Ok(None) };
        let record = MirrorRecord::decode(&got.bytes, digest);
        match &record {
            None => {
                tracing::warn!("{} is damaged: removed", self.url_of(&key));
                self.delete(&key).await?;
            }
            Some(_) if got.written < since => self.put(&key, got.bytes.into()).await?,
            Some(_) => {}
        }
        Ok(record)
    }

    /// Puts a blob that lies in memory, unless it is there already, and records that it was made from
    /// `recipe`. Returns how it is kept, and whether it was written.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put_blob(
        &self,
        recipe: &Digest,
        record: MirrorRecord,
        content: Vec<Bytes>,
        since: DateTime<Utc>,
    ) -> Result<(MirrorRecord, bool)> {
        let there = self.record(&record.digest, since).await?;
        let new = there.is_none();
        let record = match there {
            Some(there) => there,
            None => {
                let payload: PutPayload = content.into_iter().collect();
                self.put(&self.key(ObjectKind::Blobs, &record.digest), payload).await?;
                self.create_record(record).await?
            }
        };
        self.put_recipe(recipe, &record.digest).await?;
        Ok((record, new))
    }

    /// Puts a blob that was drafted, as [`put_blob`](Self::put_blob) does. `sha256` is that of its content, where it is known.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put_draft(
        &self,
        recipe: &Digest,
        draft: &mut Draft,
        sha256: Option<Sha256>,
        since: DateTime<Utc>,
    ) -> Result<(MirrorRecord, bool)> {
        let mut record = draft.record()?;
        let from = self.tenant_key(draft.object_key());
        let there = self.record(&record.digest, since).await?;
        let new = there.is_none();
        let record = match there {
            Some(there) => there,
            None => {
                draft.finish(sha256).await?;
                let named = self.key(ObjectKind::Blobs, &record.digest);
                let len = draft.stored();
                if len <= MAX_COPY_BYTES && self.copy(&from, &named, len).await? {
                    record.stored.object_key = Bytes::new();
                }
                self.create_record(record).await?
            }
        };
        self.put_recipe(recipe, &record.digest).await?;
        if record.stored.object_key != draft.object_key().as_bytes() {
            self.delete(&from).await?;
        }
        Ok((record, new))
    }

    /// Gives an upload its name. False where the store can't: then it stays where it is, and its record says so.
    async fn copy(&self, from: &Path, to: &Path, len: u64) -> Result<bool> {
        if let Err(error) = self.store.objects.copy(from, to).await {
            let error = self.failure("copy to", to, &error);
            tracing::info!(%error, "a blob is kept where it was uploaded");
            return Ok(false);
        }
        // Some stores take a copy for an empty write.
        let copied = self.head(to).await?.is_some_and(|meta| meta.size == len);
        if !copied {
            self.delete(to).await?;
        }
        Ok(copied)
    }

    /// Makes the record of a blob that is there, and returns the valid one: another run's, if that was faster.
    async fn create_record(&self, record: MirrorRecord) -> Result<MirrorRecord> {
        let key = self.key(ObjectKind::Records, &record.digest);
        for _ in 0..RECORD_ATTEMPT_LIMIT {
            if self.create(&key, record.encode().into(), None).await? {
                return Ok(record);
            }
            if let Some(theirs) = self.record(&record.digest, DateTime::UNIX_EPOCH).await? {
                return Ok(theirs);
            }
        }
        let text = format!(
            "cannot write {}: the service says that it exists, but it does not; try again",
            self.url_of(&key)
        );
        Err(Error::new(Kind::Unavailable, text))
    }

    /// Notes that the blob `made` was made from `recipe`.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn put_recipe(&self, recipe: &Digest, made: &Digest) -> Result<()> {
        self.put(&self.key(ObjectKind::Recipes, recipe), encode_recipe(recipe, made).into_bytes().into())
            .await
    }

    /// Whether a blob's object is there and as long as its record says.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn has_blob(&self, record: &MirrorRecord) -> Result<bool> {
        let key = self.blob_key(&record.digest, &record.stored);
        let len = record.stored.len(record.size);
        Ok(self.head(&key).await?.is_some_and(|meta| Some(meta.size) == len))
    }

    /// Forgets a blob: the next run that needs it uploads it again.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn forget(&self, digest: &Digest) -> Result<()> {
        self.delete(&self.key(ObjectKind::Records, digest)).await
    }

    /// The key of a blob's object.
    pub(super) fn blob_key(&self, digest: &Digest, stored: &crate::blob::MirrorLocation) -> Path {
        match str::from_utf8(&stored.object_key) {
            Ok(place) if !place.is_empty() => self.tenant_key(place),
            _ => self.key(ObjectKind::Blobs, digest),
        }
    }
}
