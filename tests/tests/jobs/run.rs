//! Jobs: what they read is local before their commands run, and stays so whatever happens elsewhere.

use std::fs;

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::{python, python_path, run};
use bdnfs_tests::tree::content;
use serde_json::{Value, json};

use crate::kit::{events, job, mounts_of, spec, states, submitted, summed, text, toml, truss};

const GONE: NetworkFault =
    NetworkFault { refuse: true, frozen: false, delay: std::time::Duration::ZERO, rate: None, cut: None };

/// What a model and a dataset are: real files of real libraries.
const MAKE: &str = "
import sys, numpy, safetensors.numpy
model, data = sys.argv[1:]
rng = numpy.random.default_rng(7)
tensors = {f'layer.{i}': rng.standard_normal((256, 256), dtype=numpy.float32) for i in range(12)}
safetensors.numpy.save_file(tensors, f'{model}/model.safetensors')
open(f'{model}/config.json', 'w').write('{\"layers\": 12}')
numpy.save(f'{data}/tokens.npy', rng.integers(0, 50000, (1000000,), dtype=numpy.int32))
print(sum(float(abs(t).sum()) for t in tensors.values()), int(numpy.load(f'{data}/tokens.npy').sum()))
";

/// What a training script does with them.
const TRAIN: &str = "
import json, os, numpy, safetensors
assert json.load(open('/models/llama/config.json'))['layers'] == 12
with safetensors.safe_open('/models/llama/model.safetensors', 'np') as model:
    weights = sum(float(abs(model.get_tensor(name)).sum()) for name in sorted(model.keys()))
tokens = numpy.load('/data/tokens.npy', mmap_mode='r')
print('SUMS', weights, int(tokens.sum()), os.environ['WANDB_PROJECT'], len(os.environ['HF_TOKEN']))
";

#[test]
fn job_of_truss_train_runs_then_hits_the_cache() {
    let env = TestEnv::new();
    let (model, data) = (env.bucket().join("model"), env.bucket().join("data"));
    fs::create_dir_all(&model).unwrap();
    fs::create_dir_all(&data).unwrap();
    fs::create_dir(env.bucket().with_file_name("mirror")).unwrap();
    let sums = run(python(MAKE).arg(&model).arg(&data));
    let [weights, tokens] = sums.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{sums}") };
    let script = env.machine.directory("code").join("train.py");
    fs::write(&script, TRAIN).unwrap();
    let secret = "hf_a_token_that_nobody_may_see";
    let before = fs::read_dir("/").unwrap().count();
    for (number, shape) in
        ["job_model_dump", "job_model_dump_json_mode", "job_model_dump_json"].into_iter().enumerate()
    {
        let command = format!("{} {}", text(&python_path()), text(&script));
        let spec = spec(
            &env.machine,
            "job.json",
            &truss(shape, &["s3://bucket/model", "s3://bucket/data"], &command),
        );
        env.s3.requests.clear();
        let mut command = env.machine.command(&[
            "job",
            "run",
            "--json",
            text(&spec),
            "--mirror",
            "s3://mirror",
            "--cache-dir",
            text(env.machine.cache()),
        ]);
        command.env("BDNFS_SECRET_HF_ACCESS_TOKEN", secret);
        let output = command.output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{out}{err}");
        let printed =
            err.lines().find(|line| line.starts_with("SUMS")).unwrap_or_else(|| panic!("{out}{err}"));
        assert_eq!(printed, format!("SUMS {weights} {tokens} x {}", secret.len()));
        assert!(!out.contains(secret), "{out}");
        let job: Value = serde_json::from_str(out.lines().last().unwrap()).unwrap();
        let all = [
            "TRAINING_JOB_CREATED",
            "TRAINING_JOB_DEPLOYING",
            "TRAINING_JOB_RUNNING",
            "TRAINING_JOB_COMPLETED",
        ];
        assert_eq!(states(&job), all, "{job}");
        assert_eq!(job["name"], "job-1");
        let total = &job["report"]["total"];
        assert_eq!((&total["files"], total["bytes"].as_u64()), (&3.into(), Some(summed(&[&model, &data]))));
        if number == 0 {
            assert_eq!(job["report"]["verdict"], "full miss");
            assert_eq!(total["mirror"], total["bytes"], "{job}");
            assert_eq!(env.fetched("").bytes, summed(&[&model, &data]), "its origin is read once");
        } else {
            assert_eq!(
                (&job["report"]["verdict"], &total["cache"]),
                (&"node-local hit".into(), &total["bytes"])
            );
            assert_eq!(env.fetched(".safetensors").bytes + env.fetched(".npy").bytes, 0);
        }
    }
    assert_eq!(fs::read_dir("/").unwrap().count(), before, "the host got nothing new");
    assert!(mounts_of(&env.machine).is_empty() && env.machine.agent_pids().is_empty());
    let found = bdnfs_tests::tools::program("grep")
        .args(["-r", "-a", "-s", "-l", "-F", "-e", secret])
        .arg(env.machine.cache())
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout), "", "files that hold the secret");
}

