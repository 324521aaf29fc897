//! Mounts what is asked for: from a request to a snapshot, and from that to a mount that serves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bdnfs::auth::load;
use bdnfs::engine::Engine;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::snapshot::Snapshot;
use bdnfs::source::{S3Access, SecretStore, Uri};
use bdnfs::task::blocking;
use bdnfs_fs::handover::{DentryInvalidator, MountDescriptors};
use bdnfs_fs::native_mount::Superblocks;
use bdnfs_fs::{Mount, Options, RequestMetrics};
use tokio::runtime::Handle;

use super::history::SourceHistory;
use super::lookup;
use super::record::MountRecord;
use super::resolved_snapshot::ResolvedSnapshot;
use crate::api::{ApiResult, DEFAULT_TENANT, Failure, MirrorRequest, MountBackend, MountRequest};
use crate::{runtime, text};

/// The threads that take a mount's requests, however few processors there are: what they wait for is the cache's disk, where a
/// small file is opened and read whose pages are not in memory. On two processors eight of them read a quarter more of such files
/// than two, sixteen no more than eight. What is in memory already, but new to the mount, is answered a tenth slower; a large file
/// is all the same.
const DEVICE_THREADS: usize = 8;
/// The number of files from which on the memory of a listing is given back at once.
const LARGE_LISTING_FILES: u64 = 100_000;

/// The defaults that an agent adds to mount requests.
#[derive(Debug)]
pub struct MountDefaults {
    /// The mirror of requests that name none.
    pub mirror: Option<MirrorRequest>,
    /// The secret stores that are searched after a request's own.
    pub secrets: Vec<SecretStore>,
    /// The backend of staged mounts whose requests name none.
    pub via: MountBackend,
}

impl MountDefaults {
    /// A request with the agent's mirror, where it names none, and with the agent's secret stores after its own, unless it is of
    /// a user that may not use them ([`Access::explicit_only`](bdnfs::source::Access)). Nothing else adds these stores.
    fn add_to(&self, request: &MountRequest, own_tenant: &str) -> MountRequest {
        let mut request = request.clone();
        if !request.weights.access.explicit_only {
            request.weights.access.secrets.extend_from_slice(&self.secrets);
        }
        if request.mirror.is_none() && !request.direct {
            request.mirror.clone_from(&self.mirror);
        } else if let Some(mirror) = &mut request.mirror {
            mirror.access.secrets.extend_from_slice(&self.secrets);
        }
        if let Some(mirror) = &mut request.mirror {
            request.tenant.as_deref().unwrap_or(own_tenant).clone_into(&mut mirror.tenant);
        }
        request
    }
}

/// Refuses a mirror that is named for another tenant than `tenant`, whose data it would become. One that is named for none says the
/// default one.
fn check_tenant(mirror: &MirrorRequest, tenant: &str) -> Result<()> {
    if mirror.tenant != tenant && mirror.tenant != DEFAULT_TENANT {
        let text =
            format!("the mirror is named for tenant {}, and the request is one of {tenant}", mirror.tenant);
        return Err(Error::new(Kind::Invalid, text));
    }
    Ok(())
}

/// A request with the regions and endpoints that its secrets name. Reads them.
///
/// # Errors
/// [`Kind::Refused`] for a secret that is nowhere.
fn complete(mut request: MountRequest) -> Result<MountRequest> {
    let weights = &mut request.weights;
    let uri: Uri = weights.source.expose().parse()?;
    weights.access = load::complete_access(&uri, std::mem::take(&mut weights.access))?;
    request.mirror = request.mirror.map(complete_mirror).transpose()?;
    Ok(request)
}

/// A mirror with the region and endpoint that its secret names. Reads it.
///
/// # Errors
/// As [`complete`].
fn complete_mirror(mut mirror: MirrorRequest) -> Result<MirrorRequest> {
    let uri: Uri = mirror.url.expose().parse()?;
    mirror.access = load::complete_access(&uri, mirror.access)?;
    Ok(mirror)
}

