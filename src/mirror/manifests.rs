//! The manifests that a mirror keeps.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::GetOptions;
use object_store::path::Path;

use super::keys::ObjectKind;
use super::lease::MirrorLease;
use super::{Mirror, damaged};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::http_client::{MAX_RESPONSE_TIMEOUT, send_hedged, silent};
use crate::manifest::Manifest;
use crate::task::blocking;

/// The number of bytes of a manifest that one request moves.
const PIECE_BYTES: u64 = 8 << 20;
/// The number of such requests that are under way at once.
const PIECES_IN_FLIGHT: usize = 4;

impl Mirror {
    /// The manifest `digest`, opened; `None` when it isn't there.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when it is damaged, [`Kind::Disk`] for the scratch
    /// directory; those of the store.
    pub async fn manifest(&self, digest: &Digest) -> Result<Option<Manifest>> {
        let copied = self.copy_manifest(digest, Arc::new(self.unnamed_file()?)).await;
        match copied.map_err(|e| e.on_disk(&self.scratch))? {
            Some(file) => Ok(Some(Manifest::open(&file)?)),
            None => Ok(None),
        }
    }

    /// Whether the manifest `digest` is there, whatever its content is.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn has_manifest(&self, digest: &Digest) -> Result<bool> {
        Ok(self.head(&self.key(ObjectKind::Manifests, digest)).await?.is_some())
    }

    /// Writes the manifest `digest` to `file`, an empty one; `None` when it isn't there.
    ///
    /// # Errors
    /// As [`manifest`](Self::manifest).
    pub async fn copy_manifest(&self, digest: &Digest, file: Arc<File>) -> Result<Option<Arc<File>>> {
        let key = self.key(ObjectKind::Manifests, digest);
        // The first piece tells the size, too: a deployment waits for each request.
        let (size, first) = match self.piece(&key, 0..PIECE_BYTES).await {
            Ok(piece) => piece,
            Err(error) if error.kind() == Kind::Timeout => return Err(error),
            // What a service says of a range of nothing has no kind of its own.
            Err(error) => match self.head(&key).await {
                Ok(None) => return Ok(None),
                Ok(Some(meta)) if meta.size == 0 => return Err(damaged(self.url_of(&key), "it is empty")),
                _ => return Err(error),
            },
        };
        let starts = (PIECE_BYTES..size).step_by(PIECE_BYTES as usize);
        let rest = stream::iter(starts).map(|start| self.piece(&key, start..size.min(start + PIECE_BYTES)));
        let rest = rest.buffered(PIECES_IN_FLIGHT).map_ok(|(_, piece)| piece);
        let mut pieces = stream::iter([Ok(first)]).chain(rest);
        let mut hasher = blake3::Hasher::new();
        while let Some(piece) = pieces.try_next().await? {
            if hasher.count() == 0 {
                // Gigabytes of something else would be fetched for a minute before their digest told.
                let checked = Manifest::check_start(&piece, usize::try_from(size).unwrap_or(usize::MAX));
                checked.map_err(|e| e.context(self.url_of(&key)))?;
            }
            let file = file.clone();
            hasher = blocking(move || {
                hasher.update(&piece);
                (&*file).write_all(&piece).map_err(|e| Error::disk("cannot write a manifest", e))?;
                Ok(hasher)
            })
            .await?;
        }
        if hasher.finalize().as_bytes() != &digest.0 {
            return Err(damaged(self.url_of(&key), "its content does not have its digest"));
        }
        Ok(Some(file))
    }

    /// The size of the object at `key`, and its bytes in `range`, which may end beyond it.
    async fn piece(&self, key: &Path, range: Range<u64>) -> Result<(u64, Bytes)> {
        let piece = send_hedged(|received| {
            let options = GetOptions::new().with_range(Some(range.clone()));
            async move {
                let got = self.store.objects.get_opts(key, options).await?;
                let (size, len) = (got.meta.size, (got.range.end - got.range.start).min(PIECE_BYTES));
                let mut piece = BytesMut::with_capacity(len as usize);
                let mut arriving = got.into_stream();
                while let Some(bytes) = arriving.try_next().await? {
                    received.fetch_add(bytes.len() as u64, Relaxed);
                    piece.extend_from_slice(&bytes);
                    if piece.len() as u64 > len {
                        break; // A server that never ends must not fill the memory; the digest tells.
                    }
                }
                Ok((size, piece.freeze()))
            }
        });
        match piece.await {
            Some(piece) => piece.map_err(|e| self.failure("read", key, &e)),
            None => Err(silent(MAX_RESPONSE_TIMEOUT).context(self.url_of(key))),
        }
    }

    /// Puts the manifest that `file` holds.
    ///
    /// # Errors
    /// [`Kind::Disk`] for the file; those of the store.
    pub async fn put_manifest(&self, digest: &Digest, file: File, lease: &MirrorLease) -> Result<()> {
        let fault = |e| Error::disk("cannot read a manifest", e);
        let size = (&file).seek(SeekFrom::End(0)).map_err(fault)?;
        let file = Arc::new(file);
        let piece = |start: u64| {
            let (file, len) = (file.clone(), PIECE_BYTES.min(size - start) as usize);
            blocking(move || {
                let mut piece = vec![0; len];
                file.read_exact_at(&mut piece, start).map_err(fault)?;
                Ok(Bytes::from(piece))
            })
        };
        let place = format!("{}/{digest}", ObjectKind::Manifests.name());
        if size <= PIECE_BYTES {
            return self.put(&self.tenant_key(&place), piece(0).await?.into()).await;
        }
        let (mut upload, journal) = self.begin_journaled(digest, place, size, lease.name()).await?;
        let written = async {
            for start in (0..size).step_by(PIECE_BYTES as usize) {
                upload.write(piece(start).await?).await?;
            }
            upload.flush().await?;
            upload.complete(size).await
        };
        let outcome = written.await;
        if outcome.is_err() {
            upload.abort().await;
        }
        journal.delete().await;
        outcome
    }
}
