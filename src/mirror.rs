//! The mirror: sources copied once into object storage, and served from there.
//!
//! Object storage is all there is; no server keeps an index beside it. Below the mirror's URL lie
//!
//! ```text
//! format.json                                   what this is
//! tenants/<t>/blobs/ab/<digest>                 content, or its blocks as one zstd frame each
//! tenants/<t>/records/ab/<digest>               how a blob is kept, and the checks of its blocks
//! tenants/<t>/known/ab/<recipe>                 what was made from which versions of which files: a digest
//! tenants/<t>/manifests/<digest>                manifests
//! tenants/<t>/refs/<source key>/<generation>    what a source is mirrored as; the highest generation counts
//! tenants/<t>/checkpoints/<p>/<job>/<name>/<rank>  what jobs have saved, each published as a source
//! tenants/<t>/uploads/<id>                      blobs under way, whose digest nobody knows yet
//! tenants/<t>/drafts/<recipe>/<id>-<turn>       how far they are
//! tenants/<t>/leases/<purpose>-<id>             who is at work
//! ```
//!
//! `docs/formats.md` has them to the byte. What makes it safe:
//!
//! - What has a digest for a name never changes. Content comes first, then its record, then the manifest, then the ref:
//!   whatever is named exists, and a run that broke off leaves nothing that readers see. The next run finds the records
//!   of what was finished ([`blobs`]), and resumes what was under way ([`draft`]).
//! - A ref is replaced by making its next generation, which only one can do ([`catalog`]): every store can create an
//!   object on condition that it is not there.
//! - What no ref reaches is deleted ([`gc`]), but nothing younger than a grace period, or than a live lease ([`lease`]).
//! - Nothing that is read is believed: manifests and records are held against their digests, blocks against their
//!   checks, refs against the check that they hold and their own names, and known recipes against those.

pub mod blobs;
pub mod catalog;
mod checked_json;
pub mod draft;
pub mod frames;
pub mod gc;
pub mod gc_report;
pub mod homes;
pub mod index;
pub mod keys;
pub mod lease;
mod leftovers;
pub mod manifests;
pub mod multipart;
mod open;
mod process_id;
pub mod record;
pub mod serving;
mod store;
pub mod upload;
pub mod verification;

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::auth::KeyCache;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::manifest::Listing;
use crate::source::{Access, Patterns, Uri, tenant};
use multipart::MirrorStore;

pub use open::check_location;

/// One tenant's part of a mirror. Clones are handles to the same one.
#[derive(Clone)]
pub struct Mirror {
    store: MirrorStore,
    name: Arc<str>,
    tenant: Arc<str>,
    scratch: Arc<PathBuf>,
    /// The directory of a local mirror.
    local: Option<Arc<PathBuf>>,
    /// The credentials of its store, if they are known here.
    keys: Option<Arc<KeyCache>>,
    /// The URL of its service, where that is not the scheme's own.
    endpoint: Option<Arc<str>>,
    /// Whether it has one writer at a time, as far as is known: its `format.json` says so.
    exclusive: Arc<AtomicBool>,
}

impl Mirror {
    /// The mirror that lies at the root of `store` and that messages call `name`, for `tenant`. Manifests
    /// that are looked through lie in the directory `scratch` meanwhile, without a name.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for what can't be the name of a tenant.
    pub fn new(store: MirrorStore, name: &str, tenant: &str, scratch: PathBuf) -> Result<Self> {
        tenant::check(tenant)?;
        let name = name.trim_end_matches('/').into();
        let (tenant, scratch) = (tenant.into(), Arc::new(scratch));
        Ok(Self {
            store,
            name,
            tenant,
            scratch,
            local: None,
            keys: None,
            endpoint: None,
            exclusive: Arc::default(),
        })
    }

    /// The mirror at `uri`, as [`new`](Self::new) has it.
    ///
    /// # Errors
    /// [`Kind::Invalid`], [`Kind::Unsupported`] for what can't hold a mirror, [`Kind::Disk`].
    pub fn open(uri: &Uri, access: &Access, tenant: &str, scratch: PathBuf) -> Result<Self> {
        let (store, keys) = open::open(uri, access)?;
        let mirror = Self::new(store, &uri.to_string(), tenant, scratch)?;
        let local = match uri {
            Uri::File(path) => Some(Arc::new(path.clone())),
            _ => None,
        };
        Ok(Self { local, keys, endpoint: access.endpoint(uri).map(Arc::from), ..mirror })
    }

    /// The mirror's URL without credentials, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A file without a name, for a manifest that is written or looked through.
    ///
    /// # Errors
    /// [`Kind::Disk`] and [`Kind::NoSpace`].
    pub fn unnamed_file(&self) -> Result<File> {
        let fault = |e| Error::disk(format!("cannot make a file in {}", self.scratch.display()), e);
        tempfile::tempfile_in(&*self.scratch).map_err(fault)
    }

    /// An empty listing of `origin`, with this mirror's scratch.
    pub(crate) fn listing(&self, origin: &str, patterns: Patterns) -> Listing {
        Listing::new(origin, patterns, &self.scratch)
    }
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mirror({} for {})", self.name, self.tenant)
    }
}

/// The error for an object that is not what its name says.
fn damaged(object: impl fmt::Display, how: impl fmt::Display) -> Error {
    Error::new(Kind::Corrupt, format!("{object} is damaged ({how}); `bdnfs mirror add` repairs it"))
}

/// A digest out of the last part of a key.
fn digest_of(key: &object_store::path::Path) -> Option<Digest> {
    key.filename()?.parse().ok()
}
