//! Runs every decoder on its inputs: the good one that the fuzzer begins with, and all that once broke it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

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
