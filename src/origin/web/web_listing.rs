//! Listing a web server: by an index, and by asking for what the index leaves out.

use futures_util::{StreamExt, stream};
use reqwest::{Method, Request};

use super::directory_index::{IndexFormat, IndexItem};
use super::file_probe::FileProbe;
use super::validator::Validator;
use super::{UrlLayout, WebOrigin};
use crate::backoff::entropy;
use crate::blob::WHOLE_MARK;
use crate::block::BLOCK;
use crate::error::{Error, Kind, Result};
use crate::http_client;
use crate::manifest::{ListedFile, Listing};

/// The largest index that is read, in bytes: that of a million files.
const MAX_INDEX_BYTES: usize = 256 << 20;
/// The number of files that are probed at once.
const PARALLEL_PROBES: usize = 16;

/// Lists what `web` has into `listing`. Files whose size or version is not in an index are probed, and one of the others, which
/// shows whether the server has ranges.
pub(super) async fn list(web: &WebOrigin, listing: &mut Listing) -> Result<()> {
    let items = match &web.layout {
        UrlLayout::File(name) => vec![IndexItem { path: name.clone(), ..IndexItem::default() }],
        UrlLayout::Directory(formats) => read_index(web, formats).await?,
    };
    let complete = |item: &IndexItem| item.size.is_some() && item.version.is_some();
    let (mut done, unknown): (Vec<_>, Vec<_>) = items
        .into_iter()
        .partition(|item| complete(item) || !is_nameable(&item.path) || !listing.selects(&item.path));
    let is_large = |item: &IndexItem| item.size.is_some_and(|size| size > BLOCK);
    let sample = done.iter().find(|item| {
        complete(item) && is_large(item) && is_nameable(&item.path) && listing.selects(&item.path)
    });
    if let Some(item) = sample
        && ignores_ranges(web, item).await
    {
        done.iter_mut().filter(|item| is_large(item)).for_each(|item| item.whole = true);
    }
    done.iter().for_each(|item| list_file(listing, item));
    let mut probed =
        stream::iter(unknown).map(|item| complete_item(web, item)).buffer_unordered(PARALLEL_PROBES);
    while let Some(item) = probed.next().await {
        list_file(listing, &item?);
    }
    Ok(())
}

/// Whether the server ignores Range, as it shows with `item`. If that is not there, its reader is told.
async fn ignores_ranges(web: &WebOrigin, item: &IndexItem) -> bool {
    let probe = http_client::retry_listing(|| FileProbe::ask(web, web.url(&item.path))).await;
    probe.is_ok_and(|probe| probe.whole)
}

/// Whether a URL can name `path`: one with `..` would name another. The listing refuses those.
fn is_nameable(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

fn list_file(listing: &mut Listing, item: &IndexItem) {
    let mark = if item.whole { WHOLE_MARK } else { "" };
    let version = item.version.as_ref().map_or(String::new(), Validator::encode);
    listing.file(ListedFile {
        path: &item.path,
        size: item.size.unwrap_or(0),
        mtime: item.mtime.unwrap_or((0, 0)),
        executable: item.executable,
        version: format!("{mark}{version}").as_bytes(),
        sha256: item.sha256,
    });
}

/// Reads the first index that exists.
async fn read_index(web: &WebOrigin, formats: &[IndexFormat]) -> Result<Vec<IndexItem>> {
    for format in formats {
        let file = format.file().as_bytes();
        let name = web.file_name(file);
        let request = Request::new(Method::GET, web.url(file));
        let content = http_client::retry_listing(|| async {
            http_client::read(web.send(&request).await?, MAX_INDEX_BYTES).await
        });
        match content.await {
            Ok(content) => return format.read(&content).map_err(|e| e.context(&name)),
            Err(error) if error.kind() == Kind::NotFound && formats.len() > 1 => {}
            Err(error) => return Err(error.context(&name)),
        }
    }
    let names = formats.iter().map(|format| format.file()).collect::<Vec<_>>().join(" nor ");
    let text =
        format!("cannot list {}: it has neither {names}; name a file, or put an index there", web.name);
    Err(Error::new(Kind::NotFound, text))
}

/// Asks the server for what the index leaves out.
async fn complete_item(web: &WebOrigin, mut item: IndexItem) -> Result<IndexItem> {
    let name = web.file_name(&item.path);
    let probe = http_client::retry_listing(|| FileProbe::of(web, web.url(&item.path)));
    let probe = probe.await.map_err(|e| e.context(&name))?;
    if let Some(size) = item.size.filter(|size| *size != probe.size) {
        let text = format!("{name}: the index says {size} bytes, the server {}", probe.size);
        return Err(Error::new(Kind::Invalid, text));
    }
    item.size = Some(probe.size);
    item.whole = probe.whole;
    item.mtime = item.mtime.or(probe.mtime);
    let hash =
        || item.sha256.map(|hash| Validator::Sha256(blake3::Hash::from_bytes(hash).to_hex().to_string()));
    // Each listing has its own: blocks of another may be of another state.
    let unpinned = || web.unpinned.then(|| Validator::Unpinned(format!("{:016x}", entropy())));
    item.version = item.version.take().or(probe.validator).or_else(unpinned).or_else(hash);
    if item.version.is_none() {
        let text = format!(
            "{name}: the server sends neither a strong ETag nor Last-Modified, so a change would go unnoticed; list its SHA-256 in an \
             index, or take the risk with --unpinned"
        );
        return Err(Error::new(Kind::Unsupported, text));
    }
    Ok(item)
}
