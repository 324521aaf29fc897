//! Mounts against a model of them: mounts, unmounts, open files, crashes of the agent and of the fd store, in any order.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::mounts::{drop_caches, is_mounted};
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, assert_same_tree};
use proptest::prelude::*;
use proptest::test_runner::Config;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};

/// Where it is mounted.
const POINTS: [&str; 3] = ["one", "two", "three"];
/// What is mounted: large files, which are opened, and small ones only, which never are; and a file of each.
const SOURCES: [(&str, &str); 2] = [("large", "a"), ("small", "7")];

#[derive(Clone, Debug)]
enum MountStep {
    Mount(usize, usize),
    Unmount(usize),
    /// Open a file, and keep it open.
    Open(usize),
    Close(usize),
    /// Kill the agent, and start the next one.
    Crash,
    /// The same as a package manager restarts a service.
    Restart,
    /// Kill what keeps the mounts for the next agent.
    KillFdstore,
    /// Kill both.
    CrashAll,
    DropCaches,
}

/// Which source is mounted where, and whether a file of it is open.
#[derive(Clone, Debug, Default)]
struct MountsModel(BTreeMap<usize, (usize, bool)>);

impl ReferenceStateMachine for MountsModel {
    type State = Self;
    type Transition = MountStep;

    fn init_state() -> BoxedStrategy<Self> {
        Just(Self::default()).boxed()
    }

    fn transitions(_: &Self) -> BoxedStrategy<MountStep> {
        let point = || 0..POINTS.len();
        prop_oneof![
            6 => (point(), 0..SOURCES.len()).prop_map(|(point, source)| MountStep::Mount(point, source)),
            2 => point().prop_map(MountStep::Unmount),
            3 => point().prop_map(MountStep::Open),
            1 => point().prop_map(MountStep::Close),
            3 => Just(MountStep::Crash),
            1 => Just(MountStep::Restart),
            1 => Just(MountStep::KillFdstore),
            1 => Just(MountStep::CrashAll),
            1 => Just(MountStep::DropCaches),
        ]
        .boxed()
    }

    fn preconditions(model: &Self, step: &MountStep) -> bool {
        let is_open = |point: &usize| model.0.get(point).map(|(_, open)| *open);
        match step {
            // Also where something is mounted, or in use: that is refused.
            MountStep::Mount(..) | MountStep::Crash | MountStep::Restart | MountStep::DropCaches => true,
            MountStep::Unmount(point) => model.0.contains_key(point),
            MountStep::Open(point) => is_open(point) == Some(false),
            MountStep::Close(point) => is_open(point) == Some(true),
            MountStep::KillFdstore | MountStep::CrashAll => !model.0.is_empty(),
        }
    }

    fn apply(mut model: Self, step: &MountStep) -> Self {
        match *step {
            MountStep::Mount(point, source) => drop(model.0.entry(point).or_insert((source, false))),
            MountStep::Unmount(point) => model.0.retain(|at, (_, open)| *at != point || *open),
            MountStep::Open(point) | MountStep::Close(point) => {
                model.0.entry(point).and_modify(|(_, open)| *open = !*open);
            }
            // Mounted anew: what was open belongs to a mount that is gone.
            MountStep::CrashAll => model.0.values_mut().for_each(|(_, open)| *open = false),
            MountStep::Crash | MountStep::Restart | MountStep::KillFdstore | MountStep::DropCaches => {}
        }
        model
    }
}

/// A real agent with its mounts.
struct RealMounts {
    agent: Option<AgentProcess>,
    open: BTreeMap<usize, File>,
    config: String,
    env: TestEnv,
}

impl RealMounts {
    fn point(&self, point: usize) -> PathBuf {
        self.env.machine.directory("points").join(POINTS[point])
    }

    fn agent(&self) -> &AgentProcess {
        self.agent.as_ref().expect("one")
    }

    fn replace_agent(&mut self, end: impl FnOnce(AgentProcess)) {
        end(self.agent.take().expect("one"));
        self.agent = Some(self.env.machine.agent(&self.config));
    }

