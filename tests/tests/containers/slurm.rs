//! `bdnfs slurm`, run by a real controller and daemon of Slurm.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Child;

use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::freezer::FrozenProcess;
use bdnfs_tests::process::{eventually, kill_and_wait, processes_with_open};
use bdnfs_tests::serve::ReservedPort;
use rustix::process::Signal;

use crate::oci::{ContainerNode, blocks};

/// An ordinary user.
const USER: &str = "65534";

/// A cluster of one node. Its daemons end when it is dropped.
struct SlurmCluster {
    node: ContainerNode,
    daemons: Vec<Child>,
    _ports: [ReservedPort; 2],
}

impl SlurmCluster {
    /// A cluster with the lines `config` in its configuration.
    fn start(node: ContainerNode, config: &str) -> Self {
        let home = node.machine.directory("slurm");
        let [state, spool] = ["slurm/state", "slurm/spool"].map(|name| node.machine.directory(name));
        let ports = [(); 2].map(|()| ReservedPort::take(0));
        let [controller, daemon] = ports.each_ref().map(|port| port.address.port());
        let (state, spool, logs) = (state.display(), spool.display(), home.display());
        let config = format!(
            "ClusterName=test\nSlurmctldHost=slurm-node(127.0.0.1)\nSlurmctldPort={controller}\nSlurmdPort={daemon}\n\
             SlurmUser=root\nStateSaveLocation={state}\nSlurmdSpoolDir={spool}\nSlurmctldPidFile=/run/slurmctld.pid\n\
             SlurmdPidFile=/run/slurmd.pid\nSlurmctldLogFile={logs}/slurmctld.log\nSlurmdLogFile={logs}/slurmd.log\n\
             ProctrackType=proctrack/pgid\nTaskPlugin=task/none\nSelectType=select/linear\nMpiDefault=none\n\
             ReturnToService=2\nNodeName=slurm-node NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN\n\
             PartitionName=main Nodes=slurm-node Default=YES MaxTime=INFINITE State=UP\n{config}"
        );
        let etc = node.namespace.path("/etc/slurm");
        fs::create_dir_all(&etc).unwrap();
        fs::write(etc.join("slurm.conf"), config).unwrap();
        let munge = node.namespace.path("/run/munge");
        fs::create_dir(&munge).unwrap();
        fs::set_permissions(&munge, fs::Permissions::from_mode(0o755)).unwrap();
        let key = node.namespace.path("/run/munge/key");
        fs::write(&key, [7; 1024]).unwrap();
        fs::set_permissions(key, fs::Permissions::from_mode(0o400)).unwrap();
        let mut cluster = Self { node, daemons: Vec::new(), _ports: ports };
        cluster.spawn(
            "exec munged --force -F --key-file /run/munge/key --socket /run/munge/munge.socket.2 \
             --log-file /run/munge/log --pid-file /run/munge/pid --seed-file /run/munge/seed",
        );
        eventually("munged listens", || cluster.node.namespace.path("/run/munge/munge.socket.2").exists());
        cluster.spawn("exec slurmctld -D");
        cluster.spawn("exec slurmd -D -N slurm-node");
        eventually("the node is idle", || cluster.is_idle());
        cluster
    }

    fn spawn(&mut self, script: &str) {
        let script = format!("hostname slurm-node; {script}");
        let mut command = self.node.machine.program("unshare", &["--uts", "sh", "-c", &script]);
        let log = File::create(self.node.machine.directory("slurm").join("daemons.log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.daemons.push(command.spawn().unwrap());
    }

    fn is_idle(&self) -> bool {
        self.node.shell("sinfo -h -o %T").out.trim() == "idle"
    }

    /// Runs a script as a user without rights.
    fn user(&self, script: &str) -> CommandOutput {
        let script = format!(
            "cd /; exec setpriv --reuid {USER} --regid {USER} --clear-groups sh -euc '{}'",
            script.replace('\'', "'\\''")
        );
        self.node.shell(&script)
    }

    /// Asserts that nothing is left of any job, and the node takes the next one.
    fn assert_released(&self) {
        let jobs = self.node.namespace.path("/run/bdnfs/jobs");
        eventually("the epilog has run", || fs::read_dir(&jobs).unwrap().count() == 0);
        self.node.assert_released();
        eventually("the node is idle", || self.is_idle());
    }
}

impl Drop for SlurmCluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = rustix::process::kill_process(
                rustix::process::Pid::from_child(daemon),
                rustix::process::Signal::TERM,
            );
            let _ = daemon.wait();
        }
    }
}

