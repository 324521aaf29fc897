//! Repositories of the Hub that a job sees as one cache of `huggingface_hub`.

use std::fs;
use std::path::PathBuf;

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use serde_json::Value;

use super::kit::{events, job, spec, submitted, text};

/// A job with repositories in one directory that does not exist, and one in another.
fn hub_job(machine: &Machine, hub: &str, more: &str, command: &str) -> String {
    let entry = |source: &str, extra: &str| {
        format!("[[weights]]\nsource = {source:?}\nmount_location = {hub:?}\n{extra}\n")
    };
    let layout = "layout = \"hf-cache\"";
    let weights = [entry("hf://org/model", layout), entry("hf://datasets/org/data@main", layout)].concat();
    let text_of = format!("[runtime]\nstart_commands = [{command:?}]\n{weights}{more}");
    text(&spec(machine, "job.toml", &text_of)).to_owned()
}

#[test]
fn hub_caches_of_a_job_are_merged_in_one_directory_that_hf_hub_cache_names() {
    let machine = Machine::new();
    let hub = HubServer::start();
    let commit = hub.publish("models/org/model", "main", &[("config.json", b"model")]);
    let data = hub.publish("datasets/org/data", "main", &[("rows/a.csv", b"1,2")]);
    let machine = machine.env("HF_ENDPOINT", hub.url());
    let place = machine.directory("place").join("not/there");
    let run = |more: &str, command: &str| {
        let file = hub_job(&machine, text(&place), more, command);
        job(&machine, &["run", "--no-mirror", "--cache-dir", text(machine.cache()), &file])
    };
    let look = format!(
        "[ $HF_HUB_CACHE = {0} ] && cd {0} && ls && cat models--org--model/snapshots/{commit}/config.json && \
         cat datasets--org--data/snapshots/{data}/rows/a.csv && [ $(cat models--org--model/refs/main) = {commit} ]",
        text(&place)
    );
    assert_eq!(run("", &look).succeeds(), "datasets--org--data\nmodels--org--model\nmodel1,2");
    // One that the job sets itself stays.
    let own = "[runtime.environment_variables]\nHF_HUB_CACHE = \"/own\"\n";
    run(own, "[ $HF_HUB_CACHE = /own ]").succeeds();
    let same = format!("[[weights]]\nsource = \"hf://org/model@v1\"\nmount_location = {:?}\n", text(&place));
    run(&format!("{same}layout = \"hf-cache\"\n"), "true").fails(&["models--org--model"]);
    run(&same, "true").fails(&["lies inside that of"]);
    // Elsewhere each is a mount of its own.
    let file = hub_job(&machine, "/hub", "", "true");
    let root = machine.directory("root");
    machine
        .run(&["mount", "--config", &file, "--root", text(&root)])
        .fails(&["only jobs and containers show several repositories in one directory"]);
    // A job shows both in its training cache.
    let base = machine.directory("base");
    let sources = ["", "/hub"].map(|below| {
        let place = format!("{}/user_artifacts{below}", text(&base));
        format!(
            "[[weights]]\nsource = \"hf://org/model\"\nmount_location = {place:?}\nlayout = \"hf-cache\"\n"
        )
    });
    let cache = format!(
        "[runtime]\nstart_commands = [\"true\"]\n[runtime.cache_config]\nenabled = true\nmount_base_path = {base:?}\n"
    );
    fs::write(&file, cache + &sources.concat()).unwrap();
    machine
        .run(&["mount", "--config", &file, "--root", text(&root)])
        .fails(&["or in it, or around it; only jobs and containers"]);
    job(&machine, &["run", "--no-mirror", "--cache-dir", text(machine.cache()), &file]).succeeds();
}

/// A machine whose Hub has one file of `org/model`.
fn machine_with_hub(hub: &HubServer) -> Machine {
    hub.publish("models/org/model", "main", &[("config.json", b"staged")]);
    Machine::new().env("HF_ENDPOINT", hub.url())
}

/// A job with a training cache, and, where it `reads`, the repository in the directory `hub` of it.
fn job_with_hub_in_its_cache(machine: &Machine, reads: bool, command: &str) -> PathBuf {
    let base = machine.directory("base");
    let place = base.join("user_artifacts/hub");
    let source = format!(
        "[[weights]]\nsource = \"hf://org/model\"\nmount_location = {place:?}\nlayout = \"hf-cache\"\n"
    );
    let runtime = format!(
        "[runtime]\nstart_commands = [{command:?}]\n[runtime.cache_config]\nenabled = true\nmount_base_path = {base:?}\n"
    );
    let content = if reads { runtime + &source } else { runtime };
    spec(machine, &format!("{reads}.toml"), &content)
}

