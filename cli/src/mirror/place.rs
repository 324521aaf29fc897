//! Where a mirror is.

use std::path::PathBuf;

use anyhow::{Context, Result};
use bdnfs::error::{Error, Kind};
use bdnfs::mirror::Mirror;
use bdnfs::source::{Access, Uri};

use crate::access::{self, Own};
use crate::cache::TENANT;
use crate::control::api::MirrorRequest;
use crate::source::{Parser, Source};
use crate::text;

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
            None => self.of(&own()?, access, source),
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
        at(mirror, self.tenant().unwrap_or(TENANT), &own)
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

/// The part of `tenant` of this machine's own mirror.
pub fn of_machine(tenant: &str) -> bdnfs::error::Result<MirrorRequest> {
    let url = own().map_err(|e| Error::new(Kind::Invalid, text::line(&e)))?;
    Ok(MirrorRequest { url: url.text().clone(), tenant: tenant.to_owned(), access: Access::default() })
}

/// This machine's own mirror, a directory.
fn own() -> Result<Source> {
    let directory = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/bdnfs/mirror")
    } else {
        // The XDG base directory specification: a relative path is to be ignored.
        let env = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = env("XDG_DATA_HOME").or_else(|| env("HOME").map(|home| home.join(".local/share")));
        data.context("no home directory to keep a mirror in; name one with --mirror")?.join("bdnfs/mirror")
    };
    Ok(Uri::File(directory).into())
}

/// Opens a mirror. Manifests lie in the directory `scratch` while they are looked through.
pub fn open(at: &MirrorRequest, scratch: PathBuf) -> bdnfs::error::Result<Mirror> {
    let uri: Uri = at.url.expose().parse()?;
    Mirror::open(&uri, &at.access, &at.tenant, scratch)
}
