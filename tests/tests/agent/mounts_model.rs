//! Mounts against a model of them: mounts, unmounts, open files, damage in the cache, and agents and fd stores that crash or are
//! stopped, in any order.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::mounts::{drop_caches, is_mounted};
use bdnfs_tests::process::eventually;
use bdnfs_tests::rot::{flip_byte, largest_files};
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tree::{assert_same, assert_same_tree};
use proptest::prelude::*;
use proptest::test_runner::Config;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use rustix::process::{Signal, kill_process};

/// Where it is mounted.
const POINTS: [&str; 3] = ["one", "two", "three"];
/// What is mounted: large files, which are opened, and small ones only, which never are; and a file of each.
const SOURCES: [(&str, &str); 2] = [("large", "a"), ("small", "7")];
/// The source whose file gets damaged, which the kernel reads by itself once it is whole.
const DAMAGED_SOURCE: usize = 0;
/// The size of that file: with it, its mount is asked for every open.
const DAMAGED_FILE_BYTES: usize = (17 << 20) + 5;
/// The byte of it that is flipped.
const FLIPPED_OFFSET: u64 = 5 << 20;

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
    /// Stop what keeps the mounts for the next agent, as a signal does.
    StopFdstore,
    ContinueFdstore,
    /// Flip a byte in the cache, and have the cache verified.
    Damage,
    DropCaches,
}

/// Which source is mounted where, and whether a file of it is open; and whether the fd store is stopped.
#[derive(Clone, Debug, Default)]
struct MountsModel {
    mounts: BTreeMap<usize, (usize, bool)>,
    is_fdstore_stopped: bool,
}

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
            1 => Just(MountStep::StopFdstore),
            1 => Just(MountStep::ContinueFdstore),
            2 => Just(MountStep::Damage),
            1 => Just(MountStep::DropCaches),
        ]
        .boxed()
    }

    fn preconditions(model: &Self, step: &MountStep) -> bool {
        let is_open = |point: &usize| model.mounts.get(point).map(|(_, open)| *open);
        match step {
            // Also where something is mounted, or in use: that is refused.
            MountStep::Mount(..) | MountStep::DropCaches => true,
            MountStep::Unmount(point) => model.mounts.contains_key(point),
            MountStep::Open(point) => is_open(point) == Some(false),
            MountStep::Close(point) => is_open(point) == Some(true),
            // The next agent gives a stopped one up after a while, and mounts anew: as after `CrashAll`.
            MountStep::Crash | MountStep::Restart => !model.is_fdstore_stopped,
            MountStep::KillFdstore | MountStep::CrashAll => !model.mounts.is_empty(),
            MountStep::StopFdstore => !model.mounts.is_empty() && !model.is_fdstore_stopped,
            MountStep::ContinueFdstore => model.is_fdstore_stopped,
            MountStep::Damage => model.mounts.values().any(|(source, _)| *source == DAMAGED_SOURCE),
        }
    }

    fn apply(mut model: Self, step: &MountStep) -> Self {
        match *step {
            MountStep::Mount(point, source) => drop(model.mounts.entry(point).or_insert((source, false))),
            MountStep::Unmount(point) => model.mounts.retain(|at, (_, open)| *at != point || *open),
            MountStep::Open(point) | MountStep::Close(point) => {
                model.mounts.entry(point).and_modify(|(_, open)| *open = !*open);
            }
            MountStep::CrashAll => {
                model.is_fdstore_stopped = false;
                // Mounted anew: what was open belongs to a mount that is gone.
                model.mounts.values_mut().for_each(|(_, open)| *open = false);
            }
            MountStep::KillFdstore | MountStep::ContinueFdstore => model.is_fdstore_stopped = false,
            MountStep::StopFdstore => model.is_fdstore_stopped = true,
            MountStep::Crash | MountStep::Restart | MountStep::Damage | MountStep::DropCaches => {}
        }
        model
    }
}

