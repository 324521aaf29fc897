//! The Hugging Face Hub as an origin: a repository, or a directory or file of it, at one commit.
//!
//! Spoken is the Hub's own API, as the `huggingface_hub` library speaks it (version 2.4). A revision is resolved to a
//! commit once, when the origin is opened. The commit's tree is listed page by page ([`tree`]). Each range of a file is
//! asked of `resolve` ([`content`]), which sends a small file by itself, and for a large one answers with a signed
//! address in the storage behind the Hub; that is used until it expires ([`signed`]). The token goes to the Hub and to
//! nobody else ([`api`]).
//!
//! What the Hub keeps in Xet is read by plain ranges as well, from the bridge that `resolve` leads to and that puts files
//! together from their chunks. The crate `hf-xet`, which fetches the chunks itself, is left out on purpose. It gains by
//! asking for many chunks at once, which the ladder does with ranges already, and by a cache of chunks, beside which
//! the node's own cache would hold everything a second time. It would bring an HTTP client, a runtime, a cache and
//! settings from the environment of its own, outside of this engine's deadlines and its limits of memory and disk. So
//! it has to be measurably faster than parallel ranges against the Hub itself before it is worth a feature; that has not
//! been measured. The simulation of a server that its own crates have would not tell: it has neither the bridge nor the
//! network of the Hub, which are what the two ways differ in. The price is known: version 1.8 brings 63 more crates.

mod api;
mod content;
mod refusal;
mod signed;
mod told;
mod tree;
mod version;

use std::ops::Range;

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use reqwest::redirect::Policy;
use serde::Deserialize;
use serde_json::Value;

use self::api::Api;
use self::signed::Signed;
use super::http::redirect;
use crate::blob::Blob;
use crate::client::{self, Client};
use crate::error::{Error, Kind, Result};
use crate::manifest::Listing;
use crate::source::{Access, HubKind, Uri};
use crate::tier::{Body, Origin, Tier, TierKind, Urgency};

/// The Hub, where nobody names another.
const ENDPOINT: &str = "https://huggingface.co";
/// What a source without a revision means: the Hub lets no repository have another default branch.
const DEFAULT_REVISION: &str = "main";
/// The largest description of a revision that is read, in bytes. It names all files, so it can be long.
const LARGEST: usize = 64 << 20;

/// A repository of the Hub at one commit, or what lies at a path in it.
#[derive(Debug)]
pub(super) struct Hub {
    name: String,
    identity: String,
    /// What was named in the repository; empty for all of it.
    path: String,
    commit: Commit,
    api: Api,
    /// What talks to the storage behind the Hub. It knows no token.
    storage: Client,
    signed: Signed,
}

/// What a revision was when it was resolved.
#[derive(Debug, Deserialize)]
struct Commit {
    sha: String,
    #[serde(rename = "lastModified")]
    date: Option<String>,
    /// How content is gated: `false`, `"auto"`, `"manual"`. What is in a gated repository, everybody may see.
    #[serde(default)]
    gated: Value,
}

impl Commit {
    fn date(&self) -> Option<DateTime<Utc>> {
        self.date.as_deref()?.parse().ok()
    }

    fn is_gated(&self) -> bool {
        !matches!(self.gated, Value::Null | Value::Bool(false))
    }
}

impl Hub {
    /// Resolves the revision, which nothing changes from then on.
    pub(super) async fn open(
        kind: HubKind,
        id: &str,
        revision: Option<&str>,
        path: &str,
        access: &Access,
    ) -> Result<Self> {
        let uri = |revision: Option<&str>| Uri::Hf {
            kind,
            id: id.into(),
            revision: revision.map(str::to_owned),
            path: path.into(),
        };
        let named = uri(revision).to_string();
        if kind == HubKind::Bucket {
            let text =
                format!("{named}: buckets of the Hub are not served, for they have no revisions to pin");
            return Err(Error::new(Kind::Unsupported, text));
        }
        let api = Api::new(&uri(revision), kind, id, access).map_err(|e| e.within(&named))?;
        let revision = revision.unwrap_or(DEFAULT_REVISION);
        let commit = client::patiently(|| resolve(&api, revision)).await.map_err(|e| e.within(&named))?;
        let name = uri(Some(&commit.sha)).to_string();
        let identity =
            if api.endpoint() == ENDPOINT { name.clone() } else { format!("{name} at {}", api.endpoint()) };
        let allow_http = access.allow_http;
        let storage = Client::new(
            Policy::custom(move |attempt| redirect(attempt, allow_http)),
            access.authorities.as_deref(),
        )?;
        let (path, signed) = (path.into(), Signed::default());
        Ok(Self { name, identity, path, commit, api, storage, signed })
    }
}

/// Asks which commit `revision` is.
async fn resolve(api: &Api, revision: &str) -> Result<Commit> {
    if matches!(revision, "." | "..") {
        return Err(Error::new(Kind::Invalid, format!("{revision:?} can't be a revision")));
    }
    let answer = api.get(api.view("revision", revision)).await?;
    let text = client::read(answer, LARGEST).await?;
    let commit: Option<Commit> = serde_json::from_slice(&text).ok();
    let is_sha = |sha: &str| sha.len() >= 40 && sha.bytes().all(|b| b.is_ascii_hexdigit());
    commit.filter(|commit| is_sha(&commit.sha)).ok_or_else(|| {
        let text = format!("the answer of {} names no commit; is that a Hub? (HF_ENDPOINT)", api.endpoint());
        Error::new(Kind::Unsupported, text)
    })
}

impl Tier for Hub {
    fn kind(&self) -> TierKind {
        TierKind::Origin
    }

    fn fetch<'a>(
        &'a self,
        blob: &'a Blob,
        range: Range<u64>,
        _: Urgency,
    ) -> BoxFuture<'a, Result<Option<Body>>> {
        content::get(self, blob, range).boxed()
    }
}

impl Origin for Hub {
    fn name(&self) -> &str {
        &self.name
    }

    /// The same repository may be another one at another endpoint.
    fn identity(&self) -> String {
        self.identity.clone()
    }

    fn list<'a>(&'a self, listing: &'a mut Listing) -> BoxFuture<'a, Result<()>> {
        tree::list(self, listing).map(|done| done.map_err(|e| e.within(&self.name))).boxed()
    }
}