/// A cluster that is configured as the page says, and the last block of the page, which runs a job.
fn cluster() -> (SlurmCluster, String) {
    let [install, config, run] = <[_; 3]>::try_from(blocks("slurm.md")).unwrap();
    assert_eq!([&*install.0, &*config.0, &*run.0], ["sh", "ini", "sh"]);
    let node = ContainerNode::new("");
    // As the agent's systemd unit makes it.
    fs::set_permissions(node.namespace.path("/run/bdnfs"), fs::Permissions::from_mode(0o755)).unwrap();
    node.shell(&install.1).succeeds();
    (SlurmCluster::start(node, &config.1), run.1)
}

#[test]
fn slurm_page_blocks_run_from_nothing_to_a_job() {
    let (cluster, run) = cluster();
    let source = format!("file://{}", cluster.node.source("gpt2", "text").display());
    let output = cluster.user(&run.replace("hf://openai-community/gpt2@main", &source));
    assert_eq!((output.code, output.out.as_str()), (Some(0), "weights\n"), "{output:?}");
    cluster.assert_released();
    // A batch script passes the same gate, and another user does not see what it sees.
    let script = format!(
        "echo '#!/bin/sh\ncat $BDNFS_A/weights $BDNFS_B/weights; stat -c %a:%u /run/bdnfs/jobs/$SLURM_JOB_ID' |
         sbatch -W --chdir / -o /tmp/%j.out --comment='a run bdnfs:a={source} b={source}' && cat /tmp/[0-9]*.out && rm /tmp/[0-9]*.out"
    );
    let output = cluster.user(&script);
    assert!(output.out.ends_with(&format!("texttext500:{USER}\n")), "{output:?}");
    cluster.assert_released();
    // A job without sources does not wait for anything.
    assert_eq!(cluster.user("srun --comment=plain echo ran").succeeds(), "ran\n");
}

#[test]
fn slurm_job_whose_prolog_cannot_write_does_not_run() {
    let (cluster, _) = cluster();
    // A file where the directory of all jobs belongs.
    fs::write(cluster.node.namespace.path("/run/bdnfs/jobs"), "").unwrap();
    let out = cluster.node.machine.directory("out");
    fs::set_permissions(&out, fs::Permissions::from_mode(0o777)).unwrap();
    let ran = out.join("ran");
    let job =
        format!("sbatch --chdir / -o /dev/null --comment=bdnfs:m=hf://o/m --wrap='touch {}'", ran.display());
    cluster.user(&job).succeeds();
    eventually("the node is drained", || cluster.node.shell("sinfo -h -o %T").out.starts_with("drain"));
    eventually("the job waits again", || cluster.node.shell("squeue -h -o %T").out.trim() == "PENDING");
    assert!(!ran.exists());
}

#[test]
fn slurm_job_whose_watcher_is_killed_fails_with_the_reason() {
    let (cluster, _) = cluster();
    let space = |of: &Path| fs::read_link(of).ok();
    let own = space(&cluster.node.namespace.handle());
    // Staging does not end while the agent hangs.
    let frozen = FrozenProcess::new(cluster.node.agent.pid());
    std::thread::scope(|scope| {
        let job = scope.spawn(|| cluster.user("srun --comment=bdnfs:m=hf://o/m echo started"));
        let mut watchers = Vec::new();
        eventually("the job is staged for", || {
            watchers = processes_with_open(|name| name == "exe", |path| path.ends_with("watcher.lock"));
            // Others' tests have watchers, too.
            watchers.retain(|pid| space(Path::new(&format!("/proc/{}/ns/mnt", pid.as_raw_nonzero()))) == own);
            !watchers.is_empty()
        });
        kill_and_wait(&watchers);
        let output = job.join().unwrap();
        assert!(output.code != Some(0) && !output.out.contains("started"), "{output:?}");
        assert!(output.out.contains("the process that stages the job's sources was killed"), "{output:?}");
    });
    drop(frozen);
    cluster.assert_released();
}

