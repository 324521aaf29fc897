//! Evict: keeping the cache within its limits by removing what was not used for longest.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode, OFlags, RawDir};

use crate::blob::Key;
use crate::error::{Error, Kind, Result};

use super::Limits;
use super::layout::{Form, Layout};
use super::lease::Leases;
use super::relief::Reliefs;

/// One pass frees at least this share of the capacity, so that passes, each of which looks at every blob, stay rare.
const SHARE: u64 = 50;

/// How many bytes are written between two looks at the file system's own free space, which others use too.
const LOOK: i64 = 64 << 20;

/// How much room there is, and the way to make more.
#[derive(Debug)]
pub struct Room {
    layout: Arc<Layout>,
    leases: Arc<Leases>,
    limits: Limits,
    used: AtomicI64,
    /// What of it is claimed but may not be written yet, so that no look at the disk finds it.
    pending: AtomicI64,
    counted: AtomicBool,
    /// Bytes that may still be written before the file system is asked again.
    credit: AtomicI64,
    evicted: AtomicU64,
    one_pass: Mutex<()>,
    reliefs: Reliefs,
}

/// Room that was taken for bytes about to be written. Dropped without [`written`](Self::written), it is given back.
#[derive(Debug)]
pub struct Claim<'a> {
    room: &'a Room,
    bytes: u64,
    written: bool,
}

impl Claim<'_> {
    /// The bytes are on the disk now, or in its queue.
    pub fn written(mut self) {
        self.written = true;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.room.pending.fetch_sub(self.bytes as i64, Relaxed);
        if !self.written {
            self.room.used.fetch_sub(self.bytes as i64, Relaxed);
        }
    }
}

/// A blob that could go.
struct Candidate {
    used_at: i64,
    bytes: u64,
    key: Key,
    form: Form,
}

impl Room {
    /// The room of the cache in `layout`. Nothing is counted yet.
    pub fn new(layout: Arc<Layout>, leases: Arc<Leases>, limits: Limits) -> Self {
        Self {
            layout,
            leases,
            limits,
            used: AtomicI64::new(0),
            pending: AtomicI64::new(0),
            counted: AtomicBool::new(false),
            credit: AtomicI64::new(0),
            evicted: AtomicU64::new(0),
            one_pass: Mutex::new(()),
            reliefs: Reliefs::default(),
        }
    }

    /// Begins to count what the cache already holds, on a thread of its own: a million blobs take seconds.
    pub fn count_in_background(self: &Arc<Self>) {
        let room = self.clone();
        let counting = std::thread::Builder::new().name("bdnfs-count".into()).spawn(move || {
            room.note_found(&room.candidates());
            room.counted.store(true, Relaxed);
            if let Err(error) = room.claim(0) {
                tracing::warn!(%error, "the cache is over its limit");
            }
        });
        if let Err(error) = counting {
            tracing::warn!(%error, "cannot count what the cache holds: only free space limits it");
        }
    }

    /// Who is asked to let go before a claim is refused.
    pub fn reliefs(&self) -> &Reliefs {
        &self.reliefs
    }

    /// What bounds the cache.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Bytes that blobs occupy; `None` until they have been counted.
    pub fn used(&self) -> Option<u64> {
        self.counted.load(Relaxed).then(|| self.used.load(Relaxed).max(0) as u64)
    }

    /// Bytes evicted since the start.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// Bytes free on the file system.
    pub fn free(&self) -> u64 {
        rustix::fs::fstatvfs(self.layout.blobs()).map_or(0, |s| s.f_bavail * s.f_frsize)
    }

