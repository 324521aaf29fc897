//! Sources of the Hugging Face Hub, with the real binary.

use std::fs;
use std::path::Path;

use bdnfs_tests::MIB;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::hub::{HubServer, RepositoryAccess};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mounts::is_mounted;
use bdnfs_tests::tools::program;
use bdnfs_tests::tree::{assert_same_tree, content, regular_files, total_bytes, write_tree};
use tempfile::TempDir;

const TOKEN: &str = "hf_plantedTokenThatNobodyMaySee";

/// Publishes the tree at `root`.
fn publish(hub: &HubServer, repository: &str, root: &Path) -> String {
    let paths: Vec<_> =
        regular_files(root).into_iter().map(|(path, _)| path.to_str().unwrap().to_owned()).collect();
    let contents: Vec<_> = paths.iter().map(|path| fs::read(root.join(path)).unwrap()).collect();
    let all: Vec<_> = paths.iter().zip(&contents).map(|(path, bytes)| (path.as_str(), &bytes[..])).collect();
    hub.publish(repository, "main", &all)
}

fn machine(hub: &HubServer) -> Machine {
    Machine::new().env("HF_ENDPOINT", hub.url())
}

#[test]
fn hub_repository_moved_after_mount_stays_at_its_commit() {
    let (hub, root) = (HubServer::start(), TempDir::new().unwrap());
    write_tree(root.path());
    let commit = publish(&hub, "models/owner/repo", root.path());
    let machine = machine(&hub);
    let point = machine.mount("hf://owner/repo@main", "mnt");
    hub.publish("models/owner/repo", "main", &[("config.json", b"another")]);
    assert_same_tree(root.path(), &point);
    let served = hub.storage.requests.gets("").bytes + hub.requests.gets("").bytes;
    let status = machine.run(&["status", "--cache-dir", machine.cache().to_str().unwrap()]).succeeds();
    assert!(status.contains(&format!("hf://models/owner/repo@{commit}")), "{status}");

    let again = machine.mount(format!("hf://owner/repo@{commit}"), "again");
    assert_same_tree(root.path(), &again);
    let listing =
        hub.requests.of(axum::http::Method::GET, |path| path.starts_with("/api/models/owner/repo/")).bytes;
    let now = hub.storage.requests.gets("").bytes + hub.requests.gets("").bytes;
    assert!(now - served < listing, "content was fetched twice: {} bytes", now - served);
    let sub = machine.mount_with(format!("hf://owner/repo@{commit}/sizes"), "sub", &["--wait"]);
    assert_same_tree(&root.path().join("sizes"), &sub);

    let ls = machine.run(&["ls", "hf://owner/repo"]).succeeds();
    assert!(
        ls.contains("config.json") && ls.contains("total: 1 file, 7 B in hf://models/owner/repo@"),
        "{ls}"
    );
    assert!(total_bytes(root.path()) > 8 * MIB as u64);
}

#[test]
fn hub_repository_mirrored_is_found_with_and_without_its_default_branch() {
    let (mut hub, root) = (HubServer::start(), TempDir::new().unwrap());
    for (name, other) in [("owner/one", "owner/one@main"), ("owner/two@main", "owner/two")] {
        hub.publish(&format!("models/{}", name.trim_end_matches("@main")), "main", &[("x", name.as_bytes())]);
        let machine = machine(&hub);
        let to = format!("file://{}", root.path().display());
        machine.run(&["mirror", "add", &format!("hf://{name}"), "--mirror", &to]).succeeds();
        hub.server.stop();
        let point = machine.mount_with(format!("hf://{other}"), "mnt", &["--mirror", &to]);
        assert_eq!(fs::read(point.join("x")).unwrap(), name.as_bytes());
        hub.server.resume();
    }
}

#[test]
fn hub_branch_with_slashes_is_found_as_it_is_written() {
    let hub = HubServer::start();
    let repository = "models/owner/repo";
    hub.publish(repository, "main", &[("feature/x/config.json", b"main")]);
    let branch = hub.publish(repository, "a/b/c", &[("config.json", b"branch"), ("sub/file", b"x")]);
    let tag = hub.publish(repository, "v1", &[("beta/file", b"tag")]);
    hub.publish(repository, "v1/beta", &[("file", b"another")]);
    let machine = machine(&hub);
    for (source, read) in [
        ("a%2Fb%2Fc", format!("2 files, 7 B in hf://models/owner/repo@{branch}\n")),
        ("a/b/c", format!("2 files, 7 B in hf://models/owner/repo@{branch}\n")),
        ("a/b/c/sub", format!("1 file, 1 B in hf://models/owner/repo@{branch}/sub\n")),
        // What is a revision by itself is that one.
        ("v1/beta", format!("1 file, 3 B in hf://models/owner/repo@{tag}/beta\n")),
    ] {
        let ls = machine.run(&["ls", &format!("hf://owner/repo@{source}")]).succeeds();
        assert!(ls.contains(&read), "{source}: {ls}");
    }
    for source in ["feature/x", "a/b", "a/c/b"] {
        let words = [&format!("hf://models/owner/repo@{source}: ")[..], "has no such revision"];
        machine.run(&["ls", &format!("hf://owner/repo@{source}")]).fails(&words);
    }
    // Its commit is pinned.
    let point = machine.mount("hf://owner/repo@a/b/c/sub", "mnt");
    hub.publish(repository, "a/b/c", &[("sub/file", b"later")]);
    assert_eq!(fs::read(point.join("file")).unwrap(), b"x");
}

