//! The commands mount, umount, status and ls, and their errors.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use axum::http::Method;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::{is_mounted, unmount};
use bdnfs_tests::process::{eventually, wait_for_exit};
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::{TestEnv, machine_with_tree};
use bdnfs_tests::tools::{cannot_run, program, run, with_timeout};
use bdnfs_tests::tree::{assert_same, assert_same_tree, regular_files, write_file, write_tree};
use bdnfs_tests::web::{WebDialect, WebServer};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

fn text(path: &Path) -> &str {
    path.to_str().expect("ours are text")
}

#[test]
fn mount_of_local_directory_by_path_or_url_equals_source() {
    let (machine, source) = machine_with_tree();
    let by_path = machine.mount(&source, "by path");
    let by_url = machine.mount(format!("file://{}", source.display()), "by-url");
    assert_same_tree(&source, &by_path);
    assert_same_tree(&source, &by_url);
    machine.umount(&by_path);
    machine.umount(&by_url);
    eventually("the agent ends with its last mount", || machine.agent_pids().is_empty());
}

#[test]
fn messages_on_a_full_disk_change_no_outcome() {
    let (machine, source) = machine_with_tree();
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let exits_with = |arguments: &[&str]| {
        let mut command = machine.command(arguments);
        wait_for_exit(&mut command.stdout(full()).stderr(full()).spawn().unwrap(), arguments[0]).code()
    };
    let point = machine.directory("mnt");
    let cache = text(machine.cache());
    assert_eq!(exits_with(&["ls", "/nonexistent"]), Some(1));
    assert_eq!(exits_with(&["mount", "--wait", "--cache-dir", cache, text(&source), text(&point)]), Some(0));
    assert_same_tree(&source, &point);
    // What was asked for can't be printed.
    assert_eq!(exits_with(&["source", "key", "hf://a/b"]), Some(1));
    assert_eq!(exits_with(&["cluster", "init-ca", text(&machine.directory("ca"))]), Some(1));
    machine.umount(&point);
}

#[test]
fn mount_of_web_file_reads_it() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(root.path(), "models/weights v2.bin", 3_000_000);
    let (web, machine) = (WebServer::start(root.path()), Machine::new());
    let point = machine.mount(web.url("models/weights%20v2.bin"), "mnt");
    let names: Vec<_> = fs::read_dir(&point).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["weights v2.bin"]);
    assert_same(&bytes, &fs::read(point.join("weights v2.bin")).unwrap(), "the file");
}

#[test]
fn mount_of_web_file_without_ranges_is_fetched_once() {
    let root = TempDir::new().unwrap();
    let bytes = write_file(root.path(), "weights", 40_000_000);
    let (web, machine) = (WebServer::with_dialect(WebDialect::PythonHttpServer, root.path()), Machine::new());
    let point = machine.mount(web.url("weights"), "mnt");
    let (file, mut page) = (fs::File::open(point.join("weights")).unwrap(), vec![0; 100_000]);
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, 30_000_000).unwrap();
    assert_same(&bytes[30_000_000..30_100_000], &page, "a part");
    assert_same(&bytes, &fs::read(point.join("weights")).unwrap(), "the file");
    let gets = web.requests.of(Method::GET, |path| path.ends_with("weights"));
    assert_eq!(gets.requests, 2, "the first byte, and all of it");
}

#[test]
fn mount_of_web_directory_with_sha256sums_equals_source() {
    let root = TempDir::new().unwrap();
    let tree = root.path().join("models/x");
    write_tree(&tree);
    let list = run(program("sh")
        .args(["-c", "find sizes a config.json -type f -exec sha256sum {} +"])
        .current_dir(&tree));
    fs::remove_dir_all(tree.join("names")).unwrap();
    for entry in fs::read_dir(&tree).unwrap().map(Result::unwrap) {
        if entry.file_name().to_string_lossy().starts_with("in ") {
            fs::remove_dir_all(entry.path()).unwrap();
        }
    }
    let web = WebServer::start(root.path());
    fs::write(tree.join("SHA256SUMS"), list).unwrap();
    let machine = Machine::new();
    let point = machine.mount_with(web.url("models/x/SHA256SUMS"), "mnt", &["--wait"]);
    fs::remove_file(tree.join("SHA256SUMS")).unwrap();
    assert_same_tree(&tree, &point);
}

