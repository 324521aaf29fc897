//! Repositories of the Hub that a job sees as one cache of `huggingface_hub`.

use bdnfs_tests::hub::HubServer;
use bdnfs_tests::machine::Machine;

use super::kit::{job, spec, text};

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
}
