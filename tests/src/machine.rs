//! The program under test: the real binary, with a cache, mountpoints and an environment of its own.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::{NamedTempFile, TempDir};

use crate::command_output::CommandOutput;
use crate::mount_namespace::MountNamespace;
use crate::mounts::{is_mounted, mount_points};
use crate::network::NetworkHost;
use crate::process::{kill_and_wait, kill_until_none, processes_with_open, wait_for_exit, wait_gone};
use crate::s3::Keys;
use crate::tools::{program, target};

/// A machine of its own, as far as `bdnfs` can tell. Dropping it unmounts, ends its processes and removes its files,
/// however the test ends.
#[derive(Debug)]
pub struct Machine {
    home: TempDir,
    cache: PathBuf,
    /// The program; `None`: the one that was built beside the test.
    build: Option<PathBuf>,
    env: Vec<(OsString, OsString)>,
    /// The network namespace that it is in, if it is not this process's.
    network: Option<PathBuf>,
    /// The mount namespace that it is in, if it is not this process's.
    mounts: Option<PathBuf>,
    /// Its `/etc/resolv.conf`, if that is not this machine's.
    resolver: Option<PathBuf>,
}

impl Machine {
    /// A new machine with an empty cache.
    pub fn new() -> Self {
        let home = TempDir::with_prefix("bdnfs-test-").expect("a temporary directory");
        let cache = home.path().join("cache");
        Self { cache, home, build: None, env: Vec::new(), network: None, mounts: None, resolver: None }
    }

    /// The same, with its cache at `cache`.
    pub fn with_cache(mut self, cache: &Path) -> Self {
        self.cache = cache.to_owned();
        self
    }

    /// Makes the commands that follow run another build of the program; `None`: the one that was built beside the test.
    pub fn use_build(&mut self, program: Option<&Path>) {
        self.build = program.map(Path::to_owned);
    }

    /// The same, with the network of `host`.
    pub fn in_network(mut self, host: &NetworkHost) -> Self {
        self.network = Some(host.path());
        self
    }

    /// The same, whose mounts are those of `namespace`.
    pub fn in_mounts(mut self, namespace: &MountNamespace) -> Self {
        self.mounts = Some(namespace.handle());
        self
    }

