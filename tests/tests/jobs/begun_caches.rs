//! Training caches that begin on a node that has nothing of them, compared with a model: agents that are killed meanwhile, a node
//! that loses its directory, and two nodes by turns.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::tools::{program, run};
use bdnfs_tests::tree::{Rng, assert_same_tree, write_file};
use serde_json::json;

use super::kit::{campaign_rounds, job, submitted, text};
use super::saved_caches::{SavingNodes, cached, tree};

/// How often the agent is killed in all runs of the suite, and how often at night.
const KILLS: usize = 3;
const NIGHTLY_KILLS: usize = 100;
/// The longest time until then, in milliseconds: the cache has begun.
const PAUSE_MILLISECONDS: u64 = 500;
/// The number of files of a cache, beside a large one.
const FILES: usize = 1000;

/// Saves the cache of the project `p` from the first node, and kills the agent of the second one `rounds` times while a job there
/// begins with it.
fn begin_under_kills(rounds: usize) {
    let nodes = SavingNodes::new();
    let (one, other) = (&nodes.one, &nodes.other);
    let model = one.directory("model");
    for number in 0..FILES {
        write_file(&model, format!("d{}/e{}/{number}", number % 20, number % 3), number % 5000);
    }
    write_file(&model, "large", 5 * MIB + 7);
    nodes.run(one, &format!("cp -R {}/. $BT_PROJECT_CACHE_DIR", text(&model)));
    let compare = cached(other, &format!("diff -r {} $BT_PROJECT_CACHE_DIR", text(&model)));
    let mut rng = Rng(5);
    for round in 0..rounds {
        let agent = nodes.agent(other);
        let number = submitted(other, &["--project", "p", text(&compare)]);
        sleep(Duration::from_millis(rng.below(PAUSE_MILLISECONDS)));
        agent.crash();
        let agent = nodes.agent(other);
        let waited = job(other, &["wait", &number]);
        assert_eq!(waited.code, Some(0), "round {round}: {}{}", waited.out, waited.err);
        agent.stop();
        assert_same_tree(&model, &tree(other));
        let shown = nodes.shown_by(one);
        assert_eq!(shown["saved"]["files"], json!(FILES + 1), "round {round}: {shown}");
        // The node loses all that it had.
        fs::remove_dir_all(other.volumes()).unwrap();
    }
}

#[test]
fn training_cache_that_is_begun_while_its_agent_is_killed_is_whole() {
    begin_under_kills(KILLS);
}

#[test]
#[ignore = "takes minutes; for a change of the begin: CAMPAIGN_ROUNDS=500 cargo nextest run --test jobs --run-ignored all begun_caches"]
fn training_cache_that_is_begun_while_its_agent_is_killed_many_times_is_whole() {
    begin_under_kills(campaign_rounds(NIGHTLY_KILLS));
}

#[test]
fn training_cache_of_two_nodes_by_turns_is_what_their_jobs_wrote() {
    let nodes = SavingNodes::new();
    let model = nodes.one.directory("model");
    for turn in 0..9 {
        let machine = if turn % 2 == 0 { &nodes.one } else { &nodes.other };
        if turn == 5 {
            fs::remove_dir_all(machine.volumes()).unwrap();
        }
        let (new, old) = (turn % 4, (turn + 2) % 4);
        let change = format!(
            "rm -rf d{old}; [ ! -e d{new} ] || mv d{new} moved{turn}; mkdir -p d{new}/empty d{new}/e; \
             for n in $(seq 40); do echo $n in {turn} > d{new}/e/$n; done; ln -s e/1 d{new}/link; echo {turn} >> log; \
             head -c 3000000 /dev/zero | tr '\\0' {turn} > d{new}/large; chmod 755 d{new}/e/1"
        );
        nodes.run(
            machine,
            &format!(
                "diff -r {} $BT_PROJECT_CACHE_DIR && cd $BT_PROJECT_CACHE_DIR && {change}",
                text(&model)
            ),
        );
        run(program("sh").args(["-ec", &change]).current_dir(&model));
        assert_same_tree(&model, &tree(machine));
    }
}
