//! Uploads in parts, as the store beneath a mirror has them. They outlive who began them, so another run may go on with
//! one.
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

use super::layout::fresh;

/// What a mirror lies in: its objects, and its uploads.
#[derive(Clone)]
pub struct Store {
    pub(super) objects: Arc<dyn ObjectStore>,
    pub(super) parts: Parts,
}

/// Where uploads go.
#[derive(Clone)]
pub(super) enum Parts {
    /// To a service, below a key.
    Service(Arc<dyn MultipartStore>, Path),
    /// To a directory.
    Directory(Arc<PathBuf>),
}

/// An upload: the key of its object, and what the store calls it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Id {
    pub key: Path,
    pub upload: String,
}

impl Store {
    /// A service of object storage, below a key.
    pub fn service<S: ObjectStore + MultipartStore>(store: Arc<S>, below: &str) -> Self {
        let parts = Parts::Service(store.clone(), Path::from(below));
        Self { objects: Arc::new(PrefixStore::new(store, below)), parts }
    }

    /// A directory that `store` has its objects in.
    pub(super) fn directory(store: impl ObjectStore, directory: PathBuf) -> Self {
        Self { objects: Arc::new(store), parts: Parts::Directory(Arc::new(directory)) }
    }
}

impl Parts {
    pub(super) async fn begin(&self, key: Path) -> Result<Id> {
        let upload = match self {
            Self::Service(store, below) => store.create_multipart(&full(below, &key)).await?,
            Self::Directory(root) => {
                let number = u128::from_str_radix(&fresh(), 16).unwrap_or_default().to_string();
                let path = unfinished(root, &key, &number);
                blocking(move || {
                    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                    File::create_new(&path).map(drop)
                })
                .await?;
                number
            }
        };
        Ok(Id { key, upload })
    }

    /// Puts part `index`, which begins at `offset`. Answers with what the store calls its content.
    pub(super) async fn put(
        &self,
        id: &Id,
        index: usize,
        offset: u64,
        payload: PutPayload,
    ) -> Result<String> {
        match self {
            Self::Service(store, below) => {
                let key = full(below, &id.key);
                Ok(store.put_part(&key, &id.upload, index, payload).await?.content_id)
            }
            Self::Directory(root) => {
                let path = unfinished(root, &id.key, &id.upload);
                blocking(move || {
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
    pub(super) async fn settle(&self, id: &Id) -> Result<()> {
        let Self::Directory(root) = self else { return Ok(()) };
        let path = unfinished(root, &id.key, &id.upload);
        blocking(move || File::open(path)?.sync_data()).await
    }

    /// Makes an object of what was put.
    pub(super) async fn complete(&self, id: &Id, parts: Vec<String>) -> Result<()> {
        match self {
            Self::Service(store, below) => {
                let parts = parts.into_iter().map(|content_id| PartId { content_id }).collect();
                store.complete_multipart(&full(below, &id.key), &id.upload, parts).await.map(drop)
            }
            Self::Directory(root) => {
                let (from, to) = (unfinished(root, &id.key, &id.upload), root.join(id.key.as_ref()));
                blocking(move || {
                    File::open(&from)?.sync_all()?;
                    std::fs::rename(&from, &to)?;
                    to.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
                })
                .await
            }
        }
    }

    /// Gives an upload up, if it is there.
    pub(super) async fn abort(&self, id: &Id) -> Result<()> {
        let aborted = match self {
            Self::Service(store, below) => store.abort_multipart(&full(below, &id.key), &id.upload).await,
            Self::Directory(root) => {
                let path = unfinished(root, &id.key, &id.upload);
                blocking(move || std::fs::remove_file(path)).await
            }
        };
        match aborted {
            Err(object_store::Error::NotFound { .. }) => Ok(()),
            done => done,
        }
    }
}

fn full(below: &Path, key: &Path) -> Path {
    below.parts().chain(key.parts()).collect()
}

fn unfinished(root: &std::path::Path, key: &Path, number: &str) -> PathBuf {
    root.join(format!("{key}#{number}"))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T> {
    let done = task::blocking(move || Ok(work()))
        .await
        .map_err(|e| object_store::Error::Generic { store: "a directory", source: e.into() })?;
    done.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => object_store::Error::NotFound { path: String::new(), source: e.into() },
        _ => object_store::Error::Generic { store: "a directory", source: e.into() },
    })
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.objects.fmt(f)
    }
}
