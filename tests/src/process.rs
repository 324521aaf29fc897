//! Processes: wait for them, find them by what they have open, kill them.

use std::fs;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

/// How long any command may take before the test fails instead of hanging. Far above what any takes.
const EVENTUALLY_TIMEOUT: Duration = Duration::from_secs(120);

/// The most memory that the process `pid` has had, in bytes (proc_pid_status(5)).
///
/// # Panics
/// When there is none.
pub fn peak_memory(pid: Pid) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Waits for `child`.
///
/// # Panics
/// When it does not end; it is killed then.
pub fn wait_for_exit(child: &mut Child, what: &str) -> ExitStatus {
    if let Some(status) = child.try_wait().expect("a child can be waited for") {
        return status;
    }
    // Looking at it again and again would take time from what is measured.
    let ends = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a child has a descriptor");
    let timeout = Timespec::try_from(EVENTUALLY_TIMEOUT).expect("minutes");
    let ended = retry_on_intr(|| poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&timeout)));
    if ended.expect("a descriptor can be waited for") == 0 {
        let _ = child.kill();
        panic!("{what} has not ended after {EVENTUALLY_TIMEOUT:?}");
    }
    child.wait().expect("a child can be waited for")
}

/// Waits until `holds`.
///
/// # Panics
/// When it never does.
pub fn eventually(what: &str, holds: impl FnMut() -> bool) {
    eventually_within(EVENTUALLY_TIMEOUT, what, holds);
}

/// Waits until `holds`, for `limit` at the most: for what is of the lowest priority beside tests that compute.
///
/// # Panics
/// When it does not by then.
pub fn eventually_within(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < limit, "{what}: not after {limit:?}");
        sleep(Duration::from_millis(10));
    }
}

/// The processes in whose mount namespace something below `root` of the file system on `device` is bound, such as a job's commands.
pub fn processes_with_bind(device: u64, root: &str) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let shows = |pid: &i32| {
        let table = fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
        table.lines().any(|line| {
            let mut fields = line.split(' ').skip(2);
            fields.next() == Some(&device) && fields.next().is_some_and(|bound| bound.starts_with(root))
        })
    };
    pids.filter(shows).filter_map(Pid::from_raw).collect()
}

/// Whether a thread of `process` waits in the kernel, in its `function`.
pub fn waits_in(process: Pid, function: &str) -> bool {
    let threads =
        fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).into_iter().flatten().flatten();
    let mut places =
        threads.map(|thread| fs::read_to_string(thread.path().join("wchan")).unwrap_or_default());
    places.any(|place| place == function)
}

/// Kills `processes` and waits until they are gone.
pub fn kill_and_wait(processes: &[Pid]) {
    for pid in processes {
        let _ = kill_process(*pid, Signal::KILL);
    }
    wait_gone(processes);
}

/// Kills what `find` finds, and waits until that is gone, until it finds nothing more: what was being started at first is there by then.
pub fn kill_until_none(what: &str, mut find: impl FnMut() -> Vec<Pid>) {
    eventually(what, || {
        let found = find();
        kill_and_wait(&found);
        found.is_empty()
    });
}

/// Waits until `processes` are gone.
pub fn wait_gone(processes: &[Pid]) {
    eventually("the end of a killed process", || {
        processes.iter().all(|pid| {
            let process = Path::new("/proc").join(pid.as_raw_nonzero().to_string());
            let stat = fs::read_to_string(process.join("stat"));
            // Its files are closed when its last thread has ended, which need not be the first.
            let alone = || fs::read_dir(process.join("task")).map_or(true, |tasks| tasks.count() <= 1);
            stat.map_or(true, |stat| stat.contains(") Z ") && alone())
        })
    });
}

/// The processes whose names `is_named` takes and that have a file open whose path `is_open` takes; not a child of such a
/// process that has not executed its program yet, and has its parent's name and files till then.
pub fn processes_with_open(is_named: impl Fn(&str) -> bool, is_open: impl Fn(&Path) -> bool) -> Vec<Pid> {
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    // The name first: it is one file, and a process may have thousands open.
    let named = pids.filter(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        is_named(name.trim_end())
    });
    let open = named.filter(|pid| {
        let mut open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.any(|fd| fs::read_link(fd.path()).is_ok_and(|path| is_open(&path)))
    });
    let pids: Vec<Pid> = open.filter_map(Pid::from_raw).collect();
    let is_fork = |pid: &Pid| parent(*pid).is_some_and(|parent| pids.contains(&parent));
    pids.iter().copied().filter(|pid| !is_fork(pid)).collect()
}

/// The parent of process `pid`, `None` where either is gone.
fn parent(pid: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    Pid::from_raw(parent.trim().parse().ok()?)
}
