//! docs/kubernetes.md: its volumes, as a kubelet brings them to a driver and an agent.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use bdnfs_csi::proto::csi::volume_capability::access_mode::Mode;
use bdnfs_tests::kubelet::{Kubelet, PodVolume};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::network::TestNetwork;
use bdnfs_tests::repository;
use bdnfs_tests::tools::{python, run};
use serde_json::{Value, json};
use tonic::Code;

use crate::kit::{DriverProcess, TOKENS_KEY, secret};

/// What is written of the page's volumes that pods write to.
const INLINE_VOLUMES: &str = "inline_volumes = [\"checkpoints\", \"projectCache\"]";
const PROVISIONER: &str = "csi.bdnfs.io";

/// The objects of the page's YAML.
fn objects() -> Vec<Value> {
    let page = repository().join("docs/kubernetes.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let all = blocks.collect::<Vec<_>>().join("---\n");
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.argv[1]))))";
    serde_json::from_str(&run(python(script).arg(all))).unwrap()
}

fn text_map(value: &Value) -> HashMap<String, String> {
    let pairs = value.as_object().unwrap().iter();
    pairs.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect()
}

/// The volumes of the page's objects, as a kubelet brings them.
fn volumes() -> Vec<PodVolume> {
    let objects = objects();
    let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
    // A secret of the page, or the only other one that it names: of a bucket.
    let secrets = |reference: &Value| -> HashMap<String, String> {
        let Some(name) = reference["name"].as_str() else { return HashMap::new() };
        match of_kind("Secret").find(|secret| secret["metadata"]["name"] == name) {
            Some(secret) => text_map(&secret["stringData"]),
            None => [(name.to_owned(), secret())].into(),
        }
    };
    let mut volumes = Vec::new();
    let mut add =
        |made: PodVolume, reference: &Value| volumes.push(PodVolume { secrets: secrets(reference), ..made });
    for pod in of_kind("Pod") {
        let name = pod["metadata"]["name"].as_str().unwrap();
        for volume in pod["spec"]["volumes"].as_array().into_iter().flatten() {
            let csi = &volume["csi"];
            assert_eq!(csi["driver"], PROVISIONER);
            let mut made = PodVolume::inline(&format!("{name}-{}", volume["name"].as_str().unwrap()), &[]);
            made.context.extend(text_map(&csi["volumeAttributes"]));
            made.read_only = csi["readOnly"] == true;
            add(made, &csi["nodePublishSecretRef"]);
        }
    }
    for volume in of_kind("PersistentVolume") {
        let csi = &volume["spec"]["csi"];
        assert_eq!(csi["driver"], PROVISIONER);
        let id = csi["volumeHandle"].as_str().unwrap();
        let mut made = PodVolume::persistent(id, id, &[]);
        made.context.extend(text_map(&csi["volumeAttributes"]));
        add(made, &csi["nodePublishSecretRef"]);
    }
    for class in of_kind("StorageClass") {
        assert_eq!(class["provisioner"], PROVISIONER);
        let mut parameters = text_map(&class["parameters"]);
        // The provisioner's own, which the controller never gets.
        let name = parameters.remove("csi.storage.k8s.io/node-publish-secret-name");
        parameters.remove("csi.storage.k8s.io/node-publish-secret-namespace").unwrap();
        let mut made = PodVolume::persistent("pvc-1", "pvc-1", &[]);
        made.context.extend(parameters);
        add(PodVolume { mode: Mode::MultiNodeReaderOnly, ..made }, &json!({"name": name}));
    }
    for volume in &mut volumes {
        let provider = volume.context.get("workloadIdentityProvider").map(|name| format!("https:{name}"));
        let audiences = ["sts.amazonaws.com", "api://AzureADTokenExchange"]
            .map(str::to_owned)
            .into_iter()
            .chain(provider);
        let tokens: Value = audiences.map(|audience| (audience, json!({"token": "a token"}))).collect();
        volume.secrets.insert(TOKENS_KEY.to_owned(), tokens.to_string());
    }
    volumes
}

#[test]
fn kubernetes_page_volumes_are_taken_by_driver_and_agent() {
    // Without a way to any service: what is taken fails there, and only there.
    let Some(network) = TestNetwork::new() else { return };
    let host = network.host("1gbit");
    let machine = Machine::new().in_network(&host);
    let kubelet_directory = machine.directory("kubelet");
    let (targets, mirror) = (kubelet_directory.join("pods"), machine.directory("mirror"));
    let config = format!(
        "[publications]\ntargets = [{targets:?}]\n{INLINE_VOLUMES}\n[mirror]\nurl = \"file://{}\"\n",
        mirror.display()
    );
    let agent = machine.agent(&config);
    let _driver = DriverProcess::on(&machine, &["--pod-tokens"]);
    let mut kubelet = Kubelet::new(&kubelet_directory).with_deadline(Duration::from_secs(6));
    kubelet.register();
    let (mut sources, mut written) = (0, 0);
    for volume in volumes() {
        let answer = kubelet.publish(&volume);
        if volume.context.contains_key("source") {
            let error = answer.unwrap_err();
            assert!(
                matches!(error.code(), Code::Unavailable | Code::Aborted),
                "{:?}: {error}",
                volume.context
            );
            sources += 1;
        } else {
            answer.unwrap_or_else(|error| panic!("{:?}: {error}\n{}", volume.context, agent.log()));
            fs::write(kubelet.target(&volume).join("file"), "text").unwrap();
            written += 1;
        }
        // Whoever wrote it wrongly is told.
        let mut wrong = volume.clone();
        wrong.pod += "-wrong";
        wrong.context.insert("sauce".to_owned(), "x".to_owned());
        assert_eq!(kubelet.publish(&wrong).unwrap_err().code(), Code::InvalidArgument);
        kubelet.unpublish(&volume).unwrap();
    }
    assert!(sources >= 4 && written >= 2, "{sources} sources, {written} to write to");
}
