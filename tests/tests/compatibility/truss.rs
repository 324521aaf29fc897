//! Training jobs of the installed truss: what it would send is what was recorded, and runs. `scripts/emulators` installs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use bdnfs::source::Severity;
use bdnfs::weights::{self, Rules};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{run, target};
use serde_json::{Value, json};

/// How many jobs are made; in so many each key is there.
const JOBS: usize = 300;
/// How many of the jobs are run: each takes a second.
const RUNS: usize = 24;
/// How many configurations are made.
const CONFIGURATIONS: usize = 200;

/// The Python that truss is installed for.
fn python() -> Command {
    Command::new(target().parent().unwrap().join("emulators/truss/bin/python3"))
}

/// What the installed truss pushes, in the form of the recording.
fn pushed_by_installed_truss() -> Value {
    let out = run(python().arg("-c").arg(include_str!("truss_push.py")));
    serde_json::from_str(&out).unwrap()
}

/// The same without what differs from machine to machine.
fn comparable(mut said: Value) -> Value {
    said["produced_by"].take();
    for kind in ["run", "refuse"] {
        for (name, body) in said[kind].as_object_mut().unwrap() {
            let user = body["training_job"]["truss_user_env"].take();
            assert!(user["truss_client_version"].is_string(), "{name}");
        }
    }
    said
}

#[test]
fn truss_installed_gives_the_recorded_verdicts() {
    let recorded =
        serde_json::from_str(include_str!("../../../src/weights/testdata/truss_push.json")).unwrap();
    let (said, recorded) = (comparable(pushed_by_installed_truss()), comparable(recorded));
    assert_eq!(said["fields"], recorded["fields"], "the keys of its models: see docs/jobs.md");
    assert_eq!(said, recorded, "scripts/vectors records it anew");
}

#[test]
fn truss_installed_pushes_jobs_that_run() {
    let env = TestEnv::new();
    env.put("model/config.json", 700);
    let machine = &env.machine;
    let agent = machine.agent("");
    let secrets = machine.directory("secrets");
    fs::write(secrets.join("hf_access_token"), "hf_x").unwrap();
    let spec = machine.directory("specs").join("job.json");
    let [spec_name, secrets] = [&spec, &secrets].map(|path| path.to_str().unwrap());
    let mut count = 0;
    for (name, body) in pushed_by_installed_truss()["run"].as_object().unwrap() {
        let inner = &body["training_job"];
        for document in [body.clone(), inner.clone(), json!({"name": "project", "job": inner})] {
            fs::write(&spec, document.to_string()).unwrap();
            let ran = machine.run(&["job", "run", "--json", "--no-mirror", "--secrets", secrets, spec_name]);
            assert_eq!(ran.code, Some(0), "{name}: {}{}", ran.out, ran.err);
            let job: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
            assert_eq!(job["report"]["total"]["files"], 1, "{name}: {job}");
            count += 1;
        }
    }
    assert!(count > 30, "{count}");
    drop(agent);
}

/// Jobs and configurations that `truss_bodies.py` makes of the models of the installed truss, the same ones each time.
fn bodies(jobs: usize, configurations: usize) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compatibility/truss_bodies.py");
    let out = run(python()
        .arg(script)
        .args(["16", &jobs.to_string(), &configurations.to_string()])
        .env("PYTHONDONTWRITEBYTECODE", "1"));
    serde_json::from_str(&out).unwrap()
}

/// A job as it is posted, by itself, or in its project.
fn form(body: &Value, number: usize) -> Value {
    let job = &body["training_job"];
    match number % 3 {
        0 => body.clone(),
        1 => job.clone(),
        _ => json!({"name": "project", "job": job}),
    }
}

/// What `bdnfs check` rejects in a file: each place, and what is said of it.
fn rejected(machine: &Machine, file: &Path, content: &str) -> BTreeMap<String, String> {
    fs::write(file, content).unwrap();
    let checked = machine.run(&["check", "--json", file.to_str().unwrap()]);
    let report: Value = serde_json::from_str(&checked.out).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rejects = report["findings"].as_array().unwrap().iter().filter(|found| found["verdict"] == "reject");
    let rejects: BTreeMap<_, _> =
        rejects.map(|found| (text(&found["place"]), text(&found["text"]))).collect();
    assert_eq!(
        (report["accepted"] == true, checked.code),
        (rejects.is_empty(), Some(i32::from(!rejects.is_empty())))
    );
    rejects
}

/// Whether a key of the document is rejected as unknown.
fn has_unknown_key(document: &Value) -> bool {
    let (_, found) = weights::read(document, Rules::default());
    found
        .iter()
        .any(|found| found.verdict == Severity::Reject && found.text.starts_with("is not a known key"))
}

#[test]
fn truss_jobs_with_every_key_are_judged_by_what_they_ask_for() {
    let (machine, bodies) = (Machine::new(), bodies(JOBS, 0));
    assert_eq!(bodies["unseen"], json!([]), "keys that no job has");
    let file = machine.directory("specs").join("job.json");
    for (number, made) in bodies["jobs"].as_array().unwrap().iter().enumerate() {
        let document = form(&made["body"], number);
        let above = ["training_job.", "", "job."][number % 3];
        let asked = made["refused"].as_array().unwrap().iter();
        let asked: Vec<_> = asked.map(|place| format!("{above}{}", place.as_str().unwrap())).collect();
        let found = rejected(&machine, &file, &document.to_string());
        assert_eq!(found.keys().collect::<BTreeSet<_>>(), asked.iter().collect(), "{found:?}: {document}");
        assert!(has_unknown_key(&made["misspelt"]), "{}", made["misspelt"]);
    }
}