#[test]
fn job_running_without_network_completes() {
    let env = TestEnv::new();
    env.put("model/large", 9 * MIB + 5);
    env.put("model/config.json", 700);
    let mirror = env.bucket().with_file_name("mirror");
    fs::create_dir(&mirror).unwrap();
    let machine = &env.machine;
    let agent = machine.agent("");
    let go = machine.directory("flags").join("go");
    let command = format!("while [ ! -e {} ]; do sleep 0.05; done; sha256sum /models/m/*", text(&go));
    let spec = spec(machine, "job.toml", &toml(&[("s3://bucket/model", "/models/m")], &[&command]));
    let id = &submitted(machine, &[text(&spec), "--mirror", "s3://mirror"]);
    machine.run(&["wait", id, "--timeout", "60s"]).succeeds();

    env.proxy.set(GONE);
    env.s3.allowed_keys().revoke_all();
    fs::remove_dir_all(&mirror).unwrap();
    fs::remove_dir_all(env.bucket().join("model")).unwrap();
    fs::write(&go, "").unwrap();
    job(machine, &["wait", id, "--timeout", "60s"]).succeeds();
    let printed = job(machine, &["logs", id]).succeeds();
    for (name, len) in [("large", 9 * MIB + 5), ("config.json", 700)] {
        let sum = crate::kit::sha256(&bdnfs_tests::tree::content(name, len));
        assert!(printed.contains(&format!("{sum}  /models/m/{name}")), "{printed}");
    }
    let shown = job(machine, &["show", id]).succeeds();
    assert!(shown.contains("full miss") && shown.contains("TRAINING_JOB_COMPLETED completed"), "{shown}");
    assert!(job(machine, &["ls"]).succeeds().contains("TRAINING_JOB_COMPLETED"));
    assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    drop(agent);
}

#[test]
fn job_with_bad_source_fails_before_its_commands() {
    let env = TestEnv::new();
    env.put("good/file", 3 * MIB);
    let machine = &env.machine;
    let agent = machine.agent("");
    let ran = machine.directory("flags").join("ran");
    let touch = format!("touch {}", text(&ran));
    let submit = |name: &str, sources: &[(&str, &str)], more: &[&str]| {
        let spec = spec(machine, name, &toml(sources, &[&touch]));
        let mut line = vec!["run", "--json", text(&spec)];
        line.extend(more);
        let ran = job(machine, &line);
        assert_eq!(ran.code, Some(125), "{}{}", ran.out, ran.err);
        let job: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
        assert_eq!((&job["state"], &job["exit_code"]), (&json!("TRAINING_JOB_FAILED"), &json!(125)));
        (ran.err.clone(), events(&job))
    };
    let (err, report) =
        submit("nowhere.toml", &[("s3://bucket/good", "/m/a"), ("s3://nowhere/x", "/m/b")], &["--no-mirror"]);
    assert!(err.contains("cannot mount s3://nowhere/x") && err.contains("404"), "{err}");
    assert!(report.iter().any(|line| line.contains("failed: cannot mount")), "{report:?}");
    let (err, _) =
        submit("unmirrored.toml", &[("s3://bucket/good", "/m/a")], &["--mirror", "s3://no-such-mirror"]);
    assert!(err.contains("cannot mirror s3://bucket/good"), "{err}");
    assert!(!ran.exists(), "no command ran");
    assert!(mounts_of(machine).is_empty(), "{:?}", mounts_of(machine));
    assert!(machine.supervisors().is_empty());
    drop(agent);
}

#[test]
fn job_run_exits_as_its_command_does() {
    let machine = Machine::new();
    for with_agent in [false, true] {
        let agent = with_agent.then(|| machine.agent(""));
        for (command, code, kind) in [
            ("exit 7", 7, "command_exited"),
            ("exit 1", 1, "command_exited"),
            ("/etc/passwd", 126, "command_exited"),
            ("no-such-program", 127, "command_exited"),
            ("kill -TERM $$", 143, "command_signaled"),
        ] {
            let file = spec(&machine, "job.toml", &toml(&[], &["true", command, "true"]));
            let ran = job(&machine, &["run", "--json", text(&file)]);
            assert_eq!(ran.code, Some(code), "{command}: {}{}", ran.out, ran.err);
            let job: Value = serde_json::from_str(ran.out.lines().last().unwrap()).unwrap();
            assert_eq!((&job["exit_code"], &job["why"]["kind"]), (&json!(code), &json!(kind)), "{job:#}");
        }
        let file = spec(&machine, "good.toml", &toml(&[], &["true"]));
        let ran = job(&machine, &["run", "--json", text(&file)]).succeeds();
        let ended: Value = serde_json::from_str(ran.lines().last().unwrap()).unwrap();
        assert_eq!(ended["exit_code"], 0);
        // Failures before there is a job.
        assert_eq!(job(&machine, &["run", "/nowhere/job.toml"]).code, Some(125));
        drop(agent);
    }
}

