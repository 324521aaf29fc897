//! docs/kubernetes.md: its commands, by real ones of helm and kubectl, and its objects. tests/tests/csi/manual.rs has its volumes.

use std::fs;
use std::process::Command;

use bdnfs_tests::repository;
use bdnfs_tests::tools::run;
use tempfile::TempDir;

use crate::chart::{tool, validate};

/// Commands of the page that are not run here, by how they begin, and why.
const EXEMPT: [(&str, &str); 5] = [
    ("helm upgrade ", "needs a release in a cluster; the chart that it applies is that of `helm install`"),
    ("kubectl delete pod ", "needs a cluster; tests/kubernetes/smoke replaces pods by it"),
    ("kubectl label namespace ", "needs the namespace in a cluster; its labels are put on a local one here"),
    ("bdnfs source key ", "run by kubernetes_page_affinity_equals_output_of_source_key_and_project_key"),
    ("bdnfs project key ", "run by kubernetes_page_affinity_equals_output_of_source_key_and_project_key"),
];

fn page() -> String {
    fs::read_to_string(repository().join("docs/kubernetes.md")).unwrap()
}

/// The blocks of the page in `language`.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// What `command` of the page is, as one that needs no cluster: helm and kubectl are those of this machine.
fn local(command: &str) -> Command {
    let (name, words) = command.split_once(' ').unwrap();
    let mut local = tool(&format!("{name}/{name}"));
    local.args(words.split(' ').map(|word| word.trim_matches('\''))).arg("--dry-run=client");
    local.current_dir(repository());
    local
}

#[test]
fn kubernetes_page_commands_run_or_are_exempt_by_name() {
    let (page, directory) = (page(), TempDir::new().unwrap());
    let mut unused = EXEMPT.to_vec();
    let mut ran = 0;
    for command in blocks(&page, "sh").into_iter().flat_map(str::lines) {
        unused.retain(|(begin, _)| !command.starts_with(begin));
        if let Some(label) = command.strip_prefix("kubectl label namespace bdnfs ") {
            let namespace = directory.path().join("namespace.yaml");
            fs::write(&namespace, run(local("kubectl create namespace bdnfs").args(["-o", "yaml"]))).unwrap();
            let mut labelled = tool("kubectl/kubectl");
            labelled.args(["label", "--local", "-o", "yaml", label, "-f"]).arg(&namespace);
            fs::write(&namespace, run(&mut labelled)).unwrap();
            validate(&namespace);
        } else if !EXEMPT.iter().any(|(begin, _)| command.starts_with(begin)) {
            let said = run(&mut local(command));
            assert!(said.contains("bdnfs"), "{command}: {said}");
            ran += 1;
        }
    }
    assert!(unused.is_empty(), "no command is left out for these: {unused:?}");
    assert!(ran >= 2, "{ran} commands ran");
}

#[test]
fn kubernetes_page_values_are_taken_by_the_chart() {
    let page = page();
    let inline = page.split('`').skip(1).step_by(2).filter(|text| text.contains("--set "));
    let values: Vec<_> = inline.map(|text| text.split("--set ").nth(1).unwrap().trim_matches('\'')).collect();
    assert!(values.len() >= 3, "{values:?}");
    for value in values {
        let value = value.replace('\'', "");
        let mut helm = tool("helm/helm");
        helm.args(["template", "bdnfs", "deploy/chart", "--set", &value]).current_dir(repository());
        let with = run(&mut helm);
        let without =
            run(tool("helm/helm").args(["template", "bdnfs", "deploy/chart"]).current_dir(repository()));
        assert!(with != without, "{value} changes nothing");
    }
}

#[test]
fn kubernetes_page_objects_are_valid() {
    let page = page();
    let blocks = blocks(&page, "yaml");
    assert!(blocks.len() >= 3);
    let directory = TempDir::new().unwrap();
    for (number, block) in blocks.iter().enumerate() {
        let path = directory.path().join(format!("{number}.yaml"));
        fs::write(&path, block).unwrap();
        validate(&path);
    }
    // There is no block that nobody looks at.
    let fences = page.split("```").skip(1).step_by(2).map(|block| block.split('\n').next().unwrap());
    let others: Vec<_> = fences.filter(|kind| !["sh", "yaml"].contains(kind)).collect();
    assert!(others.is_empty(), "blocks that nobody runs: {others:?}");
}
