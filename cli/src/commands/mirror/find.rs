//! Finds a ref of a mirror by source or id.

use anyhow::{Result, bail};
use bdnfs::mirror::Mirror;
use bdnfs::mirror::catalog::Ref;
use bdnfs::source::Uri;

use crate::output::short_id;
use crate::output::stderr_line;

/// The fewest digits that can name an id.
const MIN_ID_DIGITS: usize = 6;

/// Finds the ref that `name` means: by its source, or by the first digits of its snapshot's id or its own.
pub async fn find_ref(mirror: &Mirror, name: &str) -> Result<Ref> {
    let mut refs = Vec::new();
    for found in mirror.refs().await? {
        match found {
            Ok(found) => refs.push(found),
            Err(error) => stderr_line!("note: {error}"),
        }
    }
    select(refs, name, mirror.name())
}

fn select(mut refs: Vec<Ref>, name: &str, mirror: &str) -> Result<Ref> {
    let source = canonical_source(name);
    refs.retain(|found| {
        let has_prefix = |id: String| name.len() >= MIN_ID_DIGITS && id.starts_with(name);
        found.source == source
            || has_prefix(found.manifest.to_string())
            || has_prefix(found.key().to_string())
    });
    match refs.len() {
        0 => bail!("mirror {mirror} has no {name}; `bdnfs mirror ls` lists its sources"),
        1 => Ok(refs.remove(0)),
        _ => {
            let keys: Vec<_> =
                refs.iter().map(|found| short_id(&found.key().to_string()).to_owned()).collect();
            bail!(
                "{name} is ambiguous: it is mirrored with several sets of patterns; use one of the refs {}",
                keys.join(", ")
            )
        }
    }
}

/// The name of a source in refs.
fn canonical_source(name: &str) -> String {
    match name.parse::<Uri>() {
        Ok(Uri::File(path)) => Uri::File(std::path::absolute(&path).unwrap_or(path)).to_string(),
        Ok(uri) => uri.to_string(),
        Err(_) => name.to_owned(),
    }
}
