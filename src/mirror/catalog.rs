//! The catalog: the ref of each mirrored source, in numbered generations.
//!
//! The ref of a source, the state that is mirrored, is replaced by making its next generation, an object of its
//! own. Only one of several can make it, on every store: each can create an object on condition that it is not
//! there, while replacing one conditionally is something that local directories can't. Generations that were
//! replaced stay until they are collected ([`super::gc`]), so a run that reads one has time to finish.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use futures_util::TryStreamExt;
use object_store::path::Path;
use serde::{Deserialize, Serialize};

use super::keys::ObjectKind;
use super::lease::MirrorLease;
use super::{Mirror, checked_json, damaged};
use crate::digest::{Digest, hex};
use crate::error::{Error, Kind, Result};
use crate::source::Patterns;

/// The beginning of the last line but one of a ref without a check: earlier versions wrote none.
const TOOL_PREFIX: &str = "\n  \"tool\": \"";
/// The number of times that a ref is read or replaced again when another writer or a collector was faster.
const REF_ATTEMPT_LIMIT: u32 = 8;

/// The ref of a source: the snapshot that it is mirrored as.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ref {
    /// The source as it was named, without secrets.
    pub source: String,
    /// The identity of the source.
    pub identity: String,
    /// The resolved source when it was listed: a branch, for one, is resolved to a commit.
    pub resolved: String,
    /// The patterns of the files that were taken; `None`: all.
    pub allow: Option<Vec<String>>,
    /// The patterns of those that were not.
    pub ignore: Vec<String>,
    /// Whether it was removed since. All other fields are of the state before.
    #[serde(default)]
    pub removed: bool,
    /// The snapshot: its manifest's digest.
    #[serde(with = "hex")]
    pub manifest: Digest,
    /// The digest of what the origin listed, with the version of every file.
    #[serde(with = "hex")]
    pub listing: Digest,
    /// The number of its files.
    pub files: u64,
    /// Total size of the files, in bytes.
    pub bytes: u64,
    /// The number of blobs that hold them.
    pub blobs: u64,
    /// The number of bytes that those take in the store.
    pub stored: u64,
    /// When the origin was listed.
    pub listed: DateTime<Utc>,
    /// The time that it took from then on, in seconds.
    pub took: f64,
    /// The version of bdnfs that did it.
    pub tool: String,
}

/// The scheme of the source names of training caches.
pub const HOME_SCHEME: &str = "cache://";

impl Ref {
    /// Whether it is a training cache: nodes have copies of it. A node that does not hear of its removal would save it again,
    /// however long it was away.
    pub(super) fn is_home(&self) -> bool {
        self.source.starts_with(HOME_SCHEME)
    }

    /// The key of its ref.
    pub fn key(&self) -> Digest {
        key(&self.identity, self.allow.as_deref(), &self.ignore)
    }
}

/// The key of a source's ref: a hash of its [identity](crate::source::Uri::identity) and of its patterns in
/// whatever order.
pub fn source_key(identity: &str, patterns: &Patterns) -> Digest {
    let (allow, ignore) = patterns.texts();
    key(identity, allow.as_deref(), &ignore)
}

fn key(identity: &str, allow: Option<&[String]>, ignore: &[String]) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("bdnfs 2026-11 mirror source");
    let mut add = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    };
    add(identity.as_bytes());
    for patterns in [allow, Some(ignore)] {
        let mut patterns: Vec<&String> = patterns.into_iter().flatten().collect();
        patterns.sort();
        patterns.dedup();
        add(&(patterns.len() as u64).to_le_bytes());
        patterns.iter().for_each(|pattern| add(pattern.as_bytes()));
    }
    add(&[u8::from(allow.is_some())]);
    Digest(*hasher.finalize().as_bytes())
}

/// Whether the text of a ref may lack a check.
fn is_unchecked(text: &str) -> bool {
    text.rfind(TOOL_PREFIX).is_some_and(|last| text[last + 1..].lines().count() == 2)
}

