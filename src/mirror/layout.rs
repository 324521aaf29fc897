//! Where things lie in a mirror.

use std::hash::{BuildHasher, RandomState};

use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::Mirror;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};

/// The layout's version. A mirror of a newer one is refused.
const VERSION: u32 = 1;

/// The kinds of things that a tenant keeps, each below a key of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shelf {
    /// Content by its digest.
    Blobs,
    /// How it is kept.
    Records,
    /// What was made from what.
    Known,
    /// Manifests by their digests.
    Manifests,
    /// What sources are mirrored as.
    Refs,
    /// Content whose digest is not known yet.
    Uploads,
    /// How far it is.
    Drafts,
    /// Who is at work.
    Leases,
}

impl Shelf {
    /// Its name in keys.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Blobs => "blobs",
            Self::Records => "records",
            Self::Known => "known",
            Self::Manifests => "manifests",
            Self::Refs => "refs",
            Self::Uploads => "uploads",
            Self::Drafts => "drafts",
            Self::Leases => "leases",
        }
    }
}

/// What `format.json` says.
#[derive(Serialize, Deserialize)]
struct Format {
    format: String,
    version: u32,
}

impl Mirror {
    /// The key of what the tenant calls `below`.
    pub(super) fn below(&self, below: &str) -> Path {
        Path::from(format!("tenants/{}/{below}", self.tenant))
    }

    /// The key of what lies on `shelf` by this digest. Blobs, records and recipes are many, so they lie in 256
    /// directories.
    pub(super) fn key(&self, shelf: Shelf, digest: &Digest) -> Path {
        let name = shelf.name();
        match shelf {
            Shelf::Blobs | Shelf::Records | Shelf::Known => {
                self.below(&format!("{name}/{:02x}/{digest}", digest.0[0]))
            }
            _ => self.below(&format!("{name}/{digest}")),
        }
    }

    /// The name of an object for a person: the mirror's and its key.
    pub(super) fn shown(&self, key: &Path) -> String {
        format!("{}/{key}", self.name)
    }

    /// Finds out whether a mirror is there.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] when a newer version made it; those of the store.
    pub async fn exists(&self) -> Result<bool> {
        let key = Path::from("format.json");
        let Some(found) = self.get(&key).await? else { return Ok(false) };
        match serde_json::from_slice::<Format>(&found.bytes) {
            Ok(format) if format.format == "bdnfs mirror" && format.version == VERSION => Ok(true),
            Ok(format) if format.format == "bdnfs mirror" => {
                let text = format!(
                    "the mirror {} has version {}; this bdnfs knows {VERSION}, update it",
                    self.name, format.version
                );
                Err(Error::new(Kind::Unsupported, text))
            }
            _ => Err(Error::new(Kind::Invalid, format!("{} says that this is no mirror", self.shown(&key)))),
        }
    }

    /// Makes the mirror if it is not there yet.
    ///
    /// # Errors
    /// As [`exists`](Self::exists); [`Kind::Unsupported`] for a store that creates no object on condition that it is not
    /// there: of two who add at once, one would undo what the other did.
    pub async fn found(&self) -> Result<()> {
        if self.exists().await? {
            return Ok(());
        }
        let (key, text) =
            (Path::from("format.json"), format!("{{\"format\":\"bdnfs mirror\",\"version\":{VERSION}}}\n"));
        self.create(&key, text.clone().into()).await?;
        if self.create(&key, text.into()).await? {
            self.delete(&key).await?;
            return Err(self.unconditional(&key));
        }
        Ok(())
    }
}

/// A name that nothing else has: 128 random bits.
pub(super) fn fresh() -> String {
    let random = || RandomState::new().hash_one(std::process::id());
    format!("{:016x}{:016x}", random(), random())
}
