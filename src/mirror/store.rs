//! Single objects of the store beneath a mirror: get, put, create, delete, head, list; and its errors as the engine's.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use rustix::fs::{FlockOperation, flock};

use super::Mirror;
use super::keys::FORMAT_OBJECT;
use super::lease::MirrorLease;
use crate::error::{Error, Kind, Result};
use crate::http_client::{code_of, explain_transport};
use crate::task::blocking;

/// The largest object that is taken into memory whole. Records are the largest: 40 bytes for each MiB of a blob.
const MAX_OBJECT_BYTES: u64 = 512 << 20;

/// An object that was read whole.
pub(super) struct StoredObject {
    /// The content.
    pub bytes: Bytes,
    /// When it was written, by the store's clock.
    pub written: DateTime<Utc>,
    /// Its version, on which its replacement can be conditional.
    pub version: UpdateVersion,
}

impl Mirror {
    /// The object at `key`, whole; `None` when there is none.
    pub(super) async fn get(&self, key: &Path) -> Result<Option<StoredObject>> {
        let got = match self.store.objects.get_opts(key, GetOptions::default()).await {
            Ok(got) => got,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(e) => return Err(self.failure("read", key, &e)),
        };
        if got.meta.size > MAX_OBJECT_BYTES {
            return Err(super::damaged(self.url_of(key), format!("it has {} bytes", got.meta.size)));
        }
        let (written, e_tag) = (got.meta.last_modified, got.meta.e_tag.clone());
        let version = UpdateVersion { e_tag, version: got.meta.version.clone() };
        let bytes = got.bytes().await.map_err(|e| self.failure("read", key, &e))?;
        Ok(Some(StoredObject { bytes, written, version }))
    }

    /// Writes the object at `key`, in place of one that may be there.
    pub(super) async fn put(&self, key: &Path, payload: PutPayload) -> Result<()> {
        let put = self.store.objects.put_opts(key, payload, PutOptions::default()).await;
        put.map(drop).map_err(|e| self.failure("write", key, &e))
    }

    /// Writes the object at `key` unless there is one; false when there is. In an exclusive mirror the writer's lease keeps others
    /// from doing the same: `lease`, where it is given, must still be held once nothing was found there.
    pub(super) async fn create(
        &self,
        key: &Path,
        payload: PutPayload,
        lease: Option<&MirrorLease>,
    ) -> Result<bool> {
        if self.is_exclusive() {
            if self.head(key).await?.is_some() {
                return Ok(false);
            }
            if let Some(lease) = lease {
                lease.renew_now().await?;
            }
            self.put(key, payload).await?;
            return Ok(true);
        }
        match self.store.objects.put_opts(key, payload, PutMode::Create.into()).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(false)
            }
            Err(e) if is_not_implemented(&e) => Err(self.no_conditional_writes(key)),
            Err(e) => Err(self.failure("write", key, &e)),
        }
    }

    /// Writes the object at `key` in place of the version that was read `before`, or where there was none; false when there is
    /// another one by now. Where a service knows no If-Match, the last of several writers wins; an exclusive mirror has one at a
    /// time.
    pub(super) async fn replace(
        &self,
        key: &Path,
        payload: PutPayload,
        before: Option<UpdateVersion>,
    ) -> Result<bool> {
        let before = match before {
            None => return self.create(key, payload, None).await,
            Some(before) if self.is_exclusive() || before.e_tag.is_none() => {
                return self.put(key, payload).await.map(|()| true);
            }
            Some(before) => before,
        };
        if let Some(root) = &self.local {
            let _lock = lock_directory(root.join(FORMAT_OBJECT)).await?;
            let now = self.get(key).await?;
            let is_same = now.is_some_and(|now| now.version.e_tag == before.e_tag);
            return if is_same { self.put(key, payload).await.map(|()| true) } else { Ok(false) };
        }
        match self.store.objects.put_opts(key, payload.clone(), PutMode::Update(before).into()).await {
            Ok(_) => Ok(true),
            Err(
                object_store::Error::Precondition { .. }
                | object_store::Error::AlreadyExists { .. }
                | object_store::Error::NotFound { .. },
            ) => Ok(false),
            Err(e) if is_not_implemented(&e) => self.put(key, payload).await.map(|()| true),
            Err(e) => Err(self.failure("write", key, &e)),
        }
    }

    /// The error for a store that can't do what [`create`](Self::create) asks for.
    pub(super) fn no_conditional_writes(&self, key: &Path) -> Error {
        let text = format!(
            "cannot write {}: the service ignores If-None-Match, without which concurrent writers would overwrite \
             each other; use a service that supports it, or create the mirror with `bdnfs mirror add --exclusive`, for one writer at a time",
            self.url_of(key)
        );
        Error::new(Kind::Unsupported, text)
    }

    /// Deletes the object at `key`, if there is one.
    pub(super) async fn delete(&self, key: &Path) -> Result<()> {
        let mut deleted = self.store.objects.delete(key).await;
        // Azure's is a request within another. Where the key was replaced meanwhile, only a new one has the other key.
        if deleted.as_ref().is_err_and(is_refusal) {
            deleted = self.store.objects.delete(key).await;
        }
        match deleted {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(self.failure("delete", key, &e)),
        }
    }

    /// The store's metadata of the object at `key`; `None` when there is none.
    pub(super) async fn head(&self, key: &Path) -> Result<Option<ObjectMeta>> {
        match self.store.objects.head(key).await {
            Ok(meta) => Ok(Some(meta)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(e) => Err(self.failure("stat", key, &e)),
        }
    }

    /// All objects below `key`.
    pub(super) fn list(&self, key: Path) -> BoxStream<'static, Result<ObjectMeta>> {
        let mirror = self.clone();
        let listed = self.store.objects.list(Some(&key));
        listed.map_err(move |e| mirror.failure("list", &key, &e)).boxed()
    }

    /// The error of the store for a failed `action` on `key`.
    pub(super) fn failure(&self, action: &str, key: &Path, error: &object_store::Error) -> Error {
        let kind = match error {
            object_store::Error::NotFound { .. } => Kind::NotFound,
            error if is_refusal(error) => Kind::Refused,
            object_store::Error::NotSupported { .. } | object_store::Error::NotImplemented { .. } => {
                Kind::Unsupported
            }
            _ => cause_kind(error).unwrap_or(Kind::Unavailable),
        };
        let asked = self.endpoint.as_ref().map_or(String::new(), |endpoint| format!(" at {endpoint}"));
        let failed =
            Error::new(kind, format!("cannot {action} {}{asked}: {}", self.url_of(key), reason(error)));
        match &self.keys {
            Some(keys) => keys.explain_refusal(failed),
            None => failed,
        }
    }
}

