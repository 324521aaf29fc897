//! The cache directory, as the command line names it.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bdnfs_agent::api::socket;
use bdnfs_agent::cache::{CacheConfig, DEFAULT_TENANT};
use bytesize::ByteSize;

/// The longest path that a unix socket can have on Linux (`sun_path`, less its NUL).
const LONGEST_SOCKET: usize = 107;

/// Where the cache is and how large it may grow, as asked for.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// Directory of the cache; by default /var/cache/bdnfs for root, else ~/.cache/bdnfs
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// The most that the cache may hold (200G, 1.5T); by default all but a twentieth of its disk
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<ByteSize>,
}

impl Args {
    /// A directory and a size that were found elsewhere.
    pub fn new(cache_dir: Option<PathBuf>, cache_size: Option<ByteSize>) -> Self {
        Self { cache_dir, cache_size }
    }

    /// The same, with what `other` says where this says nothing.
    pub fn or(&self, other: &Self) -> Self {
        Self {
            cache_dir: self.cache_dir.clone().or(other.cache_dir.clone()),
            cache_size: self.cache_size.or(other.cache_size),
        }
    }

    /// Whether a directory was named.
    pub fn names_directory(&self) -> bool {
        self.cache_dir.is_some()
    }

    /// The size that was asked for, in bytes.
    pub fn size(&self) -> Option<u64> {
        self.cache_size.map(|size| size.as_u64())
    }

    /// Finds the directory, and makes it when it is missing, for nobody else to look into.
    pub fn make(&self) -> Result<CacheConfig> {
        let env = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let root = rustix::process::geteuid().is_root();
        let Some(dir) = self.cache_dir.clone().or_else(|| default_dir(env, root)) else {
            bail!("no home directory to keep a cache in; name one with --cache-dir");
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        let dir = made.and_then(|()| dir.canonicalize()).with_context(|| {
            format!("cannot use {} as the cache directory; choose another with --cache-dir", dir.display())
        })?;
        if socket::of_cache(&dir).as_os_str().len() > LONGEST_SOCKET {
            bail!(
                "the path {} is too long to have a control socket; shorten it with --cache-dir",
                dir.display()
            );
        }
        let tenant = DEFAULT_TENANT.to_owned();
        let quotas = BTreeMap::new();
        Ok(CacheConfig { dir, size: self.size(), reserve: None, memory: None, tenant, quotas })
    }
}

fn default_dir(env: impl Fn(&str) -> Option<PathBuf>, root: bool) -> Option<PathBuf> {
    if root {
        return Some(PathBuf::from("/var/cache/bdnfs"));
    }
    // The XDG base directory specification: a relative path is to be ignored.
    let caches = env("XDG_CACHE_HOME").filter(|dir| dir.is_absolute());
    let caches =
        caches.or_else(|| env("HOME").filter(|home| home.is_absolute()).map(|home| home.join(".cache")));
    caches.map(|dir| dir.join("bdnfs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_directory_is_the_users_own() {
        let env = |name: &str| match name {
            "XDG_CACHE_HOME" => Some(PathBuf::from("relative")),
            "HOME" => Some(PathBuf::from("/home/u")),
            _ => None,
        };
        assert_eq!(default_dir(env, false), Some("/home/u/.cache/bdnfs".into()));
        assert_eq!(default_dir(|_| Some("/fast".into()), false), Some("/fast/bdnfs".into()));
        assert_eq!(default_dir(env, true), Some("/var/cache/bdnfs".into()));
        assert_eq!(default_dir(|_| None, false), None);
    }
}