/// What `command` ends with as a job of the project `p`.
fn run_in_cache(machine: &Machine, reads: bool, command: &str) -> CommandOutput {
    let file = job_with_hub_in_its_cache(machine, reads, command);
    let words = ["run", "--no-mirror", "--project", "p", "--cache-dir", text(machine.cache()), text(&file)];
    job(machine, &words)
}

fn home(machine: &Machine) -> PathBuf {
    machine.volumes().join("default/caches/project/p/tree")
}

const STAGED: &str = "models--org--model/snapshots/*/config.json";

#[test]
fn hub_cache_in_a_training_cache_shows_staged_repositories_beside_what_the_cache_has() {
    let hub = HubServer::start();
    let machine = machine_with_hub(&hub);
    let write = format!(
        "cd $HF_HUB_CACHE && [ $HF_HUB_CACHE = $BT_PROJECT_CACHE_DIR/hub ] && [ $(cat {STAGED}) = staged ] && \
         mkdir -p models--org--other .locks/models--org--model && echo own > models--org--other/file && \
         flock .locks/models--org--model/x true && ! touch models--org--model/x && ! rmdir models--org--model"
    );
    let output = run_in_cache(&machine, true, &write);
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("Read-only file system") && !output.err.contains("hidden"), "{}", output.err);
    let inside = home(&machine).join("hub");
    assert_eq!(fs::read_to_string(inside.join("models--org--other/file")).unwrap(), "own\n");
    assert!(inside.join(".locks/models--org--model/x").exists());
    assert_eq!(fs::read_dir(inside.join("models--org--model")).unwrap().count(), 0);
    let read = format!("cd $HF_HUB_CACHE && cat {STAGED} models--org--other/file");
    assert_eq!(run_in_cache(&machine, true, &read).succeeds(), "stagedown\n");
    // Other sources hide what the cache has.
    let file = job_with_hub_in_its_cache(&machine, true, "true");
    let other = fs::read_to_string(&file).unwrap().replace("layout = \"hf-cache\"\n", "");
    fs::write(&file, other).unwrap();
    let refused = job(&machine, &["run", "--no-mirror", "--cache-dir", text(machine.cache()), text(&file)]);
    assert!(refused.code == Some(125) && refused.err.contains("hide each other"), "{}", refused.err);
}

#[test]
fn hub_cache_in_a_training_cache_hides_a_repository_that_jobs_downloaded_until_the_job_ends() {
    let hub = HubServer::start();
    let machine = machine_with_hub(&hub);
    let download = "cd $BT_PROJECT_CACHE_DIR && mkdir -p hub/models--org--model && echo own > hub/models--org--model/file";
    run_in_cache(&machine, false, download).succeeds();
    let output =
        run_in_cache(&machine, true, &format!("cd $HF_HUB_CACHE && cat {STAGED}; ls models--org--model"));
    assert_eq!(output.out, "stagedblobs\nrefs\nsnapshots\n", "{}", output.err);
    let event =
        "hub/models--org--model: the files that the cache has there are hidden as long as the job runs";
    assert!(output.err.contains(event), "{}", output.err);
    let again = run_in_cache(&machine, false, "cat $BT_PROJECT_CACHE_DIR/hub/models--org--model/file");
    assert_eq!(again.succeeds(), "own\n");
}

#[test]
fn hub_cache_in_a_training_cache_is_never_mounted_behind_a_link_that_a_job_put_there() {
    let hub = HubServer::start();
    let machine = machine_with_hub(&hub);
    let victim = machine.directory("victim");
    let flag = machine.directory("flag").join("ran");
    for (plant, name) in [
        (format!("mkdir hub && ln -s {} hub/models--org--model", text(&victim)), "hub/models--org--model"),
        (format!("ln -s {} hub", text(&victim)), "hub"),
        ("mkdir hub && echo x > hub/models--org--model".to_owned(), "hub/models--org--model"),
    ] {
        let plant = format!("cd $BT_PROJECT_CACHE_DIR && rm -rf hub && {plant}");
        run_in_cache(&machine, false, &plant).succeeds();
        let words = format!("models--org--model: {name} is a symbolic link or a file there; remove it");
        let refused = run_in_cache(&machine, true, &format!("touch {}", text(&flag)));
        assert!(refused.code == Some(125) && refused.err.contains(&words), "{name}: {}", refused.err);
        assert!(!flag.exists() && fs::read_dir(&victim).unwrap().count() == 0, "{name}");
    }
    run_in_cache(&machine, false, "rm -rf $BT_PROJECT_CACHE_DIR/hub").succeeds();
    run_in_cache(&machine, true, &format!("cat $HF_HUB_CACHE/{STAGED}")).succeeds();
}

