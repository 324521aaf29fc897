use super::*;

fn report(format: Format, text: &str) -> CheckReport {
    let env = |name: &str| (name == "BDNFS_SECRET_HF_ACCESS_TOKEN").then(|| OsString::from("hush"));
    let rules = Rules { bdnfs_schema: format == Format::Toml, lenient: true };
    CheckReport { file: "file".into(), ..check(format, text, rules, &[], env) }
}

#[test]
fn check_of_yaml_reports_findings_by_line() {
    let text = r#"model_name: x
weights:
  - source: hf://gpt2@main
    mount_location: /models/a
    auth_secret_name: hf_access_token
  - source: s3://bucket/data
    mount_location: m
    auth:
      auth_method: AWS_OIDC
      aws_oidc_role_arn: arn
  - source: https://host/x?sig=hush
    mount_location: /models/b
    auth_secret_name: no-such
    revision: main
"#;
    let report = report(Format::Yaml, text);
    let expected = r#"file:3: note: weights[0].source: "gpt2" has no owner: the Hub keeps such names of its first days as pointers to where the repository moved; write owner/name, for a pointer may change hands
file:7: weights[1].mount_location: must be absolute, so begin with a slash: "m"
file:8: weights[1].auth: auth_method AWS_OIDC needs aws_oidc_region
file:13: warning: weights[2].auth_secret_name: no such secret: not in BDNFS_SECRET_NO_SUCH
file:14: warning: weights[2].revision: is not a known key; known keys are source, mount_location, auth, auth_secret_name, allow_patterns, ignore_patterns; it is ignored
file:3: weights[0]: accepted: hf://models/gpt2@main on /models/a
file:11: weights[2]: accepted: https://host/x?*** on /models/b
secret "hf_access_token": in environment variable BDNFS_SECRET_HF_ACCESS_TOKEN
secret "no-such": not found
"#;
    assert_eq!(format_report(&report), expected);
    let json = serde_json::to_string(&report).expect("JSON");
    assert!(!json.contains("hush"), "{json}");
    let json: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["accepted"], false);
    assert_eq!(
        json["findings"][2],
        serde_json::json!({
            "line": 8,
            "place": "weights[1].auth",
            "verdict": "reject",
            "text": "auth_method AWS_OIDC needs aws_oidc_region",
        })
    );
    assert_eq!(json["weights"][0]["normalized"]["source"], "hf://gpt2@main");
}

#[test]
fn check_of_toml_accepts_local_sources() {
    let toml = "[[weights]]\nsource = 'file:///srv/models'\nmount_location = '/models'\n";
    assert_eq!(
        format_report(&report(Format::Toml, toml)),
        "file:1: weights[0]: accepted: file:///srv/models on /models\n"
    );
    let broken = report(Format::Toml, "[[weights]]\nsource = [");
    assert!(!broken.accepted);
    assert_eq!(broken.findings[0].line, 2);
}

#[test]
fn check_normalizes_sources_as_truss_and_hides_secrets() {
    for (source, normalized) in [
        ("https://Example.ORG:443/a/../b c/é@1", "https://Example.ORG:443/a/../b c/é@1"),
        ("https://host", "https://host"),
        ("https://host/X?sig=hush", "https://host/X?***"),
        ("https://hush@host/a b", "https://host/a%20b"),
        ("s3://bucket/prefix/", "s3://bucket/prefix/"),
    ] {
        let yaml = format!("weights:\n  - source: {source}\n    mount_location: /m/\n");
        let report = report(Format::Yaml, &yaml);
        assert_eq!(report.weights[0].normalized["source"], normalized);
        assert_eq!(report.weights[0].normalized["mount_location"], "/m/");
    }
}