#[test]
fn truss_configurations_are_judged_as_truss_push_does() {
    let (machine, bodies) = (Machine::new(), bodies(0, CONFIGURATIONS));
    let file = machine.directory("specs").join("config.yaml");
    for made in bodies["configs"].as_array().unwrap() {
        let right = made["yaml"].as_str().unwrap();
        assert_eq!(rejected(&machine, &file, right), BTreeMap::new(), "{right}");
        assert!(has_unknown_key(&made["misspelt"]), "{}", made["misspelt"]);
    }
}

#[test]
fn truss_jobs_run_with_their_environment() {
    let env = TestEnv::new();
    env.put("model/config.json", 700);
    let machine = &env.machine;
    let agent = machine.agent("");
    let [secrets, specs, work] = ["secrets", "specs", "work"].map(|name| machine.directory(name));
    fs::write(secrets.join("hf_access_token"), "hf_x").unwrap();
    let file = specs.join("job.json");
    let [file_name, secrets, work_name] = [&file, &secrets, &work].map(|path| path.to_str().unwrap());
    let bodies = bodies(JOBS, 0);
    let jobs = bodies["jobs"].as_array().unwrap().iter().filter(|made| made["can_run"] == true);
    for (number, made) in jobs.take(RUNS).enumerate() {
        let document = form(&made["body"], number);
        fs::write(&file, document.to_string()).unwrap();
        let line =
            ["job", "run", "--json", "--no-mirror", "--secrets", secrets, "--workdir", work_name, file_name];
        let ran = machine.run(&line);
        assert_eq!(ran.code, Some(0), "{document}: {}{}", ran.out, ran.err);
        let environment = fs::read(work.join("env.out")).unwrap();
        let lines: BTreeSet<_> = environment.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let variables = &made["body"]["training_job"]["runtime"]["environment_variables"];
        for (name, value) in variables.as_object().unwrap() {
            let line = format!("{name}={}", value.as_str().unwrap_or("hf_x"));
            assert!(lines.contains(line.as_str()), "{line:?}: {lines:?}");
        }
    }
    drop(agent);
}

/// Prints the checkpoints of a list as truss does: each as its API would tell it.
const PRINT_CHECKPOINTS: &str = r#"
import datetime, json, sys
from truss.cli.train import checkpoint_viewer as viewer
listed = json.load(sys.stdin)
def tell(one):
    told = {key: one[key] for key in ("id", "checkpoint_id", "checkpoint_type", "base_model", "size_bytes")}
    created = datetime.datetime.fromisoformat(one["created_at"]).astimezone(datetime.timezone.utc)
    adapter = json.loads(sys.argv[2]) if one["checkpoint_type"] == "lora" else None
    return told | {"created_at": created.isoformat(), "lora_adapter_config": adapter}
given = [tell(one) for one in listed["checkpoints"]]
kind = {"json": viewer.JSONCheckpointViewer, "csv": viewer.CSVCheckpointViewer}[sys.argv[1]]()
if given: kind.output_checkpoints(given, listed["job_id"])
else: kind.output_no_checkpoints_message(listed["job_id"])
"#;

/// The configuration of an adapter.
const ADAPTER: &str = r#"{"base_model_name_or_path": "org/base", "r": 16}"#;
/// A time zone with another time than UTC.
const TIME_ZONE: &str = "IST-5:30";

#[test]
fn truss_installed_prints_checkpoints_as_ls_does() {
    let env = TestEnv::new();
    let mirror = env.machine.directory("mirror");
    let directory = env.machine.directory("tree");
    let [mirror, tree] = [&mirror, &directory].map(|path| path.to_str().unwrap());
    for (name, size) in [("step-1", 999), ("a, \"b\"", 1_234_567), ("out/checkpoint-5", 3)] {
        bdnfs_tests::tree::write_file(&directory, "model.bin", size);
        let named = ["--project", "p", "--job", "job1", "--name", name, "--mirror", mirror];
        env.machine.run(&[&["checkpoint", "push", tree], &named[..]].concat()).succeeds();
    }
    fs::write(directory.join("adapter_config.json"), ADAPTER).unwrap();
    let named = ["--project", "p", "--job", "job1", "--name", "adapter", "--mirror", mirror];
    env.machine.run(&[&["checkpoint", "push", tree], &named[..]].concat()).succeeds();
    let ls = |job: &str, format: &str| {
        let named = ["--project", "p", "--job", job, "--mirror", mirror, "-o", format];
        let mut command = env.machine.command(&[&["checkpoint", "ls"], &named[..]].concat());
        run(command.env("TZ", TIME_ZONE))
    };
    assert!(ls("job1", "json").contains("lora_adapter_config"));
    for job in ["job1", "none"] {
        let listed = ls(job, "json");
        for format in ["json", "csv"] {
            let file = env.machine.directory("said").join("list.json");
            fs::write(&file, &listed).unwrap();
            let mut python = Command::new(target().parent().unwrap().join("emulators/truss/bin/python3"));
            python.args(["-c", PRINT_CHECKPOINTS, format, ADAPTER]).stdin(fs::File::open(&file).unwrap());
            assert_eq!(ls(job, format), run(python.env("TZ", TIME_ZONE)), "{job} {format}");
        }
    }
}
