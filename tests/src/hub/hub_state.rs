//! The state of a Hub.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

/// Files from this size on are large: kept in the storage under their SHA-256 (Git LFS).
pub const LFS_THRESHOLD_BYTES: usize = 10_000;

/// The time of every commit.
const DATE: &str = "2026-01-02T03:04:05.000Z";
/// When signed addresses expire if a test says nothing else: in the year 2096.
const FAR_FUTURE_SECONDS: u64 = 4_000_000_000;

/// The users that may see a repository.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepositoryAccess {
    /// Everybody.
    #[default]
    Public,
    /// Tokens that may read it; to others it is not there.
    Private,
    /// Tokens that may read it; others are told so at every request.
    Gated,
    /// Everybody sees what it holds; content is for tokens that may read it.
    GatedContent,
    /// No user.
    Disabled,
}

/// A file of a commit.
#[derive(Clone, Debug)]
pub(super) struct HubFile {
    /// Its git id.
    pub oid: String,
    /// The SHA-256 of a large one.
    pub sha256: Option<String>,
    pub size: usize,
}

impl HubFile {
    /// What its content is known by.
    pub(super) fn id(&self) -> &str {
        self.sha256.as_ref().unwrap_or(&self.oid)
    }
}

/// The id of a file in git.
fn git_id(bytes: &[u8]) -> String {
    let mut hash = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    hash.update(format!("blob {}\0", bytes.len()).as_bytes());
    hash.update(bytes);
    hex(hash.finish().as_ref(), 40)
}

pub(super) type HubFiles = BTreeMap<String, HubFile>;

#[derive(Debug, Default)]
pub(super) struct ServedRepository {
    pub guard: RepositoryAccess,
    revisions: BTreeMap<String, String>,
    commits: BTreeMap<String, HubFiles>,
}

impl ServedRepository {
    /// The commit that a revision is.
    pub(super) fn commit(&self, revision: &str) -> Option<&str> {
        let commit = self.revisions.get(revision).map_or(revision, String::as_str);
        self.commits.get_key_value(commit).map(|(commit, _)| commit.as_str())
    }

    pub(super) fn files(&mut self, revision: &str) -> Option<&mut HubFiles> {
        let commit = self.commit(revision)?.to_owned();
        self.commits.get_mut(&commit)
    }

    pub(super) fn publish(&mut self, name: &str, revision: &str, files: &[(&str, HubFile)]) -> String {
        let files: HubFiles = files.iter().map(|(path, file)| ((*path).to_owned(), file.clone())).collect();
        let commit = hex(blake3::hash(format!("{name} {files:?}").as_bytes()).as_bytes(), 40);
        self.revisions.insert(revision.to_owned(), commit.clone());
        self.commits.insert(commit.clone(), files);
        commit
    }

    /// The date of its commits.
    pub(super) fn date(&self) -> &'static str {
        DATE
    }
}

/// The state that changes while a Hub runs.
#[derive(Debug)]
pub(super) struct HubContents {
    /// The storage's URL.
    pub storage: String,
    pub repositories: BTreeMap<String, ServedRepository>,
    pub renamed: BTreeMap<String, String>,
    /// Each token with what it may read.
    pub tokens: BTreeMap<String, BTreeSet<String>>,
    /// How many requests still meet a limit that is used up, and what they are told.
    pub limit: (u32, String),
    /// Part of every signature; those of another one are refused.
    pub epoch: u64,
    /// What signed addresses say of their end.
    pub expires: u64,
    /// Whether small files are sent right away, without a redirect to the Hub's cache.
    pub direct: bool,
    /// The ETag of every small file, where it is not its git id.
    pub etag: Option<String>,
    /// Requests to the storage that had a token with them.
    pub leaks: u64,
}

impl HubContents {
    pub(super) fn repository(&mut self, name: &str) -> &mut ServedRepository {
        self.repositories.entry(name.to_owned()).or_default()
    }
}

/// A Hub's contents, and where those of its files lie.
#[derive(Debug)]
pub(super) struct HubState {
    objects: PathBuf,
    contents: Mutex<HubContents>,
}

impl HubState {
    pub(super) fn new(objects: &Path) -> Self {
        let contents = HubContents {
            storage: String::new(),
            repositories: BTreeMap::new(),
            renamed: BTreeMap::new(),
            tokens: BTreeMap::new(),
            limit: (0, String::new()),
            epoch: 0,
            expires: FAR_FUTURE_SECONDS,
            direct: false,
            etag: None,
            leaks: 0,
        };
        Self { objects: objects.to_owned(), contents: Mutex::new(contents) }
    }

    /// Looks at the contents, or changes them.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut HubContents) -> T) -> T {
        change(&mut self.contents.lock())
    }

    /// Keeps a file's content.
    pub(super) fn store(&self, bytes: &[u8]) -> HubFile {
        let oid = git_id(bytes);
        let sha256 = (bytes.len() >= LFS_THRESHOLD_BYTES).then(|| hex(&Sha256::digest(bytes), 64));
        let file = HubFile { oid, sha256, size: bytes.len() };
        fs::write(self.object(file.id()), bytes).expect("an object");
        file
    }

    /// Where the content of `id` lies.
    pub(super) fn object(&self, id: &str) -> PathBuf {
        self.objects.join(id)
    }
}

fn hex(bytes: &[u8], digits: usize) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()[..digits].to_owned()
}