/// Whether the service refused the credentials. Of a failed batch only the text tells.
fn is_refusal(error: &object_store::Error) -> bool {
    let refused = |text: &str| text.starts_with("401 ") || text.starts_with("403 ");
    matches!(
        error,
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }
    ) || root_cause(error).strip_prefix(STATUS_MESSAGE_PREFIX).is_some_and(refused)
}

/// The kind of the error that caused a failure, where that is an error of ours or of a local disk.
fn cause_kind(error: &object_store::Error) -> Option<Kind> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(layer) = cause {
        if let Some(ours) = layer.downcast_ref::<Error>() {
            return Some(ours.kind());
        }
        if let Some(io) = layer.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return match io {
                libc::ENOSPC | libc::EDQUOT => Some(Kind::NoSpace),
                libc::EACCES | libc::EPERM | libc::EROFS => Some(Kind::Refused),
                libc::EIO => Some(Kind::Disk),
                _ => None,
            };
        }
        cause = layer.source();
    }
    None
}

/// The service's response, as the engine's own requests report it: without the page or the XML that came with it.
fn reason(error: &object_store::Error) -> String {
    let first: &(dyn std::error::Error + 'static) = error;
    let mut causes = std::iter::successors(Some(first), |layer| layer.source());
    if let Some(lost) = causes.find_map(|layer| layer.downcast_ref::<reqwest::Error>()) {
        return explain_transport(lost, false).to_string();
    }
    let mut layers = std::iter::successors(Some(first), |layer| layer.source());
    if layers.any(|layer| layer.to_string().starts_with(UNREADABLE_MESSAGE_PREFIX)) {
        return "the response is not that of an object storage; check --mirror-endpoint".to_owned();
    }
    let text = root_cause(error);
    let Some(answer) = text.strip_prefix(STATUS_MESSAGE_PREFIX) else { return text };
    let (status, body) = answer.split_once(": ").unwrap_or((answer, ""));
    let code = code_of(body).map_or(String::new(), |code| format!(", {code}"));
    format!("the server returned {status}{code}")
}

/// The text that `object_store` puts before the status and the body of a failed response.
const STATUS_MESSAGE_PREFIX: &str = "Server returned non-2xx status code: ";

/// The text that `object_store` puts before what it cannot read, and why: with names of its types, and with the response.
const UNREADABLE_MESSAGE_PREFIX: &str = "Got invalid ";

/// Whether the service does not know what it was asked for: 501, as S3's errors have it.
fn is_not_implemented(error: &object_store::Error) -> bool {
    root_cause(error).contains("NotImplemented")
}

/// Locks a mirror in a local directory by its file `path`, which is there once anything is, for one who replaces an object: the
/// file system replaces none on a condition.
async fn lock_directory(path: PathBuf) -> Result<File> {
    blocking(move || {
        let failed = |error: io::Error| Error::disk(format!("cannot lock {}", path.display()), error);
        // On NFS, an exclusive lock needs a file that is open for writing.
        let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|e| failed(e.into()))?;
        Ok(file)
    })
    .await
}

/// The text of the innermost cause of an error, without the layers that passed it on.
pub(super) fn root_cause(error: &object_store::Error) -> String {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}
