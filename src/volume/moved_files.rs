//! Files of a sealed unit that move into the cache: they are not copied.

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::process::{getegid, geteuid};

use super::seal::SealedUnit;
use super::writer_probe::{Writers, probe_writers};
use crate::blob::Blob;
use crate::cache::Cache;
use crate::error::Result;
use crate::manifest::Manifest;

/// The times of a file that was used and written now.
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };

impl SealedUnit {
    /// Moves its files into `cache` that are whole blobs of `manifest`, where they are on one disk; from then on they are gone from
    /// the unit. One that has another name, or might still be written to, stays. Returns the bytes that were moved. Touches the
    /// local disk.
    ///
    /// # Errors
    /// Those of [`Cache::adopt`] and of the manifest.
    pub fn move_into(&self, cache: &Cache, manifest: &Manifest) -> Result<u64> {
        let mut moved = 0;
        for index in 0..manifest.blobs() {
            let blob = manifest.blob(index)?;
            if self.move_file(cache, &blob)? {
                moved += blob.size;
            }
        }
        Ok(moved)
    }

    fn move_file(&self, cache: &Cache, blob: &Blob) -> Result<bool> {
        let path = self.seal.path_of(&blob.path);
        let sealed = self.seal.files.get(&path).filter(|file| file.version.as_bytes() == blob.version);
        let (Some(file), Some(_)) = (self.held.get(&path.0), sealed) else { return Ok(false) };
        let cut = path.0.iter().rposition(|byte| *byte == b'/');
        let (above, name) = cut.map_or((&b""[..], &path.0[..]), |at| (&path.0[..at], &path.0[at + 1..]));
        let Ok(above) = self.directory.at(above, OFlags::DIRECTORY) else { return Ok(false) };
        let is_alone = rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 1);
        // Nobody but this user can open it for writing from now on, not even through a descriptor.
        let is_own = is_alone
            && rustix::fs::fchown(file, Some(geteuid()), Some(getegid())).is_ok()
            && rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR).is_ok();
        if !is_own || probe_writers(file) != Writers::None {
            return Ok(false);
        }
        cache.adopt(blob, |blobs, new| {
            rustix::fs::renameat_with(&above, name, blobs, new, RenameFlags::NOREPLACE)?;
            let moved = rustix::fs::statat(blobs, new, AtFlags::SYMLINK_NOFOLLOW);
            let is_it = match (rustix::fs::fstat(file), moved) {
                (Ok(held), Ok(moved)) => {
                    (held.st_dev, held.st_ino, 1) == (moved.st_dev, moved.st_ino, moved.st_nlink)
                }
                _ => false,
            };
            // Its own time of modification would say when it was verified.
            let is_marked =
                rustix::fs::futimens(file, &Timestamps { last_access: NOW, last_modification: NOW });
            Ok(is_it && is_marked.is_ok() && probe_writers(file) == Writers::None)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::*;
    use crate::blob::{Key, MirrorLocation};
    use crate::block::{BLOCK, Check};
    use crate::cache::Limits;
    use crate::cache::layout::BlobFile;
    use crate::volume::{Scan, SealOutcome, VolumeDirectory, ignore_lease_signal};

    #[test]
    fn move_of_a_file_takes_it_unless_it_has_another_name_or_a_writer() {
        ignore_lease_signal();
        let home = tempfile::tempdir().expect("a directory");
        let unit = home.path().join("volume/unit");
        fs::create_dir_all(&unit).expect("a directory");
        let size = 2 * BLOCK;
        for (number, name) in ["alone", "linked", "written"].into_iter().enumerate() {
            fs::write(unit.join(name), vec![number as u8; size as usize]).expect("a file");
        }
        fs::hard_link(unit.join("linked"), home.path().join("other")).expect("a link");
        let directory = Arc::new(VolumeDirectory::open(&home.path().join("volume")).expect("a directory"));
        let (mut seals, _) = directory.walk().and_then(Scan::into_seals).expect("a walk");
        let seal = seals.remove("unit").expect("it is there");
        let SealOutcome::Sealed(sealed) = seal.apply(&directory, false).expect("no fault") else {
            panic!("nobody writes")
        };
        let _writer = fs::File::options().write(true).open(unit.join("written")).expect("a file");
        let limits = Limits { capacity: None, reserve: 0 };
        let cache =
            Cache::open(&home.path().join("cache"), "default", limits, SystemTime::now).expect("a cache");
        let inode = fs::metadata(unit.join("alone")).expect("a file").ino();
        for (name, is_moved) in [("alone", true), ("linked", false), ("written", false), ("missing", false)] {
            let content = fs::read(unit.join(name)).unwrap_or_default();
            let checks: Vec<_> = content
                .chunks(BLOCK as usize)
                .zip(0..)
                .map(|(block, index)| Check::of(size, index, block))
                .collect();
            let key = Key::origin("test://", name.as_bytes(), b"");
            let version =
                sealed.seal.files.get(&sealed.seal.path_of(name.as_bytes())).map(|file| file.version.clone());
            let blob = Blob {
                key,
                size,
                checks: Some(checks.into()),
                path: name.to_owned().into(),
                version: version.unwrap_or_default().into(),
                sha256: None,
                stored: MirrorLocation::default(),
            };
            assert_eq!(sealed.move_file(&cache, &blob).expect("no fault"), is_moved, "{name}");
            let part = cache.layout().stat(&key, BlobFile::Part).map(|stat| stat.st_ino);
            assert_eq!(part, is_moved.then_some(inode), "{name}");
            let is_left = name != "missing" && !is_moved;
            assert_eq!(unit.join(name).exists(), is_left, "{name}");
        }
    }
}
