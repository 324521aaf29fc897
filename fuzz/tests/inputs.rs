//! Runs every decoder on its inputs: the good one that the fuzzer begins with, and all that once broke it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use bdnfs::manifest::Manifest;
use bdnfs_fuzz::DECODERS;

#[test]
fn decoders_of_known_inputs_do_not_panic() {
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs");
    let names = fs::read_dir(&inputs).expect("inputs").map(|entry| entry.expect("an entry").file_name());
    let known: BTreeSet<_> = DECODERS.iter().map(|(name, _)| (*name).into()).collect();
    assert_eq!(names.collect::<BTreeSet<_>>(), known, "a directory for each decoder, and none else");
    for (name, decode) in DECODERS {
        let files: Vec<_> = fs::read_dir(inputs.join(name)).expect("a directory").collect();
        assert!(!files.is_empty(), "{name} has nothing to begin with");
        for file in files {
            let file = file.expect("an entry").path();
            eprintln!("{}", file.display());
            decode(&fs::read(&file).expect("a file"));
        }
        decode(b"");
    }
}

#[test]
fn manifests_to_begin_with_have_packs_and_frames() {
    let inputs = Path::new(env!("CARGO_MANIFEST_DIR")).join("inputs/manifest");
    let (mut has_pack, mut has_frames) = (false, false);
    for file in fs::read_dir(inputs).expect("a directory") {
        let bytes = fs::read(file.expect("an entry").path()).expect("a file");
        let Ok(manifest) = Manifest::from_bytes(bytes) else { continue };
        for index in 0..manifest.blobs() {
            has_pack |= manifest.parts(index).is_ok_and(|parts| parts.len() > 1);
            has_frames |= manifest.blob(index).is_ok_and(|blob| blob.stored.ends.is_some());
        }
    }
    assert!(has_pack && has_frames, "a fuzzer would meet these by chance");
}
