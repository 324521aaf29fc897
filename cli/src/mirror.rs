//! The mirror options of the command line.

use anyhow::{Result, anyhow};
use bdnfs::mirror::Mirror;
use bdnfs::source::Uri;
use bdnfs_agent::api::MirrorRequest;
use bdnfs_agent::cache::DEFAULT_TENANT;
use bdnfs_agent::mirror;

use crate::access::{AccessArgs, MirrorAccessArgs, option_name};
use crate::source::{Parser, Source};

/// The options that name a mirror and the access to it.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct MirrorArgs {
    /// URL of the mirror: s3://bucket/prefix, gs://, azure://, r2://, cw://, or file:///directory
    #[arg(long, value_name = "URL", value_parser = Parser)]
    mirror: Option<Source>,
    /// Tenant that owns the data, in the mirror and the cache
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    #[command(flatten)]
    access: MirrorAccessArgs,
}

impl MirrorArgs {
    /// The mirror that is named, if any. Access options that it lacks are those of `sources` in `access`.
    pub fn request(&self, access: &AccessArgs, sources: &[&Uri]) -> Result<Option<MirrorRequest>> {
        self.mirror.as_ref().map(|mirror| self.request_at(mirror, access, sources)).transpose()
    }

    /// The mirror that is named, else that of this machine.
    pub fn request_or_default(&self, access: &AccessArgs, sources: &[&Uri]) -> Result<MirrorRequest> {
        match &self.mirror {
            Some(mirror) => self.request_at(mirror, access, sources),
            None => self.request_at(&mirror::default_uri()?.into(), access, sources),
        }
    }

    fn request_at(&self, mirror: &Source, access: &AccessArgs, sources: &[&Uri]) -> Result<MirrorRequest> {
        self.access.check(mirror.uri(), |name| option_name(&format!("mirror-{name}")))?;
        let access = access.for_mirror(self.access.clone(), mirror.uri(), sources);
        request(mirror, self.tenant().unwrap_or(DEFAULT_TENANT), &access)
    }

    /// The URI of the mirror, if one is named.
    pub fn uri(&self) -> Option<&Uri> {
        self.mirror.as_ref().map(Source::uri)
    }

    /// The tenant, if one is named.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

/// Opens a mirror that must exist; `remedy` is what to do where none does.
pub async fn open_existing(request: &MirrorRequest, remedy: &str) -> Result<Mirror> {
    let missing = |name: &str| anyhow!("no mirror found at {name}; {remedy}");
    if mirror::is_missing(request)? {
        return Err(missing(request.url.expose()));
    }
    let mirror = mirror::open(request, std::env::temp_dir())?;
    if mirror.exists().await? { Ok(mirror) } else { Err(missing(mirror.name())) }
}

/// The mirror of `tenant` at `url`, with the access of the options and the environment. Fails where `url` can't hold one.
pub fn request(url: &Source, tenant: &str, access: &AccessArgs) -> Result<MirrorRequest> {
    bdnfs::mirror::check_location(url.uri())?;
    let access = access.load(url.uri())?;
    Ok(MirrorRequest { url: url.text().clone(), tenant: tenant.to_owned(), access })
}
