//! Training jobs of the installed truss: what it would send is what was recorded, and runs. `scripts/emulators` installs it.

use std::fs;
use std::process::Command;

use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{run, target};
use serde_json::{Value, json};

/// What the installed truss says now.
fn pushed() -> Value {
    let mut python = Command::new(target().parent().unwrap().join("emulators/truss/bin/python3"));
    let out = run(python.arg("-c").arg(include_str!("truss_push.py")));
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
fn truss_installed_says_what_was_recorded() {
    let recorded =
        serde_json::from_str(include_str!("../../../src/source/testdata/truss_push.json")).unwrap();
    let (said, recorded) = (comparable(pushed()), comparable(recorded));
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
    for (name, body) in pushed()["run"].as_object().unwrap() {
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
