//! Listing a commit's tree, page by page.

use reqwest::Method;
use reqwest::header::LINK;
use serde::Deserialize;
use url::Url;

use super::Hub;
use super::told::Told;
use super::version::Version;
use crate::client::{self, header};
use crate::error::{Error, Kind, Result};
use crate::manifest::{Found, Listing};
use crate::origin::pages::Pages;

/// The largest page that is read, in bytes: 1,000 entries (the most that the Hub sends) at 4 KiB, and more.
const LARGEST: usize = 16 << 20;
/// All below a directory, without what is slow to tell of each file.
const QUERY: &str = "recursive=true&expand=false";

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    what: String,
    path: String,
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

/// What a large file is kept as; `oid` is the SHA-256 of its content. Files in Xet have it too.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// Lists what `hub` has into `listing`.
pub(super) async fn list(hub: &Hub, listing: &mut Listing) -> Result<()> {
    let mut url = hub.api.tree(&hub.commit.sha, &hub.path);
    url.set_query(Some(QUERY));
    let (mut first, mut sample, mut pages) = (true, None, Pages::of("the Hub"));
    loop {
        let (entries, next) = match client::patiently(|| page(hub, url.clone())).await {
            // The path may be that of a file, which has no tree.
            Err(e) if first && e.kind() == Kind::NotFound && !hub.path.is_empty() => {
                return single(hub, listing).await;
            }
            page => page?,
        };
        pages.take(entries.iter().map(|entry| entry.path.as_bytes()))?;
        for entry in &entries {
            take(hub, listing, entry)?;
        }
        listing.sound()?;
        sample = sample.or_else(|| entries.into_iter().find(|entry| entry.what == "file"));
        let Some(query) = next else { break };
        if url.query() == Some(&query) {
            return Err(unsupported("the Hub sends the same page again and again"));
        }
        // No more than the query is taken, so that the token goes where it went before.
        url.set_query(Some(&query));
        first = false;
    }
    listing.directory(b"", hub.mtime());
    match sample {
        // Better told now than by every read.
        Some(sample) if hub.commit.is_gated() => probe(hub, &sample.path).await.map(|_| ()),
        _ => Ok(()),
    }
}

/// One page, and the query of the next.
async fn page(hub: &Hub, url: Url) -> Result<(Vec<Entry>, Option<String>)> {
    hub.api.calm().await;
    let answer = hub.api.get(url.clone()).await?;
    let next = header(answer.headers(), &LINK).and_then(next).and_then(|next| url.join(next).ok());
    let next = next.and_then(|next| next.query().map(str::to_owned));
    let text = client::read(answer, LARGEST).await?;
    let entries = serde_json::from_slice(&text)
        .map_err(|e| Error::with(Kind::Unsupported, "the Hub's answer is no tree", e))?;
    Ok((entries, next))
}

/// The URL of the next page in a `Link` header (RFC 8288).
fn next(links: &str) -> Option<&str> {
    links.split('<').skip(1).find_map(|link| {
        let (url, parameters) = link.split_once('>')?;
        parameters.replace('"', "").contains("rel=next").then_some(url)
    })
}

fn take(hub: &Hub, listing: &mut Listing, entry: &Entry) -> Result<()> {
    let alone = entry.path == hub.path;
    let path = match entry.path.strip_prefix(&hub.below("")) {
        Some(path) => path,
        None if alone => hub.name_of_path(),
        None => return Err(unsupported("the Hub lists what is not below the path")),
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
            listing.refuse(path.as_bytes(), "it is neither a file nor a directory to the Hub");
            Ok(())
        }
    }
}

/// Lists a source that is one file.
async fn single(hub: &Hub, listing: &mut Listing) -> Result<()> {
    match probe(hub, &hub.path).await? {
        Told { oid: Some(oid), size: Some(size), .. } => {
            file(hub, listing, hub.name_of_path(), size, &oid, true)
        }
        _ => Err(unsupported("the Hub doesn't tell size and version of that file")),
    }
}

/// What the Hub says of the file at `path` in the repository, if it may be read.
async fn probe(hub: &Hub, path: &str) -> Result<Told> {
    let url = hub.api.content(&hub.commit.sha, path);
    let ask = || async {
        let mut told = Told::default();
        hub.api.ask(Method::HEAD, url.clone(), None, &mut told).await.map(|_| told)
    };
    client::patiently(ask).await
}

fn file(hub: &Hub, listing: &mut Listing, path: &str, size: u64, oid: &str, alone: bool) -> Result<()> {
    let version = Version::new(oid, alone)
        .ok_or_else(|| unsupported(&format!("the Hub tells {oid:?} for the version of {path:?}")))?;
    listing.file(Found {
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

impl Hub {
    /// The path in the repository of what is at `path` below the source.
    pub(super) fn below(&self, path: &str) -> String {
        if self.path.is_empty() { path.into() } else { format!("{}/{path}", self.path) }
    }

    /// The name of the file that is the whole source.
    fn name_of_path(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }

    /// The date of the revision stands for that of each file, which the Hub tells only slowly, one by one.
    fn mtime(&self) -> (i64, u32) {
        self.commit.date().map_or((0, 0), |date| (date.timestamp(), 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found() {
        assert_eq!(next(r#"<https://h/x?a,b&cursor=2>; rel="next""#), Some("https://h/x?a,b&cursor=2"));
        assert_eq!(next(r#"</x?1>; rel="prev", </x?3>; title="y"; rel=next"#), Some("/x?3"));
        assert_eq!(next(r#"</x?1>; rel="prev""#), None);
        assert_eq!(next("nonsense"), None);
    }
}
