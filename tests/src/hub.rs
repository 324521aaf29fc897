//! A Hugging Face Hub, and the storage behind it on another port, which is another host.
//!
//! It speaks the part of the protocol that `snapshot_download` of `huggingface_hub` needs: revisions, trees page by page,
//! `resolve` with its redirects, error codes and limits. A small file is sent through a cache within the Hub, a large one by a
//! signed address in the storage. A client that sends the storage an `Authorization` header has leaked a token, and fails the
//! test.

mod hub_files;
mod hub_routes;
mod hub_state;

use std::sync::Arc;

use axum::Router;
use tempfile::TempDir;

use self::hub_state::HubState;
pub use self::hub_state::{LFS_THRESHOLD_BYTES, RepositoryAccess};
use crate::fault::Faults;
use crate::requests::RequestCounter;
use crate::serve::HttpServer;

/// A Hub on loopback. Repositories are named by their kind too: `models/owner/name`.
#[derive(Debug)]
pub struct HubServer {
    /// The Hub, to stop and start it.
    pub server: HttpServer,
    /// The requests that the Hub served.
    pub requests: RequestCounter,
    /// The faults of the Hub.
    pub faults: Faults,
    /// The storage behind it.
    pub storage: HubStorage,
    state: Arc<HubState>,
    _objects: TempDir,
}

/// The storage that a Hub leads to.
#[derive(Debug)]
pub struct HubStorage {
    /// To stop and start it.
    pub server: HttpServer,
    /// The requests that it served.
    pub requests: RequestCounter,
    /// Its faults.
    pub faults: Faults,
}

impl HubServer {
    /// A Hub without repositories.
    pub fn start() -> Self {
        let objects = TempDir::with_prefix("bdnfs-hub-").expect("a temporary directory");
        let state = Arc::new(HubState::new(objects.path()));
        let (server, requests, faults) =
            serve(Router::new().fallback(hub_files::stored).with_state(state.clone()));
        let storage = HubStorage { server, requests, faults };
        state.change(|hub| hub.storage = storage.server.url());
        let (server, requests, faults) =
            serve(Router::new().fallback(hub_routes::answer).with_state(state.clone()));
        Self { server, requests, faults, storage, state, _objects: objects }
    }

    /// The URL, what `HF_ENDPOINT` is set to.
    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Makes a commit that holds `files` and nothing else, has `revision` lead to it, and returns its id.
    pub fn publish(&self, repository: &str, revision: &str, files: &[(&str, &[u8])]) -> String {
        let files: Vec<_> = files.iter().map(|(path, bytes)| (*path, self.state.store(bytes))).collect();
        self.state.change(|hub| hub.repository(repository).publish(repository, revision, &files))
    }

    /// Puts a file into the commit that `revision` leads to, and leaves the commit's id as it is: what no honest Hub
    /// does.
    pub fn tamper(&self, repository: &str, revision: &str, path: &str, content: Option<&[u8]>) {
        let file = content.map(|bytes| self.state.store(bytes));
        self.state.change(|hub| {
            let files = hub.repository(repository).files(revision).expect("a commit");
            match file {
                Some(file) => files.insert(path.to_owned(), file),
                None => files.remove(path),
            };
        });
    }

    /// Sends all small files with this ETag, which is not their git id, as third-party servers of the API do.
    pub fn set_small_file_etag(&self, etag: &str) {
        self.state.change(|hub| hub.etag = Some(etag.to_owned()));
    }

    /// Sets who may see a repository.
    pub fn set_access(&self, repository: &str, guard: RepositoryAccess) {
        self.state.change(|hub| hub.repository(repository).guard = guard);
    }

    /// Makes a token that may read `repositories` besides what is public.
    pub fn token(&self, token: &str, repositories: &[&str]) {
        let repositories = repositories.iter().map(|name| (*name).to_owned()).collect();
        self.state.change(|hub| hub.tokens.insert(token.to_owned(), repositories));
    }

    /// Takes a token back.
    pub fn revoke(&self, token: &str) {
        self.state.change(|hub| hub.tokens.remove(token));
    }

    /// Redirects `old` to `new`, as after a rename.
    pub fn rename(&self, old: &str, new: &str) {
        self.state.change(|hub| hub.renamed.insert(old.to_owned(), new.to_owned()));
    }

    /// The next `times` requests find the limit of `resource` used up for this many seconds.
    pub fn limit_rate(&self, resource: &str, seconds: u32, times: u32) {
        self.state.change(|hub| hub.limit = (times, format!("\"{resource}\";r=0;t={seconds}")));
    }

    /// From now on small files are sent right away, without a redirect within the Hub.
    pub fn serve_small_files_directly(&self) {
        self.state.change(|hub| hub.direct = true);
    }

    /// From now on the storage refuses all addresses that were signed before.
    pub fn revoke_signed_urls(&self) {
        self.state.change(|hub| hub.epoch += 1);
    }

    /// From now on the Hub says that large files are at `url` and not at its storage.
    pub fn lead_to(&self, url: &str) {
        self.state.change(|hub| hub.storage = url.to_owned());
    }

    /// From now on signed addresses say that they are good until this second since 1970.
    pub fn set_url_expiry(&self, at: u64) {
        self.state.change(|hub| hub.expires = at);
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        let leaks = self.state.change(|hub| hub.leaks);
        assert!(
            leaks == 0 || std::thread::panicking(),
            "the storage got {leaks} requests with Authorization"
        );
    }
}

fn serve(app: Router) -> (HttpServer, RequestCounter, Faults) {
    let (requests, faults) = (RequestCounter::default(), Faults::default());
    (HttpServer::start(requests.around(faults.around(app)), 0), requests, faults)
}
