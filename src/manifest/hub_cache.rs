//! The view of a repository of the Hub as `huggingface_hub` keeps it in its cache, so that unmodified programs find it there.
//!
//! ```text
//! models--owner--name/refs/main                    the commit, 40 letters
//!                    /blobs/<id>                   the content: its SHA-256 where that is in LFS, else git's id
//!                    /snapshots/<commit>/<path>    -> ../../blobs/<id>
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use super::encoder::{BlobEntry, BlobName, ManifestContents, encode};
use super::{Entry, Manifest, Node, Slice, name, row};
use crate::blob::MirrorLocation;
use crate::block::Check;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::source::{HUB_DEFAULT_REVISION, TreeLayout, Uri};

/// Git's id of the empty file, of which a manifest keeps no version.
const EMPTY_GIT_ID: &str = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";

/// The most that a view may have: it is built in memory, and the author of the repository decides how large
/// it gets. The Hub advises against more than 100,000 files in one, each of which is two entries here.
const VIEW_LIMITS: ViewLimits = ViewLimits { entries: 1_000_000, path_bytes: 256 << 20 };

/// The limits of a view.
#[derive(Clone, Copy, Debug)]
pub(super) struct ViewLimits {
    /// The maximum number of its entries.
    pub entries: usize,
    /// The maximum number of bytes of their paths, and of what links lead to, in all.
    pub path_bytes: usize,
}

/// A repository of the Hub at a commit, as its library names it in a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubCache {
    /// The directory of the repository: `models--owner--name`.
    repository: String,
    commit: String,
    /// The revisions that lead to the commit: the requested one, and the default one. Programs that name no revision ask for that.
    references: Vec<String>,
}

impl HubCache {
    /// The repository that `requested` names, at the commit of `resolved`.
    ///
    /// # Errors
    /// Those of [`TreeLayout::check`]; [`Kind::Invalid`] for a source that was resolved to no commit.
    pub fn new(requested: &Uri, resolved: &Uri) -> Result<Self> {
        TreeLayout::HfCache.check(requested)?;
        let (Uri::Hf { revision, .. }, Uri::Hf { revision: Some(commit), .. }, Some(repository)) =
            (requested, resolved, requested.hub_directory())
        else {
            return Err(invalid(format!("{requested}: was resolved to no commit of the Hub")));
        };
        let default = HUB_DEFAULT_REVISION;
        let named = revision.iter().filter(|revision| *revision != commit && *revision != default);
        let mut references: Vec<String> = named.cloned().collect();
        // A directory has its name where the revision is main/x.
        if !references.iter().any(|named| named.starts_with(&format!("{default}/"))) {
            references.push(default.to_owned());
        }
        Ok(Self { repository, commit: commit.clone(), references })
    }

    /// The view of `base`, a manifest of the repository. It has all blobs of `base`, and after them one with the commit's name,
    /// which is its version, too.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the manifest is, [`Kind::Invalid`] for a file without an id of the Hub, [`Kind::Unsupported`] for a
    /// repository that is too large.
    pub fn view(&self, base: &Arc<Manifest>) -> Result<Manifest> {
        self.view_within(base, VIEW_LIMITS)
    }

    /// The view of `base` as [`view`](Self::view) makes it, within other limits.
    pub(super) fn view_within(&self, base: &Arc<Manifest>, limits: ViewLimits) -> Result<Manifest> {
        let mut tree = Tree { root: base.entry(0)?.mtime, nodes: BTreeMap::new(), path_bytes: 0, limits };
        tree.put(b"", Leaf::Directory)?;
        let content = Slice { blob: base.blobs(), offset: 0, len: self.commit.len() as u64 };
        for reference in &self.references {
            tree.put(format!("{}/refs/{reference}", self.repository).as_bytes(), Leaf::File(content, false))?;
        }
        self.add_files(base, &mut tree)?;
        let view = HubCacheContents { source: base.source(), commit: &self.commit, entries: tree.entries() };
        let mut bytes = Vec::new();
        encode(&view, &mut bytes)?;
        Ok(Manifest::from_bytes(bytes)?.view_of(base.clone()))
    }

    /// Adds the content of each file under its id, and a link to it at its path.
    fn add_files(&self, base: &Manifest, tree: &mut Tree) -> Result<()> {
        let mut ids = FileIds { manifest: base, packs: HashMap::new() };
        let snapshot = format!("{}/snapshots/{}", self.repository, self.commit);
        for index in 0..base.entries() {
            let entry = base.entry(index)?;
            let path = base.path(index)?;
            let shown = [snapshot.as_bytes(), b"/", &path].concat();
            let leaf = match entry.node {
                Node::Directory(_) => Leaf::Directory,
                Node::Symlink(target) => Leaf::Symlink(target.to_vec()),
                Node::File(slice) => {
                    let id = ids.of(slice)?;
                    let blob = format!("{}/blobs/{id}", self.repository);
                    tree.put(blob.as_bytes(), Leaf::File(slice, entry.executable))?;
                    let up = "../".repeat(2 + path.iter().filter(|byte| **byte == b'/').count());
                    Leaf::Symlink(format!("{up}blobs/{id}").into_bytes())
                }
            };
            tree.put(if path.is_empty() { snapshot.as_bytes() } else { &shown }, leaf)?;
        }
        Ok(())
    }
}

/// The ids by which the Hub names the content of files.
struct FileIds<'a> {
    manifest: &'a Manifest,
    /// By the number of a pack: the versions of its parts, by where they begin.
    packs: HashMap<u32, HashMap<u64, Vec<u8>>>,
}

