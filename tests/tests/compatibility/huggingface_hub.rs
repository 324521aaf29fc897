//! The kit's Hub, asked by huggingface_hub itself: what our client is tried on is a Hub to that one too, and both see the
//! same trees and bytes. `scripts/emulators` installs it and runs this.

use std::path::Path;
use std::process::Command;

use bdnfs_tests::hub::{HubServer, RepositoryAccess};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::tools::{run, target};
use bdnfs_tests::tree::{assert_same_tree, content};
use tempfile::TempDir;

const TOKEN: &str = "hf_readerOfThePrivateOne";

/// Downloads whole repositories, reads a part of a file, and prints the errors that the library tells apart.
const SCRIPT: &str = r#"
import sys
from huggingface_hub import HfApi, HfFileSystem, snapshot_download
from huggingface_hub.errors import HfHubHTTPError
url, token, directory, tag = sys.argv[1:]
def download(repo, to, **kwargs):
    snapshot_download(repo, endpoint=url, local_dir=f"{directory}/{to}", max_workers=1, **kwargs)
download("org/model", "model", token=False)
download("org/model", "tag", revision="v1.0", token=False)
download("org/model", "some", allow_patterns=["*.json", "sub/"], ignore_patterns="sub/c*", token=False)
download("org/data", "data", repo_type="dataset", token=False)
download("org/private", "private", token=token)
assert HfApi(url, token=False).model_info("org/model", revision="v1.0").sha == tag
files = HfFileSystem(endpoint=url, token=False)
with files.open("org/model/weights.safetensors") as file:
    file.seek(1000)
    sys.stdout.write(file.read(10).hex() + "\n")
for repo, kwargs in [
    ("org/none", dict(token=token)),
    ("org/private", dict(token=False)),
    ("org/gated", dict(token=token)),
    ("org/model", dict(token="hf_wrong")),
    ("org/model", dict(revision="v9", token=False)),
]:
    try:
        HfApi(url).hf_hub_download(repo, "config.json", force_download=True, local_dir=f"{directory}/none", **kwargs)
        print("no error")
    except HfHubHTTPError as error:
        print(type(error).__name__)
    except Exception as error:
        print(type(error.__cause__).__name__)
"#;

