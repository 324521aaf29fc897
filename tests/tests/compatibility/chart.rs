//! The Helm chart and the manifests of the manual, against the schemas of Kubernetes. `scripts/emulators` installs both.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use bdnfs_tests::kubelet::Kubelet;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::repository;
use bdnfs_tests::tools::{program, run, target};
use serde_json::Value;
use tempfile::TempDir;

/// The versions of Kubernetes that the manual promises.
const VERSIONS: [&str; 7] = ["1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35"];

pub fn tool(name: &str) -> Command {
    let path = target().parent().unwrap().join("emulators/kubernetes").join(name);
    assert!(path.exists(), "{} is missing; see scripts/emulators", path.display());
    Command::new(path)
}

fn template(values: &[&str]) -> Output {
    let mut helm = tool("helm/helm");
    helm.args(["template", "bdnfs", "deploy/chart", "--namespace", "bdnfs"]).current_dir(repository());
    helm.args(values.iter().flat_map(|value| ["--set", value])).output().unwrap()
}

/// Validates a file, strictly, in every version.
pub fn validate(path: &Path) {
    for version in VERSIONS {
        run(tool("bin/kubernetes-validate").args(["--strict", "--quiet", "-k", version]).arg(path));
    }
}

#[test]
fn chart_rendered_is_valid_in_every_promised_version() {
    run(tool("helm/helm").args(["lint", "--strict", "deploy/chart"]).current_dir(repository()));
    let directory = TempDir::new().unwrap();
    let all = [
        "controller.enabled=true",
        "environmentSecret=mirror",
        "config.mirror.url=s3://mirror",
        "tenants.team-a=research",
        "agent.hostNetwork=true",
        "imagePullSecrets[0].name=registry",
        "nodeSelector.gpu=yes",
        "controller.nodeSelector.system=yes",
        "controller.tolerations[0].key=system",
        "controller.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey=zone",
        "csi.events=false",
        "locality.enabled=true",
        "fdstore.image.tag=0.1.0-first",
        "caCertificates=authorities",
        "extraVolumes[0].name=node",
        "extraVolumes[0].secret.secretName=node",
        "agent.extraVolumeMounts[0].name=node",
        "agent.extraVolumeMounts[0].mountPath=/etc/bdnfs-node",
        "csi.extraVolumeMounts[0].name=node",
        "csi.extraVolumeMounts[0].mountPath=/etc/bdnfs-node",
    ];
    for values in [&[][..], &all] {
        let output = template(values);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = directory.path().join("chart.yaml");
        fs::write(&path, &output.stdout).unwrap();
        validate(&path);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.contains("--tenant=team-a=research"), !values.is_empty());
        for part in ["--locality-interval=1m", "resources: [nodes], verbs: [get, patch]", "name: account"] {
            // Without it the account is for events.
            assert_eq!(text.contains(part), !values.is_empty() || part == "name: account", "{part}");
        }
        // Both containers have the files that values name.
        for (part, count) in
            [("mountPath: /etc/bdnfs-node", 2), ("mountPath: /etc/bdnfs-ca", 2), ("secretName: node", 1)]
        {
            assert_eq!(text.matches(part).count(), if values.is_empty() { 0 } else { count }, "{part}");
        }
        // Probes touch no mount.
        assert!(text.contains("--check, live]") && text.contains("--check, ready]"), "{text}");
        // A new version of the agent leaves the fd store as it is.
        let fdstore = text.split("---\n").find(|document| document.contains("name: bdnfs-fdstore")).unwrap();
        assert!(fdstore.contains("type: OnDelete") && fdstore.contains("drop: [ALL]"), "{fdstore}");
        assert!(!fdstore.contains("checksum/config") && !fdstore.contains("privileged: true"), "{fdstore}");
        assert_eq!(fdstore.contains("bdnfs:0.1.0-first"), !values.is_empty());
        // Each of the two kinds of pods runs where its own values say.
        let controller = text.split("---\n").find(|document| document.contains("kind: Deployment"));
        let controller = controller.unwrap_or_default();
        for (part, is_of_controller) in [
            ("system: \"yes\"", true),
            ("key: system", true),
            ("topologyKey: zone", true),
            ("gpu: \"yes\"", false),
        ] {
            assert_eq!(controller.contains(part), is_of_controller && !values.is_empty(), "{part}");
            assert_eq!(fdstore.contains(part), !is_of_controller && !values.is_empty(), "{part}");
        }
        // It signals an agent that is stopped or hangs.
        assert!(fdstore.contains("hostPID: true"), "{fdstore}");
    }
}

