//! The `mount_location` of weights, alone and beside the others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::MOUNT_KEY;
use crate::error::{Error, Kind, Result};
use crate::manifest::{MAX_NAME_BYTES, MAX_PATH_BYTES};
use crate::source::{Diagnostic, Diagnostics, DocumentPath, Severity, TreeLayout, Uri};

/// Directories that a system needs; a mount would hide their content.
const SYSTEM_DIRECTORIES: [&str; 14] =
    ["bin", "boot", "dev", "etc", "home", "lib", "lib64", "proc", "root", "run", "sbin", "sys", "usr", "var"];

/// File systems of the kernel's own, in which nobody makes directories.
const KERNEL_DIRECTORIES: [&str; 2] = ["/proc", "/sys"];

/// Reads a mount location: the path without what doesn't change its meaning.
pub(super) fn read(text: &str, place: &DocumentPath, found: &mut Diagnostics) -> Option<PathBuf> {
    match clean(text).and_then(not_of_kernel) {
        Ok(path) => {
            if SYSTEM_DIRECTORIES.iter().any(|name| path == Path::new("/").join(name)) {
                found.warn(
                    place,
                    format!("hides the machine's own {}; a directory below it is safer", path.display()),
                );
            }
            Some(path)
        }
        Err(text) => {
            found.reject(place, text);
            None
        }
    }
}

fn clean(text: &str) -> std::result::Result<PathBuf, String> {
    if text.is_empty() {
        return Err("is empty; write an absolute path, /models/name".into());
    }
    if text.chars().any(char::is_control) {
        return Err(format!("contains a control character: {text:?}"));
    }
    if !text.starts_with('/') {
        return Err(not_absolute(text));
    }
    let parts: Vec<_> = text.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    if parts.contains(&"..") {
        return Err(has_parent(text));
    }
    if parts.is_empty() {
        return Err("is the root, and a mount there hides the whole system; write /models/name".into());
    }
    let path = format!("/{}", parts.join("/"));
    if path.len() > MAX_PATH_BYTES || parts.iter().any(|part| part.len() > MAX_NAME_BYTES) {
        return Err(format!(
            "is too long: {MAX_PATH_BYTES} bytes at most, {MAX_NAME_BYTES} between two slashes"
        ));
    }
    Ok(path.into())
}

fn not_absolute(path: &str) -> String {
    format!("must be absolute, so begin with a slash: {path:?}")
}

/// Explains why a path with `..` in it is refused.
pub fn has_parent(path: &str) -> String {
    format!("has \"..\" in it, so it is not where it seems; write where it leads: {path:?}")
}

/// Makes sure that a volume of a job can be mounted at `path`: the directory that its name says, whatever links are above it.
///
/// # Errors
/// [`Kind::Invalid`] for one that is not absolute, one with `..`, the root, and what lies in file systems of the kernel's own.
pub fn check_volume_path(path: &Path) -> Result<()> {
    let path = clean(&path.to_string_lossy()).and_then(not_of_kernel);
    path.map(drop).map_err(|text| Error::new(Kind::Invalid, text))
}

fn not_of_kernel(path: PathBuf) -> std::result::Result<PathBuf, String> {
    if KERNEL_DIRECTORIES.iter().any(|directory| path.starts_with(directory)) || path == Path::new("/dev") {
        return Err(format!(
            "lies in {}, which belongs to the kernel; choose another directory",
            path.display()
        ));
    }
    Ok(path)
}

/// Makes sure that `paths` can be the mount locations of one job, by the rules that a configuration is read by.
///
/// # Errors
/// [`Kind::Invalid`], which names the first one that can't by its number.
pub fn check_locations(paths: &[&Path]) -> Result<()> {
    let mut found = Diagnostics::default();
    let places: Vec<_> = (0..paths.len()).map(|i| DocumentPath::default().key("weights").index(i)).collect();
    let read = |(path, place): (&&Path, &DocumentPath)| {
        read(&path.to_string_lossy(), &place.key(MOUNT_KEY), &mut found)
    };
    let clean: Vec<_> = paths.iter().zip(&places).map(read).collect();
    let mounts = clean.iter().zip(&places).filter_map(|(path, place)| Some((path.as_deref()?, place)));
    reject_conflicts(mounts, &mut found);
    match found.into_iter().find(|diagnostic| diagnostic.verdict == Severity::Reject) {
        Some(Diagnostic { place, text, .. }) => Err(Error::new(Kind::Invalid, format!("{place}: {text}"))),
        None => Ok(()),
    }
}

/// The tree that is shown of a source, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownSource {
    /// The directory where it appears.
    pub place: PathBuf,
    /// The directory of its tree that appears there, if not all of it.
    pub directory: Option<String>,
}

impl ShownSource {
    /// The path of what is shown, of the tree at `root`.
    pub fn within(&self, root: &Path) -> PathBuf {
        self.directory.as_ref().map_or_else(|| root.to_owned(), |directory| root.join(directory))
    }

    /// Whether it is a repository beside what one of the training caches at `caches` has.
    pub fn is_in_cache(&self, caches: &[PathBuf]) -> bool {
        self.directory.is_some() && caches.iter().any(|cache| self.place.starts_with(cache))
    }
}

/// The trees that are shown of `sources`, each with its mount location. Repositories of the Hub in the layout hf-cache with one
/// mount location are shown in it side by side, as in one cache; those in a training cache, one of `caches`, beside what it has.
pub fn shown_sources(sources: &[(PathBuf, Option<TreeLayout>, Uri)], caches: &[PathBuf]) -> Vec<ShownSource> {
    let is_hub_cache = |layout: &Option<TreeLayout>| *layout == Some(TreeLayout::HfCache);
    let shares = |path: &PathBuf| {
        caches.iter().any(|cache| path.starts_with(cache))
            || sources.iter().filter(|(other, layout, _)| other == path && is_hub_cache(layout)).count() > 1
    };
    let shown = |(path, layout, uri): &(PathBuf, Option<TreeLayout>, Uri)| {
        let directory = uri.hub_directory().filter(|_| is_hub_cache(layout) && shares(path));
        let place = directory.as_ref().map_or_else(|| path.clone(), |directory| path.join(directory));
        ShownSource { place, directory }
    };
    sources.iter().map(shown).collect()
}

/// Rejects mounts that conflict: at one directory, or one below the other. Returns the places of the
/// weights that were rejected.
pub(super) fn reject_conflicts<'a>(
    mounts: impl Iterator<Item = (&'a Path, &'a DocumentPath)>,
    found: &mut Diagnostics,
) -> BTreeSet<DocumentPath> {
    let mut first = BTreeMap::<&Path, &DocumentPath>::new();
    let mut rejected = BTreeSet::new();
    let mut reject = |place: &DocumentPath, text| {
        found.reject(&place.key(MOUNT_KEY), text);
        rejected.insert(place.clone());
    };
    for (path, place) in mounts {
        if let Some(other) = first.get(path) {
            let path = path.display();
            reject(place, format!("is {path}, as that of {other} is; each needs a directory of its own"));
        } else {
            first.insert(path, place);
        }
    }
    for (path, place) in &first {
        if let Some(other) = path.ancestors().skip(1).find_map(|above| first.get(above)) {
            reject(
                place,
                format!("lies inside that of {other}, which is read-only; put one beside the other"),
            );
        }
    }
    rejected
}
