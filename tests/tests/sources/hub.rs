//! Sources of the Hugging Face Hub, with the real binary.

use std::fs;
use std::path::Path;

use bdnfs_tests::bdnfs::{Machine, mounted};
use bdnfs_tests::fault::Fault;
use bdnfs_tests::hub::{Guard, Hub};
use bdnfs_tests::tools::tool;
use bdnfs_tests::tree::{compare, content, files, grow, total};
use tempfile::TempDir;

const MIB: usize = 1 << 20;
const TOKEN: &str = "hf_plantedTokenThatNobodyMaySee";

/// Publishes the tree at `root`.
fn publish(hub: &Hub, repository: &str, root: &Path) -> String {
    let paths: Vec<_> = files(root).into_iter().map(|(path, _)| path.to_str().unwrap().to_owned()).collect();
    let contents: Vec<_> = paths.iter().map(|path| fs::read(root.join(path)).unwrap()).collect();
    let all: Vec<_> = paths.iter().zip(&contents).map(|(path, bytes)| (path.as_str(), &bytes[..])).collect();
    hub.publish(repository, "main", &all)
}

fn machine(hub: &Hub) -> Machine {
    Machine::new().env("HF_ENDPOINT", hub.url())
}

#[test]
fn a_repository_is_mounted_at_the_commit_that_it_had() {
    let (hub, root) = (Hub::start(), TempDir::new().unwrap());
    grow(root.path());
    let commit = publish(&hub, "models/owner/repo", root.path());
    let machine = machine(&hub);
    let point = machine.mount("hf://owner/repo@main", "mnt");
    hub.publish("models/owner/repo", "main", &[("config.json", b"another")]);
    compare(root.path(), &point);
    let served = hub.storage.tally.got("").bytes + hub.tally.got("").bytes;
    let status = machine.run(&["status"]).succeeds();
    assert!(status.contains(&format!("hf://models/owner/repo@{commit}")), "{status}");

    let again = machine.mount(format!("hf://owner/repo@{commit}"), "again");
    compare(root.path(), &again);
    let listing =
        hub.tally.of(axum::http::Method::GET, |path| path.starts_with("/api/models/owner/repo/")).bytes;
    let now = hub.storage.tally.got("").bytes + hub.tally.got("").bytes;
    assert!(now - served < listing, "content was fetched twice: {} bytes", now - served);
    let sub = machine.mount_with(format!("hf://owner/repo@{commit}/sizes"), "sub", &["--wait"]);
    compare(&root.path().join("sizes"), &sub);

    let ls = machine.run(&["ls", "hf://owner/repo"]).succeeds();
    assert!(
        ls.contains("config.json") && ls.contains("total: 1 file, 7 B in hf://models/owner/repo@"),
        "{ls}"
    );
    assert!(total(root.path()) > 8 * MIB as u64);
}

#[test]
fn a_large_file_is_held_against_its_sha256() {
    let hub = Hub::start();
    hub.publish("models/owner/repo", "main", &[("w.safetensors", &content("w", 3 * MIB))]);
    let machine = machine(&hub);
    let point = machine.directory("mnt");
    hub.storage.faults.set(Fault::Garble);
    machine.try_mount("hf://owner/repo", &point, &["--wait"]).fails(&["w.safetensors", "SHA-256"]);
    assert!(!mounted(&point));
    hub.storage.faults.clear();
    machine.try_mount("hf://owner/repo", &point, &["--wait"]).succeeds();
    assert_eq!(fs::read(point.join("w.safetensors")).unwrap(), content("w", 3 * MIB));
}

#[test]
fn a_name_without_an_owner_is_taken_with_a_note() {
    let hub = Hub::start();
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
fn what_is_gated_says_what_to_do() {
    let hub = Hub::start();
    hub.publish("models/owner/repo", "main", &[("x", b"x")]);
    hub.guard("models/owner/repo", Guard::GatedContent);
    let machine = machine(&hub);
    let point = machine.directory("mnt");
    let page = format!("accept its terms at {}/owner/repo", hub.url());
    let refused = machine.try_mount("hf://owner/repo", &point, &[]);
    refused.fails(&["hf://models/owner/repo@", "is gated", &page, "set HF_TOKEN"]);
    assert!(!mounted(&point));
    machine.run(&["ls", "hf://owner/none"]).fails(&["the Hub knows no model owner/none"]);
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
fn the_token_and_signatures_are_nowhere_to_be_seen() {
    let hub = Hub::start();
    hub.publish("models/owner/repo", "main", &[("x", b"x"), ("w", &content("w", 2 * MIB))]);
    hub.guard("models/owner/repo", Guard::Private);
    hub.token(TOKEN, &["models/owner/repo"]);
    let machine = machine(&hub).env("HF_TOKEN", TOKEN);
    let point = machine.mount_with("hf://owner/repo", "mnt", &["--wait", "-vvv"]);
    fs::read(point.join("x")).unwrap();
    let second = machine.mount("hf://owner/repo", "second");
    hub.revoke(TOKEN);
    let refused = machine.try_mount("hf://owner/repo", &machine.directory("third"), &[]);
    for text in [&refused.out, &refused.err, &machine.run(&["status", "--json"]).succeeds()] {
        assert!(!text.contains(TOKEN) && !text.contains("signed-"), "{text}");
    }
    refused.fails(&["does not accept the token"]);
    fs::read(second.join("w")).unwrap();
    for daemon in machine.daemons() {
        for what in ["cmdline", "environ"] {
            let text = fs::read(format!("/proc/{}/{what}", daemon.as_raw_nonzero())).unwrap();
            assert!(!String::from_utf8_lossy(&text).contains(TOKEN), "the daemon's {what}");
        }
    }
    let mut grep = tool("grep");
    grep.args(["-r", "-a", "-s", "-l", "-F", "-e", TOKEN, "-e", "Signature=signed-"]).arg(machine.cache());
    let output = grep.output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files of the cache that hold a secret");
}