/// A request with the regions and endpoints that those of its secrets name that can be read now: local content needs none, and all
/// keys are read again before they are used. Without its mirror, where only the secret tells where that is.
fn complete_readable(mut request: MountRequest) -> MountRequest {
    let mirror = request.mirror.take();
    let mut request = complete(request.clone()).unwrap_or_else(|error| {
        tracing::warn!("{} is restored without its secret: {error}", request.weights.source);
        request
    });
    let source = &request.weights.source;
    request.mirror = mirror.and_then(|mirror| match complete_mirror(mirror.clone()) {
        Ok(complete) => Some(complete),
        Err(error) if is_located(&mirror) => {
            tracing::warn!("{source} is restored without the secret of its mirror: {error}");
            Some(mirror)
        }
        Err(error) => {
            tracing::warn!("{source} is served without its mirror: {error}");
            None
        }
    });
    request
}

/// Whether it is known without its secret where a mirror is. That of an S3 service may name region and endpoint.
fn is_located(mirror: &MirrorRequest) -> bool {
    let Ok(uri) = mirror.url.expose().parse::<Uri>() else { return false };
    let is_given = |s3: &S3Access| s3.endpoint.is_some() || s3.region.is_some();
    !matches!(uri, Uri::S3 { .. }) || mirror.access.s3(&uri).is_some_and(is_given)
}

/// Makes mounts that serve.
#[derive(Debug)]
pub struct Mounter {
    /// The engine, which fetches.
    pub engine: Engine,
    /// The source history.
    pub history: SourceHistory,
    /// The directory of the cache.
    pub cache: PathBuf,
    /// The control socket that the root of each mount names.
    pub socket: PathBuf,
    /// The superblocks of native mounts.
    pub superblocks: Arc<Superblocks>,
    /// The defaults of requests.
    pub defaults: MountDefaults,
    /// Counts the requests of all mounts.
    pub metrics: Arc<RequestMetrics>,
    /// Invalidates directory entries, where another process does.
    pub invalidator: Option<Arc<dyn DentryInvalidator>>,
}

impl Mounter {
    /// A request, with what the agent adds to it, and with what its secrets name.
    ///
    /// # Errors
    /// [`Kind::Refused`] for a secret that is nowhere.
    pub async fn with_defaults(&self, request: &MountRequest) -> Result<MountRequest> {
        self.check_mirror(request)?;
        let request = self.defaults.add_to(request, self.engine.tenant());
        blocking(move || complete(request)).await
    }

    /// The mirror that `named` is, with what its secrets name, else the agent's own for `tenant`. Reads secrets.
    ///
    /// # Errors
    /// [`Kind::Refused`] for a secret that is nowhere.
    pub fn mirror(
        &self,
        named: Option<MirrorRequest>,
        tenant: Option<&str>,
    ) -> Result<Option<MirrorRequest>> {
        let tenant = tenant.unwrap_or(self.engine.tenant());
        let mut mirror = match (named, &self.defaults.mirror) {
            (Some(mut named), _) => {
                check_tenant(&named, tenant)?;
                named.access.secrets.extend_from_slice(&self.defaults.secrets);
                named
            }
            (None, Some(own)) => own.clone(),
            (None, None) => return Ok(None),
        };
        tenant.clone_into(&mut mirror.tenant);
        complete_mirror(mirror).map(Some)
    }

    /// Fails where `request` names a missing secret, or a mirror for another tenant. Reads secrets.
    pub fn check(&self, request: &MountRequest) -> Result<()> {
        self.check_mirror(request)?;
        complete(self.defaults.add_to(request, self.engine.tenant())).map(drop)
    }

    fn check_mirror(&self, request: &MountRequest) -> Result<()> {
        let tenant = request.tenant.as_deref().unwrap_or(self.engine.tenant());
        request.mirror.as_ref().map_or(Ok(()), |mirror| check_tenant(mirror, tenant))
    }

    /// Finds the snapshot that `request` asks for, which has files.
    pub async fn resolve(&self, request: &MountRequest) -> ApiResult<ResolvedSnapshot> {
        let (engine, request) = (self.engine_of(request).await?, self.with_defaults(request).await?);
        let resolved = lookup::resolve(&engine, &self.cache, &self.history, &request).await?;
        let manifest = resolved.snapshot.manifest();
        if manifest.files() == 0 {
            return Err(Failure::new(Kind::NotFound, format!("{} has no files", manifest.source())));
        }
        Ok(resolved)
    }

    /// Whether the cache has a snapshot of the source of `request` whole: [`resolve`](Self::resolve) takes it where nobody answers.
    ///
    /// # Errors
    /// Those of the local disk.
    pub async fn is_cached(&self, request: &MountRequest) -> ApiResult<bool> {
        let (engine, request) = (self.engine_of(request).await?, self.with_defaults(request).await?);
        lookup::is_cached(&engine, &self.cache, &self.history, &request).await
    }

