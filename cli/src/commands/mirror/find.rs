//! Which of the refs a user means.

use anyhow::{Result, bail};
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::Ref;
use bdnfs::source::Uri;

/// The fewest digits of an id that are taken for one.
const FEWEST: usize = 6;

/// The ref that `named` names: by its source, or by the first digits of its snapshot's id or its own.
pub async fn find(mirror: &Mirror, named: &str) -> Result<Ref> {
    let mut refs = Vec::new();
    for found in mirror.refs().await? {
        match found {
            Ok(found) => refs.push(found),
            Err(error) => eprintln!("note: {error}"),
        }
    }
    choose(refs, named, mirror.name())
}

fn choose(mut refs: Vec<Ref>, named: &str, mirror: &str) -> Result<Ref> {
    let source = source(named);
    refs.retain(|found| {
        let begins = |id: String| named.len() >= FEWEST && id.starts_with(named);
        found.source == source || begins(found.manifest.to_string()) || begins(found.key().to_string())
    });
    match refs.len() {
        0 => bail!("the mirror {mirror} has no {named}; `bdnfs mirror ls` lists what it has"),
        1 => Ok(refs.remove(0)),
        _ => {
            let keys: Vec<_> = refs.iter().map(|found| found.key().to_string()[..12].to_owned()).collect();
            bail!(
                "{named} is mirrored with several sets of patterns; name one by its ref: {}",
                keys.join(", ")
            )
        }
    }
}

/// A source as refs have it.
fn source(named: &str) -> String {
    match named.parse::<Uri>() {
        Ok(Uri::File(path)) => Uri::File(std::path::absolute(&path).unwrap_or(path)).to_string(),
        Ok(uri) => uri.to_string(),
        Err(_) => named.to_owned(),
    }
}
