//! The program under test: the real binary, with a cache, mountpoints and an environment of its own.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

use crate::network::Host;
use crate::s3::Keys;
use crate::tools::{target, tool};

/// How long any command may take before the test fails instead of hanging. Far above what any takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A machine of its own, as far as `bdnfs` can tell. Dropping it unmounts, ends its processes and removes its files,
/// however the test ends.
#[derive(Debug)]
pub struct Machine {
    home: TempDir,
    cache: PathBuf,
    env: Vec<(OsString, OsString)>,
    /// The network namespace that it is in, if it is not this process's.
    network: Option<PathBuf>,
    /// What stands in its `/etc/resolv.conf`, if that is not this machine's.
    resolver: Option<PathBuf>,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Ran {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to its standard output.
    pub out: String,
    /// What it wrote to its standard error.
    pub err: String,
}

impl Machine {
    /// A new machine with an empty cache.
    pub fn new() -> Self {
        let home = TempDir::with_prefix("bdnfs-test-").expect("a temporary directory");
        Self { cache: home.path().join("cache"), home, env: Vec::new(), network: None, resolver: None }
    }

    /// The same, with its cache at `cache`.
    pub fn with_cache(mut self, cache: &Path) -> Self {
        self.cache = cache.to_owned();
        self
    }

    /// The same, with the network of `host`.
    pub fn within(mut self, host: &Host) -> Self {
        self.network = Some(host.path());
        self
    }

    /// The same, which looks up names as the file `resolver` says. Its mounts are not to be seen from here.
    pub fn asks(mut self, resolver: &Path) -> Self {
        self.resolver = Some(resolver.to_owned());
        self
    }

    /// The same, with an environment variable.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// The same, with the environment that leads S3 clients to `endpoint`.
    pub fn s3(self, endpoint: &str, keys: &Keys) -> Self {
        let machine = self
            .env("AWS_ENDPOINT_URL", endpoint)
            .env("AWS_REGION", "us-east-1")
            .env("AWS_ACCESS_KEY_ID", &keys.access)
            .env("AWS_SECRET_ACCESS_KEY", &keys.secret);
        match &keys.token {
            Some(token) => machine.env("AWS_SESSION_TOKEN", token),
            None => machine,
        }
    }

    /// Its cache directory.
    pub fn cache(&self) -> &Path {
        &self.cache
    }

    /// Where its agent listens, if it has one.
    pub fn socket(&self) -> PathBuf {
        self.home.path().join("agent.sock")
    }

    /// A directory of its own, empty when it is new.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.home.path().join(name);
        fs::create_dir_all(&path).expect("a directory");
        path
    }

