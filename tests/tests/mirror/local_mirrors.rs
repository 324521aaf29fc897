//! Mirrors in directories of this machine.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::tree::write_file;

#[test]
fn mirror_add_to_a_directory_of_its_source_is_refused_unless_ignored() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "x", 1000);
    let add =
        |options: &[&str]| machine.run(&[&["mirror", "add", source.to_str().unwrap()], options].concat());
    symlink(&source, source.with_file_name("link")).unwrap();
    for inside in ["source/a/mirror", "link/mirror", "source"] {
        let mirror = format!("file://{}", source.with_file_name(inside).display());
        add(&["--mirror", &mirror]).fails(&["lies in its own source"]);
    }
    assert_eq!(fs::read_dir(&source).unwrap().count(), 1, "nothing was made");
    add(&["--mirror", &format!("file://{}/mirror", source.display()), "--ignore", "mirror/*"]).succeeds();
}

#[test]
fn local_source_and_mirror_with_dots_behind_a_link_are_those_that_are_shown() {
    let machine = Machine::new();
    let (near, far) = (machine.directory("near"), machine.directory("far"));
    write_file(&machine.directory("far/model"), "far", 1000);
    write_file(&machine.directory("near/model"), "near", 1000);
    fs::create_dir(far.join("deep")).unwrap();
    symlink(far.join("deep"), near.join("link")).unwrap();
    let below = |name: &str| format!("file://{}/link/../{name}", near.display());
    for source in [below("model"), below("model").replace("file://", "")] {
        machine.run(&["mirror", "add", &source, "--mirror", &below("mirror")]).succeeds();
    }
    assert!(far.join("mirror").is_dir() && !near.join("mirror").exists());
    let listed = machine.run(&["mirror", "ls", "--json", "--mirror", &below("mirror")]).succeeds();
    let shown = |text: &str| text.split('"').find(|part| part.contains("/model")).unwrap().to_owned();
    assert_eq!(shown(&listed), below("model"));
    let files = machine.run(&["ls", &shown(&listed)]).succeeds();
    assert!(files.contains("  far\n"), "{files}");
    for named in [shown(&listed), below("model").replace("file://", "")] {
        machine.run(&["mirror", "show", &named, "--mirror", &below("mirror")]).succeeds();
    }
    let point = machine.directory("mnt");
    machine.try_mount(below("model"), &point, &["--mirror", &below("mirror"), "--wait"]).succeeds();
    assert!(point.join("far").is_file());
    let real = format!("file://{}", fs::canonicalize(far.join("model")).unwrap().display());
    let cached = machine.run(&["cache", "summarize", "--cache-dir", machine.cache().to_str().unwrap()]);
    assert!([below("model"), real].iter().any(|uri| cached.out.contains(uri)), "{}", cached.out);
}

#[test]
fn file_in_place_of_a_mirror_is_refused_and_a_missing_one_is_passed_over() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 5);
    let file = machine.directory("home").join("file");
    fs::write(&file, "not a mirror").unwrap();
    let (uri, point) = (|path: &Path| format!("file://{}", path.display()), machine.directory("mnt"));
    let refused = machine.try_mount(uri(&source), &point, &["--mirror", &uri(&file)]);
    refused.fails(&["cannot use", file.to_str().unwrap(), "as a mirror"]);
    assert_eq!(fs::read(&file).unwrap(), b"not a mirror");
    let missing = file.with_file_name("missing");
    let mounted = machine.try_mount(uri(&source), &point, &["--mirror", &uri(&missing)]);
    assert!(mounted.code == Some(0) && mounted.err.contains("no mirror found at"), "{mounted:?}");
    assert!(!missing.exists());
}
