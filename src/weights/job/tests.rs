use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::source::Severity;
use crate::source::auth_method;
use crate::weights::{WEIGHTS_KEYS, read};

/// Returns what Truss says of its models and sends for jobs: printed by `tests/tests/compatibility/truss_push.py`.
fn recorded() -> Value {
    serde_json::from_str(include_str!("../testdata/truss_push.json")).expect("JSON")
}

fn bodies(kind: &str) -> BTreeMap<String, Value> {
    serde_json::from_value(recorded()[kind].clone()).expect("bodies by name")
}

fn lines(found: &Diagnostics) -> Vec<String> {
    found.iter().map(|f| format!("{}: {}: {}", f.verdict, f.place, f.text)).collect()
}

/// A body as it is posted, the job alone, and a project with the job in it.
fn forms(body: &Value) -> [Value; 3] {
    let job = &body["training_job"];
    [body.clone(), job.clone(), serde_json::json!({"name": "project", "job": job, "team_name": null})]
}

#[test]
fn pushed_job_in_each_form_is_read() {
    for (name, body) in bodies("run") {
        for document in forms(&body) {
            let (accepted, found) = read(&document, Rules::default());
            assert_eq!((lines(&found), accepted.len()), (vec![], 1), "{name}");
            assert!(accepted[0].place.to_string().ends_with("weights[0]"), "{name}");
            let runs = job_commands(&document);
            assert_eq!(runs.start_commands, ["test -s /models/m/config.json"], "{name}");
            let unsupported = unsupported(&document);
            assert_eq!((lines(&unsupported.refused), unsupported.is_job), (vec![], true), "{name}");
        }
    }
    let named = job_commands(&bodies("run")["named"]);
    assert_eq!(named.name.as_deref(), Some("job-1"));
    let [_, _, mut project] = forms(&bodies("run")["named"]);
    project["team_name"] = "blue".into();
    let of_project = job_commands(&project);
    assert_eq!((of_project.project.as_deref(), of_project.team.as_deref()), (Some("project"), Some("blue")));
    let own = job_commands(
        &serde_json::json!({"project": "p", "team": "t", "runtime": {"start_commands": ["true"]}}),
    );
    assert_eq!((own.project.as_deref(), own.team.as_deref()), (Some("p"), Some("t")));
    let variables = job_commands(&bodies("run")["variables"]).environment;
    assert_eq!(variables["HF_TOKEN"], Variable::Secret { name: "hf_access_token".to_owned() });
    assert_eq!(variables["WANDB_PROJECT"], Variable::Text("x".to_owned()));
}

#[test]
fn job_with_unsupported_keys_is_refused_or_warned_of() {
    let bodies = bodies("refuse");
    let [_, job, _] = forms(&bodies["node_count"]);
    assert_eq!(read(&job, Rules::default()).1, Diagnostics::default());
    let text = "reject: compute.node_count: must be 1: a job runs on one node; submit one job on each";
    assert_eq!(lines(&unsupported(&job).refused), [text]);
    assert_eq!(bodies.len(), 3);
    let relative =
        serde_json::json!({"runtime": {"cache_config": {"enabled": true, "mount_base_path": "cache"}}});
    let text = "reject: runtime.cache_config.mount_base_path: must be an absolute path without '..'";
    assert_eq!(lines(&unsupported(&relative).refused), [text]);
    for (path, size) in [(None, None), (Some("/ckpts"), Some(20))] {
        let [mut body, _, _] = forms(&bodies["checkpointing"]);
        assert_eq!(lines(&unsupported(&body).refused), [""; 0]);
        let config = serde_json::json!({"enabled": true, "checkpoint_path": path, "volume_size_gib": size});
        body["training_job"]["runtime"]["checkpointing_config"] = config;
        let asked = job_commands(&body).checkpoints.expect("enabled");
        assert_eq!((asked.checkpoint_path, asked.volume_size_gib), (path.map(PathBuf::from), size));
        body["training_job"]["runtime"]["checkpointing_config"]["enabled"] = false.into();
        assert_eq!(job_commands(&body).checkpoints, None);
    }
    let [mut body, _, project] = forms(&bodies["node_count"]);
    body["training_job"]["priority"] = 1.into();
    let expected = [
        "image, compute: no effect: the commands run on this machine as it is",
        "runtime.artifacts, enable_baseten_workdir: no effect: the commands run in the working directory of the job, with \
         the files that are there",
        "priority: no effect: jobs are admitted in the order in which they come",
        "truss_user_env: no effect: it describes the machine that pushed the job",
    ];
    assert_eq!(unsupported(&body).ignored, expected);
    let ignored = unsupported(&project).ignored;
    assert_eq!(ignored[0], expected[0]);
}