#[test]
fn job_with_impossible_mount_location_is_refused_before_mirroring() {
    let env = TestEnv::new();
    env.put("good/file", MIB);
    let mirror = env.bucket().with_file_name("mirror");
    fs::create_dir(&mirror).unwrap();
    let machine = &env.machine;
    let agent = machine.agent("");
    let places = machine.directory("places");
    let place = |name: &str| text(&places.join(name)).to_owned();
    fs::create_dir(places.join("real")).unwrap();
    fs::write(places.join("file"), "").unwrap();
    std::os::unix::fs::symlink(places.join("real"), places.join("link")).unwrap();
    std::os::unix::fs::symlink(places.join("nowhere"), places.join("dangling")).unwrap();
    let run = |mount_locations: &[String]| {
        let sources: Vec<_> =
            mount_locations.iter().map(|place| ("s3://bucket/good", place.as_str())).collect();
        let file = spec(machine, "job.toml", &toml(&sources, &["ls -d */file"]));
        job(machine, &["run", text(&file), "--mirror", "s3://mirror", "--workdir", text(&places)])
    };
    for (mount_locations, words) in [
        (vec![place("real"), place("link")], "are one directory"),
        (vec![place("real/new"), place("link/new")], "are one directory"),
        (vec![place("file")], "is not a directory"),
        (vec![place("file/m")], "is not a directory"),
        (vec![place("dangling")], "is a dangling symbolic link"),
    ] {
        let ran = run(&mount_locations);
        assert_eq!(ran.code, Some(125), "{}{}", ran.out, ran.err);
        assert!(ran.err.contains(words) && ran.err.contains(&mount_locations[0]), "{}", ran.err);
        let checked = machine.run(&["check", text(&machine.directory("specs").join("job.toml"))]);
        assert_eq!(checked.code, Some(1));
        let line = format!("weights[{}].mount_location: ", mount_locations.len() - 1);
        assert!(checked.out.contains(&line) && checked.out.contains(words), "{}", checked.out);
    }
    assert_eq!(summed(&[&mirror]), 0, "something was mirrored");
    // A link to a directory is one.
    assert_eq!(run(&[place("link")]).succeeds(), "link/file\nreal/file\n");
    drop(agent);
}

#[test]
fn job_output_on_each_stream_stays_on_it() {
    let machine = Machine::new();
    // Two pipes have an order only where one is read before the other is written to.
    let first = format!(
        "logged() {{ until grep -qsx $1 {}/$BDNFS_JOB/log.0; do sleep 0.02; done; }}
        echo out; logged out; echo err >&2; logged err; echo again; logged again",
        text(&machine.cache().join("jobs"))
    );
    let file = spec(&machine, "job.toml", &toml(&[], &[&first, "printf last >&2"]));
    let run = |options: &[&str]| job(&machine, &[&["run", text(&file)], options].concat());
    let ran = run(&["--cache-dir", text(machine.cache())]);
    assert_eq!(ran.out, "out\nagain\n");
    assert!(
        ran.err.contains("err\n") && ran.err.contains("last") && !ran.err.contains("again"),
        "{}",
        ran.err
    );
    let ran = run(&["--cache-dir", text(machine.cache()), "--json"]);
    assert!(ran.err.contains("out\nerr\nagain\nlast"), "{}", ran.err);
    let agent = machine.agent("");
    let id = submitted(&machine, &[text(&file)]);
    for options in [&["logs", "--follow", id.as_str()][..], &["logs", id.as_str()]] {
        let logs = job(&machine, options);
        assert_eq!((logs.out.as_str(), logs.err.as_str()), ("out\nagain\n", "err\nlast"), "{options:?}");
    }
    assert_eq!(agent.get(&format!("/v1/jobs/{id}/log")).body, "out\n", "one stream at once");
}

#[test]
fn job_whose_mirror_lies_in_its_own_source_is_refused() {
    let machine = Machine::new();
    let agent = machine.agent("");
    let source = machine.directory("source");
    fs::write(source.join("weights"), content("weights", MIB)).unwrap();
    let uri = format!("file://{}", source.display());
    let file = spec(&machine, "job.toml", &toml(&[(uri.as_str(), "/m")], &["ls /m/weights"]));
    let ran = job(&machine, &["run", text(&file), "--mirror", &format!("{uri}/mirror")]);
    assert_ne!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("lies in its own source"), "{}{}", ran.out, ran.err);
    assert_eq!(fs::read_dir(&source).unwrap().count(), 1, "nothing was made");
    drop(agent);
}
