//! Mirrors that are damaged.

use std::fs;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::program;
use bdnfs_tests::tree::{assert_same, write_file};

#[test]
fn damaged_mirror_with_origin_away_is_mounted_from_the_cache() {
    let mut env = TestEnv::new();
    let content = env.put("weights", 3 << 20);
    // Without the proxy, which would take the connection.
    let machine = Machine::new().s3(&env.s3.server.url(), &Keys::sample());
    let directory = machine.directory("mirror");
    let mirror = format!("file://{}", directory.display());
    machine.run(&["mirror", "add", "s3://bucket", "--mirror", &mirror]).succeeds();
    let options = ["--wait", "--mirror", &mirror];
    machine.umount(&machine.mount_with("s3://bucket", "mnt", &options));
    // What the source is mirrored as: its manifest is in the cache.
    for source in fs::read_dir(directory.join("tenants/default/refs")).unwrap() {
        for generation in fs::read_dir(source.unwrap().path()).unwrap() {
            fs::write(generation.unwrap().path(), "damaged").unwrap();
        }
    }
    env.s3.server.stop();
    let point = machine.directory("mnt");
    let mounted = machine.try_mount("s3://bucket", &point, &options);
    for words in ["s3://bucket is mounted from the cache as of", "is damaged", "Connection refused"] {
        assert!(mounted.err.contains(words), "{}{}", mounted.out, mounted.err);
    }
    mounted.succeeds();
    assert_same(&content, &fs::read(point.join("weights")).unwrap(), "weights");
    machine.umount(&point);
    // Who never had it is told of both.
    let fresh = Machine::new().s3(&env.s3.server.url(), &Keys::sample());
    let told = fresh.try_mount("s3://bucket", &fresh.directory("mnt"), &options[1..]);
    told.fails(&["is damaged", "cannot be read from its origin", "Connection refused"]);
}

#[test]
fn mirror_directory_with_a_fifo_in_place_of_its_format_is_refused_at_once() {
    let machine = Machine::new();
    let (source, directory) = (machine.directory("source"), machine.directory("mirror"));
    write_file(&source, "weights", 3 << 20);
    let (source, mirror) = (source.to_str().unwrap(), format!("file://{}", directory.display()));
    machine.run(&["mirror", "add", source, "--mirror", &mirror]).succeeds();
    let format = directory.join("format.json");
    fs::remove_file(&format).unwrap();
    assert!(program("mkfifo").arg(&format).status().unwrap().success());
    let point = machine.directory("mnt");
    machine
        .try_mount(source, &point, &["--mirror", &mirror])
        .fails(&["format.json is not that of a bdnfs mirror"]);
    for command in [&["mirror", "verify"][..], &["mirror", "add", source]] {
        machine
            .run(&[command, &["--mirror", &mirror]].concat())
            .fails(&["format.json is not that of a bdnfs mirror"]);
    }
}