#[test]
fn truss_config_has_variables_and_unmounted_data() {
    let config = serde_json::json!({
        "model_name": "m", "environment_variables": {"A": "b"}, "runtime": {"predict_concurrency": 2},
        "external_data": [{"url": "https://host/x", "local_data_path": "x"}], "weights": [],
    });
    assert_eq!(read(&config, Rules::default()).1, Diagnostics::default());
    let environment = BTreeMap::from([("A".to_owned(), Variable::Text("b".to_owned()))]);
    assert_eq!(
        job_commands(&config),
        JobCommands { name: Some("m".to_owned()), environment, ..JobCommands::default() }
    );
    let unsupported = unsupported(&config);
    assert!(!unsupported.is_job);
    let refused = "reject: external_data: names data that is not mounted here; name it in weights";
    assert_eq!(lines(&unsupported.refused), [refused]);
    let ignored = "runtime: no effect: they are for the service that builds and serves the model";
    assert_eq!(unsupported.ignored, [ignored]);
    let runtime = serde_json::json!({"weights": [], "runtime": {"predict_concurrency": 2}});
    assert_eq!(read(&runtime, Rules::default()).1, Diagnostics::default(), "told by its runtime");
    // The older name of model_cache.
    let both = serde_json::json!({
        "hf_cache": [{"repo_id": "o/r"}], "weights": [{"source": "s3://b/x", "mount_location": "/m"}],
    });
    let text = "cannot be used with \"weights\"; keep one of them (`truss migrate` turns it into weights)";
    assert_eq!(lines(&read(&both, Rules::default()).1), [format!("reject: hf_cache: {text}")]);
}

/// Every mapping of every body, but those that hold what a user names.
fn mappings(value: &Value, place: &str, all: &mut Vec<String>) {
    match value {
        Value::Object(map) if !place.ends_with("/environment_variables") => {
            all.push(place.to_owned());
            map.iter().for_each(|(key, value)| mappings(value, &format!("{place}/{key}"), all));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, value)| mappings(value, &format!("{place}/{i}"), all));
        }
        _ => {}
    }
}

#[test]
fn unknown_key_at_any_level_is_rejected_unless_lenient() {
    let mut levels = BTreeSet::new();
    let all = bodies("run").into_values().chain(bodies("refuse").into_values());
    for document in all.flat_map(|body| forms(&body)) {
        let mut places = Vec::new();
        mappings(&document, "", &mut places);
        for place in places {
            let mut wrong = document.clone();
            wrong
                .pointer_mut(&place)
                .and_then(Value::as_object_mut)
                .expect("a mapping")
                .insert("wieght".into(), 1.into());
            let verdicts = [false, true].map(|lenient| {
                let (_, found) = read(&wrong, Rules { lenient, bdnfs_schema: false });
                let mut unknown = found.iter().filter(|f| f.place.to_string().ends_with("wieght"));
                unknown.next().map(|f| f.verdict)
            });
            assert_eq!(verdicts, [Some(Severity::Reject), Some(Severity::Warning)], "{place}");
            levels.insert(place);
        }
    }
    assert!(levels.len() > 30, "{levels:?}");
    for document in [
        serde_json::json!({"wieghts": [], "runtime": {"start_commands": ["true"]}}),
        serde_json::json!({"model_name": "m", "wieghts": []}),
        serde_json::json!({"imgae": {"base_image": "b"}, "runtime": {"start_commands": ["true"]}, "weights": []}),
        serde_json::json!({"weights": [], "runtime": {"start_comands": ["true"]}}),
        serde_json::json!({"model_name": "m", "weights": [], "runtime": {"start_commands": ["true"]}}),
        serde_json::json!({"trainingjob": {"weights": []}}),
        serde_json::json!({"name": "p", "jobs": {"weights": []}}),
    ] {
        assert_ne!(read(&document, Rules::default()).1.rejects(), 0, "{document}");
    }
}

#[test]
fn config_key_misspelt_at_any_level_is_rejected_unless_lenient() {
    let fields: BTreeSet<String> =
        serde_json::from_value(recorded()["fields"]["config"].take()).expect("places");
    let mut levels = BTreeSet::new();
    for place in fields.iter().filter(|place| !place.starts_with("weights.")) {
        let Some((above, key)) = place.rsplit_once('.') else { continue };
        let document = |key: &str| {
            let mut value = serde_json::json!({key: "x"});
            for (depth, above) in above.split('.').rev().enumerate() {
                // A list of mappings is looked into as a mapping is.
                value = if depth == 0 {
                    serde_json::json!({above: [value]})
                } else {
                    serde_json::json!({above: value})
                };
            }
            value["model_name"] = "m".into();
            value
        };
        let unknown = |document: &Value, lenient| {
            let (_, found) = read(document, Rules { lenient, bdnfs_schema: false });
            found.into_iter().find(|f| f.text.starts_with("is not a known key")).map(|f| f.verdict)
        };
        assert_eq!(unknown(&document(key), false), None, "{place}");
        let wrong = document(&format!("{key}x"));
        let verdicts = [false, true].map(|lenient| unknown(&wrong, lenient));
        assert_eq!(verdicts, [Some(Severity::Reject), Some(Severity::Warning)], "{place}");
        levels.insert(above);
    }
    assert!(levels.len() > 25, "{levels:?}");
    let free =
        serde_json::json!({"build": {"arguments": {"any": {"thing": 1}}}, "bis_llm": {"config": {"any": 1}}});
    assert_eq!(read(&free, Rules::default()).1.rejects(), 0);
}

