//! Takeover: mounts outlive their agent. It may crash, be replaced, be gone for a while: who reads notices nothing but time.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bdnfs_tests::agent::Agent;
use bdnfs_tests::bdnfs::{Machine, drop_caches, eventually, local, mounted, wait};
use bdnfs_tests::proxy::Weather;
use bdnfs_tests::tools::{target, tool};
use bdnfs_tests::tree::{Dice, compare, grow, same};
use bdnfs_tests::world::World;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};

const MIB: usize = 1 << 20;

/// Slow enough that there is always something under way.
const SLOW: Weather =
    Weather { refuse: false, frozen: false, delay: Duration::ZERO, rate: Some(6 << 20), cut: None };
const FROZEN: Weather = Weather { rate: None, frozen: true, ..SLOW };
const GONE: Weather = Weather { rate: None, refuse: true, ..SLOW };

/// Processes that read mounts in all ways, and end at the first thing that is wrong. Dropping it kills them.
struct Readers {
    stop: PathBuf,
    all: Vec<(Child, PathBuf)>,
}

impl Readers {
    fn start(machine: &Machine, mounts: &[(PathBuf, PathBuf)], count: u64, seed: u64) -> Self {
        let directory = machine.directory(&format!("readers-{seed}"));
        let stop = directory.join("stop");
        let spawn = |number: u64| {
            let progress = directory.join(number.to_string());
            fs::write(&progress, [0; 8]).unwrap();
            let (original, mount) = &mounts[number as usize % mounts.len()];
            let log = File::create(progress.with_extension("log")).unwrap();
            let mut command = Command::new(target().join("reader"));
            command.arg(original).arg(mount).arg(&progress).arg(&stop).arg((seed + number).to_string());
            (command.stdin(Stdio::null()).stderr(log).spawn().expect("a reader"), progress)
        };
        Self { all: (0..count).map(spawn).collect(), stop }
    }

    /// Waits until each has done something more.
    fn go_on(&mut self) {
        let turns = |progress: &Path| {
            let mut turns = [0; 8];
            File::open(progress).unwrap().read_exact_at(&mut turns, 0).unwrap();
            u64::from_le_bytes(turns)
        };
        for (child, progress) in &mut self.all {
            // One turn may have been all but done.
            let begin = turns(progress);
            eventually(&format!("reader {} goes on", child.id()), || {
                if let Some(status) = child.try_wait().unwrap() {
                    let log = fs::read_to_string(progress.with_extension("log")).unwrap();
                    panic!("a reader ended with {status}: {log}");
                }
                turns(progress) > begin + 1
            });
        }
    }

