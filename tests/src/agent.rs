//! The agent of a machine: started, spoken to as curl would, killed and started again.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::machine::Machine;
use crate::process::{eventually, wait_for_exit};

/// How long an answer may take before the test fails instead of hanging.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// An agent that owns the cache of a machine. Dropping it kills it.
#[derive(Debug)]
pub struct AgentProcess {
    child: Child,
    socket: PathBuf,
    log: PathBuf,
}

/// An answer of the control socket.
#[derive(Debug)]
pub struct ApiResponse {
    /// The status code.
    pub code: u16,
    /// The Content-Type of the body.
    pub kind: String,
    /// The body.
    pub body: String,
}

impl ApiResponse {
    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }
}

impl Machine {
    /// Starts the agent of this machine, whose configuration has the lines `config` beside its cache, and waits until it is
    /// ready.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn agent(&self, config: &str) -> AgentProcess {
        let mut agent = self.agent_not_ready(config);
        eventually("the agent is ready", || {
            if let Some(status) = agent.child.try_wait().expect("a child can be asked") {
                panic!("the agent ended with {status}: {}", agent.log());
            }
            agent.try_ask("GET", "/readyz", "").is_some_and(|answer| answer.code == 200)
        });
        agent
    }

    /// Starts the agent, and waits for nothing.
    ///
    /// # Panics
    /// When it can't be started.
    pub fn agent_not_ready(&self, config: &str) -> AgentProcess {
        let path = self.directory("etc").join("agent.toml");
        let cache = self.cache().display();
        fs::write(&path, format!("cache_dir = \"{cache}\"\n{config}\n")).expect("a configuration");
        let log = self.directory("etc").join("agent.log");
        let mut command = self.command(&["agent", "--config", path.to_str().expect("text")]);
        let file = File::options().create(true).append(true).open(&log).expect("a log");
        command.stdout(file.try_clone().expect("a descriptor")).stderr(file);
        let child = command.spawn().unwrap_or_else(|e| panic!("cannot run {command:?}: {e}"));
        AgentProcess { child, socket: self.cache().join("control.sock"), log }
    }
}

impl AgentProcess {
    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its log, and that of earlier agents of this machine.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// GET of `path`.
    ///
    /// # Panics
    /// When there is no answer.
    pub fn get(&self, path: &str) -> ApiResponse {
        self.ask("GET", path, "")
    }

    /// Sends a request, with a `body` that may be empty.
    ///
    /// # Panics
    /// When there is no answer.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> ApiResponse {
        self.try_ask(method, path, body)
            .unwrap_or_else(|| panic!("no answer to {method} {path}: {}", self.log()))
    }

    /// The same; `None` when there is no answer.
    pub fn try_ask(&self, method: &str, path: &str, body: &str) -> Option<ApiResponse> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(REQUEST_TIMEOUT)).expect("a timeout");
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: bdnfs\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        let mut fields = head.lines().filter_map(|line| line.split_once(':'));
        let kind = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let kind = kind.map_or_else(String::new, |(_, kind)| kind.trim().to_owned());
        Some(ApiResponse { code, kind, body: body.to_owned() })
    }

    /// Its status.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn status(&self) -> Value {
        self.get("/v1/status").json()
    }

    /// Kills it as a crash would.
    pub fn crash(mut self) {
        self.kill();
    }

    /// Ends it with SIGTERM, and waits until it has ended. Mounts are left to the next one.
    ///
    /// # Panics
    /// When it fails or does not end.
    pub fn end(self) {
        kill_process(self.pid(), Signal::TERM).expect("a process");
        self.gone();
    }

    /// Stops it (`agent --stop`): it unmounts everything; waits until it has ended.
    ///
    /// # Panics
    /// When it fails or does not end.
    pub fn stop(self) {
        assert_eq!(self.ask("POST", "/v1/stop", "").code, 200);
        self.gone();
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// When it does not, or fails.
    pub fn gone(mut self) {
        let status = wait_for_exit(&mut self.child, "an agent that was asked to end");
        assert!(status.success(), "{status}: {}", self.log());
    }

    fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
