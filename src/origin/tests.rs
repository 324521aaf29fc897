//! Each origin against what it is an origin of: a real directory, a real server.

mod bucket_ranges;
mod cloud_buckets;
mod local_files;
mod object_store_paths;
mod s3_buckets;
mod s3_regions;
mod test_server;
mod token_services;
mod web_server;
mod web_server_faults;

use crate::error::{Error, Result};
use crate::manifest::{Listing, Manifest, Node};
use crate::source::Patterns;
use crate::tier::Origin;

/// Lists an origin: each path with the size of the file, or what else it is.
async fn listed(origin: &dyn Origin, patterns: Patterns) -> Result<Vec<(String, String)>> {
    let mut listing = Listing::new(&origin.identity(), patterns, &std::env::temp_dir());
    origin.list(&mut listing).await?;
    let mut bytes = Vec::new();
    listing.finish(&mut bytes)?;
    let manifest = Manifest::from_bytes(bytes)?;
    let mut paths = Vec::new();
    for index in 1..manifest.entries() {
        let what = match manifest.entry(index)?.node {
            Node::File(slice) => slice.len.to_string(),
            Node::Directory(_) => "directory".into(),
            Node::Symlink(target) => format!("-> {}", target.escape_ascii()),
        };
        paths.push((manifest.path(index)?.escape_ascii().to_string(), what));
    }
    paths.sort();
    Ok(paths)
}

async fn failed(origin: &dyn Origin) -> Error {
    listed(origin, Patterns::default()).await.expect_err("a listing that fails")
}
