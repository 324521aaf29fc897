//! Opens mirrors, and knows the one of this machine.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use bdnfs::digest::Digest;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::{Ref, source_key};
use bdnfs::mirroring::MirrorConfig;
use bdnfs::source::{Access, Patterns, Secret, Uri};
use bdnfs::task::blocking;

use crate::api::MirrorRequest;
use crate::real_path::real_path;

/// The memory that the content of a source on its way to a mirror may hold, in bytes: jobs have the rest of the machine.
pub const MIRROR_CONFIG: MirrorConfig = MirrorConfig { memory: 128 << 20 };

/// The prefix of the files that remember which mirrors were seen, by digests of their URLs.
const SEEN_PREFIX: &str = "mirror-";

/// The part of `tenant` of this machine's own mirror.
pub fn default_request(tenant: &str) -> Result<MirrorRequest> {
    let url = Secret::new(default_uri()?.to_string());
    Ok(MirrorRequest { url, tenant: tenant.to_owned(), access: Access::default() })
}

/// The URI of this machine's own mirror, a directory.
pub fn default_uri() -> Result<Uri> {
    let directory = if rustix::process::geteuid().is_root() {
        PathBuf::from("/var/lib/bdnfs/mirror")
    } else {
        // The XDG base directory specification: a relative path is to be ignored.
        let env = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = env("XDG_DATA_HOME").or_else(|| env("HOME").map(|home| home.join(".local/share")));
        let none =
            || Error::new(Kind::Invalid, "no home directory to keep a mirror in; name one with --mirror");
        data.ok_or_else(none)?.join("bdnfs/mirror")
    };
    Ok(Uri::File(directory))
}

/// Opens a mirror. Manifests lie in the directory `scratch` while they are looked through.
pub fn open(at: &MirrorRequest, scratch: PathBuf) -> Result<Mirror> {
    let uri: Uri = at.url.expose().parse()?;
    Mirror::open(&uri, &at.access, &at.tenant, scratch)
}

/// Whether `at` names a directory that is not there: opened, it would be made. What else is there is refused when it is opened.
/// Touches the local disk.
///
/// # Errors
/// [`Kind::Invalid`] where it names nothing.
pub fn is_missing(at: &MirrorRequest) -> Result<bool> {
    Ok(matches!(at.url.expose().parse()?, Uri::File(path) if !path.try_exists().unwrap_or(true)))
}

/// Refuses a mirror in a directory that is mirrored: each run would mirror what the one before it wrote. Touches the local disk.
///
/// # Errors
/// [`Kind::Invalid`].
pub fn check_not_inside(mirror: &Uri, source: &Uri, patterns: &Patterns) -> Result<()> {
    let (Uri::File(mirror), Uri::File(source)) = (mirror, source) else { return Ok(()) };
    let real = |path: &Path| real_path(&std::path::absolute(path).ok()?);
    let (Some(root), Some(path)) = (real(source), real(mirror)) else { return Ok(()) };
    let Ok(below) = path.strip_prefix(&root) else { return Ok(()) };
    if !patterns.select(below.join("format.json").as_os_str().as_bytes()) {
        return Ok(());
    }
    let text = format!(
        "the mirror {} lies in its own source {}; choose another directory, or exclude it with --ignore or ignore_patterns",
        mirror.display(),
        source.display()
    );
    Err(Error::new(Kind::Invalid, text))
}

/// Makes sure that `mirror`, which `at` names, is there if this node has ever seen it, as the directory `seen` remembers. A
/// directory whose disk is not mounted, and a bucket that was made anew, look like a mirror that is still to be created: what is
/// saved there would be lost for whoever looks for it. With `create` one that was never seen is created. Touches the local disk.
///
/// # Errors
/// [`Kind::Unavailable`] where it is gone; those of [`Mirror::init`].
pub async fn check_seen(mirror: &Mirror, at: &MirrorRequest, seen: &Path, create: bool) -> Result<()> {
    let file = seen.join(format!("{SEEN_PREFIX}{}", Digest::of(at.url.expose().as_bytes())));
    let known = file.clone();
    if blocking(move || Ok(known.exists())).await? {
        return mirror.ensure_exists().await;
    }
    if create {
        mirror.init().await?;
    } else if !mirror.exists().await? {
        return Ok(());
    }
    blocking(move || {
        // On a full disk nothing is remembered, and everything is saved.
        if let Err(error) = std::fs::write(&file, "") {
            tracing::warn!("cannot create {}: {error}", file.display());
        }
        Ok(())
    })
    .await
}

/// The ref of `uri`, under this name of it or its [other one](Uri::synonym); `None` where it isn't.
pub async fn find(mirror: &Mirror, uri: &Uri, access: &Access, patterns: &Patterns) -> Result<Option<Ref>> {
    for name in [Some(uri.clone()), uri.synonym()].into_iter().flatten() {
        if let Some(found) = mirror.find(&source_key(&name.tree_identity(access), patterns)).await? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