#[test]
fn chart_with_pod_tokens_is_valid_and_keeps_them_in_secrets_where_kubernetes_can() {
    let directory = TempDir::new().unwrap();
    for version in VERSIONS {
        let rendered = |value: &str| {
            let mut helm = tool("helm/helm");
            helm.args(["template", "bdnfs", "deploy/chart", "--kube-version", &format!("{version}.0")]);
            run(helm.args(["--set", value]).current_dir(repository()))
        };
        let with = rendered("podTokens=true");
        let path = directory.path().join("chart.yaml");
        fs::write(&path, &with).unwrap();
        run(tool("bin/kubernetes-validate").args(["--strict", "--quiet", "-k", version]).arg(&path));
        assert!(
            with.contains("- audience: \"sts.amazonaws.com\"\n") && with.contains("requiresRepublish: true")
        );
        assert_eq!(with.contains("serviceAccountTokenInSecrets: true"), version == "1.35", "{version}");
        assert!(with.contains("- --pod-tokens\n"));
        let provider =
            "https://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k8s";
        let all =
            rendered(&format!("podTokens=true,podTokenAudiences={{api://AzureADTokenExchange,{provider}}}"));
        fs::write(&path, &all).unwrap();
        run(tool("bin/kubernetes-validate").args(["--strict", "--quiet", "-k", version]).arg(&path));
        for (audience, asked) in
            [("api://AzureADTokenExchange", true), (provider, true), ("sts.amazonaws.com", false)]
        {
            assert_eq!(all.contains(&format!("- audience: {audience:?}\n")), asked, "{audience}");
        }
        let without = rendered("podTokens=false");
        for words in ["tokenRequests", "requiresRepublish", "--pod-tokens"] {
            assert!(!without.contains(words), "{words}");
        }
    }
}

#[test]
fn chart_with_an_unknown_or_wrong_value_is_refused_by_name() {
    for (value, name) in [
        ("agnet.hostNetwork=true", "agnet"),
        ("config.cache_sise=2T", "cache_sise"),
        ("config.mirror.ulr=s3://mirror", "ulr"),
        ("config.cluster.seed=a", "seed"),
        ("config.tenants.a.qouta=1G", "qouta"),
        ("config.volumes.directory=/x", "directory"),
        ("config.volumes.dir=/x", "dir"),
        ("config.telemetry.otel=http://x", "otel"),
        ("config.hold=5m", "hold"),
        ("kubeletDir=kubelet", "kubeletDir"),
        ("tenants.team=a/b", "tenants"),
        ("controller.replicas=0", "replicas"),
        ("locality.interval=often", "interval"),
        ("podTokens=sts", "podTokens"),
        ("podTokenAudiences={sts}", "podTokenAudiences"),
        ("podTokenAudiences={https://iam.googleapis.com/projects/x}", "podTokenAudiences"),
        ("podTokenAudiences={}", "podTokenAudiences"),
    ] {
        let output = template(&[value]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(name), "{value}: {said}");
    }
}

/// The keys of docs/agent.toml by their sections; what has a name of its own is under `*`.
fn documented_keys() -> BTreeMap<String, BTreeSet<String>> {
    let page = fs::read_to_string(repository().join("docs/agent.toml")).unwrap();
    let (mut section, mut keys) = (String::new(), BTreeMap::<_, BTreeSet<_>>::new());
    for line in page.lines().filter_map(|line| line.strip_prefix('#')) {
        if let Some(name) = line.strip_prefix('[') {
            section = name
                .trim_end_matches(']')
                .split_once('.')
                .map_or_else(|| name.trim_end_matches(']').to_owned(), |(kind, _)| format!("{kind}.*"));
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with(' ')) {
            keys.entry(section.clone()).or_default().insert(key.to_owned());
        }
    }
    keys
}