#[test]
fn check_of_a_missing_secret_of_a_variable_warns() {
    let toml = "[runtime]\nstart_commands = ['true']\nenvironment_variables = { A = { name = 'no-such' }, B = { name = 'hf_access_token' } }\n";
    let said = format_report(&report(Format::Toml, toml));
    let place =
        "file:3: warning: runtime.environment_variables.A: no such secret: not in BDNFS_SECRET_NO_SUCH";
    assert!(said.contains(place), "{said}");
    assert!(said.contains("secret \"no-such\": not found\n"), "{said}");
    assert!(said.contains("secret \"hf_access_token\": in environment variable"), "{said}");
    let long = format!("project = '{}'\n[runtime]\nstart_commands = ['true']\n", "p".repeat(300));
    let said = format_report(&report(Format::Toml, &long));
    assert!(said.contains("file:1: project: the name \"ppp") && said.contains("is too long"), "{said}");
}

#[test]
fn check_rejects_overlapping_or_relative_job_directories() {
    let said = |runtime: &str, mount: &str| {
        let toml = format!(
            "[runtime]\nstart_commands = ['true']\n{runtime}\n[[weights]]\nsource = 's3://b/x'\nmount_location = '{mount}'\n"
        );
        format_report(&report(Format::Toml, &toml))
    };
    let enabled = |key: &str, more: &str| format!("{key} = {{ enabled = true, {more} }}");
    for (runtime, mount, wrong) in [
        (
            enabled("checkpointing_config", "checkpoint_path = 'ckpts'"),
            "/models/a",
            "file:3: runtime.checkpointing_config.checkpoint_path: must be absolute",
        ),
        (
            enabled("checkpointing_config", "volume_size_gib = -1"),
            "/models/a",
            "file:3: runtime.checkpointing_config.volume_size_gib: must be at least 1",
        ),
        (
            enabled("load_checkpoint_config", "download_folder = 'loaded'"),
            "/models/a",
            "file:3: runtime.load_checkpoint_config.download_folder: must be absolute",
        ),
        (
            enabled("checkpointing_config", "checkpoint_path = '/mnt/bt-scratch/../ckpts'"),
            "/models/a",
            "file:3: runtime.checkpointing_config.checkpoint_path: has \"..\" in it",
        ),
        (
            enabled("load_checkpoint_config", "download_folder = '/mnt/bt-scratch/../loaded'"),
            "/models/a",
            "file:3: runtime.load_checkpoint_config.download_folder: has \"..\" in it",
        ),
        (
            enabled("checkpointing_config", "checkpoint_path = '/models/a'"),
            "/models/a",
            "file:3: runtime.checkpointing_config.checkpoint_path: mount location /models/a is used twice",
        ),
        (
            enabled("checkpointing_config", "checkpoint_path = '/mnt/bt-scratch'"),
            "/models/a",
            "mount location /mnt/bt-scratch is used twice",
        ),
        (
            enabled("cache_config", "mount_base_path = '/c'"),
            "/c/user_artifacts/m",
            "file:3: runtime.cache_config: /c/user_artifacts/m and the cache at /c/user_artifacts hide each other",
        ),
        (
            String::new(),
            "/mnt/bt-scratch",
            "file:6: weights[0].mount_location: mount location /mnt/bt-scratch is used twice; choose another",
        ),
    ] {
        let said = said(&runtime, mount);
        assert!(said.contains(wrong), "{said}");
        assert_eq!(said.contains("accepted:"), mount != "/mnt/bt-scratch", "{said}");
    }
    for runtime in [
        "checkpointing_config = { enabled = false, checkpoint_path = 'ckpts' }".to_owned(),
        enabled("checkpointing_config", "checkpoint_path = '/out', volume_size_gib = 1"),
        enabled("cache_config", "mount_base_path = '/c'"),
    ] {
        assert_eq!(
            said(&runtime, "/models/a").lines().filter(|line| !line.contains("accepted")).count(),
            0,
            "{runtime}"
        );
    }
}

