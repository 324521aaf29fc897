//! Multipart uploads of the store beneath a mirror. They outlive the process that began them, so another may resume one.
//!
//! Services of object storage have uploads of their own. In a local directory, the parts are written into one file beside
//! the object's place, whose name follows the store's own rule for what is under way: `<name>#<number>`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, PutPayload, Result};

use crate::task;

use super::keys::random_id;

/// The store of a mirror: its objects, and its uploads.
#[derive(Clone)]
pub struct MirrorStore {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) parts: PartStore,
}

/// The destination of uploads.
#[derive(Clone)]
pub(super) enum PartStore {
    /// To a service, below a key.
    Service(Arc<dyn MultipartStore>, Path),
    /// To a directory.
    Directory(Arc<PathBuf>),
}

/// An upload: the key of its object, and what the store calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UploadId {
    pub key: Path,
    pub upload: String,
}

impl MirrorStore {
    /// A service of object storage, below a key.
    pub fn service<S: ObjectStore + MultipartStore>(store: Arc<S>, below: &str) -> Self {
        let parts = PartStore::Service(store.clone(), Path::from(below));
        Self { objects: Arc::new(PrefixStore::new(store, below)), parts }
    }

    /// A directory that `store` has its objects in.
    pub(super) fn directory(store: impl ObjectStore, directory: PathBuf) -> Self {
        Self { objects: Arc::new(store), parts: PartStore::Directory(Arc::new(directory)) }
    }
}

impl PartStore {
    pub(super) async fn begin(&self, key: Path) -> Result<UploadId> {
        let upload = match self {
            Self::Service(store, below) => store.create_multipart(&full_key(below, &key)).await?,
            Self::Directory(root) => {
                let number = u128::from_str_radix(&random_id(), 16).unwrap_or_default().to_string();
                let path = unfinished_path(root, &key, &number);
                run_on_directory(move || {
                    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                    File::create_new(&path).map(drop)
                })
                .await?;
                number
            }
        };
        Ok(UploadId { key, upload })
    }

    /// Uploads part `index`, which begins at `offset`. Returns the store's identifier of its content.
    pub(super) async fn put(
        &self,
        id: &UploadId,
        index: usize,
        offset: u64,
        payload: PutPayload,
    ) -> Result<String> {
        match self {
            Self::Service(store, below) => {
                let key = full_key(below, &id.key);
                Ok(store.put_part(&key, &id.upload, index, payload).await?.content_id)
            }
            Self::Directory(root) => {
                let path = unfinished_path(root, &id.key, &id.upload);
                run_on_directory(move || {
                    let file = OpenOptions::new().write(true).open(path)?;
                    let mut at = offset;
                    for bytes in &payload {
                        file.write_all_at(bytes, at)?;
                        at += bytes.len() as u64;
                    }
                    Ok(String::new())
                })
                .await
            }
        }
    }

    /// Makes durable what was put, which services do by themselves.
    pub(super) async fn sync(&self, id: &UploadId) -> Result<()> {
        let Self::Directory(root) = self else { return Ok(()) };
        let path = unfinished_path(root, &id.key, &id.upload);
        run_on_directory(move || File::open(path)?.sync_data()).await
    }

    /// Makes an object of what was put.
    pub(super) async fn complete(&self, id: &UploadId, parts: Vec<String>) -> Result<()> {
        match self {
            Self::Service(store, below) => {
                let parts = parts.into_iter().map(|content_id| PartId { content_id }).collect();
                store.complete_multipart(&full_key(below, &id.key), &id.upload, parts).await.map(drop)
            }
            Self::Directory(root) => {
                let (from, to) = (unfinished_path(root, &id.key, &id.upload), root.join(id.key.as_ref()));
                run_on_directory(move || {
                    File::open(&from)?.sync_all()?;
                    std::fs::rename(&from, &to)?;
                    to.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
                })
                .await
            }
        }
    }

    /// Gives an upload up, if it is there.
    pub(super) async fn abort(&self, id: &UploadId) -> Result<()> {
        let aborted = match self {
            Self::Service(store, below) => store.abort_multipart(&full_key(below, &id.key), &id.upload).await,
            Self::Directory(root) => {
                let path = unfinished_path(root, &id.key, &id.upload);
                run_on_directory(move || std::fs::remove_file(path)).await
            }
        };
        match aborted {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            done => done,
        }
    }
}

fn full_key(below: &Path, key: &Path) -> Path {
    below.parts().chain(key.parts()).collect()
}

fn unfinished_path(root: &std::path::Path, key: &Path, number: &str) -> PathBuf {
    root.join(format!("{key}#{number}"))
}

/// Does `work` on the directory of a mirror, off the async threads.
async fn run_on_directory<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T> {
    let done = task::blocking(move || Ok(work()))
        .await
        .map_err(|e| object_store::Error::Generic { store: "a directory", source: e.into() })?;
    done.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => object_store::Error::NotFound { path: String::new(), source: e.into() },
        _ => object_store::Error::Generic { store: "a directory", source: e.into() },
    })
}

impl std::fmt::Debug for MirrorStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.objects.fmt(f)
    }
}