/// The newest generation of a ref.
#[derive(Debug)]
pub struct LatestRef {
    /// The number; 0 where there is none.
    pub generation: u64,
    /// The ref's content, unless it is damaged; `None` where there is none.
    pub content: Result<Option<Ref>>,
}

/// The generations of all refs with when they were written, by the refs' keys.
pub(super) type Generations = BTreeMap<Digest, BTreeMap<u64, DateTime<Utc>>>;

impl Mirror {
    /// The ref of the source with `key`; `None` where it isn't mirrored.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when the ref is damaged; those of the store.
    pub async fn find(&self, key: &Digest) -> Result<Option<Ref>> {
        Ok(self.latest(key).await?.content?.filter(|found| !found.removed))
    }

    /// All refs, by source, damaged ones as the errors that they are.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn refs(&self) -> Result<Vec<Result<Ref>>> {
        let mut refs = Vec::new();
        for key in self.generations(self.tenant_key(ObjectKind::Refs.name())).await?.keys() {
            match self.find(key).await {
                Ok(found) => refs.extend(found.map(Ok)),
                Err(e) if e.kind() == Kind::Corrupt => refs.push(Err(e)),
                Err(e) => return Err(e),
            }
        }
        refs.sort_by_key(|found| found.as_ref().map(|found| found.source.clone()).unwrap_or_default());
        Ok(refs)
    }

    /// The newest generation of the ref `key`, a removed one too.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn latest(&self, key: &Digest) -> Result<LatestRef> {
        for _ in 0..REF_ATTEMPT_LIMIT {
            let generations = self.generations(self.key(ObjectKind::Refs, key)).await?;
            let latest = generations.get(key).and_then(|all| all.last_key_value());
            let Some((&generation, _)) = latest else {
                return Ok(LatestRef { generation: 0, content: Ok(None) });
            };
            match self.generation(key, generation).await {
                Ok(None) => continue,
                Err(e) if e.kind() != Kind::Corrupt => return Err(e),
                content => return Ok(LatestRef { generation, content }),
            }
        }
        let text =
            format!("{} keeps being replaced; try again", self.url_of(&self.key(ObjectKind::Refs, key)));
        Err(Error::new(Kind::Unavailable, text))
    }

    /// One generation of a ref; `None` when it is gone.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when it is damaged; those of the store.
    pub async fn generation(&self, key: &Digest, generation: u64) -> Result<Option<Ref>> {
        let path = self.generation_key(key, generation);
        let Some(got) = self.get(&path).await? else { return Ok(None) };
        let found: Ref =
            checked_json::read(&got.bytes, is_unchecked).map_err(|how| damaged(self.url_of(&path), how))?;
        if found.key() == *key {
            Ok(Some(found))
        } else {
            Err(damaged(self.url_of(&path), "it belongs to another source"))
        }
    }

    /// Makes `next` the generation after `generation`; false when another process was first.
    ///
    /// # Errors
    /// Those of the store and, in an exclusive mirror, of [`MirrorLease::renew_now`].
    async fn create_generation(
        &self,
        generation: u64,
        next: &Ref,
        lease: Option<&MirrorLease>,
    ) -> Result<bool> {
        let text = checked_json::write(next)
            .map_err(|e| Error::with(Kind::Invalid, format!("{} cannot be a ref", next.source), e))?;
        self.create(&self.generation_key(&next.key(), generation + 1), text.into(), lease).await
    }

    /// Makes `ours` what its source is mirrored as, unless that was listed later already. Returns what it is mirrored as
    /// from now on. Where there is a `lease`, it must still be held.
    ///
    /// # Errors
    /// Those of the store and of [`MirrorLease::renew_now`].
    pub async fn commit_ref(&self, ours: &Ref, lease: Option<&MirrorLease>) -> Result<Ref> {
        if let Some(lease) = lease {
            // A lapsed lease kept no collector from deleting what the ref reaches.
            lease.renew_now().await?;
        }
        for _ in 0..REF_ATTEMPT_LIMIT {
            let latest = self.latest(&ours.key()).await?;
            if let Ok(Some(theirs)) = latest.content
                && !theirs.removed
                && (theirs.manifest == ours.manifest || theirs.listed > ours.listed)
            {
                return Ok(theirs);
            }
            if self.create_generation(latest.generation, ours, lease).await? {
                return Ok(ours.clone());
            }
        }
        Err(keeps_being_replaced(ours))
    }

    /// Commits `ours` as the newest ref of its source, dated after the ref before, whatever clocks say. Returns it as it is then.
    /// The `lease` must still be held.
    ///
    /// # Errors
    /// Those of [`commit_ref`](Self::commit_ref).
    pub async fn commit_newest_ref(&self, mut ours: Ref, lease: &MirrorLease) -> Result<Ref> {
        lease.renew_now().await?;
        for _ in 0..REF_ATTEMPT_LIMIT {
            let latest = self.latest(&ours.key()).await?;
            if let Ok(Some(theirs)) = latest.content {
                if !theirs.removed && theirs.manifest == ours.manifest {
                    return Ok(theirs);
                }
                ours.listed = ours.listed.max(theirs.listed + TimeDelta::nanoseconds(1));
            }
            if self.create_generation(latest.generation, &ours, Some(lease)).await? {
                return Ok(ours);
            }
        }
        Err(keeps_being_replaced(&ours))
    }

    /// Makes `ours` the generation after `generation` of its ref. The `lease` must still be held.
    ///
    /// # Errors
    /// [`Kind::Busy`] where there is another one already; those of the store and of [`MirrorLease::renew_now`].
    pub async fn commit_ref_after(&self, generation: u64, ours: &Ref, lease: &MirrorLease) -> Result<()> {
        lease.renew_now().await?;
        if self.latest(&ours.key()).await?.generation == generation
            && self.create_generation(generation, ours, Some(lease)).await?
        {
            return Ok(());
        }
        Err(Error::new(Kind::Busy, format!("{} was saved by another node meanwhile; try again", ours.source)))
    }

    /// Removes a ref: from now on its source is not mirrored any more. What it alone reaches is collected later.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when there is no such ref, [`Kind::Busy`] when it was replaced meanwhile; those of the store.
    pub async fn remove(&self, key: &Digest) -> Result<Ref> {
        self.remove_ref(key, None).await
    }

    /// Removes a ref as [`remove`](Self::remove) does; where a `snapshot` is given, only as long as that is what its source is
    /// mirrored as.
    ///
    /// # Errors
    /// Those of [`remove`](Self::remove).
    pub(super) async fn remove_ref(&self, key: &Digest, snapshot: Option<&Digest>) -> Result<Ref> {
        if !self.is_exclusive() {
            return self.remove_latest(key, snapshot, None).await;
        }
        let lease = self.add_lease().await?;
        let removed = self.remove_latest(key, snapshot, Some(&lease)).await;
        lease.release().await;
        removed
    }

    async fn remove_latest(
        &self,
        key: &Digest,
        snapshot: Option<&Digest>,
        lease: Option<&MirrorLease>,
    ) -> Result<Ref> {
        let latest = self.latest(key).await?;
        let Some(found) = latest.content?.filter(|found| !found.removed) else {
            return Err(Error::new(Kind::NotFound, format!("no such source in the mirror {}", self.name)));
        };
        let removed = Ref { removed: true, ..found.clone() };
        let is_meant = snapshot.is_none_or(|snapshot| found.manifest == *snapshot);
        if is_meant && self.create_generation(latest.generation, &removed, lease).await? {
            return Ok(found);
        }
        Err(Error::new(
            Kind::Busy,
            format!("{} was mirrored anew meanwhile; check it and try again", found.source),
        ))
    }

    /// The generations of the refs below `key`.
    pub(super) async fn generations(&self, key: Path) -> Result<Generations> {
        let mut generations = Generations::new();
        let mut listed = self.list(key);
        while let Some(meta) = listed.try_next().await? {
            let mut parts = meta.location.as_ref().rsplit('/');
            let number = parts.next().and_then(|number| number.parse().ok());
            if let (Some(number), Some(Ok(key))) = (number, parts.next().map(str::parse)) {
                generations.entry(key).or_default().insert(number, meta.last_modified);
            }
        }
        Ok(generations)
    }

    /// The key of one generation of a ref. Ten digits, so that listings show them in order.
    pub(super) fn generation_key(&self, key: &Digest, generation: u64) -> Path {
        self.tenant_key(&format!("{}/{key}/{generation:010}", ObjectKind::Refs.name()))
    }
}