#[test]
fn hub_cache_in_a_training_cache_outlives_the_agent_and_is_not_saved() {
    let hub = HubServer::start();
    let machine = machine_with_hub(&hub);
    let mirror = machine.directory("mirror");
    let config = format!("[mirror]\nurl = \"file://{}\"\n", mirror.display());
    let agent = machine.agent(&config);
    let flag = machine.directory("flag");
    let command = format!(
        "cd $HF_HUB_CACHE && cat {STAGED} && touch {0}/runs && while [ ! -e {0}/crashed ]; do sleep 0.05; done; \
         cat {STAGED} && echo own > own && touch {0}/wrote && while [ ! -e {0}/go ]; do sleep 0.05; done; cat {STAGED}",
        text(&flag)
    );
    let file = job_with_hub_in_its_cache(&machine, true, &command);
    let id = submitted(&machine, &["--project", "p", text(&file)]);
    eventually("it runs", || flag.join("runs").exists());
    agent.crash();
    fs::write(flag.join("crashed"), "").unwrap();
    eventually("it goes on", || flag.join("wrote").exists());
    let summary = machine.run(&["project", "summarize", "p", "-o", "json"]).succeeds();
    let summary: Value = serde_json::from_str(&summary).unwrap();
    assert_eq!(summary["total_size_bytes"], 4, "what is mounted does not count: {summary}");
    let agent = machine.agent(&config);
    fs::write(flag.join("go"), "").unwrap();
    job(&machine, &["wait", &id]).succeeds();
    assert_eq!(job(&machine, &["logs", &id]).succeeds(), "stagedstagedstaged");
    let status = agent.get(&format!("/v1/jobs/{id}")).json();
    let saved = "saved the cache of the project p: 1 file";
    assert!(events(&status).iter().any(|event| event.starts_with(saved)), "{status:#}");
    // Nor is it in the way of what another node downloaded there.
    let other = Machine::new().env("HF_ENDPOINT", hub.url());
    let theirs = other.agent(&config);
    let download = "cd $BT_PROJECT_CACHE_DIR/hub && cat own && [ -d models--org--model ] && [ -z \"$(ls models--org--model)\" ] && \
                    echo x > models--org--model/x";
    let run = |machine: &Machine, reads: bool, command: &str| {
        let file = job_with_hub_in_its_cache(machine, reads, command);
        job(machine, &["run", "--project", "p", text(&file)]).succeeds()
    };
    assert_eq!(run(&other, false, download), "own\n");
    assert_eq!(run(&machine, true, &format!("cat $HF_HUB_CACHE/{STAGED}; rm $HF_HUB_CACHE/own")), "staged");
    let inside = home(&machine).join("hub");
    assert_eq!(fs::read_to_string(inside.join("models--org--model/x")).unwrap(), "x\n");
    let look = "cd $BT_PROJECT_CACHE_DIR/hub && [ ! -e own ] && cat models--org--model/x";
    assert_eq!(run(&other, false, look), "x\n");
    theirs.stop();
    agent.stop();
}

#[test]
fn hub_cache_in_a_training_cache_is_lost_when_another_job_removes_its_directory() {
    let hub = HubServer::start();
    let machine = machine_with_hub(&hub);
    let agent = machine.agent("");
    let flag = machine.directory("flag");
    let command = format!(
        "cd $HF_HUB_CACHE && exec 3< $(ls {STAGED}) && touch {0}/runs && while [ ! -e {0}/go ]; do sleep 0.05; done; \
         ls -d models--org--model || cat <&3",
        text(&flag)
    );
    let file = job_with_hub_in_its_cache(&machine, true, &command);
    let id = submitted(&machine, &["--no-mirror", "--project", "p", text(&file)]);
    eventually("it runs", || flag.join("runs").exists());
    let remove = "rm -r $BT_PROJECT_CACHE_DIR/hub/models--org--model";
    let file = job_with_hub_in_its_cache(&machine, false, remove);
    job(&machine, &["run", "--no-mirror", "--project", "p", text(&file)]).succeeds();
    fs::write(flag.join("go"), "").unwrap();
    job(&machine, &["wait", &id]).succeeds();
    // Files that it has open are those of the mount.
    assert_eq!(job(&machine, &["logs", &id]).out, "staged");
    agent.stop();
}
