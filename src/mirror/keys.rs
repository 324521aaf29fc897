//! The keys of a mirror's objects, and its format file.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::Ordering;

use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::Mirror;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The layout's version. A mirror of a newer one is refused.
const VERSION: u32 = 1;

/// The kinds of objects that a tenant has in a mirror, each below a prefix of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    /// Content by its digest.
    Blobs,
    /// The form in which each blob is stored.
    Records,
    /// The files that each blob was made from.
    Recipes,
    /// Manifests by their digests.
    Manifests,
    /// The refs of the sources.
    Refs,
    /// The index of saved checkpoints.
    Checkpoints,
    /// The reports of nodes on their homes of training caches.
    Homes,
    /// Content whose digest is not known yet.
    Uploads,
    /// The journals of unfinished uploads.
    Drafts,
    /// Leases of those that add, collect or serve now.
    Leases,
}

impl ObjectKind {
    /// The name in keys.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Blobs => "blobs",
            Self::Records => "records",
            Self::Recipes => "known",
            Self::Manifests => "manifests",
            Self::Refs => "refs",
            Self::Checkpoints => "checkpoints",
            Self::Homes => "homes",
            Self::Uploads => "uploads",
            Self::Drafts => "drafts",
            Self::Leases => "leases",
        }
    }
}

/// The object that tells that there is a mirror.
pub(super) const FORMAT_OBJECT: &str = "format.json";

/// The content of [`FORMAT_OBJECT`].
#[derive(Serialize, Deserialize)]
struct FormatFile {
    format: String,
    version: u32,
    /// Whether there is one writer at a time, because the store can't create an object on condition that it is not there.
    #[serde(default)]
    exclusive: bool,
}

impl Mirror {
    /// The key of the tenant's object at `below`.
    pub(super) fn tenant_key(&self, below: &str) -> Path {
        Path::from(format!("tenants/{}/{below}", self.tenant))
    }

    /// The key of the object of this `kind` that this digest names. Blobs, records and recipes are many, so they lie in 256
    /// directories.
    pub(super) fn key(&self, kind: ObjectKind, digest: &Digest) -> Path {
        let name = kind.name();
        match kind {
            ObjectKind::Blobs | ObjectKind::Records | ObjectKind::Recipes => {
                self.tenant_key(&format!("{name}/{:02x}/{digest}", digest.0[0]))
            }
            _ => self.tenant_key(&format!("{name}/{digest}")),
        }
    }

    /// The name of an object for a person: the mirror's and its key.
    pub(super) fn url_of(&self, key: &Path) -> String {
        format!("{}/{key}", self.name)
    }

    /// Makes sure that a mirror that was there before still exists. A directory whose disk is not mounted looks like any other.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] where it is gone; those of [`exists`](Self::exists).
    pub async fn ensure_exists(&self) -> Result<()> {
        if self.exists().await? {
            return Ok(());
        }
        let text =
            format!("the mirror {} is gone, which was there before; is its disk mounted?", self.name());
        Err(Error::new(Kind::Unavailable, text))
    }

    /// Checks whether there is a mirror.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when a newer version made it; those of the store.
    pub async fn exists(&self) -> Result<bool> {
        let key = Path::from(FORMAT_OBJECT);
        let foreign = || {
            let url = self.url_of(&key);
            let text =
                format!("{url} is not that of a bdnfs mirror: use another bucket, prefix or directory");
            Error::new(Kind::Invalid, text)
        };
        let found = match self.get(&key).await {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(false),
            Err(e) if e.kind() == Kind::Corrupt => return Err(foreign()),
            Err(e) => return Err(e),
        };
        match serde_json::from_slice::<FormatFile>(&found.bytes) {
            Ok(format) if format.format == "bdnfs mirror" && format.version == VERSION => {
                self.exclusive.store(format.exclusive, Ordering::Relaxed);
                Ok(true)
            }
            Ok(format) if format.format == "bdnfs mirror" => {
                let text = format!(
                    "the mirror {} has version {}; this bdnfs reads version {VERSION}: update bdnfs",
                    self.name, format.version
                );
                Err(Error::new(Kind::Unsupported, text))
            }
            _ => Err(foreign()),
        }
    }

    /// Refuses a mirror of another version or kind; there may be none. Credentials for the tenant's prefix alone can't see what
    /// kind it is, and are not refused.
    ///
    /// # Errors
    /// As [`exists`](Self::exists).
    pub async fn check_format(&self) -> Result<()> {
        match self.exists().await {
            Err(error) if error.kind() != Kind::Refused => Err(error),
            _ => Ok(()),
        }
    }

    /// Creates the mirror if there is none yet.
    ///
    /// # Errors
    /// As [`exists`](Self::exists); [`Kind::Unsupported`] for a store that creates no object on condition
    /// that it is not there: of two that add at once, one would undo what the other did.
    pub async fn init(&self) -> Result<()> {
        if self.exists().await? {
            return Ok(());
        }
        let (key, text) =
            (Path::from(FORMAT_OBJECT), format!("{{\"format\":\"bdnfs mirror\",\"version\":{VERSION}}}\n"));
        self.create(&key, text.clone().into(), None).await?;
        // Another text that says the same: an object with just what is to be written counts as written.
        if self.create(&key, format!(" {text}").into(), None).await? {
            self.delete(&key).await?;
            return Err(self.no_conditional_writes(&key));
        }
        // Of a directory whose disk is not mounted, too: whoever looks for what was saved is to find where it went.
        tracing::info!("created the mirror {}", self.name);
        Ok(())
    }

    /// Creates the mirror if there is none yet, with one writer at a time; false when it is there already. This is for a store
    /// without conditional writes: it creates no object on condition that it is not there. Later users of the mirror find that out
    /// by themselves.
    ///
    /// # Errors
    /// As [`exists`](Self::exists); [`Kind::Invalid`] when it is there already, and has as many writers as come.
    pub async fn init_exclusive(&self) -> Result<bool> {
        if !self.exists().await? {
            let text = format!("{{\"format\":\"bdnfs mirror\",\"version\":{VERSION},\"exclusive\":true}}\n");
            self.put(&Path::from(FORMAT_OBJECT), text.into()).await?;
            self.exclusive.store(true, Ordering::Relaxed);
            return Ok(true);
        }
        if self.is_exclusive() {
            return Ok(false);
        }
        let text = format!("the mirror {} is not an exclusive one; leave out --exclusive", self.name);
        Err(Error::new(Kind::Invalid, text))
    }

    /// Whether the mirror has one writer at a time. Known once it was looked whether it [exists](Self::exists).
    pub fn is_exclusive(&self) -> bool {
        self.exclusive.load(Ordering::Relaxed)
    }
}

/// A random id of 128 bits, as hex.
pub(super) fn random_id() -> String {
    let random = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", random(), random())
}
