//! Libraries whose caches lie in a training cache, on one node after the other: PyTorch's compiler, datasets and uv. They are installed
//! by nightly only.

use bdnfs_tests::tools::writers_python_path;
use serde_json::json;

use super::kit::text;
use super::saved_caches::{SavingNodes, cached_with};

/// Compiles a function for the processor. Asserts that what it compiles is new in the cache when it is called with `cold`, and that all
/// of it is found there when it is called with `warm`.
const COMPILE: &str = r#"
import sys, torch
from torch._dynamo.utils import counters

def step(x, y):
    return torch.nn.functional.gelu(x @ y).softmax(-1) + x.sin()

torch.manual_seed(1)
x, y = torch.randn(64, 64), torch.randn(64, 64)
assert torch.allclose(torch.compile(step)(x, y), step(x, y), atol=1e-5)
found = tuple(counters["inductor"]["fxgraph_cache_" + outcome] for outcome in ("hit", "miss"))
assert found == {"cold": (0, 1), "warm": (1, 0)}[sys.argv[1]], counters
"#;

/// Preprocesses a data set with eight processes, `cold` or `warm` as [`COMPILE`].
const PREPROCESS: &str = r#"
import json, os, sys
from datasets import load_dataset

if sys.argv[1] == "cold":
    with open("rows.jsonl", "w") as file:
        file.writelines(json.dumps({"text": "x" * (n % 100)}) + "\n" for n in range(1000))

def measure(row):
    open(os.path.join(os.environ["BT_SCRATCH_DIR"], "called"), "a").close()
    return {"length": len(row["text"])}

rows = load_dataset("json", data_files="rows.jsonl", split="train").map(measure, num_proc=8)
assert rows["length"] == [n % 100 for n in range(1000)]
assert os.path.exists(os.path.join(os.environ["BT_SCRATCH_DIR"], "called")) == (sys.argv[1] == "cold")
"#;

/// Installs a package with uv, whose cache is on the same file system, so that it makes hard links; `cold` or `warm` as [`COMPILE`].
const INSTALL: &str = concat!(
    include_str!("tiny_wheel.py"),
    r#"
import subprocess, sys
site = f"site-{len([name for name in os.listdir() if name.startswith('site-')])}"
os.environ["UV_CACHE_DIR"] = os.path.abspath("uv")
archives = lambda: sorted(os.listdir("uv/archive-v0")) if os.path.exists("uv/archive-v0") else []
before = archives()
options = ["--no-index", "--find-links", ".", "--target", site, "--python", sys.executable]
subprocess.run([sys.executable, "-m", "uv", "pip", "install", "--quiet", *options, "tiny"], check=True)
assert (archives() == before) == (sys.argv[1] == "warm"), (before, archives())
installed = os.path.join(site, "tiny", "__init__.py")
assert os.stat(installed).st_nlink == 2
sys.path.insert(0, site)
import tiny
assert tiny.ANSWER == 42
"#
);

/// Runs `script` as a job on one node, with an empty cache, then on another node and on the first one again, where all is found that the
/// job before has left.
fn run_on_one_node_after_the_other(script: &str) {
    let Some(python) = writers_python_path() else { return };
    let nodes = SavingNodes::new();
    // As a user's nodes have it: libraries record where their files were.
    let base = nodes.one.directory("base");
    let run = |machine, state: &str| {
        let command = format!(
            "cd $BT_PROJECT_CACHE_DIR && export HF_HOME=$PWD/hf HF_HUB_OFFLINE=1 TORCHINDUCTOR_CACHE_DIR=$PWD/inductor \
             TORCHINDUCTOR_FX_GRAPH_CACHE=1 && cat > script.py <<'END' && {} script.py {state}\n{script}\nEND",
            text(&python)
        );
        let file = cached_with(machine, &json!({"mount_base_path": base}), &command);
        nodes.try_run(machine, &file).unwrap_or_else(|output| panic!("{state}: {output}"));
    };
    run(&nodes.one, "cold");
    run(&nodes.other, "warm");
    run(&nodes.one, "warm");
}

#[test]
#[ignore = "needs PyTorch: scripts/training-libraries; cargo nextest run --test jobs --run-ignored all cache_libraries"]
fn compiled_kernels_are_found_in_a_training_cache_on_another_node() {
    run_on_one_node_after_the_other(COMPILE);
}

#[test]
#[ignore = "needs datasets: scripts/training-libraries; cargo nextest run --test jobs --run-ignored all cache_libraries"]
fn preprocessed_data_set_is_found_in_a_training_cache_on_another_node() {
    run_on_one_node_after_the_other(PREPROCESS);
}

#[test]
#[ignore = "needs uv: scripts/training-libraries; cargo nextest run --test jobs --run-ignored all cache_libraries"]
fn packages_of_uv_are_found_in_a_training_cache_on_another_node() {
    run_on_one_node_after_the_other(INSTALL);
}
