//! Seals.

use std::fs;

use bdnfs::source::{Access, Secret};
use bdnfs::volume::Scan;

use super::*;
use crate::api::MirrorRequest;

#[tokio::test]
async fn seal_of_what_the_disk_failed_to_write_before_is_refused_until_it_is_written_again() {
    let home = tempfile::tempdir().expect("a directory");
    let (volume, directory) = (home.path().to_owned(), home.path().join("checkpoints"));
    fs::create_dir_all(directory.join("a")).expect("a directory");
    fs::write(directory.join("a/model"), "1").expect("a file");
    let opened = Arc::new(VolumeDirectory::open(&directory).expect("a directory"));
    let unit = || {
        let seal = opened.walk().and_then(Scan::into_seals).expect("scanned").0.remove("a").expect("a unit");
        let fingerprint = seal.fingerprint();
        let (complete, partial, without_leases) = (true, false, true);
        SettledUnit { seal, fingerprint, complete, written: (0, 0), partial, whole: None, without_leases }
    };
    let order = SaveOrder {
        volume,
        directory,
        place: "/checkpoints".into(),
        job_lock: None,
        commands_lock: None,
        job_exit: home.path().join("exit"),
        project: "p".into(),
        id: "i".into(),
        rank: 0,
        mirror: MirrorRequest { url: Secret::new("s3://b"), tenant: "t".into(), access: Access::default() },
        seen_mirrors: home.path().join("seen"),
        upload_rate: None,
        give_up: std::time::Duration::ZERO,
        keep: None,
    };
    let mut unwritten = UnwrittenContent::default();
    unwritten.add(&unit().seal.files[&EncodedPath(b"a/model".to_vec())]);
    let context = Arc::new(SaveContext::new(order, Arc::clone(&opened), unwritten));
    let seal = async || Arc::clone(&context).seal(unit(), false).await.expect("a disk");
    assert!(matches!(seal().await, Some(UploadOutcome::Unwritten)));
    fs::write(home.path().join("checkpoints/a/model"), "22").expect("written");
    assert!(seal().await.is_none());
}
