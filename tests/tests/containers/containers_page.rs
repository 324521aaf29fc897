//! docs/containers.md: what it shows works.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::oci::{ContainerNode, blocks};

/// The page's source, and the secret that only it needs.
const SOURCE: &str = "hf://meta-llama/Llama-3.1-8B@main";
const REQUEST_SECRET: &str = ", \"secrets\": {\"hf\": \"hf_...\"}";
const NAMED_SECRET: &str = "secret = \"hf\"\n";

/// The first answer that curl prints, and what is printed behind it.
fn answer(out: &str) -> (Value, &str) {
    let mut answers = serde_json::Deserializer::from_str(out).into_iter();
    let first = answers.next().unwrap().unwrap();
    (first, &out[answers.byte_offset()..])
}

#[test]
fn containers_page_blocks_run_on_an_agent() {
    let found = blocks("containers.md");
    let kinds: Vec<_> = found.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["sh", "toml", "sh", "sh"]);
    let [publication, config, wait, volume] =
        <[String; 4]>::try_from(found.into_iter().map(|(_, text)| text).collect::<Vec<_>>()).unwrap();
    // There is no Hub here, and a directory needs no secret.
    assert!(publication.contains(REQUEST_SECRET) && config.contains(NAMED_SECRET));
    let (home, mirror) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(home.path().join("weights"), "text").unwrap();
    let source = format!("file://{}", home.path().display());
    let config = config.replace(SOURCE, &source).replace(NAMED_SECRET, "");
    let node =
        ContainerNode::new(&format!("{config}\n[mirror]\nurl = \"file://{}\"\n", mirror.path().display()));

    node.shell(&wait).succeeds();
    let named = node.agent.get("/v1/publications").json();
    assert_eq!(named["publications"][0]["state"], "published", "{named}");

    let run = publication.replace(SOURCE, &source).replace(REQUEST_SECRET, "");
    let out = node.shell(&run).succeeds();
    let (status, listed) = answer(&out);
    assert!(status["state"] == "published" && listed.starts_with("weights\n"), "{out}");
    // One base serves both; the named one is left.
    assert_eq!(node.namespace.mounted().len(), 1);

    let out = node.shell(&volume).succeeds();
    assert_eq!(answer(&out).0["state"], "published", "{out}");
    node.assert_saved();
    let (to, url) =
        (node.machine.directory("got").join("step-1"), format!("file://{}", mirror.path().display()));
    let words = ["checkpoint", "get", "step-1", to.to_str().unwrap(), "--project", "llama", "--mirror", &url];
    node.machine.run(&words).succeeds();
    assert_eq!(fs::read_to_string(to.join("model")).unwrap(), "weights\n");
}
