//! The cache options of the command line.

use std::collections::BTreeMap;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bdnfs::cache::directory::CacheDirectory;
use bdnfs::cache::layout;
use bdnfs_agent::api::socket;
use bdnfs_agent::cache::scrubber::DEFAULT_SCRUB_INTERVAL;
use bdnfs_agent::cache::{CacheConfig, DEFAULT_TENANT};
use bytesize::ByteSize;

use crate::text;

/// The options that name a cache and its size.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct CacheArgs {
    /// Cache directory. Default: /var/cache/bdnfs for root, else ~/.cache/bdnfs
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Size limit of the cache, such as 200G or 1.5T. Default: its disk, less 5 % (at most 20 GiB)
    #[arg(long, value_name = "SIZE", value_parser = text::parse_size)]
    cache_size: Option<ByteSize>,
    /// Space to keep free on the cache's disk, such as 2G. Default: 5 % of it (at most 20 GiB)
    #[arg(long, value_name = "SIZE", env = "BDNFS_CACHE_RESERVE", hide_env = true)]
    cache_reserve: Option<ByteSize>,
}

impl CacheArgs {
    /// The options that name the directory `cache_dir` alone.
    pub fn directory(cache_dir: Option<PathBuf>) -> Self {
        Self::new(cache_dir, None, None)
    }

    /// The options that a configuration has.
    pub fn new(
        cache_dir: Option<PathBuf>,
        cache_size: Option<ByteSize>,
        cache_reserve: Option<ByteSize>,
    ) -> Self {
        Self { cache_dir, cache_size, cache_reserve }
    }

    /// The options of both: those of `other` where these are missing.
    pub fn or(&self, other: &Self) -> Self {
        Self {
            cache_dir: self.cache_dir.clone().or(other.cache_dir.clone()),
            cache_size: self.cache_size.or(other.cache_size),
            cache_reserve: self.cache_reserve.or(other.cache_reserve),
        }
    }

    /// Whether a directory is named.
    pub fn has_directory(&self) -> bool {
        self.cache_dir.is_some()
    }

    /// The size limit, in bytes.
    pub fn size(&self) -> Option<u64> {
        self.cache_size.map(|size| size.as_u64())
    }

    /// The path of the directory, which may be missing.
    fn path(&self) -> Result<PathBuf> {
        let env = |name: &str| std::env::var_os(name).map(PathBuf::from);
        let root = rustix::process::geteuid().is_root();
        let path = self.cache_dir.clone().or_else(|| default_dir(env, root));
        path.context("no home directory for a cache; set --cache-dir")
    }

    /// Opens the directory of a cache that exists: what a command only looks at, it does not create.
    pub fn open_existing(&self) -> Result<CacheConfig> {
        let path = self.path()?;
        if !layout::is_cache(&path) {
            bail!("no cache found at {}; name another one with --cache-dir", path.display());
        }
        self.open()
    }

    /// Opens the directory. Creates it when it is missing, with mode 0700.
    pub fn open(&self) -> Result<CacheConfig> {
        let dir = self.path()?;
        // On a frozen disk the creation of a directory blocks even where it exists.
        let make = || DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        let made = if dir.is_dir() { Ok(()) } else { make() };
        let dir = made.and_then(|()| dir.canonicalize()).with_context(|| {
            format!("cannot use {} as cache directory; choose another with --cache-dir", dir.display())
        })?;
        CacheDirectory::open(&dir)?;
        if socket::check_length(&socket::of_cache(&dir)).is_err() {
            bail!(
                "cache directory {}: path too long for its control socket; choose a shorter one with --cache-dir",
                dir.display()
            );
        }
        let tenant = DEFAULT_TENANT.to_owned();
        let quotas = BTreeMap::new();
        let (size, scrub_interval) = (self.size(), DEFAULT_SCRUB_INTERVAL);
        let reserve = self.cache_reserve.map(|size| size.as_u64());
        Ok(CacheConfig { dir, size, reserve, memory: None, tenant, quotas, scrub_interval })
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
    fn default_directory_follows_user_and_xdg() {
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
