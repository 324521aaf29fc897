//! The journal of a draft: how far an upload is, in the mirror.

use bytes::Bytes;
use object_store::path::Path;
use sha2::Sha256;

use super::super::Mirror;
use super::super::upload::Upload;
use super::state::DraftState;
use crate::block::Check;
use crate::digest::Digest;
use crate::error::Result;

/// The journal of a draft: the object that holds its state.
#[derive(Clone, Debug)]
pub(in crate::mirror) struct Journal {
    pub(super) mirror: Mirror,
    pub(super) recipe: Digest,
    pub(super) key: Path,
    pub(super) place: String,
    pub(super) holder: String,
}

/// The state of a draft at the end of a part.
#[derive(Debug)]
pub(super) struct PartBoundary {
    pub(super) parts: usize,
    pub(super) blocks: usize,
    pub(super) rest: Bytes,
    pub(super) sha256: Option<Sha256>,
}

impl Journal {
    /// The state of the draft at `boundary`.
    pub(super) fn state(
        &self,
        upload: &Upload,
        size: u64,
        checks: &[Check],
        ends: Option<&[u8]>,
        boundary: &PartBoundary,
    ) -> DraftState {
        DraftState {
            size,
            checks: checks[..boundary.blocks].to_vec(),
            ends: ends.map(|ends| ends[..8 * boundary.blocks].to_vec()),
            sha256: boundary.sha256.clone(),
            part: upload.part(),
            parts: upload.parts(boundary.parts).map(str::to_owned).collect(),
            rest: boundary.rest.clone(),
            place: self.place.clone(),
            upload: upload.id().upload.clone(),
            holder: self.holder.clone(),
        }
    }

    /// Writes the journal, once the parts that it lists are durable.
    pub(super) fn write(
        &self,
        upload: &Upload,
        state: DraftState,
    ) -> impl Future<Output = Result<()>> + Send + 'static {
        let (journal, id) = (self.clone(), upload.id().clone());
        async move {
            let synced = journal.mirror.store.parts.sync(&id).await;
            synced.map_err(|e| journal.mirror.failure("write", &id.key, &e))?;
            journal.mirror.put(&journal.key, state.encode(&journal.recipe).into()).await
        }
    }

    /// Deletes the journal, once the upload is finished or discarded.
    pub(in crate::mirror) async fn delete(self) {
        if let Err(error) = self.mirror.delete(&self.key).await {
            tracing::debug!(%error, "cannot delete the journal of an upload; `mirror gc` will");
        }
    }
}