    /// The command `bdnfs` with `arguments`, in this machine's environment.
    ///
    /// # Panics
    /// When the binary is not built.
    pub fn command<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Command {
        let binary = target().join("bdnfs");
        assert!(binary.exists(), "{} is missing; cargo build --workspace makes it", binary.display());
        let mut words: Vec<OsString> = Vec::new();
        if let Some(network) = &self.network {
            // The network alone: what is mounted is to be seen from here.
            words.extend(["nsenter".into(), format!("--net={}", network.display()).into(), "--".into()]);
        }
        if let Some(resolver) = &self.resolver {
            let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
            words.extend(["unshare", "--mount", "sh", "-c", script].map(OsString::from));
            words.push(resolver.into());
        }
        let mut command = match words.split_first() {
            Some((program, words)) => {
                let mut command = tool(program.to_str().expect("text"));
                command.args(words).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        command.args(arguments).env_clear().stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", self.home.path());
        command.env("BDNFS_SOCKET", self.socket());
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs `bdnfs` with `arguments` to its end.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Ran {
        let (out, err) = (self.home.path().join("stdout"), self.home.path().join("stderr"));
        let mut command = self.command(arguments);
        // Files and not pipes: what is left running must not be waited for.
        command.stdout(File::create(&out).expect("a file")).stderr(File::create(&err).expect("a file"));
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        let status = wait(&mut child, &format!("{command:?}"));
        let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).expect("its output")).into_owned();
        Ran { code: status.code(), out: text(&out), err: text(&err) }
    }

    /// Mounts `source` on a new directory called `name`, and answers with the directory.
    ///
    /// # Panics
    /// When `bdnfs mount` fails.
    pub fn mount(&self, source: impl AsRef<OsStr>, name: &str) -> PathBuf {
        self.mount_with(source, name, &[])
    }

    /// The same, with further options.
    ///
    /// # Panics
    /// When `bdnfs mount` fails.
    pub fn mount_with(&self, source: impl AsRef<OsStr>, name: &str, options: &[&str]) -> PathBuf {
        let point = self.directory(name);
        self.try_mount(source, &point, options).succeeds();
        assert!(mounted(&point), "nothing is mounted on {} although bdnfs mount succeeded", point.display());
        point
    }

    /// Mounts `source` on `point`, if it can be.
    pub fn try_mount(&self, source: impl AsRef<OsStr>, point: &Path, options: &[&str]) -> Ran {
        let mut arguments = vec![OsStr::new("mount"), source.as_ref(), point.as_os_str()];
        arguments.extend([OsStr::new("--cache-dir"), self.cache.as_os_str()]);
        arguments.extend(options.iter().map(OsStr::new));
        self.run(&arguments)
    }

    /// Unmounts what [`mount`](Self::mount) mounted.
    ///
    /// # Panics
    /// When `bdnfs umount` fails.
    pub fn umount(&self, point: &Path) {
        self.run(&[OsStr::new("umount"), point.as_os_str()]).succeeds();
        assert!(!mounted(point), "{} is still mounted although bdnfs umount succeeded", point.display());
    }

    /// The processes that hold this machine's cache: those that have its lock open.
    pub fn daemons(&self) -> Vec<Pid> {
        self.having_open("lock")
    }

    /// The processes that hold the mounts of this machine's agent.
    pub fn holders(&self) -> Vec<Pid> {
        self.having_open("holder.lock")
    }

    /// Kills what holds the mounts of this machine's agent, and waits until it is gone.
    pub fn lose_holder(&self) {
        end(&self.holders());
    }

    fn having_open(&self, lock: &str) -> Vec<Pid> {
        let Ok(lock) = self.cache.join(lock).canonicalize() else { return Vec::new() };
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let pids =
            processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
        // The name first: what a stranger has open may be asked of a file system that does not answer.
        let named = |pid: &Pid| {
            let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
            // "exe" is what it is called until it has named itself, where it was started as /proc/self/exe.
            name.is_ok_and(|name| name.starts_with("bdnfs") || name.trim_end() == "exe")
        };
        pids.filter(named)
            .filter(|pid| {
                let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
                open.into_iter()
                    .flatten()
                    .flatten()
                    .any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path == lock))
            })
            .collect()
    }

    /// The supervisors of this machine's jobs.
    pub fn supervisors(&self) -> Vec<Pid> {
        let processes = fs::read_dir("/proc").expect("/proc").flatten();
        let ours = |pid: &i32| {
            // The name first, as above.
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let mut open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            name.trim_end() == "bdnfs-launch"
                && open.any(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.starts_with(&self.cache)))
        };
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(ours).filter_map(Pid::from_raw).collect()
    }

    /// Kills the daemon as a crash would, and waits until it is gone.
    ///
    /// # Panics
    /// When none is running.
    pub fn crash(&self) {
        let daemons = self.daemons();
        assert!(!daemons.is_empty(), "no process holds {}", self.cache.display());
        end(&daemons);
    }

    /// Ends all that runs on it, and takes down what is mounted below its own directory, as when it is reset.
    pub fn reset(&self) {
        // A supervisor ends its job with it.
        let supervisors = self.supervisors();
        for pid in &supervisors {
            let _ = kill_process(*pid, Signal::QUIT);
        }
        gone(&supervisors);
        let below = mountpoints().into_iter().filter(|point| point.starts_with(self.home.path()));
        for point in below.collect::<Vec<_>>().iter().rev() {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
        end(&self.daemons());
        end(&self.holders());
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.reset();
    }
}

