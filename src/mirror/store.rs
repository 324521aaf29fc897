//! Single objects of the store beneath a mirror: get, put, create, delete, head, list; and its errors as the engine's.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::time::{Instant, sleep};

use super::Mirror;
use super::keys::FORMAT_OBJECT;
use super::lease::MirrorLease;
use crate::backoff::{Backoff, entropy};
use crate::error::{Error, Kind, Result};
use crate::http_client::{code_of, explain_transport};
use crate::task::blocking;

/// The largest object that is taken into memory whole. Records are the largest: 40 bytes for each MiB of a blob.
const MAX_OBJECT_BYTES: u64 = 512 << 20;
/// The time that a writer waits for the lock of a mirror in a directory, and the interval at which it tries: another holds it while
/// it writes one small object.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The number of conditional writes of an object until the service's response arrives, and the waits between, at first and at most:
/// a connection that is lost is an accident, three are an outage.
const LOST_ATTEMPT_LIMIT: u32 = 3;
/// The time after the first attempt within which another may begin: far less than a lease lasts, under which what is written is
/// used.
const LOST_RETRY_PERIOD: Duration = Duration::from_secs(60);
const LOST_BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

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
        self.check_regular(key).await?;
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

    /// Refuses what is no file in a mirror in a directory: to open a fifo would wait for ever.
    async fn check_regular(&self, key: &Path) -> Result<()> {
        let Some(root) = &self.local else { return Ok(()) };
        let path = root.join(key.as_ref());
        let found = blocking(move || Ok(path.metadata())).await?;
        match found {
            Ok(metadata) if !metadata.is_file() => Err(super::damaged(self.url_of(key), "it is no file")),
            _ => Ok(()),
        }
    }

    /// Writes the object at `key`, in place of one that may be there.
    pub(super) async fn put(&self, key: &Path, payload: PutPayload) -> Result<()> {
        let put = self.store.objects.put_opts(key, payload, PutOptions::default()).await;
        put.map(drop).map_err(|e| self.failure("write", key, &e))
    }

    /// Writes the object at `key` unless there is one; false when there is one with other content. In an exclusive mirror the
    /// writer's lease keeps others from doing the same: `lease`, where it is given, must still be held once nothing was found
    /// there.
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
        match self.put_on_condition(key, &payload, PutMode::Create).await {
            Ok(true) => Ok(true),
            Ok(false) => self.holds(key, payload).await,
            Err(e) if is_not_implemented(&e) => Err(self.no_conditional_writes(key)),
            Err(e) => Err(self.failure("write", key, &e)),
        }
    }

    /// Writes the object at `key` in place of the one that was read `before`, or where there was none; false when there is another
    /// one by now. Where a service knows no If-Match, or a file system no locks, the last of several writers wins; an exclusive
    /// mirror has one at a time.
    pub(super) async fn replace(
        &self,
        key: &Path,
        payload: PutPayload,
        before: Option<StoredObject>,
    ) -> Result<bool> {
        let Some(before) = before else { return self.create(key, payload, None).await };
        if self.is_exclusive() {
            return self.put(key, payload).await.map(|()| true);
        }
        if let Some(root) = &self.local {
            let _lock = lock_directory(root.join(FORMAT_OBJECT)).await?;
            // Its version is an inode and a time, both of which its successor may have, too.
            let is_same = self.get(key).await?.is_some_and(|now| now.bytes == before.bytes);
            return if is_same { self.put(key, payload).await.map(|()| true) } else { Ok(false) };
        }
        if before.version.e_tag.is_none() {
            return self.put(key, payload).await.map(|()| true);
        }
        let update = PutMode::Update(before.version);
        match self.put_on_condition(key, &payload, update).await {
            Ok(true) => Ok(true),
            Ok(false) => self.holds(key, payload).await,
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) if is_not_implemented(&e) => self.put(key, payload).await.map(|()| true),
            Err(e) => Err(self.failure("write", key, &e)),
        }
    }

    /// Writes the object at `key` on a condition that the service checks; false where it does not hold. That may also be because
    /// the object was written and the response to that was lost.
    async fn put_on_condition(
        &self,
        key: &Path,
        payload: &PutPayload,
        condition: PutMode,
    ) -> object_store::Result<bool> {
        let (began, mut backoff) = (Instant::now(), Backoff::new(LOST_BACKOFF.0, LOST_BACKOFF.1, entropy()));
        for attempt in 1.. {
            match self.store.objects.put_opts(key, payload.clone(), condition.clone().into()).await {
                Ok(_) => return Ok(true),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                    break;
                }
                // The store's client repeats no write that may have been done.
                Err(e)
                    if is_lost(&e) && attempt < LOST_ATTEMPT_LIMIT && began.elapsed() < LOST_RETRY_PERIOD =>
                {
                    sleep(backoff.wait()).await;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }

    /// Whether the object at `key` has this content.
    async fn holds(&self, key: &Path, payload: PutPayload) -> Result<bool> {
        Ok(self.get(key).await?.is_some_and(|found| found.bytes == Bytes::from(payload)))
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

    /// Deletes the object at `key` if it is the one that was read `before`; false when there is another one by now, or none. A
    /// service deletes on no condition: there, one that is written in the same moment is deleted, too.
    pub(super) async fn delete_unchanged(&self, key: &Path, before: &StoredObject) -> Result<bool> {
        let _lock = match &self.local {
            Some(root) => lock_directory(root.join(FORMAT_OBJECT)).await?,
            None => None,
        };
        let is_same = self.get(key).await?.is_some_and(|now| now.bytes == before.bytes);
        if is_same {
            self.delete(key).await?;
        }
        Ok(is_same)
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
    for layer in causes(error) {
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
    }
    None
}

/// Whether a request was sent and its response never came, so that the service may have done what it was asked for.
fn is_lost(error: &object_store::Error) -> bool {
    causes(error).any(|layer| {
        layer.downcast_ref::<reqwest::Error>().is_some_and(|lost| !lost.is_connect())
            || layer.downcast_ref::<Error>().is_some_and(|ours| ours.kind() == Kind::Timeout)
    })
}

/// An error and what caused it, layer by layer.
fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    let first: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(first), |layer| layer.source())
}

/// The service's response, as the engine's own requests report it: without the page or the XML that came with it.
fn reason(error: &object_store::Error) -> String {
    if let Some(lost) = causes(error).find_map(|layer| layer.downcast_ref::<reqwest::Error>()) {
        return explain_transport(lost, false).to_string();
    }
    if causes(error).any(|layer| is_unreadable(&layer.to_string())) {
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

/// The text that `object_store` puts after the name of a header that every object has, where a response lacks it.
const MISSING_HEADER_MESSAGE_SUFFIX: &str = " Header missing from response";

/// Whether an error of `object_store` says that it cannot make sense of a successful response.
fn is_unreadable(text: &str) -> bool {
    text.starts_with(UNREADABLE_MESSAGE_PREFIX) || text.ends_with(MISSING_HEADER_MESSAGE_SUFFIX)
}

/// Whether the service does not know what it was asked for: 501, as S3's errors have it.
fn is_not_implemented(error: &object_store::Error) -> bool {
    root_cause(error).contains("NotImplemented")
}

/// Locks a mirror in a local directory by its file `path`, which is there once anything is, for one who replaces an object: the
/// file system replaces none on a condition. `None` where it knows no locks.
async fn lock_directory(path: PathBuf) -> Result<Option<Arc<File>>> {
    let failed =
        |path: &PathBuf, error: io::Error| Error::disk(format!("cannot lock {}", path.display()), error);
    let own = path.clone();
    // On NFS, an exclusive lock needs a file that is open for writing. Another user's may be read only.
    let open = move || {
        let file = File::options().read(true).write(true).open(&own).or_else(|_| File::open(&own));
        file.map(Arc::new).map_err(|e| failed(&own, e))
    };
    let file = blocking(open).await?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        let own = Arc::clone(&file);
        match blocking(move || Ok(flock(&own, FlockOperation::NonBlockingLockExclusive))).await? {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => sleep(LOCK_POLL_INTERVAL).await,
            Err(Errno::WOULDBLOCK) => {
                let (path, seconds) = (path.display(), LOCK_TIMEOUT.as_secs());
                let text =
                    format!("cannot lock {path}: another writer has held it for {seconds} s; try again");
                return Err(Error::new(Kind::Unavailable, text));
            }
            // The last is NFS's answer for a file that is open for reading.
            Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK | Errno::BADF) => return Ok(None),
            Err(error) => return Err(failed(&path, error.into())),
        }
    }
}

/// The text of the innermost cause of an error, without the layers that passed it on.
pub(super) fn root_cause(error: &object_store::Error) -> String {
    causes(error).last().map_or(String::new(), |innermost| innermost.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Access, Uri};

    #[tokio::test(start_paused = true)]
    async fn replace_in_a_directory_compares_content_and_waits_for_its_lock_a_minute_at_most() {
        let directory = tempfile::tempdir().expect("directory");
        let uri = Uri::File(directory.path().to_owned());
        let mirror = Mirror::open(&uri, &Access::default(), "tenant", std::env::temp_dir()).expect("mirror");
        let (key, format) = (Path::from("tenant/object"), directory.path().join(FORMAT_OBJECT));
        std::fs::write(&format, "").expect("written");
        mirror.put(&key, "one".into()).await.expect("written");
        let read = async || mirror.get(&key).await.expect("read").expect("written");
        // The version is the same: an inode is given to the next file, and a clock is coarse.
        let other = StoredObject { bytes: "two".into(), ..read().await };
        assert!(!mirror.replace(&key, "three".into(), Some(other)).await.expect("compared"));
        assert!(mirror.replace(&key, "four".into(), Some(read().await)).await.expect("compared"));
        assert_eq!(read().await.bytes, "four");

        let held = File::open(&format).expect("opened");
        flock(&held, FlockOperation::LockExclusive).expect("locked");
        let error = mirror.replace(&key, "five".into(), Some(read().await)).await.expect_err("locked");
        assert!(
            error.kind() == Kind::Unavailable && error.to_string().starts_with("cannot lock "),
            "{error}"
        );
        drop(held);
        assert!(mirror.replace(&key, "six".into(), Some(read().await)).await.expect("free"));
    }
}