#[test]
fn config_variables_are_the_texts_that_truss_makes_of_them() {
    let config = serde_json::json!({"model_name": "m", "weights": [], "environment_variables": {
        "TEXT": "x", "YES": true, "WHOLE": -7, "REAL": 0.1, "ONE": 1.0, "NONE": 0.0,
    }});
    assert_eq!(read(&config, Rules::default()).1, Diagnostics::default());
    let text = |text: &str| Variable::Text(text.to_owned());
    let expected =
        [("NONE", "0.0"), ("ONE", "1.0"), ("REAL", "0.1"), ("TEXT", "x"), ("WHOLE", "-7"), ("YES", "true")];
    let expected = expected.map(|(name, value)| (name.to_owned(), text(value)));
    assert_eq!(job_commands(&config).environment, BTreeMap::from(expected));
    // Those whose text is not the same in all languages, and what is no text at all.
    for value in [serde_json::json!(1e16), serde_json::json!(0.00001), Value::Null, serde_json::json!([1])] {
        let config =
            serde_json::json!({"model_name": "m", "weights": [], "environment_variables": {"X": value}});
        let found = lines(&read(&config, Rules::default()).1);
        assert!(found[0].starts_with("reject: environment_variables.X: must be a string, not "), "{found:?}");
    }
    // A training job takes texts only, as truss_train.
    let job = serde_json::json!({"weights": [], "runtime": {"environment_variables": {"X": 1}}});
    assert_eq!(read(&job, Rules::default()).1.rejects(), 1);
}

#[test]
fn variable_or_command_that_no_process_takes_is_rejected() {
    let document = serde_json::json!({"weights": [], "runtime": {
        "start_commands": ["true", "a\0b"],
        "environment_variables": {"": "x", "A=B": "x", "C": "a\0b", "D": {"name": "s"}},
    }});
    let name = "cannot be the name of a variable: it is empty or contains = or NUL";
    let nul = "contains a NUL, which no process can be given";
    let expected = [
        format!("reject: runtime.start_commands[1]: {nul}"),
        format!("reject: runtime.environment_variables.\"\": {name}"),
        format!("reject: runtime.environment_variables.\"A=B\": {name}"),
        format!("reject: runtime.environment_variables.C: {nul}"),
    ];
    assert_eq!(lines(&read(&document, Rules::default()).1), expected);
}

/// The places of all keys; with what a job does with them, where they say it themselves.
fn places(keys: &[JobKey], above: &str, all: &mut BTreeMap<String, Option<&'static str>>) {
    for key in keys {
        let place = format!("{above}{}", key.name);
        let effect = key.effect.map(|effect| match effect {
            KeyEffect::Done => "done",
            KeyEffect::Ignored(_) => "ignored",
            KeyEffect::Refused { .. } => "refused",
        });
        if let Shape::Keys(keys) | Shape::List(keys) | Shape::TextOr(keys) = key.shape {
            places(keys, &format!("{place}."), all);
        }
        all.insert(place, effect);
    }
}

fn places_of(keys: &[JobKey]) -> BTreeMap<String, Option<&'static str>> {
    let mut all = BTreeMap::new();
    places(keys, "", &mut all);
    all
}

#[test]
fn job_keys_equal_the_fields_of_truss() {
    let fields = recorded()["fields"].take();
    let fields =
        |model: &str| serde_json::from_value::<BTreeSet<String>>(fields[model].clone()).expect("fields");
    let known = |keys| places_of(keys).into_keys().collect::<BTreeSet<_>>();
    let mut job = known(JOB);
    job.extend(WEIGHTS_KEYS.iter().map(|key| format!("weights.{key}")));
    job.extend(auth_method::keys().chain([auth_method::METHOD_KEY]).map(|key| format!("weights.auth.{key}")));
    assert_eq!(job, fields("job"));
    assert_eq!(known(PROJECT), fields("project"));
    let (top, below) = fields("config").into_iter().partition::<BTreeSet<_>, _>(|place| !place.contains('.'));
    assert_eq!(known(CONFIG), top);
    // Those of the weights are checked by themselves.
    for place in below.iter().filter(|place| !place.starts_with("weights.")) {
        let (above, key) = place.rsplit_once('.').expect("a place below another");
        assert!(config_keys::below(above).contains(&key), "{place}: scripts/vectors records it");
    }
}

#[test]
fn job_keys_in_the_docs_equal_those_handled() {
    let manual = include_str!("../../../docs/jobs.md");
    for (heading, keys) in
        [("### A training job", JOB), ("### A project", PROJECT), ("### A config.yaml", CONFIG)]
    {
        let (_, section) = manual.split_once(&format!("{heading}\n")).expect(heading);
        let section = section.split("\n#").next().expect("text");
        let mut documented = BTreeMap::new();
        for row in section.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            for key in cells[1].split('`').skip(1).step_by(2) {
                assert!(documented.insert(key.to_owned(), cells[2].to_owned()).is_none(), "{key} twice");
            }
        }
        let handled =
            places_of(keys).into_iter().filter_map(|(place, effect)| Some((place, effect?.to_owned())));
        assert_eq!(documented, handled.collect(), "{heading}");
    }
}
