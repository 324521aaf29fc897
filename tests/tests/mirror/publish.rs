//! Sources copied into a mirror, and served from it.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use axum::http::Method;
use bdnfs_tests::MIB;
use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{
    Rng, assert_same_tree, content, total_bytes, write_file, write_odd_tree, write_tree,
};
use serde_json::Value;

/// A bucket for a mirror beside the environment's own.
pub fn mirror(env: &TestEnv) -> PathBuf {
    let mirror = env.bucket().with_file_name("mirror");
    fs::create_dir_all(&mirror).unwrap();
    mirror
}

pub fn run(machine: &Machine, line: &str) -> CommandOutput {
    machine.run(&line.split(' ').collect::<Vec<_>>())
}

/// All objects of a mirror below `kind`, the largest first.
pub fn objects(mirror: &Path, kind: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut ahead = vec![mirror.join("tenants/default").join(kind)];
    while let Some(directory) = ahead.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            match entry.file_type().unwrap().is_dir() {
                true => ahead.push(entry.path()),
                false => found.push(entry.path()),
            }
        }
    }
    found.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().len()));
    found
}

#[test]
fn mirror_of_removed_local_source_serves_it() {
    let machine = Machine::new();
    let (source, mirror) = (machine.directory("source"), machine.directory("mirror"));
    write_tree(&source);
    write_odd_tree(&source);
    write_file(&source, "large", 70 * MIB);
    let (from, to) = (source.display(), mirror.display());
    run(&machine, &format!("mirror add {from} --mirror file://{to}")).succeeds();
    let moved = source.with_file_name("moved");
    fs::rename(&source, &moved).unwrap();
    let point = machine.mount_with(&source, "mnt", &["--wait", "--mirror", &format!("file://{to}")]);
    assert_same_tree(&moved, &point);
    run(&machine, &format!("mirror verify --deep --mirror {to}")).succeeds();
    machine.umount(&point);
    assert_eq!(objects(&mirror, "leases"), [""; 0].map(PathBuf::from), "all leases were given back");
}

#[test]
fn mirrored_source_read_sends_no_request_to_origin() {
    let env = TestEnv::new();
    mirror(&env);
    for number in 0..2000 {
        write_file(&env.bucket(), format!("d{}/{number}", number % 7), 16 << 10);
    }
    env.put("weights", 20 * MIB);
    run(&env.machine, "mirror add s3://bucket --mirror s3://mirror/deep/down").succeeds();
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()), "each byte is read once");
    let asked =
        |bucket: &'static str| env.s3.requests.of(Method::GET, move |path| path.starts_with(bucket)).requests;
    let (origin, mirror) = (asked("/bucket"), asked("/mirror"));
    let point =
        env.machine.mount_with("s3://bucket", "mnt", &["--wait", "--mirror", "s3://mirror/deep/down"]);
    assert_same_tree(&env.bucket(), &point);
    assert_eq!(asked("/bucket"), origin);
    assert!(asked("/mirror") - mirror < 60, "{} requests", asked("/mirror") - mirror);

    write_file(&env.bucket(), "d1/new", 77);
    run(&env.machine, "mirror add s3://bucket --mirror s3://mirror/deep/down").succeeds();
    assert_eq!(env.fetched("").bytes, total_bytes(&env.bucket()), "only the new file is read");
}