    /// The same, which looks up names as the file `resolver` says. Its mounts are not to be seen from here.
    pub fn with_resolver(mut self, resolver: &Path) -> Self {
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

    /// The directory of what its jobs write: `BDNFS_VOLUMES_DIR` of its environment, or one of its own.
    pub fn volumes(&self) -> PathBuf {
        let set = self.env.iter().rev().find(|(name, _)| name == "BDNFS_VOLUMES_DIR");
        set.map_or_else(|| self.home.path().join("volumes"), |(_, path)| path.into())
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
        let binary = self.build.clone().unwrap_or_else(|| target().join("bdnfs"));
        assert!(binary.exists(), "{} is missing; cargo build --workspace makes it", binary.display());
        self.program(binary, arguments)
    }

    /// The command `program` with `arguments`, in this machine's environment.
    pub fn program<A: AsRef<OsStr>>(&self, program_path: impl AsRef<OsStr>, arguments: &[A]) -> Command {
        let mut words: Vec<OsString> = Vec::new();
        if let Some(network) = &self.network {
            // The network alone: what is mounted is to be seen from here.
            words.extend(["nsenter".into(), format!("--net={}", network.display()).into(), "--".into()]);
        }
        if let Some(mounts) = &self.mounts {
            words.extend(["nsenter".into(), format!("--mount={}", mounts.display()).into(), "--".into()]);
        }
        if let Some(resolver) = &self.resolver {
            let script = "mount --bind \"$0\" /etc/resolv.conf && exec \"$@\"";
            words.extend(["unshare", "--mount", "sh", "-c", script].map(OsString::from));
            words.push(resolver.into());
        }
        let mut command = match words.split_first() {
            Some((name, words)) => {
                let mut command = program(name.to_str().expect("text"));
                command.args(words).arg(program_path);
                command
            }
            None => Command::new(program_path),
        };
        command.args(arguments).env_clear().stdin(Stdio::null());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", self.home.path());
        command.env("BDNFS_SOCKET", self.socket()).env("BDNFS_VOLUMES_DIR", self.volumes());
        // However full the disk of this machine is.
        command.env("BDNFS_CACHE_RESERVE", "1MiB");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs `bdnfs` with `arguments` to its end.
    pub fn run<A: AsRef<OsStr>>(&self, arguments: &[A]) -> CommandOutput {
        self.run_command(self.command(arguments))
    }

    /// Runs `command` to its end.
    pub fn run_command(&self, mut command: Command) -> CommandOutput {
        // Files and not pipes: what is left running must not be waited for. Each command has its own: several run at once.
        let [out, err] = [(); 2].map(|()| NamedTempFile::new_in(self.home.path()).expect("a file"));
        command.stdout(out.reopen().expect("a file")).stderr(err.reopen().expect("a file"));
        let mut child = command.spawn().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        let status = wait_for_exit(&mut child, &format!("{command:?}"));
        let text =
            |file: &NamedTempFile| String::from_utf8_lossy(&fs::read(file).expect("its output")).into_owned();
        CommandOutput { code: status.code(), out: text(&out), err: text(&err) }
    }

    /// Mounts `source` on a new directory called `name`, and returns the directory.
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
        assert!(
            is_mounted(&point),
            "nothing is mounted on {} although bdnfs mount succeeded",
            point.display()
        );
        point
    }

    /// Mounts `source` on `point`, if it can be.
    pub fn try_mount(&self, source: impl AsRef<OsStr>, point: &Path, options: &[&str]) -> CommandOutput {
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
        assert!(!is_mounted(point), "{} is still mounted although bdnfs umount succeeded", point.display());
    }

    /// The processes that hold this machine's cache: those that have its lock open.
    pub fn agent_pids(&self) -> Vec<Pid> {
        self.having_open("lock")
    }

    /// The processes that hold the mounts of this machine's agent.
    pub fn fdstores(&self) -> Vec<Pid> {
        self.without_agents(self.having_open("holder.lock"))
    }

    /// Kills what holds the mounts of this machine's agent, and waits until it is gone.
    pub fn kill_fdstore(&self) {
        kill_and_wait(&self.fdstores());
    }

    fn having_open(&self, lock: &str) -> Vec<Pid> {
        let Ok(lock) = self.cache.join(lock).canonicalize() else { return Vec::new() };
        // "exe" is what it is called until it has named itself, where it was started as /proc/self/exe.
        let is_ours = |name: &str| name.starts_with("bdnfs") || name == "exe";
        processes_with_open(is_ours, |path| path == lock)
    }

    /// The supervisors of this machine's jobs.
    pub fn supervisors(&self) -> Vec<Pid> {
        processes_with_open(|name| name == "bdnfs-launch", |path| path.starts_with(&self.cache))
    }

    /// The savers of this machine's jobs.
    pub fn savers(&self) -> Vec<Pid> {
        processes_with_open(|name| name == "bdnfs-save", |path| self.is_own(path))
    }

    /// Kills the savers of this machine's jobs, also one that was just started and has not named itself yet. A living agent starts others.
    pub fn kill_savers(&self) {
        kill_until_none("its savers are gone", || [self.savers(), self.starting_savers()].concat());
    }

    /// Savers that were just started: processes that have a saver's log open, but for the agent and this test. They have the name of
    /// the thread that started them for a moment.
    fn starting_savers(&self) -> Vec<Pid> {
        let is_log = |path: &Path| path.ends_with("saver.log") && self.is_own(path);
        let mut starting = self.without_agents(processes_with_open(|_| true, is_log));
        starting.retain(|pid| *pid != rustix::process::getpid());
        starting
    }

    /// The `processes` but for the agent: it has the lock or log of a process that it starts open until that executes its program.
    fn without_agents(&self, mut processes: Vec<Pid>) -> Vec<Pid> {
        let agents = self.agent_pids();
        processes.retain(|pid| !agents.contains(pid));
        processes
    }

    /// Whether a path is on this machine.
    fn is_own(&self, path: &Path) -> bool {
        // Its cache and its volumes may lie on other disks.
        [self.home.path(), self.cache(), &self.volumes()].iter().any(|directory| path.starts_with(directory))
    }

    /// Kills the agent as a crash would, and waits until it is gone.
    ///
    /// # Panics
    /// When none is running.
    pub fn crash(&self) {
        let agents = self.agent_pids();
        assert!(!agents.is_empty(), "no process holds {}", self.cache.display());
        kill_and_wait(&agents);
    }

    /// Ends all that runs on it, and takes down what is mounted below its own directory, as when it is reset.
    pub fn reset(&self) {
        // A supervisor ends its job with it.
        let supervisors = self.supervisors();
        for pid in &supervisors {
            let _ = kill_process(*pid, Signal::QUIT);
        }
        wait_gone(&supervisors);
        let below = mount_points().into_iter().filter(|point| point.starts_with(self.home.path()));
        for point in below.collect::<Vec<_>>().iter().rev() {
            let _ = unmount(point, UnmountFlags::DETACH);
        }
        // One that is killed may leave a process that it was just starting.
        kill_until_none("its agents are gone", || self.agent_pids());
        self.kill_savers();
        kill_until_none("its file descriptor stores are gone", || self.fdstores());
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