    /// Kills the fd store, and waits until another one has all mounts.
    fn kill_fdstore(&self) {
        let replaced = || self.agent().log().matches("another fd store has").count();
        let before = replaced();
        self.env.machine.kill_fdstore();
        eventually("another fd store has the mounts", || replaced() > before);
    }
}

impl StateMachineTest for RealMounts {
    type SystemUnderTest = Self;
    type Reference = MountsModel;

    fn init_test(_: &MountsModel) -> Self {
        let env = TestEnv::new();
        env.put("large/a", (3 << 20) + 5);
        env.put("large/b", 200_000);
        (0..20).for_each(|number| drop(env.put(&format!("small/{number}"), 900 + number)));
        // A secret with a name, which outlives both processes.
        let (secrets, keys) = (env.machine.directory("secrets"), Keys::sample());
        let secret = serde_json::json!({
            "aws_access_key_id": keys.access, "aws_secret_access_key": keys.secret, "aws_region": "us-east-1",
        });
        fs::write(secrets.join("s3"), secret.to_string()).expect("written");
        let config = format!("secrets = [{secrets:?}]");
        Self { agent: Some(env.machine.agent(&config)), open: BTreeMap::new(), config, env }
    }

    fn apply(mut real: Self, after: &MountsModel, step: MountStep) -> Self {
        match step {
            MountStep::Mount(number, source) => {
                let point = real.point(number);
                fs::create_dir_all(&point).expect("a directory");
                let is_used = is_mounted(&point);
                let source = format!("s3://bucket/{}", SOURCES[source].0);
                let mounted = real.env.machine.try_mount(source, &point, &["--secret", "s3"]);
                if is_used {
                    mounted.fails(&["mounted"])
                } else {
                    mounted.succeeds()
                };
            }
            MountStep::Unmount(number) => {
                let point = real.point(number);
                if after.0.contains_key(&number) {
                    real.env.machine.run(&["umount".as_ref(), point.as_os_str()]).fails(&["in use"]);
                } else {
                    real.env.machine.umount(&point);
                }
            }
            MountStep::Open(number) => {
                let (source, _) = after.0[&number];
                let file = File::open(real.point(number).join(SOURCES[source].1)).expect("opened");
                real.open.insert(number, file);
            }
            MountStep::Close(number) => drop(real.open.remove(&number)),
            MountStep::Crash => real.replace_agent(AgentProcess::crash),
            MountStep::Restart => real.replace_agent(AgentProcess::end),
            MountStep::KillFdstore => real.kill_fdstore(),
            MountStep::CrashAll => {
                real.agent.take().expect("one").crash();
                real.env.machine.kill_fdstore();
                real.open.clear();
                real.agent = Some(real.env.machine.agent(&real.config));
            }
            MountStep::DropCaches => drop_caches(),
        }
        real
    }

    fn check_invariants(real: &Self, model: &MountsModel) {
        // Not at once where a process with mounts of its own, of another test perhaps, has a copy of one that has ended.
        eventually("the agent has the mounts of the model", || {
            real.agent().status()["mounts"].as_array().is_some_and(|mounts| mounts.len() == model.0.len())
        });
        let status = real.agent().status();
        assert_eq!(status["lost"].as_array().map_or(0, Vec::len), 0, "{status}");
        for (number, name) in POINTS.iter().enumerate() {
            let path = real.point(number);
            assert_eq!(is_mounted(&path), model.0.contains_key(&number), "{name}");
            let Some((source, open)) = model.0.get(&number) else { continue };
            let (directory, file) = SOURCES[*source];
            let original = real.env.bucket().join(directory);
            assert_same_tree(&original, &path);
            assert_eq!(real.open.contains_key(&number), *open);
            if let Some(open) = real.open.get(&number) {
                let expected = fs::read(original.join(file)).expect("read");
                let mut read = vec![0; expected.len()];
                open.read_exact_at(&mut read, 0).expect("what is open is served on");
                assert_same(&expected, &read, "what is open");
            }
        }
    }
}

prop_state_machine! {
    #![proptest_config(Config { cases: 16, max_shrink_iters: 20, failure_persistence: None, ..Config::default() })]

    #[test]
    #[ignore = "takes a minute or two"]
    fn mounts_after_any_steps_and_crashes_equal_their_model(sequential 1..20 => RealMounts);
}