#[test]
fn packed_file_read_stores_at_most_two_packs() {
    let machine = Machine::new();
    let (source, mirror) = (machine.directory("source"), machine.directory("mirror"));
    let len = 64 << 10;
    for number in 0..1000 {
        write_file(&source, format!("d{}/{number:04}", number / 300), len);
    }
    let add = || -> (u64, u64) {
        let line = format!("mirror add {} --mirror file://{} --json", source.display(), mirror.display());
        let output: Value = serde_json::from_str(&run(&machine, &line).succeeds()).unwrap();
        (output["read"].as_u64().unwrap(), output["written"].as_u64().unwrap())
    };
    let blobs = || objects(&mirror, "blobs").iter().map(|blob| blob.metadata().unwrap().len()).sum::<u64>();
    assert_eq!(add(), (1000 * len as u64, 1000 * len as u64));
    type Change<'a> = &'a dyn Fn(&Path);
    let other: Change<'_> = &|path| fs::write(path, content("other", len)).unwrap();
    let more: Change<'_> = &|path| fs::write(path.with_extension("more"), content("more", len)).unwrap();
    let less: Change<'_> = &|path| fs::remove_file(path).unwrap();
    for (change, reads, packs) in [(other, len, 1), (more, len, 2), (less, 0, 2)] {
        for place in [7, 333, 640, 999] {
            change(&source.join(format!("d{}/{place:04}", place / 300)));
            let before = blobs();
            let (read, written) = add();
            assert_eq!(read, reads as u64, "at {place}");
            assert_eq!(blobs() - before, written, "what is told is what is there");
            assert!(written >= reads as u64 && written <= packs * (16 << 20), "{written} bytes at {place}");
        }
    }
    run(&machine, &format!("mirror verify --deep --mirror {}", mirror.display())).succeeds();
}

#[test]
fn mirror_add_killed_is_resumed() {
    let env = TestEnv::new();
    let mirror = mirror(&env);
    write_tree(&env.bucket());
    for number in 0..4 {
        env.put(&format!("weights-{number}"), (2 + 7 * number) * MIB);
    }
    // So little memory that the largest are streamed.
    let add = "mirror add s3://bucket --mirror s3://mirror --memory 32MiB";
    let begin = Instant::now();
    run(&env.machine, add).succeeds();
    let whole = begin.elapsed();
    let mut rng = Rng(20);
    // More of them: KILLS=20 cargo nextest run -p bdnfs-tests mirror_add_killed_is_resumed
    let kills = std::env::var("KILLS").map_or(5, |kills| kills.parse().unwrap());
    for _ in 0..kills {
        if !objects(&mirror, "refs").is_empty() {
            run(&env.machine, "mirror verify --deep --mirror s3://mirror").succeeds();
            fs::remove_dir_all(&mirror).unwrap();
            fs::create_dir(&mirror).unwrap();
        }
        let mut command = env.machine.command(&add.split(' ').collect::<Vec<_>>());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(whole * rng.below(100) as u32 / 100);
        child.kill().unwrap();
        wait_for_exit(&mut child, add);
    }
    run(&env.machine, add).succeeds();
    run(&env.machine, "mirror verify --deep --mirror s3://mirror").succeeds();
    let point = env.machine.mount_with("s3://bucket", "mnt", &["--mirror", "s3://mirror"]);
    assert_same_tree(&env.bucket(), &point);
}

#[test]
fn mirror_add_killed_within_a_file_continues_there() {
    let env = TestEnv::new();
    let mirror = env.machine.directory("mirror");
    let len = (120 * MIB) as u64;
    env.put("weights", len as usize);
    // Slow enough to be killed in the middle.
    env.proxy.set(NetworkFault { rate: Some(16 << 20), ..NetworkFault::default() });
    let add = format!("mirror add s3://bucket --mirror file://{} --memory 32MiB", mirror.display());
    let mut command = env.machine.command(&add.split(' ').collect::<Vec<_>>());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // A note tells 32 bytes of each block that is done. It is rewritten all the time.
    let noted = || {
        let recipe =
            fs::read_dir(mirror.join("tenants/default/drafts")).into_iter().flatten().flatten().next();
        let notes =
            recipe.and_then(|recipe| fs::read_dir(recipe.path()).ok()).into_iter().flatten().flatten();
        let whole = notes.filter(|note| note.file_name().to_string_lossy().ends_with("-0"));
        whole.filter_map(|note| note.metadata().ok()).map(|meta| meta.len() / 32).max().unwrap_or(0)
    };
    eventually("two parts are there", || noted() > 32);
    child.kill().unwrap();
    wait_for_exit(&mut child, &add);
    let noted = noted();
    env.proxy.set(NetworkFault::default());
    let output = run(&env.machine, &format!("{add} --json")).succeeds();
    let read = output.split("\"read\":").nth(1).unwrap().split(',').next().unwrap().parse::<u64>().unwrap();
    // Head and texts of the note are less than 16 checks.
    assert!(read <= len - (noted - 16) * MIB as u64, "{read} bytes were read after {noted} blocks");
    run(&env.machine, &format!("mirror verify --deep --mirror {}", mirror.display())).succeeds();
    // A note that was being written when it was killed is left to who collects.
    run(&env.machine, &format!("mirror gc --grace 0s --mirror {}", mirror.display())).succeeds();
    assert_eq!((objects(&mirror, "drafts"), objects(&mirror, "uploads")), (vec![], vec![]));
}

