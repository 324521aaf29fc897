//! Files that another user put into a cache directory before it was the agent's: nothing is written or removed behind a link.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::tree::{assert_same_tree, write_file};

/// How long an agent runs that could start.
const RUNNING_TIME: Duration = Duration::from_millis(500);
/// An unprivileged user.
const ANOTHER_USER: u32 = 12_345;

/// All files and directories below `directory`, with their content.
fn content(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        all.push((path.display().to_string(), fs::read(&path).unwrap_or_default()));
        if path.is_dir() {
            all.extend(content(&path));
        }
    }
    all.sort();
    all
}

/// A machine whose cache has a link at `name` that leads to `target` in another user's directory.
fn planted(name: &str, target: &str) -> (Machine, std::path::PathBuf) {
    let machine = Machine::new();
    let victim = machine.directory("victim");
    fs::write(victim.join("file"), "precious").unwrap();
    for directory in ["directory/1", "directory/mounts", "directory/agent"] {
        fs::create_dir_all(victim.join(directory)).unwrap();
        fs::write(victim.join(directory).join("file"), "precious").unwrap();
    }
    let link = machine.cache().join(name);
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(victim.join(target), link).unwrap();
    (machine, victim)
}

#[test]
fn link_planted_in_the_cache_is_refused_and_its_target_untouched() {
    for (name, target) in [
        ("lock", "file"),
        ("format", "new"),
        ("daemon.log", "file"),
        ("tenants", "directory"),
        ("tenants/default", "directory"),
        ("tenants/default/pins", "directory"),
        ("state", "directory"),
        ("state/mounts", "directory"),
        ("holder.lock", "file"),
        ("jobs", "directory"),
        ("images", "directory"),
    ] {
        let (machine, victim) = planted(name, target);
        let before = content(&victim);
        let source = machine.directory("source");
        write_file(&source, "file", 5000);
        // What only a persistent agent has.
        let persistent = name.starts_with("state") || name == "holder.lock";
        let ran = if persistent {
            let config = machine.directory("config").join("agent.toml");
            fs::write(&config, "").unwrap();
            let mut command = machine.command(&["agent", "--config", config.to_str().unwrap()]);
            command.arg("--cache-dir").arg(machine.cache());
            machine.run_command(command)
        } else {
            machine.try_mount(&source, &machine.directory("mnt"), &[])
        };
        assert_ne!(ran.code, Some(0), "{name}");
        for word in ["symbolic link", name, "remove it"] {
            assert!(ran.err.contains(word), "{name}: {}", ran.err);
        }
        assert_eq!(content(&victim), before, "{name}");
        if persistent {
            continue;
        }
        fs::remove_file(machine.cache().join(name)).unwrap();
        assert_same_tree(&source, &machine.mount(&source, "mnt"));
    }
}

/// The names of all files and directories below `directory`.
fn names(directory: &Path) -> Vec<String> {
    let all = content(directory).into_iter();
    all.map(|(path, _)| path.strip_prefix(&format!("{}/", directory.display())).unwrap().to_owned()).collect()
}

#[test]
fn link_planted_at_any_name_of_an_agent_leaves_its_target_untouched() {
    let first = Machine::new();
    let source = first.directory("source");
    write_file(&source, "file", 5000);
    let agent = first.agent("");
    first.mount_with(&source, "mnt", &["--wait"]);
    let names: Vec<_> =
        names(first.cache()).into_iter().filter(|name| name.matches('/').count() < 3).collect();
    agent.end();
    assert!(names.iter().any(|name| name == "images"), "{names:?}");
    for name in names {
        let target = if name.contains('.') { "file" } else { "directory" };
        let (machine, victim) = planted(&name, target);
        let before = content(&victim);
        let config = machine.directory("config").join("agent.toml");
        fs::write(&config, "").unwrap();
        let mut command = machine.command(&["agent", "--config", config.to_str().unwrap()]);
        command.arg("--cache-dir").arg(machine.cache());
        // It refuses to start, or goes on with what it finds.
        let mut agent = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(agent.stderr.take().unwrap()).lines();
        let _ = log.find(|line| line.as_ref().is_ok_and(|line| line.contains("serves the cache")));
        sleep(RUNNING_TIME);
        let _ = agent.kill();
        agent.wait().unwrap();
        assert_eq!(content(&victim), before, "{name}");
    }
}

#[test]
fn link_planted_as_a_blob_is_not_followed() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 3 << 20);
    machine.umount(&machine.mount_with(&source, "mnt", &["--wait"]));
    let shard = machine.cache().join("tenants/default/blobs");
    let shard = fs::read_dir(shard).unwrap().next().unwrap().unwrap().path();
    let blob = fs::read_dir(&shard).unwrap().next().unwrap().unwrap().path();
    let victim = machine.directory("victim");
    // In place of a part: as large, and with other bytes.
    fs::write(victim.join("file"), vec![b'x'; 3 << 20]).unwrap();
    fs::remove_file(&blob).unwrap();
    symlink(victim.join("file"), &blob).unwrap();
    symlink(victim.join("file"), format!("{}.part", blob.display())).unwrap();
    assert_same_tree(&source, &machine.mount(&source, "mnt"));
    assert!(fs::read(victim.join("file")).unwrap().iter().all(|byte| *byte == b'x'));
}

#[test]
fn cache_directory_that_others_may_write_or_own_is_refused() {
    let machine = Machine::new();
    let source = machine.directory("source");
    write_file(&source, "file", 5000);
    let point = machine.directory("mnt");
    fs::create_dir(machine.cache()).unwrap();
    for mode in [0o777, 0o1777, 0o770, 0o702] {
        fs::set_permissions(machine.cache(), fs::Permissions::from_mode(mode)).unwrap();
        machine.try_mount(&source, &point, &[]).fails(&["only its owner may write there", "chmod go-w"]);
    }
    fs::set_permissions(machine.cache(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(machine.cache(), Some(ANOTHER_USER), None).unwrap();
    machine.try_mount(&source, &point, &[]).fails(&["belongs to user 12345"]);
    assert_eq!(fs::read_dir(machine.cache()).unwrap().count(), 0, "something was written there");
    chown(machine.cache(), Some(0), None).unwrap();
    assert_same_tree(&source, &machine.mount(&source, "mnt"));
}
