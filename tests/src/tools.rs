//! Third-party programs, which read through a mount as users' programs do.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The command `name`.
///
/// # Panics
/// When it is not installed: a suite that skips what it can't run proves nothing.
pub fn program(name: &str) -> Command {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file());
    Command::new(
        found
            .unwrap_or_else(|| panic!("{name} is not installed; scripts/setup installs what the tests need")),
    )
}

/// Where the Python is that has numpy and safetensors: in `venv` of the target directory.
///
/// # Panics
/// When it is not there.
pub fn python_path() -> PathBuf {
    let python = target().parent().expect("a directory above the profile's").join("venv/bin/python3");
    assert!(python.exists(), "{} is missing; scripts/setup makes it", python.display());
    python
}

/// Where the Python is that has PyTorch and what saves with it; `None` where nightly has not installed it.
///
/// # Panics
/// When it is not there, in CI.
pub fn writers_python_path() -> Option<PathBuf> {
    let python = target().parent().expect("a directory above the profile's").join("venv-writers/bin/python3");
    if !python.exists() {
        cannot_run(&format!("{} is missing; scripts/training-libraries makes it", python.display()));
        return None;
    }
    Some(python)
}

/// The Python of [`python_path`], and what it is to run.
///
/// # Panics
/// When it is not there.
pub fn python(script: &str) -> Command {
    let mut command = Command::new(python_path());
    command.arg("-c").arg(script);
    command
}

/// Runs `command` to its end and returns its output.
///
/// # Panics
/// When it fails, with what it said.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out.into_owned()
}

/// Where cargo puts what it built: the directory of the profile, such as `target/debug`.
///
/// # Panics
/// When the running test does not lie in one.
pub fn target() -> PathBuf {
    let test = env::current_exe().expect("the path of the test");
    let deps = test.parent().expect("a directory");
    if deps.ends_with("deps") { deps.parent().expect("a directory").to_owned() } else { deps.to_owned() }
}

/// When a read counts as stuck: none may take longer than the deadline of 30 s, and this is much more.
pub const STUCK_TIMEOUT: Duration = Duration::from_secs(100);

/// Runs `work` on another thread and returns its result. It is a guard against waiting for ever, not a
/// measurement: `limit` is far above what the work takes.
///
/// # Panics
/// When `work` does, and when it has not ended within `limit`.
pub fn with_timeout<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    let worker = thread::spawn(move || done.send(work()));
    match result.recv_timeout(limit) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done after {limit:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("the result was sent"),
        },
    }
}

/// Reports that this machine lacks `what`, so that a test can't run here.
///
/// # Panics
/// Where the variable CI is set: there, a test that tries nothing must not pass.
pub fn cannot_run(what: &str) {
    assert!(env::var_os("CI").is_none(), "this test cannot run here: {what}");
    eprintln!("NOT TRIED: {what}");
}