#[test]
fn check_accepts_repositories_of_the_hub_in_a_training_cache() {
    let said = |mount: &str, layout: &str| {
        let toml = format!(
            "[runtime]\nstart_commands = ['true']\ncache_config = {{ enabled = true, mount_base_path = '/c' }}\n\
             [[weights]]\nsource = 'hf://o/r@main'\nmount_location = '{mount}'\n{layout}"
        );
        format_report(&report(Format::Toml, &toml))
    };
    let layout = "layout = 'hf-cache'\n";
    for mount in ["/c/user_artifacts", "/c/user_artifacts/hub", "/c/team_artifacts/hub"] {
        assert!(!said(mount, layout).contains("hide each other"), "{mount}: {}", said(mount, layout));
        assert!(said(mount, "").contains("hide each other"), "{mount}: {}", said(mount, ""));
    }
    assert!(said("/c", layout).contains("hide each other"), "{}", said("/c", layout));
}

#[test]
fn check_judges_repositories_in_a_training_cache_by_no_file_of_the_host() {
    let home = tempfile::tempdir().unwrap();
    let base = home.path().display();
    std::fs::create_dir(home.path().join("user_artifacts")).unwrap();
    std::os::unix::fs::symlink("nowhere", home.path().join("user_artifacts/dangling")).unwrap();
    std::fs::write(home.path().join("user_artifacts/file"), "").unwrap();
    for place in ["dangling", "file"] {
        let toml = format!(
            "[runtime]\nstart_commands = ['true']\ncache_config = {{ enabled = true, mount_base_path = '{base}' }}\n\
             [[weights]]\nsource = 'hf://o/r@main'\nmount_location = '{base}/user_artifacts/{place}'\nlayout = 'hf-cache'\n\
             [[weights]]\nsource = 'hf://o/r@main'\nmount_location = '{base}/user_artifacts'\nlayout = 'hf-cache'\n"
        );
        let report = report(Format::Toml, &toml);
        assert!(report.accepted && report.weights.len() == 2, "{}", format_report(&report));
    }
}

#[test]
fn check_rejects_a_keep_below_1() {
    let said = |keep: &str| {
        let toml = format!(
            "keep = {keep}\n[runtime]\nstart_commands = ['true']\ncheckpointing_config = {{ enabled = true }}\n"
        );
        format_report(&report(Format::Toml, &toml))
    };
    assert!(said("-1").contains("file:1: keep: must be at least 1"), "{}", said("-1"));
    assert!(!said("3").contains("keep"), "{}", said("3"));
}

#[test]
fn check_rejects_a_job_without_commands_and_a_keep_without_checkpoints_as_submit_does() {
    let said = |toml: &str| format_report(&report(Format::Toml, toml));
    for runtime in
        ["[runtime]\n", "[runtime]\nstart_commands = []\n", "[runtime]\nenvironment_variables = {}\n"]
    {
        let said = said(runtime);
        assert!(
            said.contains("runtime.start_commands: is empty, so the job has nothing to run"),
            "{runtime}: {said}"
        );
    }
    let wrong = said("[runtime]\nstart_commands = 'true'\n");
    assert!(wrong.contains("start_commands") && !wrong.contains("is empty"), "{wrong}");
    // Weights may be mounted without a job.
    let weights = "[[weights]]\nsource = 's3://b/x'\nmount_location = '/m'\n";
    assert!(report(Format::Toml, weights).accepted, "{}", said(weights));
    let keep = said("keep = 3\n[runtime]\nstart_commands = ['true']\n");
    assert!(keep.contains("file:1: keep: has no effect, for the job saves no checkpoints"), "{keep}");
}

#[test]
fn check_rejects_a_place_that_a_link_leads_into_another() {
    let home = tempfile::tempdir().unwrap();
    let base = home.path().canonicalize().unwrap();
    std::fs::create_dir_all(base.join("a/below")).unwrap();
    std::os::unix::fs::symlink("a", base.join("link")).unwrap();
    let mut toml = "[runtime]\nstart_commands = ['true']\n".to_owned();
    for place in ["a", "link/below"] {
        let place = base.join(place);
        toml.push_str(&format!("[[weights]]\nsource = 's3://b/x'\nmount_location = {place:?}\n"));
    }
    let said = format_report(&report(Format::Toml, &toml));
    assert!(said.contains("weights[1].mount_location: links lead the mount locations"), "{said}");
}