#[test]
fn hub_server_read_by_huggingface_hub_equals_the_mount() {
    let hub = HubServer::start();
    let weights = content("weights", 3_000_000);
    let files: [(&str, &[u8]); 4] = [
        ("config.json", b"{}"),
        ("weights.safetensors", &weights),
        ("sub/a b#%.txt", b"odd"),
        ("sub/c/d.json", b"[]"),
    ];
    let old = hub.publish("models/org/model", "v1.0", &files[..1]);
    hub.publish("models/org/model", "main", &files);
    let many: Vec<_> = (0..60).map(|n| format!("data/{n:03}.csv")).collect();
    let rows: Vec<(&str, &[u8])> = many.iter().map(|path| (&path[..], path.as_bytes())).collect();
    hub.publish("datasets/org/data", "main", &rows);
    for (name, guard) in [("private", RepositoryAccess::Private), ("gated", RepositoryAccess::Gated)] {
        hub.publish(&format!("models/org/{name}"), "main", &files[..2]);
        hub.set_access(&format!("models/org/{name}"), guard);
    }
    hub.token(TOKEN, &["models/org/private"]);

    let machine = Machine::new().env("HF_ENDPOINT", hub.url()).env("HF_TOKEN", TOKEN);
    let directory = TempDir::with_prefix("bdnfs-hf-").unwrap();
    let python = target().parent().unwrap().join("emulators/bin/python3");
    let mut script = Command::new(python);
    script.args(["-c", SCRIPT, &hub.url(), TOKEN]).arg(directory.path()).arg(&old);
    // Its chunks come from a service that no Hub of ours has.
    script.env("HF_HUB_DISABLE_XET", "1").env("HF_HUB_DISABLE_PROGRESS_BARS", "1");
    script.env("HF_HOME", directory.path().join("home")).env_remove("HF_TOKEN");
    let said = run(&mut script);
    let output: Vec<&str> = said.lines().collect();
    assert_eq!(output[0], weights[1000..1010].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let errors = [
        "RepositoryNotFoundError",
        "RepositoryNotFoundError",
        "GatedRepoError",
        "HfHubHTTPError",
        "RevisionNotFoundError",
    ];
    assert_eq!(output[1..], errors, "{said}");

    for (uri, name, options) in [
        ("hf://org/model", "model", &[][..]),
        ("hf://org/model@v1.0", "tag", &[]),
        ("hf://org/model", "some", &["--allow", "*.json", "--allow", "sub/", "--ignore", "sub/c*"]),
        ("hf://datasets/org/data", "data", &[]),
        ("hf://org/private", "private", &[]),
    ] {
        let downloaded = directory.path().join(name);
        // What the library keeps beside the files.
        std::fs::remove_dir_all(downloaded.join(".cache")).unwrap();
        assert_same_tree(Path::new(&downloaded), &machine.mount_with(uri, name, options));
    }
}

/// Finds repositories in the cache by their names, with no network, as programs do that know of no bdnfs.
const OFFLINE_SCRIPT: &str = r#"
import os, sys
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import LocalEntryNotFoundError
repository, kind, commit = sys.argv[1:]
snapshot = snapshot_download(repository, repo_type=kind)
assert snapshot == snapshot_download(repository, repo_type=kind, revision=commit), snapshot
assert os.path.basename(snapshot) == commit, snapshot
for directory, _, names in os.walk(snapshot):
    for name in names:
        path = os.path.relpath(os.path.join(directory, name), snapshot)
        for revision in (None, "main", commit):
            found = hf_hub_download(repository, path, repo_type=kind, revision=revision)
            assert found == os.path.join(snapshot, path), found
        assert try_to_load_from_cache(repository, path, repo_type=kind) == found
        print(path, os.path.getsize(found))
try:
    hf_hub_download(repository, "no/such.file", repo_type=kind)
except LocalEntryNotFoundError:
    print("missing")
cached, = scan_cache_dir().repos
assert (cached.repo_id, cached.repo_type) == (repository, kind), cached
revision, = cached.revisions
assert (revision.commit_hash, "main" in revision.refs) == (commit, True), revision
"#;

/// Finds several repositories where the environment of a job says that they are.
const JOB_SCRIPT: &str = r#"
import os
from huggingface_hub import hf_hub_download, scan_cache_dir
print(open(hf_hub_download("org/model", "config.json")).read())
print(open(hf_hub_download("org/data", "rows/a.csv", repo_type="dataset")).read())
print(sorted(repo.repo_id for repo in scan_cache_dir().repos))
"#;

#[test]
fn hub_caches_of_a_job_are_found_by_huggingface_hub_offline() {
    let hub = HubServer::start();
    hub.publish("models/org/model", "main", &[("config.json", b"model")]);
    hub.publish("datasets/org/data", "main", &[("rows/a.csv", b"rows")]);
    let machine = Machine::new().env("HF_ENDPOINT", hub.url());
    let script = machine.directory("script").join("offline.py");
    std::fs::write(&script, JOB_SCRIPT).unwrap();
    let python = target().parent().unwrap().join("emulators/bin/python3");
    let command = format!("HF_HUB_OFFLINE=1 {} {}", python.display(), script.display());
    let place = machine.directory("place").join("hub");
    let weights = ["hf://org/model", "hf://datasets/org/data"].map(|source| {
        format!("[[weights]]\nsource = {source:?}\nmount_location = {place:?}\nlayout = \"hf-cache\"\n")
    });
    let file = machine.directory("specs").join("job.toml");
    std::fs::write(&file, format!("[runtime]\nstart_commands = [{command:?}]\n{}", weights.concat()))
        .unwrap();
    let words = ["job", "run", "--no-mirror", "--cache-dir", machine.cache().to_str().unwrap()];
    let output = machine.run(&[&words[..], &[file.to_str().unwrap()]].concat()).succeeds();
    assert_eq!(output, "model\nrows\n['org/data', 'org/model']\n");
}

/// Reads what is staged in the cache, online and not, and downloads another repository beside it.
const DOWNLOADING_SCRIPT: &str = r#"
import errno
from huggingface_hub import hf_hub_download, snapshot_download
staged = snapshot_download("org/model", local_files_only=True)
assert staged == snapshot_download("org/model") == snapshot_download("org/model", revision="main")
assert open(hf_hub_download("org/model", "config.json")).read() == "model"
assert open(snapshot_download("org/other") + "/weights.bin", "rb").read() == b"w" * 3_000_000
# A revision that is not mounted.
assert open(hf_hub_download("org/moved", "config.json", revision="v1")).read() == "old"
try:
    hf_hub_download("org/moved", "config.json")
except OSError as error:
    assert error.errno == errno.EROFS, error
else:
    raise SystemExit("the mount takes no files")
"#;

/// What a later job finds without a network.
const LATER_SCRIPT: &str = r#"
from huggingface_hub import scan_cache_dir, snapshot_download
for repo in scan_cache_dir().repos:
    files = sorted(file.file_name for revision in repo.revisions for file in revision.files)
    print(repo.repo_id, *files, snapshot_download(repo.repo_id) == str(next(iter(repo.revisions)).snapshot_path))
"#;

#[test]
fn hub_cache_in_a_training_cache_is_one_with_what_huggingface_hub_downloads() {
    let hub = HubServer::start();
    hub.publish("models/org/model", "main", &[("config.json", b"model")]);
    hub.publish(
        "models/org/other",
        "main",
        &[("weights.bin", &[b'w'; 3_000_000]), ("config.json", b"other")],
    );
    hub.publish("models/org/moved", "v1", &[("config.json", b"old")]);
    hub.publish("models/org/moved", "main", &[("config.json", b"new")]);
    let machine = Machine::new().env("HF_ENDPOINT", hub.url());
    let python = target().parent().unwrap().join("emulators/bin/python3");
    let scripts = machine.directory("script");
    let command = |name: &str, script: &str| {
        std::fs::write(scripts.join(name), script).unwrap();
        let settings = "HF_HUB_DISABLE_XET=1 HF_HUB_DISABLE_PROGRESS_BARS=1";
        format!("HF_ENDPOINT={} {settings} {} {}", hub.url(), python.display(), scripts.join(name).display())
    };
    let base = machine.directory("base");
    let place = base.join("huggingface/hub");
    let run = |sources: &[&str], command: &str| {
        let weights = sources.iter().map(|source| {
            format!("[[weights]]\nsource = {source:?}\nmount_location = {place:?}\nlayout = \"hf-cache\"\n")
        });
        let cache = format!("enabled = true\nenable_legacy_hf_mount = true\nmount_base_path = {base:?}\n");
        let weights: String = weights.collect();
        let file = machine.directory("specs").join("job.toml");
        let text =
            format!("[runtime]\nstart_commands = [{command:?}]\n[runtime.cache_config]\n{cache}{weights}");
        std::fs::write(&file, text).unwrap();
        let words = ["job", "run", "--no-mirror", "--cache-dir", machine.cache().to_str().unwrap()];
        machine.run(&[&words[..], &[file.to_str().unwrap()]].concat()).succeeds()
    };
    let download = command("download.py", DOWNLOADING_SCRIPT);
    let twice = format!(
        "{download} & one=$!; {download} && wait $one && ls -d $HF_HUB_CACHE/.locks/models--org--other"
    );
    let locks = place.join(".locks/models--org--other");
    assert_eq!(run(&["hf://org/model", "hf://org/moved@v1"], &twice), format!("{}\n", locks.display()));
    let look = format!("HF_HUB_OFFLINE=1 {} | sort", command("later.py", LATER_SCRIPT));
    let own = "org/other config.json weights.bin True\n";
    assert_eq!(run(&["hf://org/model"], &look), format!("org/model config.json True\n{own}"));
    // The empty directories of what was mounted are nothing to it.
    assert_eq!(run(&[], &format!("HF_HUB_CACHE={} {look}", place.display())), own);
}

#[test]
fn hub_cache_layout_is_what_huggingface_hub_finds_offline() {
    let mut hub = HubServer::start();
    let weights = content("weights", 3_000_000);
    let files: [(&str, &[u8]); 3] =
        [("config.json", b"{}"), ("sub/weights.safetensors", &weights), ("sub/c/empty", b"")];
    let machine = Machine::new().env("HF_ENDPOINT", hub.url());
    let kinds = [
        ("model", "models/org/model", "hf://org/model"),
        ("dataset", "datasets/org/data", "hf://datasets/org/data"),
    ];
    let mounts = kinds.map(|(kind, repository, uri)| {
        let commit = hub.publish(repository, "main", &files);
        (kind, commit, machine.mount_with(uri, kind, &["--wait", "--layout", "hf-cache"]))
    });
    let url = hub.url();
    hub.server.stop();
    for ((kind, commit, point), (_, repository, _)) in mounts.iter().zip(kinds) {
        let name = repository.split_once('/').unwrap().1;
        let mut script = Command::new(target().parent().unwrap().join("emulators/bin/python3"));
        script.args(["-c", OFFLINE_SCRIPT, name, kind, commit]);
        script.env("HF_HUB_CACHE", point).env("HF_HUB_OFFLINE", "1").env("HF_ENDPOINT", &url);
        let said = run(script.env("HF_HOME", machine.directory("home")).env_remove("HF_TOKEN"));
        let mut output: Vec<&str> = said.lines().collect();
        output.sort_unstable();
        assert_eq!(output, ["config.json 2", "missing", "sub/c/empty 0", "sub/weights.safetensors 3000000"]);
    }
}
