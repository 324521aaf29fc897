//! Sources to mirror.

use std::sync::Arc;

use crate::checkpoint::CheckpointId;
use crate::digest::Digest;
use crate::error::Result;
use crate::mirror::catalog::source_key;
use crate::origin;
use crate::source::{Access, Patterns, Uri, tree_identity};
use crate::tier::Origin;
use crate::tier::named_origin::NamedOrigin;

/// A source to mirror.
#[derive(Clone, Debug)]
pub struct MirrorSource {
    /// The name for a person, without secrets.
    pub name: String,
    /// The [identity](crate::source::Uri::identity), which distinguishes it from all others.
    pub identity: String,
    /// The patterns of its files that may be executed, beside those of which it says so.
    pub executable: Vec<String>,
    /// The selection of its files.
    pub patterns: Patterns,
    /// The origin of the files.
    pub origin: Arc<dyn Origin>,
    /// Whether a large file that the mirror may have under another name is read once more to find out, which is cheap for
    /// files of this machine.
    pub hash_first: bool,
    /// The earlier state of the source that it replaces.
    pub previous: PreviousState,
}

/// The earlier state of a source that a mirrored one replaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreviousState {
    /// One that was listed earlier: anybody may mirror the source.
    #[default]
    LatestListing,
    /// The last one, whatever clocks say: the source has one writer.
    OneWriter,
    /// The generation of the ref with this number, which must still be the newest.
    After(u64),
}

impl MirrorSource {
    /// Opens the source at `uri` with `access`, for what `patterns` select of it.
    ///
    /// # Errors
    /// Those of [`origin::open`].
    pub async fn open(uri: &Uri, access: &Access, patterns: Patterns) -> Result<Self> {
        Ok(Self {
            name: uri.to_string(),
            identity: uri.identity(access),
            executable: access.executable.clone(),
            patterns,
            origin: origin::open(uri, access).await?,
            hash_first: matches!(uri, Uri::File(_)),
            previous: PreviousState::default(),
        })
    }

    /// All that `origin`, a local directory, lists, as the source `name`.
    pub fn local(name: String, origin: Arc<dyn Origin>, previous: PreviousState) -> Self {
        // The local path is not recorded in the mirror.
        let origin = Arc::new(NamedOrigin::new(name.clone(), origin));
        let (executable, patterns, identity) = (Vec::new(), Patterns::default(), name.clone());
        Self { name, identity, executable, patterns, origin, hash_first: true, previous }
    }

    /// The checkpoint `id`, with the content of `origin`, a local directory.
    pub fn checkpoint(id: &CheckpointId, origin: Arc<dyn Origin>) -> Self {
        Self::local(id.to_string(), origin, PreviousState::OneWriter)
    }

    /// The identity of the tree that it becomes.
    pub(super) fn tree_identity(&self) -> String {
        tree_identity(self.identity.clone(), &self.executable)
    }

    /// The key of the source's ref.
    pub(super) fn key(&self) -> Digest {
        source_key(&self.tree_identity(), &self.patterns)
    }
}