    /// Takes room for `bytes`, evicting for it where need be.
    ///
    /// # Errors
    /// [`Kind::NoSpace`] when the limits leave no room and what is there is leased.
    pub fn claim(&self, bytes: u64) -> Result<Claim<'_>> {
        let bytes = on_disk(bytes);
        // Before the look, so that two who come at once see each other. The claim gives back what it was refused.
        self.pending.fetch_add(bytes as i64, Relaxed);
        self.used.fetch_add(bytes as i64, Relaxed);
        let claim = Claim { room: self, bytes, written: false };
        self.credit.fetch_sub(bytes as i64, Relaxed);
        if self.lacking() > 0 {
            self.make()?;
        }
        Ok(claim)
    }

    /// Gives back what was removed.
    pub fn release(&self, bytes: u64) {
        self.used.fetch_sub(on_disk(bytes) as i64, Relaxed);
    }

    /// Takes what was found on the disk, and what is still to come there, for what is used: so it follows what others
    /// remove, and what the file system makes of many small files.
    fn note_found(&self, found: &[Candidate]) {
        let found: u64 = found.iter().map(|candidate| candidate.bytes).sum();
        self.used.store(found as i64 + self.pending.load(Relaxed), Relaxed);
    }

    /// How many bytes must go before what is claimed can come.
    fn lacking(&self) -> u64 {
        if self.credit.load(Relaxed) < 0 {
            let spare = self.free() as i64 - self.limits.reserve as i64;
            self.credit.store((spare - self.pending.load(Relaxed)).min(LOOK), Relaxed);
        }
        let over_reserve = -self.credit.load(Relaxed);
        let over_capacity = match (self.limits.capacity, self.counted.load(Relaxed)) {
            (Some(capacity), true) => self.used.load(Relaxed) - capacity as i64,
            _ => 0,
        };
        over_reserve.max(over_capacity).max(0) as u64
    }

    /// Makes room for what is claimed, the least recently used going first.
    fn make(&self) -> Result<()> {
        let _one_pass = self.one_pass.lock().unwrap_or_else(PoisonError::into_inner);
        // Somebody else's pass may have made the room meanwhile.
        let lacking = self.lacking();
        if lacking == 0 {
            return Ok(());
        }
        let goal = lacking.max(self.limits.capacity.unwrap_or(0) / SHARE);
        let mut freed = self.pass(goal);
        if freed < lacking {
            self.reliefs.ask();
            freed += self.pass(goal - freed);
        }
        self.credit.store(0, Relaxed);
        if freed >= lacking { Ok(()) } else { Err(self.full(lacking - freed)) }
    }

    /// Evicts what nobody holds until `goal` bytes are freed, and answers with how many were.
    fn pass(&self, goal: u64) -> u64 {
        let mut candidates = self.candidates();
        self.note_found(&candidates);
        candidates.sort_unstable_by_key(|c| c.used_at);
        let mut freed = 0;
        for candidate in candidates {
            if freed >= goal {
                break;
            }
            if self.evict(&candidate) {
                freed += candidate.bytes;
            }
        }
        self.used.fetch_sub(freed as i64, Relaxed);
        self.evicted.fetch_add(freed, Relaxed);
        freed
    }

    fn full(&self, short: u64) -> Error {
        let limit = match self.limits.capacity {
            Some(capacity) => format!("a limit of {capacity} bytes"),
            None => format!("{} bytes to be kept free", self.limits.reserve),
        };
        let root = self.layout.root().display();
        let text = format!(
            "the cache {root} is full: with {limit} it lacks {short} bytes, and all it holds is in use; \
             give it more with --cache-size, or unmount something"
        );
        Error::new(Kind::NoSpace, text)
    }

    /// Removes a blob unless somebody holds it by now. The name goes under the lease lock, the content after it: that
    /// can take a while for a large file.
    fn evict(&self, candidate: &Candidate) -> bool {
        let removed = self.leases.unless_held(&candidate.key, || {
            let kept_open = self.layout.open_blob(&candidate.key, candidate.form).ok().flatten();
            if candidate.form == Form::Part {
                self.layout.remove(&candidate.key, Form::Map)?;
            }
            self.layout.remove(&candidate.key, candidate.form)?;
            Ok::<_, Error>(kept_open)
        });
        match removed {
            Some(Ok(_kept_open)) => true,
            Some(Err(error)) => {
                tracing::warn!(%error, "cannot evict");
                false
            }
            None => false,
        }
    }

    /// Every blob there is.
    fn candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        let mut buffer = Vec::with_capacity(64 << 10);
        for shard in 0..=255u8 {
            let name = format!("{shard:02x}");
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let Ok(directory) = rustix::fs::openat(self.layout.blobs(), name, flags, Mode::empty()) else {
                continue;
            };
            let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
            while let Some(Ok(entry)) = entries.next() {
                let Some((key, form)) = parse(entry.file_name().to_bytes()) else { continue };
                let stat = rustix::fs::statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                if let Ok(stat) = stat {
                    let bytes = stat.st_blocks as u64 * 512;
                    found.push(Candidate { used_at: stat.st_atime, bytes, key, form });
                }
            }
        }
        found
    }
}

/// What `bytes` of content occupy: whole blocks of a file system. 4 KiB, which nearly all have.
fn on_disk(bytes: u64) -> u64 {
    bytes.next_multiple_of(4096)
}

/// Whose file a name is. Maps go with their parts.
fn parse(name: &[u8]) -> Option<(Key, Form)> {
    let name = std::str::from_utf8(name).ok()?;
    let (stem, form) = match name.strip_suffix(".part") {
        Some(stem) => (stem, Form::Part),
        None => (name, Form::Whole),
    };
    let key = match stem.strip_prefix("o-") {
        Some(digest) => Key::Origin(digest.parse().ok()?),
        None => Key::Content(stem.parse().ok()?),
    };
    Some((key, form))
}