#[test]
fn mirror_blob_damaged_is_named_and_repaired() {
    let env = TestEnv::new();
    let mirror = mirror(&env);
    write_tree(&env.bucket());
    run(&env.machine, "mirror add s3://bucket --mirror s3://mirror").succeeds();
    for blob in objects(&mirror, "blobs") {
        let (bytes, name) = (fs::read(&blob).unwrap(), blob.file_name().unwrap().to_str().unwrap());
        let broken = fs::File::options().write(true).open(&blob).unwrap();
        broken.write_all_at(&[!bytes[bytes.len() / 2]], bytes.len() as u64 / 2).unwrap();
        run(&env.machine, "mirror verify --mirror s3://mirror").succeeds();
        let machine = env.second_machine();
        let point = machine.mount_with("s3://bucket", "mnt", &["--mirror", "s3://mirror"]);
        assert_same_tree(&env.bucket(), &point);
        machine.umount(&point);
        let log = machine.cache().join("daemon.log");
        eventually("it is logged", || fs::read_to_string(&log).unwrap().contains(name));
        let output = run(&env.machine, "mirror verify --deep --mirror s3://mirror");
        assert!(output.code == Some(1) && output.err.contains(name), "{}{}", output.out, output.err);
        let output = run(&env.machine, "mirror add s3://bucket --mirror s3://mirror");
        assert!(
            output.err.contains("note: found and repaired: ") && output.err.contains(name),
            "{}",
            output.err
        );
        assert!(output.succeeds().starts_with("repaired s3://bucket: "));
        run(&env.machine, "mirror verify --deep --mirror s3://mirror").succeeds();
    }
}