    /// Opens the snapshot of `record` from the cache, without a network. `request` is the record's, with its
    /// secrets where they are known.
    pub async fn reopen(&self, record: &MountRecord, request: &MountRequest) -> ApiResult<Arc<Snapshot>> {
        let engine = self.engine_of(request).await?;
        self.check_mirror(request)?;
        let request = self.defaults.add_to(request, self.engine.tenant());
        let request = blocking(move || Ok(complete_readable(request))).await?;
        lookup::reopen(&engine, &self.cache, record, &request).await
    }

    /// Takes the manifest of `record`, which the cache lacks, from the mirror of `request`. False where that names none.
    pub async fn fetch_manifest(&self, record: &MountRecord, request: &MountRequest) -> ApiResult<bool> {
        let (engine, request) = (self.engine_of(request).await?, self.with_defaults(request).await?);
        lookup::fetch_manifest(&engine, &self.cache, record, &request).await
    }

    /// Mounts `snapshot` where `request` wants it.
    ///
    /// # Errors
    /// Those of [`Mount::new`].
    pub async fn attach(&self, snapshot: &Arc<Snapshot>, request: &MountRequest) -> Result<Mount> {
        let (options, mountpoint) = (self.options(request), request.weights.mountpoint.clone());
        let (snapshot, runtime) = (Arc::clone(snapshot), Handle::current());
        let large = snapshot.manifest().files() >= LARGE_LISTING_FILES;
        blocking(move || {
            let mount = Mount::new(snapshot, runtime, &mountpoint, &options)?;
            if large {
                runtime::trim_heap();
            }
            Ok(mount)
        })
        .await
    }

    /// Goes on serving a mount of `snapshot` that another process served.
    ///
    /// # Errors
    /// Those of [`Mount::resume`].
    pub async fn resume(
        &self,
        snapshot: &Arc<Snapshot>,
        request: &MountRequest,
        descriptors: MountDescriptors,
    ) -> Result<Mount> {
        let (options, mountpoint) = (self.options(request), request.weights.mountpoint.clone());
        let (snapshot, runtime) = (Arc::clone(snapshot), Handle::current());
        blocking(move || Mount::resume(snapshot, runtime, &mountpoint, &options, descriptors)).await
    }

    /// The warnings on a mount of `snapshot` for the user, a sentence each.
    pub fn warnings(&self, snapshot: &Snapshot, mount: &Mount, request: &MountRequest) -> Vec<String> {
        let source = snapshot.manifest().source();
        let mut warnings = text::notes(snapshot.notes(), source);
        if mount.lacks_passthrough() {
            warnings.push(
                "the kernel cannot read local files by itself (that needs Linux 6.9 and root), so reads go \
                 through the agent and are slower"
                    .to_owned(),
            );
        }
        let capacity = self.engine.usage().capacity;
        if let Some(size) = request.cache_size.filter(|&size| Some(size) != capacity) {
            let limit =
                capacity.map_or("no limit".to_owned(), |size| format!("a limit of {}", text::size(size)));
            let requested = text::size(size);
            warnings.push(format!(
                "the agent of this cache runs with {limit}, not {requested}; it takes another limit when all its mounts \
                 have ended"
            ));
        }
        warnings
    }

    /// The engine of the tenant whose mount it is.
    pub(super) async fn engine_of(&self, request: &MountRequest) -> Result<Engine> {
        let Some(tenant) = request.tenant.clone() else { return Ok(self.engine.clone()) };
        let engine = self.engine.clone();
        blocking(move || engine.of(&tenant)).await
    }

    /// The options of a mount.
    pub(super) fn options(&self, request: &MountRequest) -> Options {
        Options {
            allow_other: request.allow_other,
            uid: request.uid,
            gid: request.gid,
            threads: DEVICE_THREADS,
            steady: false,
            control: Some(self.socket.clone()),
            metrics: Arc::clone(&self.metrics),
            invalidator: self.invalidator.clone(),
        }
    }

    /// Whether a mount at `mountpoint` would hide the cache.
    pub fn hides_cache(&self, mountpoint: &Path) -> bool {
        self.cache.starts_with(mountpoint)
    }
}
