//! Listing what a web server has.

use futures_util::{StreamExt, stream};
use reqwest::{Method, Request};

use super::index::{Format, Item};
use super::probe::Probe;
use super::validator::Validator;
use super::{Layout, Web};
use crate::client;
use crate::error::{Error, Kind, Result};
use crate::manifest::{Found, Listing};

/// The largest index that is read, in bytes: that of a million files.
const LARGEST: usize = 256 << 20;
/// How many files are asked after at once.
const PARALLEL: usize = 16;

/// Lists what `web` has into `listing`. Files of which an index doesn't tell the size or the version are asked after.
pub(super) async fn list(web: &Web, listing: &mut Listing) -> Result<()> {
    let items = match &web.layout {
        Layout::File(name) => vec![Item { path: name.clone(), ..Item::default() }],
        Layout::Directory(formats) => read(web, formats).await?,
    };
    let told = |item: &Item| item.size.is_some() && item.version.is_some();
    let (done, unknown): (Vec<_>, Vec<_>) = items
        .into_iter()
        .partition(|item| told(item) || !nameable(&item.path) || !listing.selects(&item.path));
    done.iter().for_each(|item| take(listing, item));
    let mut asked = stream::iter(unknown).map(|item| ask(web, item)).buffer_unordered(PARALLEL);
    while let Some(item) = asked.next().await {
        take(listing, &item?);
    }
    Ok(())
}

/// Whether a URL can name `path`: one with `..` would name something else. The listing refuses those.
fn nameable(path: &[u8]) -> bool {
    path.split(|b| *b == b'/').all(|part| !matches!(part, b"" | b"." | b".."))
}

fn take(listing: &mut Listing, item: &Item) {
    let version = item.version.as_ref().map_or(String::new(), Validator::encode);
    listing.file(Found {
        path: &item.path,
        size: item.size.unwrap_or(0),
        mtime: item.mtime.unwrap_or((0, 0)),
        executable: item.executable,
        version: version.as_bytes(),
        sha256: item.sha256,
    });
}

/// Reads the first index that is there.
async fn read(web: &Web, formats: &[Format]) -> Result<Vec<Item>> {
    for format in formats {
        let file = format.file().as_bytes();
        let outer = web.shown(file);
        match web.send(&Request::new(Method::GET, web.url(file))).await {
            Ok(answer) => {
                let content = client::read(answer, LARGEST).await.map_err(|e| e.within(&outer))?;
                return format.read(&content).map_err(|e| e.within(&outer));
            }
            Err(error) if error.kind() == Kind::NotFound && formats.len() > 1 => {}
            Err(error) => return Err(error.within(&outer)),
        }
    }
    let names = formats.iter().map(|format| format.file()).collect::<Vec<_>>().join(" nor ");
    let text =
        format!("{} can't be listed: neither {names} is there; name a file, or put an index there", web.name);
    Err(Error::new(Kind::NotFound, text))
}

/// Asks the server for what the index doesn't tell.
async fn ask(web: &Web, mut item: Item) -> Result<Item> {
    let what = web.shown(&item.path);
    let probe = Probe::of(web, web.url(&item.path)).await.map_err(|e| e.within(&what))?;
    if let Some(size) = item.size.filter(|size| *size != probe.size) {
        let text = format!("{what}: the index says {size} bytes, the server {}", probe.size);
        return Err(Error::new(Kind::Invalid, text));
    }
    item.size = Some(probe.size);
    item.mtime = item.mtime.or(probe.mtime);
    let hash =
        || item.sha256.map(|hash| Validator::Sha256(blake3::Hash::from_bytes(hash).to_hex().to_string()));
    item.version = item.version.take().or(probe.validator).or_else(hash);
    if item.version.is_none() {
        let text = format!(
            "{what}: the server tells neither ETag nor Last-Modified, so a change would go unnoticed"
        );
        return Err(Error::new(Kind::Unsupported, text));
    }
    Ok(item)
}
