//! Where a mirror is.

use std::path::PathBuf;

use anyhow::Result;
use bdnfs::source::Uri;
use bdnfs_agent::api::MirrorRequest;
use bdnfs_agent::cache::DEFAULT_TENANT;
use bdnfs_agent::mirror;

use crate::access::{self, Own};
use crate::source::{Parser, Source};

/// Which mirror.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// URL of the mirror: s3://bucket/prefix, gs://, azure://, r2://, cw://, or file:///directory
    #[arg(long, value_name = "URL", value_parser = Parser)]
    mirror: Option<Source>,
    /// Whose data it is: whose part of the mirror, and of the cache
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// URL of the mirror's S3 service, where it is not the source's
    #[arg(long, value_name = "URL")]
    mirror_endpoint: Option<String>,
    /// Region of the mirror's bucket, where it is not the source's
    #[arg(long, value_name = "REGION")]
    mirror_region: Option<String>,
    /// File with the mirror's credentials, where they are not the source's
    #[arg(long, value_name = "FILE")]
    mirror_credentials: Option<PathBuf>,
    /// Name of the secret with the mirror's credentials, where they are not the source's
    #[arg(long, value_name = "NAME", conflicts_with = "mirror_credentials")]
    mirror_secret: Option<String>,
}

impl Args {
    /// The mirror that was named, if any. What is not said of its access is as `access` says of `source`.
    pub fn request(&self, access: &access::Args, source: Option<&Uri>) -> Result<Option<MirrorRequest>> {
        self.mirror.as_ref().map(|mirror| self.of(mirror, access, source)).transpose()
    }

    /// The same; where none was named, this machine's own.
    pub fn request_or_default(&self, access: &access::Args, source: Option<&Uri>) -> Result<MirrorRequest> {
        match &self.mirror {
            Some(mirror) => self.of(mirror, access, source),
            None => self.of(&mirror::default_uri()?.into(), access, source),
        }
    }

    fn of(&self, mirror: &Source, access: &access::Args, source: Option<&Uri>) -> Result<MirrorRequest> {
        let own = access.of_mirror(
            &Own {
                uri: mirror.uri(),
                endpoint: &self.mirror_endpoint,
                region: &self.mirror_region,
                credentials: &self.mirror_credentials,
                secret: &self.mirror_secret,
            },
            source,
        );
        at(mirror, self.tenant().unwrap_or(DEFAULT_TENANT), &own)
    }

    /// Whose data it is, where that was said.
    pub fn tenant(&self) -> Option<&str> {
        self.tenant.as_deref()
    }
}

/// The part of `tenant` of the mirror at `url`, used as `access` and the environment say.
pub fn at(url: &Source, tenant: &str, access: &access::Args) -> Result<MirrorRequest> {
    let access = access.gather(url.uri())?;
    Ok(MirrorRequest { url: url.text().clone(), tenant: tenant.to_owned(), access })
}