#[test]
fn mount_of_web_directory_with_index_equals_source() {
    let root = TempDir::new().unwrap();
    let tree = root.path().join("models/x");
    write_tree(&tree);
    let paths: Vec<String> =
        regular_files(&tree).into_iter().map(|(path, _)| text(&path).to_owned()).collect();
    let index = json!({ "files": paths.iter().map(|path| json!({ "path": path })).collect::<Vec<_>>() });
    let (web, machine) = (WebServer::start(root.path()), Machine::new());
    fs::write(tree.join("bdnfs.json"), index.to_string()).unwrap();
    let by_directory = machine.mount(web.url("models/x/"), "by-directory");
    let by_index = machine.mount(web.url("models/x/bdnfs.json"), "by-index");
    fs::remove_file(tree.join("bdnfs.json")).unwrap();
    // The first byte, which shows whether the server has ranges, of one of two mounts after the other.
    assert!(paths.iter().all(|path| web.requests.of(Method::GET, |p| p.ends_with(path)).bytes <= 2));
    assert_same_tree(&tree, &by_directory);
    assert_same_tree(&tree, &by_index);
}

#[test]
fn stage_with_wrong_sha256sums_names_the_file() {
    let root = TempDir::new().unwrap();
    write_file(root.path(), "good", 2000);
    write_file(root.path(), "bad", 3000);
    let list = run(program("sha256sum").args(["good", "bad"]).current_dir(root.path()));
    fs::write(root.path().join("SHA256SUMS"), list).unwrap();
    fs::write(root.path().join("bad"), vec![7; 3000]).unwrap();
    let (web, machine) = (WebServer::start(root.path()), Machine::new());
    let point = machine.directory("mnt");
    machine.try_mount(web.url("SHA256SUMS"), &point, &["--wait"]).fails(&["bad"]);
}

#[test]
fn mount_of_bucket_with_keys_equals_source() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let point = env.machine.mount("s3://bucket", "mnt");
    assert_same_tree(&env.bucket(), &point);
    let (other, cache) = (TestEnv::new(), text(env.machine.cache()));
    let status = env.machine.run(&["status", "--cache-dir", cache]).succeeds();
    assert!(status.contains(text(&point)) && status.contains("s3://bucket"), "{status}");

    let wrong = Keys { secret: "another/secret+entirely".into(), ..Keys::sample() };
    let stranger = Machine::new().s3(&other.s3.server.url(), &wrong);
    let ran = stranger.try_mount("s3://bucket", &stranger.directory("mnt"), &[]);
    assert!(!ran.err.contains(&wrong.secret) && !ran.out.contains(&wrong.secret));
    ran.fails(&["s3://bucket"]);
}

#[test]
fn mount_with_keys_shows_no_secret() {
    let env = TestEnv::new();
    env.put("file", 100);
    let point = env.machine.mount_with("s3://bucket", "mnt", &["-vvv"]);
    fs::read(point.join("file")).unwrap();
    let secret = Keys::sample().secret;
    for pid in env.machine.agent_pids() {
        for what in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{}/{what}", pid.as_raw_nonzero())).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains(&secret), "the agent's {what}");
        }
    }
    let mut grep = program("grep");
    grep.args(["-r", "-a", "-s", "-l", "-F", "-e", &secret]).arg(env.machine.cache());
    let output = grep.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files of the cache that hold the secret");
}

