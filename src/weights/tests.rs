use super::*;
use crate::source::{Diagnostic, Severity};

/// The messages of Truss, recorded by running it.
const TRUSS: [&str; 2] =
    [include_str!("testdata/truss_weights.json"), include_str!("testdata/truss_weights_more.json")];

/// The configurations that Truss accepts and we don't; `docs/weights.md` has the reasons.
const STRICTER: [&str; 27] = [
    "hf @ empty revision accepted",
    "nested mounts accepted",
    "trailing-slash twin not seen as duplicate",
    "mount at / accepted",
    "mount with .. accepted",
    "twin by double slash",
    "twin by dot",
    "nested, deeper first",
    "mount ..",
    "mount //",
    "azure without a container",
    "r2 without a bucket",
    "https with a password",
    "s3 with an empty part",
    "s3 with a part ..",
    "hf with a part ..",
    "hf with a bad name",
    "hf kind in the singular",
    "hf kind alone",
    "hf bucket with a revision",
    "bucket with a space",
    "source with a line end",
    "https without a host",
    "mount with a line end",
    "mount with a NUL",
    "mount with a long name",
    "allow with a long pattern",
];

fn vectors() -> Vec<Value> {
    let cases = |text| match serde_json::from_str::<Value>(text).expect("JSON")["cases"].take() {
        Value::Array(cases) => cases,
        _ => panic!("no cases"),
    };
    TRUSS.into_iter().flat_map(cases).collect()
}

fn judge(case: &Value) -> (Vec<AcceptedEntry>, Diagnostics) {
    let rules = Rules { lenient: case["context"] != "forbid_extra", bdnfs_schema: false };
    read(&serde_json::json!({"weights": case["weights"]}), rules)
}

#[test]
fn weights_are_accepted_or_rejected_as_by_truss() {
    let mut stricter = 0;
    for case in vectors() {
        let name = case["name"].as_str().expect("name");
        let (accepted, found) = judge(&case);
        let differs = STRICTER.contains(&name);
        stricter += usize::from(differs);
        assert_eq!(found.rejects() == 0, case["verdict"] == "accept" && !differs, "{name}: {found:?}");
        if found.rejects() == 0 {
            let normalized: Value = accepted.into_iter().map(|a| a.normalized).collect();
            assert_eq!(normalized, case["normalized"], "{name}");
        }
    }
    assert_eq!(stricter, STRICTER.len());
}

/// All that is said of all those cases, word for word.
#[test]
fn weights_diagnostics_equal_the_recorded_ones() {
    let mut said = String::new();
    for case in vectors() {
        let (_, found) = judge(&case);
        for Diagnostic { place, verdict, text } in found {
            let name = case["name"].as_str().expect("name");
            said.push_str(&format!("{name}\n    {verdict}: {place}: {text}\n"));
        }
    }
    let expected = include_str!("testdata/weights_findings.txt");
    for (said, expected) in said.lines().zip(expected.lines()) {
        assert_eq!(said, expected);
    }
    assert_eq!(said.len(), expected.len());
}

#[test]
fn training_job_of_each_shape_is_read() {
    let jobs: Value = serde_json::from_str(include_str!("testdata/truss_train_job.json")).expect("JSON");
    for shape in ["job_model_dump", "job_model_dump_json_mode", "job_model_dump_json"] {
        let (accepted, found) = read(&jobs[shape], Rules::default());
        assert_eq!(found, Diagnostics::default(), "{shape}");
        assert_eq!(accepted.len(), 2);
        let normalized: Value = accepted.iter().map(|a| a.normalized.clone()).collect();
        assert_eq!(normalized, jobs[shape]["weights"]);
        let weights = &accepted[0].weights;
        assert_eq!(weights.auth.as_ref().and_then(AuthMethod::secret), Some("hf_access_token"));
        assert!(weights.patterns().expect("patterns").select(b"a/b.safetensors"));
        assert_eq!(accepted[1].weights.auth.as_ref().map(AuthMethod::method), Some("AWS_OIDC"));
    }
    // Truss doesn't compare the mounts of a job.
    let twice = &jobs["cases"][0]["dump"];
    assert_eq!(read(twice, Rules::default()).1.rejects(), 1);
}