/// A real agent with its mounts.
struct RealMounts {
    agent: Option<AgentProcess>,
    open: BTreeMap<usize, File>,
    /// Whether the cache was damaged.
    was_damaged: bool,
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
        eventually("there is an fd store", || !self.env.machine.fdstores().is_empty());
        self.env.machine.kill_fdstore();
        eventually("another fd store has the mounts", || replaced() > before);
    }

    fn signal_fdstore(&self, signal: Signal) {
        self.env
            .machine
            .fdstores()
            .into_iter()
            .for_each(|store| kill_process(store, signal).expect("it runs"));
    }

    /// Has the cache verified. Returns what was found.
    fn verify(&self) -> CommandOutput {
        self.env.machine.run(&[
            "cache".as_ref(),
            "verify".as_ref(),
            "--cache-dir".as_ref(),
            self.env.machine.cache().as_os_str(),
        ])
    }

    /// Flips a byte of the damaged file, and waits until all mounts of it have the right one again.
    fn damage(&mut self, after: &MountsModel) {
        let blob = || {
            let blobs = largest_files(&self.env.machine.cache().join("tenants"), DAMAGED_FILE_BYTES as u64);
            blobs.into_iter().find(|path| path.extension().is_none())
        };
        eventually("all of the file is in the cache", || blob().is_some());
        flip_byte(&blob().expect("it is there"), FLIPPED_OFFSET);
        let ran = self.verify();
        assert!(ran.out.contains("large") && ran.err.contains("1 blob damaged"), "{}{}", ran.out, ran.err);
        let (directory, file) = SOURCES[DAMAGED_SOURCE];
        let original = fs::read(self.env.bucket().join(directory).join(file)).expect("read");
        for number in after
            .mounts
            .iter()
            .filter(|(_, (source, _))| *source == DAMAGED_SOURCE)
            .map(|(number, _)| *number)
        {
            let path = self.point(number).join(file);
            eventually("it is read right again", || fs::read(&path).is_ok_and(|read| read == original));
        }
        self.was_damaged = true;
    }
}

impl StateMachineTest for RealMounts {
    type SystemUnderTest = Self;
    type Reference = MountsModel;

    fn init_test(_: &MountsModel) -> Self {
        let env = TestEnv::new();
        env.put("large/a", DAMAGED_FILE_BYTES);
        env.put("large/b", 200_000);
        (0..20).for_each(|number| drop(env.put(&format!("small/{number}"), 900 + number)));
        // A secret with a name, which outlives both processes.
        let (secrets, keys) = (env.machine.directory("secrets"), Keys::sample());
        let secret = serde_json::json!({
            "aws_access_key_id": keys.access, "aws_secret_access_key": keys.secret, "aws_region": "us-east-1",
            // With a secret that only the agent has, the endpoint of a client's environment is not used.
            "aws_endpoint": env.proxy.url(),
        });
        fs::write(secrets.join("s3"), secret.to_string()).expect("written");
        let config = format!("secrets = [{secrets:?}]");
        let (agent, open) = (Some(env.machine.agent(&config)), BTreeMap::new());
        Self { agent, open, was_damaged: false, config, env }
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
                if after.mounts.contains_key(&number) {
                    real.env.machine.run(&["umount".as_ref(), point.as_os_str()]).fails(&["in use"]);
                } else {
                    real.env.machine.umount(&point);
                }
            }
            MountStep::Open(number) => {
                let (source, _) = after.mounts[&number];
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
            MountStep::StopFdstore => real.signal_fdstore(Signal::STOP),
            MountStep::ContinueFdstore => real.signal_fdstore(Signal::CONT),
            MountStep::Damage => real.damage(after),
            MountStep::DropCaches => drop_caches(),
        }
        real
    }

    fn check_invariants(real: &Self, model: &MountsModel) {
        // Not at once where a process with mounts of its own, of another test perhaps, has a copy of one that has ended.
        eventually("the agent has the mounts of the model", || {
            real.agent().status()["mounts"]
                .as_array()
                .is_some_and(|mounts| mounts.len() == model.mounts.len())
        });
        let status = real.agent().status();
        assert_eq!(status["lost"].as_array().map_or(0, Vec::len), 0, "{status}");
        let mut is_stale = false;
        for (number, name) in POINTS.iter().enumerate() {
            let path = real.point(number);
            assert_eq!(is_mounted(&path), model.mounts.contains_key(&number), "{name}");
            let Some((source, open)) = model.mounts.get(&number) else { continue };
            let (directory, file) = SOURCES[*source];
            let original = real.env.bucket().join(directory);
            assert_same_tree(&original, &path);
            assert_eq!(real.open.contains_key(&number), *open);
            if let Some(open) = real.open.get(&number) {
                let expected = fs::read(original.join(file)).expect("read");
                let mut read = vec![0; expected.len()];
                open.read_exact_at(&mut read, 0).expect("what is open is served on");
                if real.was_damaged && *source == DAMAGED_SOURCE && read != expected {
                    // The kernel read it by itself before it was damaged, and goes on.
                    read[FLIPPED_OFFSET as usize] ^= 1;
                    is_stale = true;
                }
                assert_same(&expected, &read, "what is open");
            }
        }
        if real.was_damaged {
            eventually("verify names what is still read wrongly, and nothing else", || {
                let named = real.verify().out.contains("removed before, and still open");
                named == is_stale
            });
        }
    }
}

prop_state_machine! {
    #![proptest_config(Config { cases: 16, max_shrink_iters: 20, failure_persistence: None, ..Config::default() })]

    #[test]
    #[ignore = "takes a minute or two"]
    fn mounts_after_any_steps_and_crashes_equal_their_model(sequential 1..20 => RealMounts);
}
