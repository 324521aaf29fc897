//! A node of Kubernetes: a kubelet, a driver and an agent, with a bucket beside them.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::kubelet::{CALL_DEADLINE, Kubelet, PodVolume};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::wait_for_exit;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;
use bdnfs_tests::tools::program;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The key of a pod's tokens, among the attributes of a volume or its secrets.
pub const TOKENS_KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";
/// A part of each token of a pod, so that a test can look for it where no token may be.
pub const POD_TOKEN: &str = "tokenOfAPodThatNobodyMaySee";

/// The volume with its pod's `tokens`, as kubelets send them: since Kubernetes 1.35 among the secrets.
pub fn with_tokens(volume: &PodVolume, tokens: &Value, in_secrets: bool) -> PodVolume {
    let mut volume = volume.clone();
    let place = if in_secrets { &mut volume.secrets } else { &mut volume.context };
    place.insert(TOKENS_KEY.to_owned(), tokens.to_string());
    volume
}

/// A node. What it runs ends with it.
pub struct KubernetesNode {
    // In this order: the driver ends before the agent, and that before what it reads from.
    pub driver: DriverProcess,
    pub kubelet: Kubelet,
    pub agent: Option<AgentProcess>,
    pub env: TestEnv,
}

/// A running `bdnfs csi`.
pub struct DriverProcess {
    child: Child,
    log: PathBuf,
}

impl DriverProcess {
    pub fn start(env: &TestEnv, arguments: &[&str]) -> Self {
        Self::on(&env.machine, arguments)
    }

    /// One on `machine`, with these arguments.
    pub fn on(machine: &Machine, arguments: &[&str]) -> Self {
        let root = machine.directory("kubelet");
        let path = |name: &str| root.join(name).to_str().expect("text").to_owned();
        fs::create_dir_all(root.join("plugins/csi.bdnfs.io")).unwrap();
        fs::create_dir_all(root.join("plugins_registry")).unwrap();
        let endpoint = path("plugins/csi.bdnfs.io/csi.sock");
        let registration = path("plugins_registry/csi.bdnfs.io-reg.sock");
        let mut words = vec!["csi", "--node-id", "node-1", "--endpoint", &endpoint];
        words.extend(["--registration", &registration, "--kubelet-endpoint", &endpoint]);
        let socket = machine.cache().join("control.sock");
        words.extend(["--socket", socket.to_str().unwrap(), "-vv"]);
        words.extend(arguments);
        let log = machine.directory("etc").join("csi.log");
        let file = File::options().create(true).append(true).open(&log).unwrap();
        let child = machine.command(&words).stderr(file).spawn().unwrap();
        Self { child, log }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it as a new version of its pod does, and answers with whether it succeeded.
    pub fn end(&mut self) -> bool {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        wait_for_exit(&mut self.child, "a driver that was asked to end").success()
    }

    /// Waits until it has ended by itself, and answers with whether it succeeded.
    pub fn ended(&mut self) -> bool {
        wait_for_exit(&mut self.child, "a driver").success()
    }

    pub fn crash(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        self.crash();
    }
}

impl KubernetesNode {
    /// A node whose kubelet has this deadline.
    pub fn new(deadline: Duration) -> Self {
        Self::with_config(deadline, "")
    }

    /// The same; the agent's configuration ends with the lines `more`.
    pub fn with_config(deadline: Duration, more: &str) -> Self {
        let env = TestEnv::new();
        let root = env.machine.directory("kubelet");
        let agent = Some(env.machine.agent(&(Self::config(&env) + more)));
        let driver = DriverProcess::start(&env, &[]);
        let mut kubelet = Kubelet::new(&root).with_deadline(deadline);
        kubelet.register();
        Self { driver, kubelet, agent, env }
    }

    /// A node whose driver takes the tokens of pods.
    pub fn with_pod_tokens() -> Self {
        let mut node = Self::new(CALL_DEADLINE);
        node.driver.end();
        node.driver = DriverProcess::start(&node.env, &["--pod-tokens"]);
        node.kubelet.register();
        node
    }

    /// Makes sure that none of `secrets` is in a file of the agent, in a log, or in what was `said`, and no token in what the agent
    /// publishes.
    pub fn assert_not_leaked(&self, secrets: &[&str], said: &str) {
        assert!(!self.agent().get("/v1/publications").body.contains(POD_TOKEN));
        let machine = &self.env.machine;
        for secret in secrets {
            let mut grep = program("grep");
            grep.args(["-r", "-a", "-s", "-l", "-F", "-e", secret]);
            let output = grep.args([machine.cache(), &machine.directory("etc")]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), "", "files that have {secret}");
            for text in [&self.driver.log(), &self.agent().log(), said] {
                assert!(!text.contains(secret), "{text}");
            }
        }
    }

    /// What the agent's configuration says beside its cache.
    pub fn config(env: &TestEnv) -> String {
        format!("[publications]\ntargets = [{:?}]\n", env.machine.directory("kubelet").join("pods"))
    }

    pub fn start_agent(&mut self) {
        self.agent = Some(self.env.machine.agent(&Self::config(&self.env)));
    }

    pub fn agent(&self) -> &AgentProcess {
        self.agent.as_ref().expect("an agent")
    }

    /// An inline volume of the bucket for a pod, with the secret that it needs. Its endpoint is an administrator's, so it is
    /// the PersistentVolume of a claim.
    pub fn volume(&self, pod: &str) -> PodVolume {
        let endpoint = self.env.proxy.url();
        let attributes = [
            ("source", "s3://bucket"),
            ("endpoint", endpoint.as_str()),
            ("region", "us-east-1"),
            ("allowHttp", "true"),
        ];
        PodVolume::persistent("bucket", pod, &attributes).secret("key", &secret())
    }
}

/// The secret that opens the bucket.
pub fn secret() -> String {
    let keys = Keys::sample();
    json!({
        "aws_access_key_id": keys.access, "aws_secret_access_key": keys.secret, "aws_region": "us-east-1",
    })
    .to_string()
}

/// The permissions of a file.
pub fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
