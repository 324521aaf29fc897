//! The mirror options of the command line.

use std::path::PathBuf;

use anyhow::Result;
use bdnfs::source::Uri;
use bdnfs_agent::api::MirrorRequest;
use bdnfs_agent::cache::DEFAULT_TENANT;
use bdnfs_agent::mirror;

use crate::access::{self, MirrorAccess};
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
    /// URL of the mirror's service. Default: that of the source
    #[arg(long, value_name = "URL")]
    mirror_endpoint: Option<String>,
    /// Region of the mirror's bucket. Default: that of the source
    #[arg(long, value_name = "REGION")]
    mirror_region: Option<String>,
    /// File with the mirror's credentials. Default: those of the source
    #[arg(long, value_name = "FILE")]
    mirror_credentials: Option<PathBuf>,
    /// Name of the secret with the mirror's credentials. Default: those of the source
    #[arg(long, value_name = "NAME", conflicts_with = "mirror_credentials")]
    mirror_secret: Option<String>,
}

impl MirrorArgs {
    /// The mirror that is named, if any. Access options that it lacks are those of `source` in `access`.
    pub fn request(
        &self,
        access: &access::AccessArgs,
        source: Option<&Uri>,
    ) -> Result<Option<MirrorRequest>> {
        self.mirror.as_ref().map(|mirror| self.build(mirror, access, source)).transpose()
    }

    /// The mirror that is named, else that of this machine.
    pub fn request_or_default(
        &self,
        access: &access::AccessArgs,
        source: Option<&Uri>,
    ) -> Result<MirrorRequest> {
        match &self.mirror {
            Some(mirror) => self.build(mirror, access, source),
            None => self.build(&mirror::default_uri()?.into(), access, source),
        }
    }

    fn build(
        &self,
        mirror: &Source,
        access: &access::AccessArgs,
        source: Option<&Uri>,
    ) -> Result<MirrorRequest> {
        let own = access.for_mirror(
            &MirrorAccess {
                uri: mirror.uri(),
                endpoint: &self.mirror_endpoint,
                region: &self.mirror_region,
                credentials: &self.mirror_credentials,
                secret: &self.mirror_secret,
            },
            source,
        );
        request(mirror, self.tenant().unwrap_or(DEFAULT_TENANT), &own)
    }

    /// The tenant, if one is named.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

/// The mirror of `tenant` at `url`, with the access of the options and the environment.
pub fn request(url: &Source, tenant: &str, access: &access::AccessArgs) -> Result<MirrorRequest> {
    let access = access.load(url.uri())?;
    Ok(MirrorRequest { url: url.text().clone(), tenant: tenant.to_owned(), access })
}