impl Ran {
    /// Asserts that the command succeeded, and answers with what it printed.
    ///
    /// # Panics
    /// When it did not.
    pub fn succeeds(self) -> String {
        assert_eq!(self.code, Some(0), "it failed: {}{}", self.out, self.err);
        self.out
    }

    /// Asserts that the command failed, and said so in one line that has all of `words` in it, after nothing but notes
    /// and progress. Answers with the line.
    ///
    /// # Panics
    /// When it did not.
    pub fn fails(self, words: &[&str]) -> String {
        assert!(
            self.code.is_some_and(|code| code != 0),
            "exit code {:?}: {}{}",
            self.code,
            self.out,
            self.err
        );
        let (errors, others): (Vec<_>, Vec<_>) =
            self.err.lines().partition(|line| line.starts_with("bdnfs: "));
        let known = |line: &&str| line.starts_with("note: ") || line.starts_with("staging: ");
        assert!(errors.len() == 1 && others.iter().all(known), "not one line:\n{}", self.err);
        for word in words {
            assert!(errors[0].contains(word), "`{word}` is not in: {}", errors[0]);
        }
        errors[0].to_owned()
    }
}

/// Waits for `child`.
///
/// # Panics
/// When it does not end; it is killed then.
pub fn wait(child: &mut Child, what: &str) -> std::process::ExitStatus {
    if let Some(status) = child.try_wait().expect("a child can be waited for") {
        return status;
    }
    // Looking at it again and again would take time from what is measured.
    let ends = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).expect("a child has a descriptor");
    let patience = Timespec::try_from(PATIENCE).expect("minutes");
    let ended = retry_on_intr(|| poll(&mut [PollFd::new(&ends, PollFlags::IN)], Some(&patience)));
    if ended.expect("a descriptor can be waited for") == 0 {
        let _ = child.kill();
        panic!("{what} has not ended after {PATIENCE:?}");
    }
    child.wait().expect("a child can be waited for")
}

/// Waits until `holds`.
///
/// # Panics
/// When it never does.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        sleep(Duration::from_millis(10));
    }
}

/// Whether something is mounted on `point`.
pub fn mounted(point: &Path) -> bool {
    mountpoints().iter().any(|mounted| mounted == point)
}

/// The value of an extended attribute.
///
/// # Panics
/// When `path` does not have it.
pub fn xattr(path: &Path, name: &str) -> String {
    let mut value = vec![0; 4096];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]);
    value.truncate(len.unwrap_or_else(|e| panic!("{name} of {}: {e}", path.display())));
    String::from_utf8(value).expect("text")
}

/// Whether every byte of the file at `path` is local.
///
/// # Panics
/// When `path` is no file of a mount.
pub fn local(path: &Path) -> bool {
    let len = fs::metadata(path).unwrap_or_else(|e| panic!("cannot stat {}: {e}", path.display())).len();
    xattr(path, "user.bdnfs.local") == format!("{len}/{len}")
}

/// Drops what the kernel caches, so that reads reach the file system again.
pub fn drop_caches() {
    let _ = tool("sync").status();
    fs::write("/proc/sys/vm/drop_caches", "3").expect("root may drop caches");
}

/// All mountpoints, oldest first.
fn mountpoints() -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").expect("/proc/self/mountinfo");
    let points =
        table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(|point| PathBuf::from(OsStr::from_bytes(&unescape(point)))).collect()
}

/// Undoes the octal escapes of /proc (`\040` for a space).
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut parts = text.split(|byte| *byte == b'\\');
    let mut out = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(3);
        out.push(digits.iter().fold(0, |code, digit| (code << 3) | (digit - b'0')));
        out.extend_from_slice(rest);
    }
    out
}

/// Kills `processes` and waits until they are gone.
fn end(processes: &[Pid]) {
    for pid in processes {
        let _ = kill_process(*pid, Signal::KILL);
    }
    gone(processes);
}

/// Waits until `processes` are gone.
fn gone(processes: &[Pid]) {
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