/// The jobs that `truss_train` rejects, by their names in its recording, and others.
#[test]
fn training_job_is_rejected_as_by_truss_train() {
    let jobs: Value = serde_json::from_str(include_str!("testdata/truss_train_job.json")).expect("JSON");
    let with = |pointer: &str, key: &str, value: Value| {
        let mut job = jobs["job_model_dump_json"].clone();
        let at = job.pointer_mut(pointer).and_then(Value::as_object_mut).expect(pointer);
        at.insert(key.to_owned(), value);
        job
    };
    let unknown = "is not a known key; known keys are image, compute, runtime, interactive_session, name, priority, \
                   workspace, weights, enable_baseten_workdir, truss_user_env";
    let mut recorded = 0;
    for (name, job, said) in [
        (
            "enable_cache and cache_config",
            with("/runtime", "enable_cache", true.into()),
            "runtime.enable_cache: cannot be used with \"cache_config\", which has taken its place; leave it out",
        ),
        ("extra field", with("", "foo", 1.into()), &format!("foo: {unknown}")),
        (
            "strict: node_count str",
            with("/compute", "node_count", "2".into()),
            "compute.node_count: must be a whole number, not a string",
        ),
        (
            "bdn source",
            with("/weights/1", "source", "bdn:ns/v".into()),
            "weights[1].source: is a volume of another service (bdn:); write hf://owner/name, s3://bucket/prefix, \
             gs://bucket/prefix, r2://account.bucket/prefix, azure://account/container/path, cw://bucket/prefix, \
             https://host/file",
        ),
        ("", with("", "name", 1.into()), "name: must be a string, not a number"),
        ("", with("", "weights", Value::Null), "weights: must be a list, not null"),
        ("", with("", "image", serde_json::json!({})), "image.base_image: is missing"),
        ("", with("/compute", "memory", Value::Null), "compute.memory: must be a string, not null"),
        (
            "",
            with("/compute", "cpu_count", 1.5.into()),
            "compute.cpu_count: must be a whole number, not a number",
        ),
        (
            "",
            with("/compute", "availability_model", "cheap".into()),
            "compute.availability_model: must be one of dedicated, spot",
        ),
        (
            "",
            with("/runtime", "start_commands", "python".into()),
            "runtime.start_commands: must be a list of strings, not a string",
        ),
        (
            "",
            with("/runtime/environment_variables", "HF_TOKEN", serde_json::json!({"secret": "hush"})),
            "runtime.environment_variables.HF_TOKEN.secret: is not a known key; known keys are name\n\
             runtime.environment_variables.HF_TOKEN.name: is missing",
        ),
    ] {
        let (_, found) = read(&job, Rules::default());
        let rejects = found.iter().filter(|f| f.verdict == Severity::Reject);
        let all: Vec<_> = rejects.map(|f| format!("{}: {}", f.place, f.text)).collect();
        assert_eq!(all.join("\n"), said);
        let cases = jobs["cases"].as_array().expect("cases");
        recorded += cases.iter().filter(|case| case["name"] == name && case["verdict"] == "reject").count();
    }
    let rejects = jobs["cases"].as_array().expect("cases").iter().filter(|case| case["verdict"] == "reject");
    assert_eq!(rejects.count(), recorded, "each that is recorded is judged");
    // What the model makes of `enable_cache`.
    let migrated = with("", "runtime", jobs["cases"][2]["dump"].clone());
    assert_eq!(read(&migrated, Rules::default()).1, Diagnostics::default());
}