#[test]
fn mirror_manifest_damaged_is_named_and_bypassed() {
    let env = TestEnv::new();
    let mirror = mirror(&env);
    write_tree(&env.bucket());
    let add = "mirror add s3://bucket --mirror s3://mirror";
    let mount = |machine: &Machine| {
        let point = machine.directory("mnt");
        let ran = machine.try_mount("s3://bucket", &point, &["--wait", "--mirror", "s3://mirror"]);
        (ran, point)
    };
    let right = |words: &[&str]| {
        let machine = env.second_machine();
        let (ran, point) = mount(&machine);
        assert!(words.iter().all(|word| ran.err.contains(word)), "{words:?} are not in: {}", ran.err);
        assert!(!words.is_empty() || !ran.err.contains("note"), "{}", ran.err);
        ran.succeeds();
        assert_same_tree(&env.bucket(), &point);
        machine.umount(&point);
    };
    let flip = |object: &Path| {
        let mut bytes = fs::read(object).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x80;
        fs::write(object, bytes).unwrap();
    };
    let cut = |object: &Path| {
        let object = fs::File::options().write(true).open(object).unwrap();
        object.set_len(object.metadata().unwrap().len() / 2).unwrap();
    };
    let remove = |object: &Path| fs::remove_file(object).unwrap();
    let (mirrored, other) = ("in the state that was mirrored", "which is not the one that was mirrored");
    type Damage<'a> = &'a dyn Fn(&Path);
    let damages: [(&str, Damage<'_>, &str); 3] = [
        ("manifests", &flip, mirrored),
        ("refs", &cut, "in the state that it has now"),
        ("manifests", &remove, mirrored),
    ];
    for (kind, damage, state) in damages {
        run(&env.machine, add).succeeds();
        let written = |path: &PathBuf| path.metadata().unwrap().modified().unwrap();
        let object = objects(&mirror, kind).into_iter().max_by_key(written).unwrap();
        let name = object.file_name().unwrap().to_str().unwrap();
        damage(&object);
        right(&[name, state]);
        if kind == "refs" {
            continue;
        }
        // Without the origin there is nothing to read.
        let (bucket, away) = (env.bucket(), env.bucket().with_file_name("away"));
        fs::rename(&bucket, &away).unwrap();
        let (ran, _) = mount(&env.second_machine());
        fs::rename(&away, &bucket).unwrap();
        ran.fails(&[name, "cannot be read from its origin", "bucket"]);
        env.put(&format!("new-{}", &name[..8]), 5000);
        right(&[name, other]);
    }
    run(&env.machine, add).succeeds();
    run(&env.machine, "mirror verify --deep --mirror s3://mirror").succeeds();
    right(&[]);
}

#[test]
fn mirror_gc_beside_two_adds_collects_only_removed() {
    let env = TestEnv::new();
    let mirror = mirror(&env);
    write_tree(&env.bucket());
    env.put("weights", 40 * MIB);
    let add = "mirror add s3://bucket --mirror s3://mirror";
    thread::scope(|scope| {
        let adders = [(); 2].map(|()| scope.spawn(|| run(&env.second_machine(), add).succeeds()));
        let collector = env.second_machine();
        while adders.iter().any(|adder| !adder.is_finished()) {
            // There may be no mirror yet.
            run(&collector, "mirror gc --grace 0s --mirror s3://mirror");
            thread::sleep(Duration::from_millis(20));
        }
    });
    run(&env.machine, "mirror verify --deep --mirror s3://mirror").succeeds();
    run(&env.machine, "mirror rm s3://bucket --mirror s3://mirror").succeeds();
    run(&env.machine, "mirror gc --mirror s3://mirror").succeeds();
    assert!(!objects(&mirror, "blobs").is_empty(), "the grace is not over");
    // The stores' clocks tell whole seconds.
    thread::sleep(Duration::from_millis(1100));
    run(&env.machine, "mirror gc --grace 0s --mirror s3://mirror").succeeds();
    for kind in ["blobs", "records", "known", "manifests", "uploads"] {
        assert_eq!(objects(&mirror, kind).len(), 0, "{kind}");
    }
    run(&env.machine, "mirror show s3://bucket --mirror s3://mirror").fails(&["has no s3://bucket"]);
}

#[test]
fn mirror_command_on_missing_mirror_fails_and_creates_none() {
    let machine = Machine::new();
    let missing = machine.directory("home").join("typo");
    for command in [
        "mirror ls",
        "mirror show file:///x",
        "mirror verify",
        "mirror gc",
        "mirror rm file:///x",
        "checkpoint ls",
    ] {
        let ran = run(&machine, &format!("{command} --mirror file://{}", missing.display()));
        ran.fails(&["no mirror found at", missing.to_str().unwrap()]);
    }
    assert!(!missing.exists());
}

#[test]
fn link_that_is_absolute_escaping_or_looping_is_shown_and_never_followed() {
    let machine = Machine::new();
    let (source, mirror) = (machine.directory("source"), machine.directory("mirror"));
    let outside = machine.directory("outside");
    write_file(&outside, "file", 70 * MIB);
    write_file(&source, "file", 5);
    let absolute = outside.join("file");
    for (name, target) in [
        ("absolute", absolute.to_str().unwrap()),
        ("escaping", "../outside/file"),
        ("directory", "../outside"),
        ("self", "self"),
        ("to-circle", "circle"),
        ("circle", "to-circle"),
        ("dangling", "/nowhere"),
    ] {
        symlink(target, source.join(name)).unwrap();
    }
    let to = format!("file://{}", mirror.display());
    run(&machine, &format!("mirror add {} --mirror {to}", source.display())).succeeds();
    for (name, options) in [("origin", &["--wait"][..]), ("mirrored", &["--wait", "--mirror", &to])] {
        let point = machine.mount_with(&source, name, options);
        assert_same_tree(&source, &point);
        assert_eq!(fs::read(point.join("absolute")).unwrap().len(), 70 * MIB, "the reader follows it");
        for circle in ["self", "to-circle"] {
            let error = fs::read(point.join(circle)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ELOOP), "{circle}: {error}");
        }
    }
    assert!(total_bytes(&mirror) < MIB as u64, "what links lead to was mirrored");
    assert!(total_bytes(machine.cache()) < MIB as u64, "what links lead to was cached");
}