#[test]
fn hub_lfs_file_with_wrong_sha256_is_refused() {
    let hub = HubServer::start();
    hub.publish("models/owner/repo", "main", &[("w.safetensors", &content("w", 3 * MIB))]);
    let machine = machine(&hub);
    let point = machine.directory("mnt");
    hub.storage.faults.set(ServerFault::Garble);
    machine.try_mount("hf://owner/repo", &point, &["--wait"]).fails(&["w.safetensors", "SHA-256"]);
    assert!(!is_mounted(&point));
    hub.storage.faults.clear();
    machine.try_mount("hf://owner/repo", &point, &["--wait"]).succeeds();
    assert_eq!(fs::read(point.join("w.safetensors")).unwrap(), content("w", 3 * MIB));
}

#[test]
fn mirror_of_file_with_wrong_sha256_names_the_file() {
    let hub = HubServer::start();
    hub.publish("models/owner/repo", "main", &[("sub/w.safetensors", &content("w", 3 * MIB))]);
    let machine = machine(&hub);
    let mirror = format!("file://{}", machine.directory("mirror").display());
    let add = ["mirror", "add", "hf://owner/repo", "--mirror", &mirror];
    hub.storage.faults.set(ServerFault::Garble);
    let ran = machine.run(&add);
    assert_eq!(ran.code, Some(1));
    let words =
        "cannot mirror hf://models/owner/repo: sub/w.safetensors: the origin sent content that does not have";
    assert!(ran.err.contains(words), "{}", ran.err);
    hub.storage.faults.clear();
    machine.run(&add).succeeds();
}

#[test]
fn hub_name_without_owner_prints_a_note() {
    let hub = HubServer::start();
    hub.publish("models/owner/gpt2", "main", &[("x", b"x")]);
    hub.rename("models/gpt2", "models/owner/gpt2");
    let machine = machine(&hub);
    let point = machine.directory("mnt");
    let ran = machine.try_mount("hf://gpt2", &point, &[]);
    assert!(ran.err.starts_with("note: \"gpt2\" has no owner"), "{}", ran.err);
    ran.succeeds();
    assert_eq!(fs::read(point.join("x")).unwrap(), b"x");
}

#[test]
fn hub_gated_repository_fails_with_a_hint() {
    let hub = HubServer::start();
    hub.publish("models/owner/repo", "main", &[("x", b"x")]);
    hub.set_access("models/owner/repo", RepositoryAccess::GatedContent);
    let machine = machine(&hub);
    let point = machine.directory("mnt");
    let page = format!("accept its terms at {}/owner/repo", hub.url());
    let refused = machine.try_mount("hf://owner/repo", &point, &[]);
    refused.fails(&["hf://models/owner/repo@", "is gated", &page, "set HF_TOKEN"]);
    assert!(!is_mounted(&point));
    machine.run(&["ls", "hf://owner/none"]).fails(&["the Hub has no model owner/none"]);
    machine.run(&["ls", "hf://owner/repo@v9"]).fails(&["has no such revision"]);

    // The token that `hf auth login` has left.
    hub.token(TOKEN, &["models/owner/repo"]);
    fs::write(machine.directory(".cache/huggingface").join("token"), TOKEN).unwrap();
    let point = machine.mount("hf://owner/repo", "mnt");
    assert_eq!(fs::read(point.join("x")).unwrap(), b"x");
    machine.run(&["ls", "hf://owner/repo@main/nothing"]).fails(&["has no such file or directory"]);
    machine.run(&["ls", "--anonymous", "hf://owner/repo"]).fails(&["is gated"]);
    let wrong = machine.env("HF_TOKEN", "hf_wrong");
    wrong.run(&["ls", "hf://owner/repo"]).fails(&["the Hub does not accept the token", "settings/tokens"]);
}

#[test]
fn hub_mount_with_token_shows_no_secret() {
    let hub = HubServer::start();
    hub.publish("models/owner/repo", "main", &[("x", b"x"), ("w", &content("w", 2 * MIB))]);
    hub.set_access("models/owner/repo", RepositoryAccess::Private);
    hub.token(TOKEN, &["models/owner/repo"]);
    let machine = machine(&hub).env("HF_TOKEN", TOKEN);
    let point = machine.mount_with("hf://owner/repo", "mnt", &["--wait", "-vvv"]);
    fs::read(point.join("x")).unwrap();
    let second = machine.mount("hf://owner/repo", "second");
    hub.revoke(TOKEN);
    let refused = machine.try_mount("hf://owner/repo", &machine.directory("third"), &[]);
    let status =
        machine.run(&["status", "--json", "--cache-dir", machine.cache().to_str().unwrap()]).succeeds();
    for text in [&refused.out, &refused.err, &status] {
        assert!(!text.contains(TOKEN) && !text.contains("signed-"), "{text}");
    }
    refused.fails(&["does not accept the token"]);
    fs::read(second.join("w")).unwrap();
    for pid in machine.agent_pids() {
        for what in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{}/{what}", pid.as_raw_nonzero())).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains(TOKEN), "the agent's {what}");
        }
    }
    let mut grep = program("grep");
    grep.args(["-r", "-a", "-s", "-l", "-F", "-e", TOKEN, "-e", "Signature=signed-"]).arg(machine.cache());
    let output = grep.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files of the cache that hold a secret");
}