fn keeps_being_replaced(found: &Ref) -> Error {
    Error::new(Kind::Unavailable, format!("the ref of {} keeps being replaced; try again", found.source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_key_differs_by_identity_and_patterns() {
        let patterns = |allow: &[&str], ignore: &[&str]| {
            let texts = |t: &[&str]| t.iter().map(|s| s.to_string()).collect::<Vec<_>>();
            Patterns::new(&texts(allow), &texts(ignore)).expect("patterns")
        };
        let key = |identity, allow: &[&str], ignore: &[&str]| source_key(identity, &patterns(allow, ignore));
        assert_eq!(key("a", &["x", "y"], &["z"]), key("a", &["y", "x", "x"], &["z"]));
        let keys = [
            key("a", &[], &[]),
            key("b", &[], &[]),
            key("a", &["x"], &[]),
            key("a", &[], &["x"]),
            key("a", &["x", "y"], &[]),
            key("a", &["x"], &["y"]),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.into_iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    fn read_ref(text: &[u8]) -> std::result::Result<Ref, String> {
        checked_json::read(text, is_unchecked)
    }

    const EARLIER: &str = concat!(
        "{\n  \"source\": \"s3://b\",\n  \"identity\": \"s3://b\",\n  \"resolved\": \"s3://b\",\n  \"allow\": null,\n",
        "  \"ignore\": [\n    \"tool\"\n  ],\n  \"removed\": true,\n",
        "  \"manifest\": \"6b3e79eae804f1c3b572af15b88d928b0c60dafde2b78d06882fdcc765c685cb\",\n",
        "  \"listing\": \"eb8e17d562779bdc4f5f6877f1b8520f91e75e7458ff68247cd9044b552e2368\",\n",
        "  \"files\": 4,\n  \"bytes\": 9,\n  \"blobs\": 2,\n  \"stored\": 3,\n  \"listed\": \"2026-11-21T04:03:29.348234427Z\",\n",
        "  \"took\": 0.5,\n  \"tool\": \"0.1.0\"\n}\n",
    );

    #[test]
    fn ref_check_is_the_digest_of_all_before_it() {
        let found = read_ref(EARLIER.as_bytes()).expect("earlier versions' are read");
        let written = String::from_utf8(checked_json::write(&found).expect("text")).expect("UTF-8");
        let all = EARLIER.strip_suffix("\n}\n").expect("an object");
        let check = blake3::hash(all.as_bytes()).to_hex();
        assert_eq!(written, format!("{all},\n  \"check\": \"{check}\"\n}}\n"));
        assert_eq!(read_ref(written.as_bytes()).expect("its own"), found);
    }

    #[test]
    fn damaged_ref_is_refused() {
        let written = checked_json::write(&read_ref(EARLIER.as_bytes()).expect("good")).expect("text");
        for at in 0..written.len() {
            for bit in 0..8 {
                let mut flipped = written.clone();
                flipped[at] ^= 1 << bit;
                read_ref(&flipped).expect_err("a flipped bit");
            }
            read_ref(&written[..at]).expect_err("a part");
        }
        let all = EARLIER.strip_suffix("\n}\n").expect("an object");
        read_ref(format!("{all},\n  \"check\": \"\"\n}}\n").as_bytes()).expect_err("no check");
        read_ref(format!("{all},\n  \"chick\": \"\"\n}}\n").as_bytes()).expect_err("another last key");
    }
}