#[test]
fn mount_of_bad_source_fails_in_one_line() {
    let (machine, source) = machine_with_tree();
    let point = machine.directory("mnt");
    let fails = |source: &str, options: &[&str], words: &[&str]| {
        machine.try_mount(source, &point, options).fails(words);
        assert!(!is_mounted(&point), "{source}");
    };
    let empty = machine.directory("empty");
    fails(text(&empty), &[], &[text(&empty)]);
    fails(text(&source.join("nowhere")), &[], &["nowhere"]);
    fails(text(&source), &["--allow", "*.nothing"], &["*.nothing"]);
    fails("http://127.0.0.1:1/file", &[], &["127.0.0.1:1"]);
    let missing = source.join("no such mountpoint");
    machine.try_mount(&source, &missing, &[]).fails(&[text(&missing)]);
    let plain = source.join("config.json");
    machine.try_mount(&source, &plain, &[]).fails(&[text(&plain), "not a directory"]);
    eventually("no agent stays behind", || machine.agent_pids().is_empty());
}

#[test]
fn mount_on_used_mount_point_is_refused() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount(&source, "mnt");
    machine.try_mount(&source, &point, &[]).fails(&[text(&point), "mounted"]);
    assert_same_tree(&source, &point);
    machine.umount(&point);
    machine.run(&["umount", text(&point)]).fails(&[text(&point)]);
}

#[test]
fn mount_of_missing_bucket_or_object_fails() {
    let env = TestEnv::new();
    env.put("some/file", 10);
    let point = env.machine.directory("mnt");
    for source in ["s3://nobody", "s3://bucket/nothing/here"] {
        env.machine.try_mount(source, &point, &[]).fails(&[source]);
    }
}

#[test]
fn mount_with_invalid_key_names_it() {
    for key in ["up/../and away", "two//slashes", "file/below a file"] {
        let env = TestEnv::new();
        env.put("file", 10);
        let odd = env.machine.directory("odd").join("object");
        fs::write(&odd, "odd").unwrap();
        env.s3.put_odd_key("bucket", key, &odd);
        let point = env.machine.directory("mnt");
        let line = env.machine.try_mount("s3://bucket", &point, &[]).fails(&[]);
        let report = key.split('/').any(|part| part.len() > 3 && line.contains(part));
        assert!(report, "{key} is not in {line}");
    }
}

#[test]
fn umount_of_busy_mount_names_the_process() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount(&source, "mnt");
    let mut holder = program("sleep").arg("1000").current_dir(point.join("names")).spawn().unwrap();
    let ran = machine.run(&["umount", text(&point)]);
    let pid = holder.id().to_string();
    holder.kill().unwrap();
    holder.wait().unwrap();
    ran.fails(&[text(&point), "sleep", &pid]);
    assert_same_tree(&source, &point);
    machine.umount(&point);
}

#[test]
fn umount_of_a_mount_that_others_depend_on_names_them() {
    let (machine, source) = machine_with_tree();
    let image = File::create(source.join("image")).unwrap();
    image.set_len(8 << 20).unwrap();
    run(program("mkfs.ext4").args(["-q", "-F"]).arg(source.join("image")));
    let point = machine.mount(&source, "mnt");
    let dependent = machine.directory("dependent");
    rustix::mount::mount("none", point.join("names"), "tmpfs", MountFlags::empty(), c"").unwrap();
    machine.run(&["umount", text(&point)]).fails(&["in use by the mount at", text(&point.join("names"))]);
    rustix::mount::unmount(point.join("names"), UnmountFlags::empty()).unwrap();
    if Path::new("/dev/loop-control").exists() {
        run(program("mount").args(["-o", "loop,ro"]).arg(point.join("image")).arg(&dependent));
        machine.run(&["umount", text(&point)]).fails(&["in use by /dev/loop"]);
        run(program("umount").arg(&dependent));
    } else {
        cannot_run("there is no /dev/loop-control; load the module loop, or start the container with it");
    }
    machine.umount(&point);
}

#[test]
fn mount_with_piped_output_returns() {
    let (machine, source) = machine_with_tree();
    let point = machine.directory("mnt");
    let mut command =
        machine.command(&["mount", text(&source), text(&point), "--cache-dir", text(machine.cache())]);
    let output = with_timeout(Duration::from_secs(60), move || command.output().unwrap());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_same_tree(&source, &point);
}