#[test]
fn checkpoint_is_a_source_in_own_toml_only() {
    let document = serde_json::json!({"weights": [{"source": "bt://p@j/x", "mount_location": "/models/x"}]});
    let (accepted, found) = read(&document, Rules { bdnfs_schema: true, lenient: false });
    assert_eq!((accepted[0].weights.source.to_string().as_str(), found.rejects()), ("bt://p@j/x", 0));
    let (accepted, found) = read(&document, Rules::default());
    let said: Vec<_> = found.into_iter().map(|f| f.text).collect();
    assert!(accepted.is_empty() && said[0].starts_with("is a checkpoint (bt://), which Truss"), "{said:?}");
}

#[test]
fn keys_without_effect_on_a_local_source_are_rejected() {
    let rejected = |source: &str, key: &str, value: Value| {
        let weights = serde_json::json!([{"source": source, "mount_location": "/m", key: value}]);
        let rules = Rules { bdnfs_schema: true, lenient: false };
        let (accepted, found) = read(&serde_json::json!({ "weights": weights }), rules);
        let said: Vec<_> =
            found.into_iter().map(|f| format!("{}: {}: {}", f.verdict, f.place, f.text)).collect();
        assert_eq!(accepted.is_empty(), !said.is_empty(), "{said:?}");
        said.into_iter().next()
    };
    for (source, key, value) in [
        ("file:///srv", "auth_secret_name", serde_json::json!("s")),
        ("bt://llama", "auth_secret_name", serde_json::json!("s")),
        ("file:///srv", "auth", serde_json::json!({"auth_method": "CUSTOM_SECRET", "auth_secret_name": "s"})),
        ("bt://llama", "executable_patterns", serde_json::json!(["*.sh"])),
    ] {
        let scheme = source.split_once("://").expect("a URI").0;
        let expected = format!("reject: weights[0].{key}: cannot be used with {scheme}://");
        assert_eq!(rejected(source, key, value), Some(expected));
    }
    assert_eq!(rejected("file:///srv", "executable_patterns", serde_json::json!(["*.sh"])), None);
}

#[test]
fn job_keys_beside_the_weights_are_reported() {
    let said = |document: Value, rules| {
        let (_, found) = read(&document, rules);
        found.into_iter().map(|f| format!("{}: {}: {}", f.verdict, f.place, f.text)).collect::<Vec<_>>()
    };
    let weights = serde_json::json!([{"source": "file:///srv", "mount_location": "/etc"}]);
    for (document, local, expected) in [
        (serde_json::json!([]), false, vec!["reject: : must be a mapping, not a list"]),
        (serde_json::json!({}), false, vec!["warning: : has no \"weights\", so there is nothing to mount"]),
        (
            serde_json::json!({"model_cache": [{}], "bdn": {"mounts": []}, "weights": weights}),
            true,
            vec![
                "reject: model_cache: cannot be used with \"weights\"; keep one of them (`truss migrate` turns it into \
                 weights)",
                "warning: bdn: names volumes of another service; they are not mounted here",
                "warning: weights[0].mount_location: hides the machine's own /etc; a directory below it is safer",
            ],
        ),
        (serde_json::json!({"model_cache": [{}], "weights": []}), true, vec![]),
        (
            serde_json::json!({"model_cache": null, "weights": []}),
            true,
            vec!["reject: model_cache: must be a list, not null"],
        ),
    ] {
        assert_eq!(said(document, Rules { bdnfs_schema: local, lenient: false }), expected);
    }
}

#[test]
fn weights_error_shows_no_secret_of_a_source() {
    for source in [
        "https://user:hush@host/x",
        "https://hush@host/x?sig=hush",
        "s3://hush@bucket/x",
        "user:hush@host/x",
        "hf://user:hush@host/x",
        "user:hush://x",
    ] {
        let document = serde_json::json!({"weights": [{"source": source, "mount_location": "/m"}]});
        let (accepted, found) = read(&document, Rules::default());
        assert!(found.iter().any(|f| f.verdict != Severity::Note), "{source}");
        let shown = format!("{found:?} {:?}", accepted.iter().map(|a| &a.weights).collect::<Vec<_>>());
        assert!(!shown.contains("hush"), "{shown}");
    }
}
