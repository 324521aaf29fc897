//! Seals and what they are of: writers, markers, units, and states across boots.

use std::fs;

use super::*;

#[test]
fn seal_without_leases_is_applied_only_after_the_longer_quiet() {
    let home = tempfile::tempdir().expect("a directory");
    fs::create_dir(home.path().join("a")).expect("a directory");
    fs::write(home.path().join("a/model"), "1").expect("a file");
    let directory = Arc::new(VolumeDirectory::open(home.path()).expect("a directory"));
    let (seals, _) = directory.walk().and_then(Scan::into_seals).expect("scanned");
    let seal = |probe: fn(&OwnedFd) -> Writers| seals["a"].clone().apply_with(&directory, probe);
    assert!(matches!(seal(|_| Writers::Unknown), Ok(SealOutcome::WritersUnknown)));
    assert!(matches!(seal(|_| Writers::Some), Ok(SealOutcome::Busy)));
    assert!(matches!(seal(|_| Writers::None), Ok(SealOutcome::Sealed(_))));
    assert_eq!(without_writers(Writers::Unknown, true), Writers::None);
    assert_eq!(without_writers(Writers::Unknown, false), Writers::Unknown);
    assert_eq!(without_writers(Writers::Some, true), Writers::Some);
}

#[test]
fn seal_probes_all_files_before_it_flushes_one() {
    let home = tempfile::tempdir().expect("a directory");
    fs::create_dir(home.path().join("a")).expect("a directory");
    (0..3).for_each(|at| fs::write(home.path().join(format!("a/{at}")), "1").expect("a file"));
    let directory = Arc::new(VolumeDirectory::open(home.path()).expect("a directory"));
    let (mut seals, _) = directory.walk().and_then(Scan::into_seals).expect("scanned");
    let probed = std::cell::Cell::new(0);
    // The last of them has a writer: none was probed twice, as when it is flushed.
    let probe = |_: &OwnedFd| {
        probed.set(probed.get() + 1);
        if probed.get() == 3 { Writers::Some } else { Writers::None }
    };
    let sealed = seals.remove("a").expect("the unit").apply_with(&directory, probe);
    assert!(matches!(sealed, Ok(SealOutcome::Busy)) && probed.get() == 3);
}

#[test]
fn last_markers_are_those_that_were_written_after_everything_else() {
    let mut seal = Seal::default();
    let mut put = |path: &str, at| {
        let file = ScannedFile { version: String::new(), size: 1, mtime: (at, 0), executable: false };
        seal.files.insert(EncodedPath(path.into()), file);
        seal.last_markers().count()
    };
    assert_eq!(put("a/model", 1), 0);
    assert_eq!(put("a/.metadata", 1), 0, "in the same moment");
    assert_eq!(put("a/.metadata", 2), 1);
    assert_eq!(put("a/rng", 3), 0);
}

#[test]
fn fingerprint_of_a_seal_on_a_device_with_another_number_is_the_same() {
    let seal = |versions: &[&str]| {
        let files = versions.iter().enumerate().map(|(at, version)| {
            let file = ScannedFile { version: (*version).into(), size: 1, mtime: (1, 0), executable: false };
            (EncodedPath(format!("a/{at}").into()), file)
        });
        Seal { unit: "a".into(), files: files.collect(), ..Seal::default() }
    };
    let (before, after) = (seal(&["66305-7-1-5-5", "66305-8-1-5-5"]), seal(&["64-7-1-5-5", "64-8-1-5-5"]));
    assert_eq!(before.fingerprint(), after.fingerprint());
    assert!(seal(&["64-7-1-5-5"]).is_remainder_of(&before));
    // It has been given other permissions, or another link of it is gone; or it was written.
    assert!(seal(&["64-7-1-5-9"]).is_remainder_of(&before));
    assert!(!seal(&["64-7-1-9-9"]).is_remainder_of(&before));
    assert_ne!(before.fingerprint(), seal(&["66305-7-1-5-5", "66305-9-1-5-5"]).fingerprint());
    let recorded = before.digest(|file| &file.version);
    assert!(before.is_recorded_as(&recorded) && before.is_recorded_as(&after.fingerprint()));
    assert!(!after.is_recorded_as(&recorded), "an earlier build has recorded another device");
}

#[test]
fn metadata_of_a_checkpoint_of_loose_files_belongs_to_it_and_says_that_it_is_complete() {
    let file = |at| ScannedFile { version: String::new(), size: 1, mtime: (at, 0), executable: false };
    let mut scan = Scan::default();
    scan.files.insert("__0_0.distcp".into(), file(1));
    scan.files.insert(".metadata".into(), file(2));
    let (seals, skipped) = scan.into_seals().expect("few units");
    assert_eq!(skipped, SkippedEntries::new());
    assert_eq!(seals["."].files.len(), 2);
    assert!(seals["."].is_marked());
}

#[test]
fn link_of_a_checkpoint_without_files_is_reported_as_left_out() {
    let file = ScannedFile { version: String::new(), size: 1, mtime: (1, 0), executable: false };
    let link = (b"step-500".to_vec(), (1, 0));
    let mut scan = Scan::default();
    scan.files.insert("step-500/model".into(), file.clone());
    scan.links.extend(["latest", "step-500/alias"].map(|path| (path.into(), link.clone())));
    let skipped = |scan: &Scan| scan.clone().into_seals().expect("few units").1;
    let left = SkippedEntries::from([(b"latest".to_vec(), SkipReason::LinkWithoutFiles)]);
    assert_eq!(skipped(&scan), left);
    scan.files.insert("log".into(), file);
    assert_eq!(skipped(&scan), SkippedEntries::new(), "it is saved with the loose files");
}

#[test]
fn file_with_a_temporary_name_is_reported_as_left_out() {
    let file = |size| ScannedFile { version: String::new(), size, mtime: (1, 0), executable: false };
    let mut scan = Scan::default();
    for (path, size) in
        [("tmp-a/x/model", 1), ("out/checkpoint-1/m", 1), ("out/.b/m", 1), (".empty", 0), ("ok/m", 1)]
    {
        scan.files.insert(path.into(), file(size));
    }
    scan.directories.insert("out/checkpoint-1".into(), (1, 0));
    let (seals, skipped) = scan.into_seals().expect("few units");
    assert_eq!(seals.keys().collect::<Vec<_>>(), ["ok", "out/checkpoint-1"]);
    let names = [&b"out/.b"[..], b"tmp-a"].map(|name| (name.to_vec(), SkipReason::TemporaryName));
    assert_eq!(skipped, SkippedEntries::from(names));
}
