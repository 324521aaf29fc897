//! Unfinished objects of a local directory: `object_store` writes an object beside its place as
//! `<name>#<number>` first, never lists such files, and leaves them behind when its process is killed.

use std::fs::DirEntry;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::gc_report::GcReport;

/// Deletes the unfinished objects below `root` that were last written before `before`; when `dry`, only counts them.
///
/// # Errors
/// Those of the disk, but for what vanishes meanwhile.
pub(super) fn collect(
    root: &Path,
    before: SystemTime,
    dry: bool,
    collected: &mut GcReport,
) -> io::Result<()> {
    for entry in none_if_missing(std::fs::read_dir(root))?.into_iter().flatten() {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), before, dry, collected)?;
        } else if unfinished(&entry) {
            let Some(meta) = none_if_missing(entry.metadata())? else { continue };
            if meta.modified()? >= before {
                collected.kept += 1;
                collected.kept_bytes += meta.len();
                continue;
            }
            collected.objects += 1;
            collected.bytes += meta.len();
            if !dry {
                none_if_missing(std::fs::remove_file(entry.path()))?;
            }
        }
    }
    Ok(())
}

fn unfinished(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let number = name.to_str().and_then(|name| name.split_once('#')).map(|(_, number)| number);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

/// Takes "not found" for success: what is no longer there need not be deleted.
fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn leftovers_are_deleted_and_objects_kept() {
        let root = tempfile::tempdir().expect("directory");
        let directory = root.path().join("blobs/ab");
        std::fs::create_dir_all(&directory).expect("made");
        for name in ["ab12", "ab12#3", "x#y", "z#"] {
            std::fs::write(directory.join(name), b"12345").expect("written");
        }
        let mut young = GcReport::default();
        collect(root.path(), SystemTime::UNIX_EPOCH, false, &mut young).expect("a disk in order");
        assert_eq!(young, GcReport { kept: 1, kept_bytes: 5, ..GcReport::default() });
        let later = SystemTime::now() + Duration::from_secs(9);
        for dry in [true, false, true] {
            let mut old = GcReport::default();
            collect(root.path(), later, dry, &mut old).expect("a disk in order");
            assert_eq!(old.objects, u64::from(directory.join("ab12#3").exists() || !dry));
        }
        assert_eq!(std::fs::read_dir(&directory).expect("read").count(), 3);
    }
}