#[test]
fn chart_takes_the_keys_of_the_agents_configuration() {
    let schema = fs::read(repository().join("deploy/chart/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_slice(&schema).unwrap();
    let config = &schema["properties"]["config"]["properties"];
    let mut documented = documented_keys();
    // The chart sets these itself, and a pod has no Docker.
    for section in ["publications", "docker"] {
        assert!(documented.remove(section).is_some() && config[section].is_null(), "{section}");
    }
    for key in ["cache_dir", "socket", "hold", "fdstore"] {
        assert!(documented.get_mut("").unwrap().remove(key) && config[key].is_null(), "{key}");
    }
    // It would lie in the container, and end with it: `volumesDir` is the one on the node.
    assert!(documented.get_mut("volumes").unwrap().remove("dir"));
    assert!(config["volumes"]["properties"]["dir"].is_null());
    assert_eq!(documented.len(), 8, "{documented:?}");
    for (section, keys) in documented {
        let has = match section.split_once('.') {
            Some((kind, _)) => &config[kind]["additionalProperties"]["properties"],
            None if section.is_empty() => config,
            None => &config[section.as_str()]["properties"],
        };
        let has: BTreeSet<_> = has.as_object().unwrap().keys().cloned().collect();
        let missing: Vec<_> = keys.difference(&has).collect();
        assert!(missing.is_empty(), "[{section}] {missing:?}");
        let sections = ["mirror", "tenants", "cluster", "sources", "volumes", "projects", "telemetry"];
        let more: Vec<_> = has.difference(&keys).filter(|key| !sections.contains(&key.as_str())).collect();
        assert!(more.is_empty(), "[{section}] {more:?}");
    }
}

#[test]
fn chart_with_numbers_in_a_file_gives_the_agent_whole_ones() {
    let home = TempDir::new().unwrap();
    let values = home.path().join("values.yaml");
    let config =
        "config:\n  cache_size: 2000000000000\n  sources: {x: {source: \"hf://o/m\", uid: 1000, gid: 0}}\n";
    fs::write(&values, config).unwrap();
    let mut helm = tool("helm/helm");
    helm.args(["template", "bdnfs", "deploy/chart", "--show-only", "templates/config.yaml", "--values"]);
    let rendered = run(helm.arg(&values).current_dir(repository()));
    for line in ["cache_size = 2000000000000", "uid = 1000", "gid = 0"] {
        assert!(rendered.lines().any(|found| found.trim() == line), "{line}: {rendered}");
    }
}

#[test]
fn chart_as_configured_runs_an_agent_and_a_driver_that_registers() {
    let machine = Machine::new();
    let kubelet = machine.directory("kubelet");
    let plugin = kubelet.join("plugins/csi.bdnfs.io");
    fs::create_dir_all(&plugin).unwrap();
    let kubelet_dir = format!("kubeletDir={}", kubelet.display());
    let values =
        [kubelet_dir.as_str(), "csi.events=false", "config.cache_size=1G", "config.tenants.a.quota=1M"];
    let rendered = String::from_utf8(template(&values).stdout).unwrap();
    // What its containers see, as this machine has it.
    let (cache, run) = (machine.cache().to_owned(), machine.directory("run"));
    let places = [("/var/cache/bdnfs", &cache), ("/run/bdnfs", &run)];
    let here = |text: &str| {
        places.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to.to_str().unwrap()))
    };
    let config = rendered.split("agent.toml: |\n").nth(1).unwrap().split("---").next().unwrap();
    let config: Vec<_> = config.lines().filter(|line| !line.contains("cache_dir")).map(here).collect();
    let fdstore = rendered.split("args: [fdstore, ").nth(1).unwrap().split(']').next().unwrap();
    let words: Vec<_> = ["fdstore".to_owned()].into_iter().chain(fdstore.split(", ").map(here)).collect();
    let mut fdstore = machine.command(&words).spawn().unwrap();
    let agent = machine.agent(&config.join("\n"));
    assert!(machine.fdstores().is_empty(), "it started one: {}", agent.log());
    fs::create_dir_all(kubelet.join("plugins_registry")).unwrap();
    let arguments = rendered.split("        - csi\n").nth(1).unwrap().lines();
    let arguments = arguments.map_while(|line| line.strip_prefix("        - ")).map(|line| {
        let line = line
            .replace("$(NODE_NAME)", "node-1")
            .replace("/csi/csi.sock", &plugin.join("csi.sock").display().to_string());
        here(&line.replace("=/registration", &format!("={}/plugins_registry", kubelet.display())))
    });
    let words: Vec<_> = ["csi".to_owned()].into_iter().chain(arguments).collect();
    let mut driver = machine.command(&words).spawn().unwrap();
    let mut kubelet = Kubelet::new(&kubelet);
    kubelet.register();
    assert!(kubelet.probe());
    for child in [&mut driver, &mut fdstore] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn manifests_committed_are_those_of_the_chart_and_valid() {
    let directory = TempDir::new().unwrap();
    let rendered = directory.path().join("bdnfs.yaml");
    let emulators = target().parent().unwrap().to_owned();
    run(program("bash")
        .arg(repository().join("scripts/chart"))
        .arg(&rendered)
        .env("CARGO_TARGET_DIR", emulators));
    let committed = repository().join("deploy/kubernetes/bdnfs.yaml");
    assert!(fs::read(&rendered).unwrap() == fs::read(&committed).unwrap(), "run scripts/chart");
    validate(&committed);
}
