//! Listing a commit's tree, page by page.

use reqwest::Method;
use reqwest::header::{HeaderMap, LINK};
use serde::Deserialize;
use url::Url;

use super::HubOrigin;
use super::file_headers::FileHeaders;
use super::hub_version::HubVersion;
use crate::error::{Error, Kind, Result};
use crate::http_client;
use crate::manifest::{ListedFile, Listing};
use crate::origin::pagination::Pagination;

/// The largest page that is read, in bytes: 1,000 entries (the most that the Hub sends) at 4 KiB, and more.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// Asks for all below a directory, without what the Hub is slow to tell of each file.
const TREE_QUERY: &str = "recursive=true&expand=false";
#[derive(Deserialize)]
struct HubTreeEntry {
    #[serde(rename = "type")]
    what: String,
    path: String,
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<LfsObject>,
}

/// The LFS object of a large file; `oid` is the SHA-256 of its content. Files in Xet have it too.
#[derive(Deserialize)]
struct LfsObject {
    oid: String,
    size: u64,
}

/// Lists what `hub` has into `listing`.
pub(super) async fn list(hub: &HubOrigin, listing: &mut Listing) -> Result<()> {
    let mut url = hub.api.tree(&hub.commit.sha, &hub.path);
    url.set_query(Some(TREE_QUERY));
    let (mut first, mut sample, mut pages) = (true, None, Pagination::of("the Hub"));
    loop {
        let (entries, next) = match http_client::retry_listing(|| page(hub, url.clone())).await {
            // The path may be that of a file, which has no tree.
            Err(e) if first && e.kind() == Kind::NotFound && !hub.path.is_empty() => {
                return single(hub, listing).await;
            }
            page => page?,
        };
        pages.check_keys(entries.iter().map(|entry| entry.path.as_bytes()))?;
        for entry in &entries {
            take(hub, listing, entry)?;
        }
        listing.check_spill()?;
        sample = sample.or_else(|| entries.into_iter().find(|entry| entry.what == "file"));
        let Some(query) = next else { break };
        pages.check_cursor(url.query(), &query)?;
        // Only the query is taken, so that the token goes where it went before.
        url.set_query(Some(&query));
        first = false;
    }
    listing.directory(b"", hub.mtime());
    match sample {
        // Without access the listing fails, and not every read.
        Some(sample) if hub.commit.is_gated() => probe(hub, &sample.path).await.map(|_| ()),
        _ => Ok(()),
    }
}

/// One page, and the query of the next.
async fn page(hub: &HubOrigin, url: Url) -> Result<(Vec<HubTreeEntry>, Option<String>)> {
    hub.api.wait_to_list().await;
    let answer = hub.api.get(url.clone()).await?;
    let next = next_query(&url, answer.headers())?;
    let text = http_client::read(answer, MAX_PAGE_BYTES).await?;
    let entries = serde_json::from_slice(&text)
        .map_err(|e| Error::with(Kind::Unsupported, "the Hub's response is not a tree", e))?;
    Ok((entries, next))
}

/// The query of the page after that at `url`, by the `Link` headers of the response. Only the query is taken: a listing never leads
/// elsewhere.
fn next_query(url: &Url, headers: &HeaderMap) -> Result<Option<String>> {
    let mut links = headers.get_all(LINK).into_iter().filter_map(|links| links.to_str().ok());
    let Some(next) = links.find_map(next_link) else { return Ok(None) };
    let query = url.join(next).ok().and_then(|next| next.query().map(str::to_owned));
    query.map(Some).ok_or_else(|| unsupported("the Hub does not say how its listing goes on"))
}

/// The URL of the next page in a `Link` header (RFC 8288).
fn next_link(links: &str) -> Option<&str> {
    links.split('<').skip(1).find_map(|link| {
        let (url, parameters) = link.split_once('>')?;
        parameters.replace('"', "").contains("rel=next").then_some(url)
    })
}