impl FileIds<'_> {
    fn of(&mut self, slice: Slice) -> Result<String> {
        if slice.len == 0 {
            return Ok(EMPTY_GIT_ID.to_owned());
        }
        let version = if self.manifest.is_pack(slice.blob)? {
            if !self.packs.contains_key(&slice.blob) {
                let parts = self.manifest.parts(slice.blob)?.into_iter();
                let versions = parts.map(|part| (part.range.start, part.version.to_vec())).collect();
                self.packs.insert(slice.blob, versions);
            }
            let versions = self.packs.get(&slice.blob);
            versions.and_then(|versions| versions.get(&slice.offset).cloned()).unwrap_or_default()
        } else {
            self.manifest.blob(slice.blob)?.version.to_vec()
        };
        let id = String::from_utf8(version).unwrap_or_default();
        let is_id = matches!(id.len(), 40 | 64) && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        let text = || {
            format!(
                "{}: a file has no id of the Hub, so it has no place in its cache",
                self.manifest.source()
            )
        };
        is_id.then_some(id).ok_or_else(|| invalid(text()))
    }
}

/// The entry at a path.
enum Leaf {
    Directory,
    /// A file, and whether it may be executed.
    File(Slice, bool),
    Symlink(Vec<u8>),
}

/// A tree as it grows, in the order of the format.
struct Tree {
    /// The time of all that is made here.
    root: (i64, u32),
    nodes: BTreeMap<(u16, Vec<u8>), Leaf>,
    /// The bytes of all paths and links, counted again for each that was replaced.
    path_bytes: usize,
    limits: ViewLimits,
}

impl Tree {
    /// Adds the entry at `path`, and the directories above it.
    fn put(&mut self, path: &[u8], leaf: Leaf) -> Result<()> {
        if !path.is_empty() {
            let bad = |why| invalid(format!("{} cannot be shown: {why}", name::QuotedName(path)));
            name::path(path).map_err(bad)?;
        }
        let key = row::key(path);
        for (end, _) in key.iter().enumerate().filter(|(_, byte)| **byte == 0) {
            let above = (row::depth(&key[..end]), key[..end].to_vec());
            if !self.nodes.contains_key(&above) {
                self.insert(above, Leaf::Directory)?;
            }
        }
        self.insert((row::depth(&key), key), leaf)
    }

    fn insert(&mut self, key: (u16, Vec<u8>), leaf: Leaf) -> Result<()> {
        let target = if let Leaf::Symlink(target) = &leaf { target.len() } else { 0 };
        self.path_bytes += key.1.len() + target;
        self.nodes.insert(key, leaf);
        let ViewLimits { entries, path_bytes } = self.limits;
        if self.nodes.len() <= entries && self.path_bytes <= path_bytes {
            return Ok(());
        }
        let text = format!(
            "the repository is too large for the layout hf-cache, which has at most {entries} entries with {path_bytes} bytes of \
             paths: leave the layout out"
        );
        Err(Error::new(Kind::Unsupported, text))
    }

    /// The entries, numbered: the children of each directory follow those of the one before it.
    fn entries(self) -> Vec<ViewEntry> {
        let number = |(index, (_, key)): (usize, &(u16, Vec<u8>))| (key.clone(), index as u32);
        let numbers: HashMap<Vec<u8>, u32> = self.nodes.keys().enumerate().map(number).collect();
        let mut children = vec![0u32; self.nodes.len()];
        let parents: Vec<u32> = (self.nodes.keys())
            .map(|(depth, key)| {
                let end = key.iter().rposition(|byte| *byte == 0).unwrap_or(0);
                let parent = numbers.get(&key[..end]).copied().unwrap_or(0);
                children[parent as usize] += u32::from(*depth > 0);
                parent
            })
            .collect();
        let (mut next, mut entries) = (1, Vec::with_capacity(self.nodes.len()));
        for ((((_, key), leaf), parent), children) in self.nodes.into_iter().zip(parents).zip(children) {
            let name = key.rsplit(|byte| *byte == 0).next().unwrap_or_default().to_vec();
            entries.push(ViewEntry { name, parent, mtime: self.root, children: next..next + children, leaf });
            next += children;
        }
        entries
    }
}

/// An entry of the view.
struct ViewEntry {
    name: Vec<u8>,
    parent: u32,
    mtime: (i64, u32),
    children: Range<u32>,
    leaf: Leaf,
}

/// The contents of the view's manifest.
struct HubCacheContents<'a> {
    source: &'a str,
    commit: &'a str,
    entries: Vec<ViewEntry>,
}

impl ManifestContents for HubCacheContents<'_> {
    fn source(&self) -> &str {
        self.source
    }

    fn entries(&self, each: &mut dyn FnMut(Entry<'_>) -> Result<()>) -> Result<()> {
        self.entries.iter().try_for_each(|entry| {
            let (node, executable) = match &entry.leaf {
                Leaf::Directory => (Node::Directory(entry.children.clone()), false),
                Leaf::File(slice, executable) => (Node::File(*slice), *executable),
                Leaf::Symlink(target) => (Node::Symlink(target), false),
            };
            each(Entry { name: &entry.name, parent: entry.parent, mtime: entry.mtime, executable, node })
        })
    }

    fn blobs(&self, each: &mut dyn FnMut(BlobEntry<'_>) -> Result<()>) -> Result<()> {
        let content = self.commit.as_bytes();
        let size = content.len() as u64;
        each(BlobEntry {
            name: BlobName::Content(Digest::of(content), Some(&[Check::of(size, 0, content)])),
            size,
            entry: None,
            version: Cow::Borrowed(content),
            packed: false,
            sha256: None,
            stored: MirrorLocation::default(),
        })
    }
}

fn invalid(text: String) -> Error {
    Error::new(Kind::Invalid, text)
}