#[test]
fn slurm_job_with_refused_source_fails_with_the_reason_and_drains_no_node() {
    let (cluster, _) = cluster();
    for (comment, words) in [
        ("bdnfs:m=https://169.254.169.254/x", "source: "),
        ("bdnfs:m=file:///nowhere", "/nowhere"),
        ("bdnfs:hf://o/m", "expected NAME=SOURCE"),
    ] {
        let output = cluster.user(&format!("srun --comment={comment} echo started"));
        assert!(output.code != Some(0) && !output.out.contains("started"), "{comment}: {output:?}");
        assert!(output.out.contains("bdnfs: ") && output.out.contains(words), "{comment}: {output:?}");
        eventually("Slurm shows the reason", || {
            let jobs = cluster.node.shell("scontrol --oneliner show job").out;
            let last = jobs.trim_end().lines().last().unwrap_or_default().to_owned();
            last.split_once("AdminComment=bdnfs: ").is_some_and(|(_, reason)| reason.contains(words))
        });
        cluster.assert_released();
    }
    // Without an agent, too.
    cluster.node.shell("bdnfs agent --stop").succeeds();
    let output = cluster.user("srun --comment=bdnfs:m=hf://o/m echo started");
    assert!(output.code != Some(0) && output.out.contains("no agent listens"), "{output:?}");
    eventually("the node is idle", || cluster.is_idle());
}

#[test]
fn slurm_epilog_while_the_agent_is_away_leaves_nothing() {
    let mut node = ContainerNode::new("");
    let source = format!("file://{}", node.source("gpt2", "text").display());
    let prolog = |node: &ContainerNode, job: u32| {
        let variables = format!("SLURM_JOB_ID={job} SLURM_JOB_UID=0 SLURM_JOB_COMMENT=bdnfs:m={source}");
        node.shell(&format!("{variables} bdnfs slurm prolog && SLURM_JOB_ID={job} bdnfs slurm task-prolog"))
            .succeeds();
        assert_eq!(node.namespace.mounted().len(), 2, "a base and its bind");
    };
    let epilog =
        |node: &ContainerNode, job: u32| node.shell(&format!("SLURM_JOB_ID={job} bdnfs slurm epilog"));
    // It waits for an agent that restarts.
    prolog(&node, 7);
    let script = "unset BDNFS_SOCKET; SLURM_JOB_ID=7 exec /usr/local/bin/bdnfs slurm epilog";
    let mut waiting =
        node.restart_agent(Signal::TERM, |node| node.machine.program("sh", &["-c", script]).spawn().unwrap());
    assert!(waiting.wait().unwrap().success());
    node.assert_released();
    assert!(!node.namespace.path("/run/bdnfs/jobs/7").exists());
    // What the job's user makes of the state, whose directory is theirs, keeps nothing.
    let replace = |job: u32| {
        let state = node.namespace.path(format!("/run/bdnfs/jobs/{job}/state"));
        fs::remove_file(&state).unwrap();
        fs::create_dir_all(state.join("full")).unwrap();
    };
    prolog(&node, 9);
    replace(9);
    let output = epilog(&node, 9);
    assert!(output.code == Some(0) && output.err.is_empty(), "{output:?}");
    node.assert_released();
    prolog(&node, 10);
    replace(10);
    // The job runs again on the node.
    prolog(&node, 10);
    replace(10);
    node.restart_agent(Signal::KILL, |_| ());
    eventually("the agent ends what has no state", || {
        node.agent.get("/v1/publications").json()["publications"] == serde_json::json!([])
    });
    epilog(&node, 10);
    node.assert_released();
    // One that stays away finds out by itself.
    prolog(&node, 8);
    node.restart_agent(Signal::KILL, |node| {
        let output = epilog(node, 8);
        assert!(output.code == Some(0) && output.err.contains("no agent listens"), "{output:?}");
    });
    eventually("the agent ends what is left of the job", || {
        node.agent.get("/v1/publications").json()["publications"] == serde_json::json!([])
    });
    node.assert_released();
}