    /// Has them read once more what they have open, and end.
    fn end(mut self) {
        fs::write(&self.stop, "").unwrap();
        for (mut child, progress) in std::mem::take(&mut self.all) {
            let status = wait(&mut child, "a reader");
            let log = fs::read_to_string(progress.with_extension("log")).unwrap();
            assert!(status.success(), "a reader ended with {status}: {log}");
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for (child, _) in &mut self.all {
            let _ = child.kill();
            // Not waited for: it may be stuck until its mount is taken away, which comes next.
        }
    }
}

fn stage(agent: &Agent, id: u64) {
    assert_eq!(agent.ask("POST", &format!("/v1/mounts/{id}/stage"), "").code, 200, "{}", agent.log());
}

fn the_holder(machine: &Machine) -> Pid {
    let holders = machine.holders();
    assert_eq!(holders.len(), 1, "{holders:?}");
    holders[0]
}

/// Kills and replaces the agent `rounds` times while mounts are read, staged, and read on.
fn rounds(rounds: u64, seed: u64) {
    let world = World::new();
    for (name, len) in
        [("first", 18 * MIB + 5), ("second", 20 * MIB), ("model/c", 33 * MIB + 4096), ("model/d", 3 * MIB)]
    {
        world.put(name, len);
    }
    grow(&world.bucket());
    (0..400).for_each(|number| drop(world.put(&format!("many/{number}"), 900 + number)));
    let machine = &world.machine;
    let agent = machine.agent("");
    // One with files that the kernel reads by itself, one with small files only, which are never opened.
    let large = machine.mount("s3://bucket", "large");
    let small = machine.mount_with("s3://bucket", "small", &["--allow", "sizes/*"]);
    let originals = machine.directory("originals");
    tool("cp").arg("-r").arg(world.bucket().join("sizes")).arg(&originals).status().unwrap();
    let mounts = [(world.bucket(), large.clone()), (world.bucket(), large.clone()), (originals, small)];
    world.proxy.set(SLOW);
    let mut readers = Readers::start(machine, &mounts, 6, seed);
    let (mut dice, mut agent) = (Dice(seed), Some(agent));
    for round in 0..rounds {
        readers.go_on();
        let before = agent.take().expect("one");
        if round == rounds / 3 {
            stage(&before, 1);
        }
        if round == rounds / 2 {
            world.proxy.set(Weather::default());
        }
        std::thread::sleep(Duration::from_millis(dice.below(300)));
        if round % 3 == 2 {
            before.end()
        } else {
            before.crash()
        }
        assert_eq!(machine.holders().len(), 1);
        std::thread::sleep(Duration::from_millis(dice.below(100)));
        agent = Some(machine.agent(""));
    }
    readers.go_on();
    let agent = agent.expect("one");
    let path = "/v1/mounts/1/stage";
    eventually("all is local", || agent.get(path).json()["state"] == "done");
    // Nothing that is whole is fetched again, neither by the next agent nor for those who have it open.
    world.s3.tally.clear();
    agent.crash();
    let agent = machine.agent("");
    readers.go_on();
    readers.end();
    drop_caches();
    compare(&world.bucket(), &large);
    assert_eq!(world.fetched("").requests, 0, "{}", agent.log());
    let log = agent.log();
    assert!(!log.contains(" ERROR "), "{log}");
    agent.stop();
    assert!(!mounted(&large) && machine.holders().is_empty());
}

#[test]
fn readers_notice_neither_crashes_nor_upgrades() {
    rounds(9, 1);
}

#[test]
#[ignore = "takes some minutes: a hundred kills, for people"]
fn readers_notice_none_of_a_hundred_kills() {
    rounds(100, std::env::var("SEED").map_or(7, |seed| seed.parse().expect("a number")));
}

/// A world with an agent whose mount has one file, not local yet.
fn one_file(config: &str) -> (World, Agent, PathBuf, Vec<u8>) {
    let world = World::new();
    let bytes = world.put("file", 17 * MIB);
    let agent = world.machine.agent(config);
    let point = world.machine.mount("s3://bucket", "mnt");
    (world, agent, point.join("file"), bytes)
}

/// A process that reads `file` to its end.
fn cat(file: &Path) -> Child {
    Command::new("cat").arg(file).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("cat")
}

/// Waits until the process sleeps in a request to a file system.
fn waits(child: &Child) {
    let wchan = format!("/proc/{}/wchan", child.id());
    eventually("a reader waits for the mount", || {
        fs::read_to_string(&wchan).is_ok_and(|at| at.contains("request_wait") || at.contains("folio"))
    });
}

#[test]
fn who_waits_for_an_agent_is_served_by_the_next() {
    let (world, agent, file, bytes) = one_file("");
    world.proxy.set(FROZEN);
    // Under way when the agent dies, and asked when there is none.
    let under_way = cat(&file);
    waits(&under_way);
    agent.crash();
    let waiting = cat(&file);
    world.proxy.set(Weather::default());
    let agent = world.machine.agent("");
    for mut child in [under_way, waiting] {
        assert!(wait(&mut child, "a reader").success());
    }
    // Its credentials were not lost with the agent.
    same(&bytes, &fs::read(&file).unwrap(), "file");
    agent.stop();
}

#[test]
fn who_waits_for_an_agent_can_be_killed() {
    let (world, agent, file, _) = one_file("");
    world.proxy.set(FROZEN);
    let under_way = cat(&file);
    waits(&under_way);
    agent.crash();
    let asking = cat(&file);
    waits(&asking);
    for mut child in [under_way, asking] {
        child.kill().unwrap();
        wait(&mut child, "a reader that was killed");
    }
    // Also when its request has been taken over and is under way once more.
    let taken_over = cat(&file);
    waits(&taken_over);
    let agent = world.machine.agent("");
    agent.crash();
    let agent = world.machine.agent("");
    let mut child = taken_over;
    child.kill().unwrap();
    wait(&mut child, "a reader that was killed");
    agent.stop();
}

#[test]
fn nobody_waits_for_ever() {
    let (world, agent, file, bytes) = one_file("hold = \"1s\"");
    same(&bytes, &fs::read(&file).unwrap(), "file");
    agent.crash();
    let reader = cat(&file);
    let output = reader.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("not connected") || said.contains("connection abort"), "{said}");
    eventually("the holder ends", || world.machine.holders().is_empty());
    let agent = world.machine.agent("hold = \"1s\"");
    same(&bytes, &fs::read(&file).unwrap(), "mounted anew");
    agent.stop();
}

