//! Real container runtimes, on bundles and images that are made here, in a mount namespace with an agent of its own.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::command_output::CommandOutput;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::mount_namespace::MountNamespace;
use bdnfs_tests::process::wait_gone;
use bdnfs_tests::repository;
use bdnfs_tests::tools::program;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

/// A node with an agent at the usual socket, whose users may name local sources.
pub struct ContainerNode {
    pub machine: Machine,
    pub agent: AgentProcess,
    pub namespace: MountNamespace,
    config: String,
}

impl ContainerNode {
    /// A node whose agent has `publications` in the section of that name, and further sections behind it.
    pub fn new(publications: &str) -> Self {
        let namespace = MountNamespace::new();
        let machine = Machine::new().in_mounts(&namespace);
        // Where both versions of cgroups are mounted, crun takes neither.
        let _ = machine.program("umount", &["/sys/fs/cgroup/unified"]).output();
        let config = format!(
            "socket = \"/run/bdnfs/agent.sock\"\n[publications]\ninline_sources = [\"file\"]\n{publications}"
        );
        let agent = machine.agent(&config);
        Self { machine, agent, namespace, config }
    }

    /// Ends the agent by `signal`, and starts it again after `meanwhile`.
    pub fn restart_agent<T>(&mut self, signal: Signal, meanwhile: impl FnOnce(&Self) -> T) -> T {
        kill_process(self.agent.pid(), signal).unwrap();
        wait_gone(&[self.agent.pid()]);
        let result = meanwhile(self);
        self.agent = self.machine.agent(&self.config);
        result
    }

    /// A directory with the file `weights`, which has `text`.
    pub fn source(&self, name: &str, text: &str) -> PathBuf {
        let directory = self.machine.directory(name);
        fs::write(directory.join("weights"), text).unwrap();
        directory
    }

    /// The root of a container, with busybox.
    pub fn root(&self, name: &str) -> PathBuf {
        let root = self.machine.directory(name);
        for directory in ["bin", "dev", "etc", "proc", "run", "sys", "tmp"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        let busybox = program("busybox").get_program().to_owned();
        fs::copy(busybox, root.join("bin/busybox")).unwrap();
        for name in ["sh", "cat", "ls", "mkdir", "touch"] {
            std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        root
    }

    /// A bundle whose container runs `script`, with this annotation and the hook with `options`.
    pub fn bundle(&self, name: &str, annotation: &Value, options: &[&str], script: &str) -> PathBuf {
        self.root(&format!("{name}/rootfs"));
        let bundle = self.machine.directory(name);
        let args = [&["bdnfs", "oci-hook"], options].concat();
        let hooks = [json!({"path": "/usr/local/bin/bdnfs", "args": args})];
        let namespaces = ["pid", "mount", "ipc", "uts"].map(|kind| json!({"type": kind}));
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {"args": ["/bin/sh", "-c", script], "cwd": "/", "env": ["PATH=/bin"], "user": {"uid": 0, "gid": 0}},
            "root": {"path": "rootfs", "readonly": true},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": namespaces},
            // crun shows what hooks say only there.
            "annotations": {"io.bdnfs.weights": annotation.to_string(), "run.oci.hooks.stderr": bundle.join("hook.log")},
            "hooks": {"createRuntime": hooks, "poststop": hooks},
        });
        fs::write(bundle.join("config.json"), config.to_string()).unwrap();
        bundle
    }

    /// The id of the node's container. Runtimes name its control group after it, and end all that is in that.
    pub fn id(&self) -> String {
        let home = self.machine.directory("runtime");
        let node = home.parent().and_then(Path::file_name).unwrap().to_str().unwrap();
        format!("container-{node}")
    }

    /// Runs a bundle to its end.
    pub fn run(&self, runtime: &str, bundle: &Path) -> CommandOutput {
        let (state, path) = (self.machine.directory("runtime"), bundle.display());
        let mut output = self.shell(&format!(
            "exec {runtime} --root {} run --bundle {path} {}",
            state.display(),
            self.id()
        ));
        output.err += &fs::read_to_string(bundle.join("hook.log")).unwrap_or_default();
        output
    }

    /// Puts a `podman` first in the PATH that works here, with the hooks in `/etc/containers/oci/hooks.d`.
    pub fn install_podman(&self) {
        let podman = program("podman").get_program().to_owned();
        let [root, runroot] = ["storage", "runroot"].map(|name| self.machine.directory(name));
        let (podman, root, runroot) = (Path::new(&podman).display(), root.display(), runroot.display());
        let script = format!(
            "#!/bin/sh\nexec {podman} --root {root} --runroot {runroot} --cgroup-manager cgroupfs --events-backend file \
             --runtime crun --hooks-dir /etc/containers/oci/hooks.d \"$@\"\n"
        );
        let path = self.namespace.path("/usr/local/bin/podman");
        fs::write(&path, script).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        let etc = self.namespace.path("/etc/containers");
        fs::create_dir_all(etc.join("oci/hooks.d")).unwrap();
        let config = "[containers]\ndefault_ulimits = []\ncgroups = \"disabled\"\nnetns = \"host\"\n";
        fs::write(etc.join("containers.conf"), config).unwrap();
    }

    /// Runs a script of the shell in the namespace.
    pub fn shell(&self, script: &str) -> CommandOutput {
        // The agent is where all look for it.
        let script = format!("unset BDNFS_SOCKET; export PATH=/usr/local/bin:$PATH\n{script}");
        self.machine.run_command(self.machine.program("sh", &["-euc", &script]))
    }

    /// Waits until all that containers wrote is saved.
    pub fn assert_saved(&self) {
        bdnfs_tests::process::eventually("all is saved", || {
            self.agent.get("/v1/volumes").json()["volumes"] == json!([])
        });
    }

    /// Asserts that nothing is published any more.
    pub fn assert_released(&self) {
        assert_eq!(
            self.agent.get("/v1/publications").json()["publications"],
            json!([]),
            "{}",
            self.agent.log()
        );
        bdnfs_tests::process::eventually("no base is mounted", || self.namespace.mounted().is_empty());
    }
}

/// The blocks of a page of the manual, each with its language.
pub fn blocks(page: &str) -> Vec<(String, String)> {
    let page = repository().join("docs").join(page);
    let page = fs::read_to_string(page).unwrap();
    let fenced = page.split("```").skip(1).step_by(2);
    let block = |block: &str| block.split_once('\n').map(|(kind, text)| (kind.to_owned(), text.to_owned()));
    fenced.map(|text| block(text).unwrap()).collect()
}