/// `bdnfs mount --foreground`, once it is mounted.
fn foreground(machine: &Machine, source: &Path, point: &Path) -> Child {
    let arguments =
        ["mount", text(source), text(point), "--foreground", "--cache-dir", text(machine.cache())];
    let mut command: Command = machine.command(&arguments);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually("it is mounted", || is_mounted(point));
    child
}

#[test]
fn mount_foreground_on_signal_unmounts() {
    for signal in [Signal::TERM, Signal::INT] {
        let (machine, source) = machine_with_tree();
        let point = machine.directory("mnt");
        let mut child = foreground(&machine, &source, &point);
        assert_same_tree(&source, &point);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = wait_for_exit(&mut child, "a mount that was asked to end");
        assert!(!is_mounted(&point), "{signal:?} left it mounted");
        assert!(status.success(), "{signal:?}: {status}");
    }
}

#[test]
fn mount_foreground_on_umount_ends() {
    let (machine, source) = machine_with_tree();
    let point = machine.directory("mnt");
    let mut child = foreground(&machine, &source, &point);
    machine.umount(&point);
    assert!(wait_for_exit(&mut child, "a mount that was taken away").success());
}

#[test]
fn agent_on_sigterm_unmounts_all() {
    let (machine, source) = machine_with_tree();
    let points = ["one", "two"].map(|name| machine.mount(&source, name));
    for pid in machine.agent_pids() {
        kill_process(pid, Signal::TERM).unwrap();
    }
    eventually("the agent is gone", || machine.agent_pids().is_empty());
    assert!(points.iter().all(|point| !is_mounted(point)));
}

#[test]
fn mount_on_system_umount_ends() {
    let (machine, source) = machine_with_tree();
    let point = machine.mount(&source, "mnt");
    unmount(&point);
    eventually("the agent ends with its last mount", || machine.agent_pids().is_empty());
}

#[test]
fn status_with_mounts_lists_mounts_and_cache() {
    let (machine, source) = machine_with_tree();
    let cache = text(machine.cache());
    assert_eq!(machine.run(&["status", "--json", "--cache-dir", cache]).code, Some(0));
    let point = machine.mount_with(&source, "mnt", &["--wait"]);
    let table = machine.run(&["status", "--cache-dir", cache]).succeeds();
    assert!(table.contains(text(&point)) && table.contains(text(&source)), "{table}");
    let json: Value =
        serde_json::from_str(&machine.run(&["status", "--json", "--cache-dir", cache]).succeeds()).unwrap();
    let json = json.to_string();
    assert!(json.contains(text(&point)) && json.contains(text(machine.cache())), "{json}");
}

#[test]
fn ls_of_source_lists_without_mounting() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let list = env.machine.run(&["ls", "s3://bucket/sizes"]).succeeds();
    for name in ["empty", "blocks", "block-1"] {
        assert!(list.contains(name), "{name} is not in:\n{list}");
    }
    let lines = env.machine.run(&["ls", "s3://bucket", "--json"]).succeeds();
    let found: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let blocks = found.iter().find(|file| file["path"] == "sizes/blocks");
    assert_eq!(blocks.unwrap_or_else(|| panic!("not in {lines}"))["size"], 5_255_225);
    assert_eq!(env.fetched("").requests, 0);
    env.machine.run(&["ls", "s3://nobody"]).fails(&["nobody"]);
    assert!(env.machine.agent_pids().is_empty());
}

#[test]
fn mount_wait_without_terminal_prints_progress_lines() {
    let env = TestEnv::new();
    write_tree(&env.bucket());
    let point = env.machine.directory("mnt");
    let ran = env.machine.try_mount("s3://bucket", &point, &["--wait"]);
    assert!(!ran.err.contains('\x1b') && !ran.err.contains('\r'), "no terminal, no escapes: {:?}", ran.err);
    assert!(ran.err.lines().any(|line| line.contains('%')), "{}", ran.err);
    ran.succeeds();
}