#[test]
fn a_lost_holder_is_replaced() {
    let (world, agent, file, bytes) = one_file("");
    let open = File::open(&file).unwrap();
    let first = the_holder(&world.machine);
    kill_process(first, Signal::KILL).unwrap();
    eventually("there is another one", || world.machine.holders().iter().any(|pid| *pid != first));
    eventually("it has the mount", || agent.log().contains("1 of 1 mounts are held by another one"));
    agent.crash();
    let agent = world.machine.agent("");
    let mut read = vec![0; bytes.len()];
    open.read_exact_at(&mut read, 0).unwrap();
    same(&bytes, &read, "what was open");
    agent.stop();
}

#[test]
fn a_holder_that_hangs_holds_nobody_up() {
    let (world, agent, file, bytes) = one_file("");
    same(&bytes, &fs::read(&file).unwrap(), "file");
    let stuck = the_holder(&world.machine);
    kill_process(stuck, Signal::STOP).unwrap();
    agent.crash();
    let agent = world.machine.agent("");
    same(&bytes, &fs::read(&file).unwrap(), "mounted anew");
    assert_ne!(the_holder(&world.machine), stuck);
    agent.stop();
}

#[test]
fn an_agent_that_is_asked_to_end_while_it_comes_up_loses_nothing() {
    let (world, mut agent, file, bytes) = one_file("");
    let open = File::open(&file).unwrap();
    for _ in 0..5 {
        agent.end();
        agent = world.machine.agent_not_ready("");
        eventually("it listens", || agent.try_ask("GET", "/healthz", "").is_some());
    }
    let mut read = vec![0; bytes.len()];
    open.read_exact_at(&mut read, 0).unwrap();
    same(&bytes, &read, "what was open");
    agent.stop();
}

#[test]
fn without_agent_and_holder_it_is_mounted_anew() {
    let (world, agent, file, bytes) = one_file("");
    same(&bytes, &fs::read(&file).unwrap(), "file");
    agent.crash();
    the_holder(&world.machine);
    world.machine.lose_holder();
    assert_eq!(fs::read(&file).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    let agent = world.machine.agent("");
    same(&bytes, &fs::read(&file).unwrap(), "mounted anew");
    the_holder(&world.machine);
    agent.stop();
}

#[test]
fn what_is_unmounted_while_there_is_no_agent_comes_back() {
    let (world, agent, file, bytes) = one_file("");
    let point = file.parent().unwrap();
    same(&bytes, &fs::read(&file).unwrap(), "file");
    agent.crash();
    unmount(point, UnmountFlags::NOFOLLOW).unwrap();
    assert!(!mounted(point));
    // It held nothing else.
    eventually("the holder ends", || world.machine.holders().is_empty());
    let agent = world.machine.agent("");
    same(&bytes, &fs::read(&file).unwrap(), "mounted anew");
    agent.stop();
}

#[test]
fn an_agent_that_is_stopped_takes_everything_down_and_brings_it_back() {
    let (world, agent, file, bytes) = one_file("");
    let point = file.parent().unwrap();
    same(&bytes, &fs::read(&file).unwrap(), "file");
    kill_process(agent.pid(), Signal::HUP).unwrap();
    let _in_use = File::open(&file).unwrap();
    world.machine.run(&["agent", "--stop"]).succeeds();
    assert!(!mounted(point) && world.machine.holders().is_empty());
    world.machine.run(&["agent", "--stop"]).fails(&["no agent"]);
    agent.gone();
    let agent = world.machine.agent("");
    assert!(mounted(point));
    world.proxy.set(GONE);
    assert!(local(&file));
    agent.stop();
}