fn take(hub: &HubOrigin, listing: &mut Listing, entry: &HubTreeEntry) -> Result<()> {
    let alone = entry.path == hub.path;
    let path = match entry.path.strip_prefix(&hub.below("")) {
        Some(path) => path,
        None if alone => hub.name_of_path(),
        None => return Err(unsupported("the Hub lists files that are not below the path")),
    };
    match entry.what.as_str() {
        "file" => {
            let (oid, size) = entry.lfs.as_ref().map_or((&entry.oid, entry.size), |lfs| (&lfs.oid, lfs.size));
            file(hub, listing, path, size, oid, alone)
        }
        "directory" => {
            listing.directory(path.as_bytes(), hub.mtime());
            Ok(())
        }
        _ => {
            listing.refuse(path.as_bytes(), "the Hub says that it is neither a file nor a directory");
            Ok(())
        }
    }
}

/// Lists a source that is one file.
async fn single(hub: &HubOrigin, listing: &mut Listing) -> Result<()> {
    match probe(hub, &hub.path).await? {
        FileHeaders { oid: Some(oid), size: Some(size), .. } => {
            file(hub, listing, hub.name_of_path(), size, &oid, true)
        }
        _ => Err(unsupported("the Hub does not say which size and version that file has")),
    }
}

/// Requests the headers of the file at `path` in the repository, if it may be read.
async fn probe(hub: &HubOrigin, path: &str) -> Result<FileHeaders> {
    let url = hub.api.content(&hub.commit.sha, path);
    let (_, file) = http_client::retry_listing(|| hub.api.locate(Method::HEAD, url.clone(), None)).await?;
    Ok(file)
}

fn file(hub: &HubOrigin, listing: &mut Listing, path: &str, size: u64, oid: &str, alone: bool) -> Result<()> {
    let version = HubVersion::new(oid, alone)
        .ok_or_else(|| unsupported(&format!("the Hub sends {oid:?} as the version of {path:?}")))?;
    if size == 0 && version.matches_git_id(b"") == Some(false) {
        listing.refuse(path.as_bytes(), "its size is 0, and its git id is not that of an empty file");
        return Ok(());
    }
    listing.file(ListedFile {
        path: path.as_bytes(),
        size,
        mtime: hub.mtime(),
        executable: false,
        version: version.encode().as_bytes(),
        sha256: version.sha256(),
    });
    Ok(())
}

fn unsupported(text: &str) -> Error {
    Error::new(Kind::Unsupported, text)
}

impl HubOrigin {
    /// The path in the repository of what is at `path` below the source.
    pub(super) fn below(&self, path: &str) -> String {
        if self.path.is_empty() { path.into() } else { format!("{}/{path}", self.path) }
    }

    /// The name of the file that is the whole source.
    fn name_of_path(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The date of the commit, in place of that of each file, which the Hub is slow to tell.
    fn mtime(&self) -> (i64, u32) {
        self.commit.date().map_or((0, 0), |date| (date.timestamp(), 0))
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn listing_that_does_not_say_how_it_goes_on_is_refused() {
        let url: Url = "https://h/api/tree".parse().expect("a URL");
        let next = |links: &[&'static str]| {
            let links = links.iter().map(|link| (LINK, HeaderValue::from_static(link)));
            next_query(&url, &links.collect::<HeaderMap>()).map_err(|e| e.kind())
        };
        assert_eq!(next(&[]), Ok(None));
        assert_eq!(next(&["<x>; rel=\"first\"", "</y?cursor=2>; rel=\"next\""]), Ok(Some("cursor=2".into())));
        for link in ["</y>; rel=\"next\"", "<https://[>; rel=\"next\""] {
            assert_eq!(next(&[link]), Err(Kind::Unsupported), "{link}");
        }
    }

    #[test]
    fn next_link_is_the_one_with_rel_next() {
        assert_eq!(next_link(r#"<https://h/x?a,b&cursor=2>; rel="next""#), Some("https://h/x?a,b&cursor=2"));
        assert_eq!(next_link(r#"</x?1>; rel="prev", </x?3>; title="y"; rel=next"#), Some("/x?3"));
        assert_eq!(next_link(r#"</x?1>; rel="prev""#), None);
        assert_eq!(next_link("nonsense"), None);
    }
}
