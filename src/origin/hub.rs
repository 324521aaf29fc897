//! The Hugging Face Hub as an origin: a repository, or a directory or file of it, at one commit.
//!
//! It speaks the Hub's own API, as the `huggingface_hub` library speaks it (version 2.4). A revision is
//! resolved to a commit once, when the origin is opened. Its tree is listed page by page ([`tree_listing`]).
//! A file is asked of `resolve` ([`hub_content`]), which sends a small one itself, and for a large one
//! answers with a signed URL in the storage behind the Hub; that is used for all ranges until it expires
//! ([`signed_url`]). The token is sent to the Hub and to no other host ([`hub_api`]).
//!
//! What the Hub keeps in Xet is read by plain ranges as well, from the bridge that `resolve` leads to and that puts files
//! together from their chunks. The crate `hf-xet`, which fetches the chunks itself, is left out on purpose. It gains by
//! asking for many chunks at once, which the ladder does with ranges already, and by a cache of chunks, beside which
//! the node's own cache would hold everything a second time. It would bring an HTTP client, a runtime, a cache and
//! settings from the environment of its own, outside of this engine's deadlines and its limits of memory and disk. So
//! it has to be measurably faster than parallel ranges against the Hub itself before it is worth a feature; that has not
//! been measured. The simulation of a server that its own crates have would not tell: it has neither the bridge nor the
//! network of the Hub, which are what the two ways differ in. The price is known: version 1.8 brings 63 more crates.

mod file_headers;
mod hub_api;
mod hub_content;
mod hub_error;
mod hub_version;
mod signed_url;
mod tree_listing;

use std::ops::Range;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;

use self::hub_api::HubApi;
pub(super) use self::hub_content::is_sent_whole;
use self::signed_url::LocationCache;
use crate::blob::Blob;
use crate::error::{Error, Kind, Result};
use crate::http_client::{self, HttpClient};
use crate::manifest::Listing;
use crate::source::{Access, HUB_DEFAULT_REVISION, HubKind, Uri};
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// The URL of the Hub, where no other is given.
const HUB_URL: &str = "https://huggingface.co";
/// The largest description of a revision that is read, in bytes. It names all files, so it can be long.
const MAX_REVISION_BYTES: usize = 64 << 20;
/// The number of parts of a path that are tried as a part of the revision, each with a request. Few branches have more than one
/// slash.
const REVISION_PARTS_LIMIT: usize = 8;

/// A repository of the Hub at one commit, or what lies at a path in it.
#[derive(Debug)]
pub(super) struct HubOrigin {
    name: String,
    identity: String,
    /// The source's path in the repository; empty for all of it.
    path: String,
    commit: ResolvedCommit,
    api: HubApi,
    /// The client for the storage behind the Hub, which gets no token.
    storage: HttpClient,
    locations: LocationCache,
}

/// The commit that a revision was when it was resolved.
#[derive(Debug, Deserialize)]
struct ResolvedCommit {
    sha: String,
    #[serde(rename = "lastModified")]
    date: Option<String>,
    /// The access gate of the content: `false`, `"auto"`, `"manual"`. The tree of a gated repository is public.
    #[serde(default)]
    gated: Value,
}

impl ResolvedCommit {
    fn date(&self) -> Option<DateTime<Utc>> {
        self.date.as_deref()?.parse().ok()
    }

    fn is_gated(&self) -> bool {
        !matches!(self.gated, Value::Null | Value::Bool(false))
    }
}

impl HubOrigin {
    /// Opens what lies at `path` in a repository; its revision is resolved here and once.
    pub(super) async fn open(
        kind: HubKind,
        id: &str,
        revision: Option<&str>,
        path: &str,
        access: &Access,
    ) -> Result<Self> {
        let uri = Uri::Hf { kind, id: id.into(), revision: revision.map(str::to_owned), path: path.into() };
        let named = uri.to_string();
        let api = HubApi::new(&uri, kind, id, access).map_err(|e| e.context(&named))?;
        let revision = revision.unwrap_or(HUB_DEFAULT_REVISION);
        let (commit, path) = resolve(&api, revision, path).await.map_err(|e| e.context(&named))?;
        let at = Uri::Hf { kind, id: id.into(), revision: Some(commit.sha.clone()), path: path.into() };
        let name = at.to_string();
        let identity =
            if api.endpoint() == HUB_URL { name.clone() } else { format!("{name} at {}", api.endpoint()) };
        let storage = api.guard().following_client(access.authorities.as_deref())?;
        let (path, locations) = (path.into(), LocationCache::default());
        Ok(Self { name, identity, path, commit, api, storage, locations })
    }
}

/// Asks which commit `revision` is. Where there is none of that name, the branch may be one whose slashes are not encoded, so that
/// the rest of it stands in `path`: `feature` and `x` of `feature/x`. Returns what is left of the path, too.
async fn resolve<'a>(api: &HubApi, revision: &str, path: &'a str) -> Result<(ResolvedCommit, &'a str)> {
    let ask = async |revision: &str| http_client::retry_listing(|| resolve_revision(api, revision)).await;
    let unknown = match ask(revision).await {
        Err(error) if error.kind() == Kind::NotFound => error,
        resolved => return Ok((resolved?, path)),
    };
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    for end in ends.take(REVISION_PARTS_LIMIT).filter(|end| *end > 0) {
        let (more, rest) = path.split_at(end);
        match ask(&format!("{revision}/{more}")).await {
            Err(error) if error.kind() == Kind::NotFound => {}
            resolved => return Ok((resolved?, rest.trim_start_matches('/'))),
        }
    }
    Err(unknown)
}

/// Asks which commit `revision` is.
async fn resolve_revision(api: &HubApi, revision: &str) -> Result<ResolvedCommit> {
    if matches!(revision, "." | "..") {
        return Err(Error::new(Kind::Invalid, format!("{revision:?} is not a valid revision")));
    }
    let answer = api.get(api.view("revision", revision)).await?;
    let text = http_client::read(answer, MAX_REVISION_BYTES).await?;
    let commit: Option<ResolvedCommit> = serde_json::from_slice(&text).ok();
    let is_sha = |sha: &str| sha.len() >= 40 && sha.bytes().all(|b| b.is_ascii_hexdigit());
    commit.filter(|commit| is_sha(&commit.sha)).ok_or_else(|| {
        let text = format!(
            "the response of {} names no commit; check that it is a Hub (--endpoint, HF_ENDPOINT)",
            api.endpoint()
        );
        Error::new(Kind::Unsupported, text)
    })
}

impl Tier for HubOrigin {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        hub_content::get(self, blob, range).boxed()
    }
}

impl Origin for HubOrigin {
    fn name(&self) -> &str {
        &self.name
    }

    /// Names the endpoint, too: at another one the same name may be another repository.
    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        tree_listing::list(self, listing).map(|done| done.map_err(|e| e.context(&self.name))).boxed()
    }
}
