//! Programs that keep state in a training cache: pip, Python's bytecode, git, make and SQLite, on one node after the other.

use std::fs;

use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tools::python_path;

use super::kit::{job, submitted, text};
use super::saved_caches::{SavingNodes, cached};

/// Fills the cache: a package that pip has installed, its bytecode, a repository, objects of a C program and a database.
const FILL: &str = concat!(
    r#"set -e; cd $BT_PROJECT_CACHE_DIR; unset PYTHONDONTWRITEBYTECODE; export PIP_DISABLE_PIP_VERSION_CHECK=1
$PYTHON - <<'END'
"#,
    include_str!("tiny_wheel.py"),
    r#"END
$PYTHON -m pip install --quiet --no-index --find-links . --target site --root-user-action ignore tiny
PYTHONPATH=site $PYTHON -c 'import tiny'
git init -q repository; cd repository
for n in $(seq 40); do seq $n > file-$n; git add .; git -c user.name=n -c user.email=e commit -q -m $n; done; git gc -q; cd ..
mkdir program; cd program
for n in $(seq 10); do echo "int f$n(void) { return $n; }" > f$n.c; done
printf 'program.a: %s\n\tar rc $@ $^\n' "$(echo f*.c | sed s/[.]c/.o/g)" > Makefile; make -s; cd ..
$PYTHON - <<'END'
import sqlite3
with sqlite3.connect("rows.db") as rows:
    rows.execute("PRAGMA journal_mode=WAL")
    rows.execute("CREATE TABLE rows (writer INTEGER, number INTEGER)")
    rows.executemany("INSERT INTO rows VALUES (-1, ?)", [(n,) for n in range(1000)])
END"#
);

/// Asserts that each program finds what it left, and takes it for current.
const LOOK: &str = r#"set -e; cd $BT_PROJECT_CACHE_DIR; unset PYTHONDONTWRITEBYTECODE
bytecode=$(stat -c %Y.%i site/tiny/__pycache__/*)
[ $(PYTHONPATH=site $PYTHON -c 'import tiny; print(tiny.ANSWER)') = 42 ]
[ $(stat -c %Y.%i site/tiny/__pycache__/*) = $bytecode ]
PYTHONPATH=site $PYTHON -m pip freeze --path site | grep -qx 'tiny==1.0'
git -C repository fsck --strict; [ -z "$(git -C repository status --porcelain)" ]; [ $(git -C repository rev-list --count HEAD) -ge 40 ]
make -q -C program
$PYTHON -c 'import sqlite3; rows = sqlite3.connect("rows.db")
assert rows.execute("PRAGMA integrity_check").fetchone() == ("ok",)
print(rows.execute("SELECT count(*) FROM rows").fetchone()[0])' > $BT_SCRATCH_DIR/count"#;

/// Has eight processes write to the database, and one to the repository, until there is a file `go` in the directory `FLAG`.
const WRITE: &str = r#"set -e; cd $BT_PROJECT_CACHE_DIR
cat > $BT_SCRATCH_DIR/write.py <<'END'
import os, sqlite3, sys
rows, number = sqlite3.connect("rows.db", timeout=600), 0
while number < 50 or not os.path.exists(os.environ["FLAG"] + "/go"):
    with rows:
        rows.execute("INSERT INTO rows VALUES (?, ?)", (int(sys.argv[1]), number))
    number += 1
END
for writer in 0 1 2 3 4 5 6 7; do $PYTHON $BT_SCRATCH_DIR/write.py $writer & writers="$writers $!"; done
cd repository; n=0
while [ ! -e $FLAG/go ]; do n=$((n+1)); echo $n > more-$n; git add .; git -c user.name=n -c user.email=e commit -q -m more-$n; done
for writer in $writers; do wait $writer; done
cd ..; touch $FLAG/written"#;

/// A job with the training cache that runs `script` with an interpreter that has pip; `FLAG` is the directory `flag`.
fn program(machine: &Machine, script: &str) -> std::path::PathBuf {
    let (python, flag) = (python_path(), machine.directory("flag"));
    cached(machine, &format!("export PYTHON={} FLAG={}\n{script}", text(&python), text(&flag)))
}

#[test]
fn programs_find_what_they_left_in_a_training_cache_on_another_node() {
    let nodes = SavingNodes::new();
    nodes.try_run(&nodes.one, &program(&nodes.one, FILL)).unwrap();
    for machine in [&nodes.other, &nodes.one] {
        let changed = format!(
            "{LOOK}\ncd repository; date +%N > changed; git add .; git -c user.name=n -c user.email=e commit -q -m x"
        );
        nodes.try_run(machine, &program(machine, &changed)).unwrap();
    }
    nodes.try_run(&nodes.other, &program(&nodes.other, LOOK)).unwrap();
}

#[test]
fn programs_write_to_a_training_cache_while_its_agent_is_killed() {
    let nodes = SavingNodes::new();
    let machine = &nodes.one;
    nodes.try_run(machine, &program(machine, FILL)).unwrap();
    let mut agent = nodes.agent(machine);
    let number = submitted(machine, &["--project", "p", text(&program(machine, WRITE))]);
    let log = || job(machine, &["logs", &number]).out;
    let status = || agent.get(&format!("/v1/jobs/{number}")).json();
    eventually("it runs", || status()["state"] == "TRAINING_JOB_RUNNING");
    for _ in 0..3 {
        agent.crash();
        agent = nodes.agent(machine);
    }
    fs::write(machine.directory("flag").join("go"), "").unwrap();
    job(machine, &["wait", &number]).succeeds();
    assert!(machine.directory("flag").join("written").exists(), "{}", log());
    agent.stop();
    let count = format!("{LOOK}\n[ $(cat $BT_SCRATCH_DIR/count) -ge 1400 ]");
    nodes.try_run(&nodes.other, &program(&nodes.other, &count)).unwrap();
}
