//! A third-party Hub: olah, which serves the Hub's API by a cache of its own in front of another Hub, the
//! kit's. `scripts/emulators` installs it and runs this.

use std::process::{Child, Command, Stdio};

use bdnfs_tests::hub::{HubServer, RepositoryAccess};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::serve::ReservedPort;
use bdnfs_tests::tools::target;
use bdnfs_tests::tree::{assert_same, content};
use tempfile::TempDir;

const TOKEN: &str = "hf_readerOfThePrivateOne";

/// olah, in front of a Hub.
struct Olah {
    child: Child,
    url: String,
    _port: ReservedPort,
    _directory: TempDir,
}

impl Olah {
    fn start(hub: &HubServer) -> Self {
        let reserved = ReservedPort::take(0);
        let port = reserved.address.port();
        let (own, directory) = (format!("127.0.0.1:{port}"), TempDir::with_prefix("bdnfs-olah-").unwrap());
        let (above, storage) = (hub.server.address().to_string(), hub.storage.server.address().to_string());
        let mut olah = Command::new(target().parent().unwrap().join("emulators/bin/olah-cli"));
        olah.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--hf-scheme", "http"]);
        olah.args(["--hf-netloc", &above, "--hf-lfs-netloc", &storage]);
        olah.args(["--mirror-netloc", &own, "--mirror-lfs-netloc", &own]);
        olah.current_dir(directory.path()).env("HOME", directory.path());
        olah.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = olah.spawn().unwrap_or_else(|e| panic!("{olah:?}: {e}; see scripts/emulators"));
        eventually("olah listens", || std::net::TcpStream::connect(&own).is_ok());
        Self { child, url: format!("http://{own}"), _port: reserved, _directory: directory }
    }
}

impl Drop for Olah {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn olah_as_endpoint_mounts_repositories() {
    let hub = HubServer::start();
    let weights = content("weights", 3_000_000);
    let files: [(&str, &[u8]); 3] =
        [("config.json", b"{}"), ("sub/d.json", b"[]"), ("weights.safetensors", &weights)];
    let commit = hub.publish("models/org/model", "main", &files[1..]);
    hub.publish("datasets/org/data", "main", &files[1..]);
    for (name, guard) in [("private", RepositoryAccess::Private), ("gated", RepositoryAccess::Gated)] {
        hub.publish(&format!("models/org/{name}"), "main", &files[1..]);
        hub.set_access(&format!("models/org/{name}"), guard);
    }
    hub.publish("models/org/pages", "main", &files);
    hub.token(TOKEN, &["models/org/private"]);
    let olah = Olah::start(&hub);
    let machine = Machine::new().env("HF_ENDPOINT", &olah.url).env("HF_TOKEN", TOKEN);
    let pinned = format!("hf://org/model@{commit}/sub");
    for (uri, name, paths) in [
        ("hf://org/model", "model", &["sub/d.json", "weights.safetensors"][..]),
        ("hf://org/private", "private", &["sub/d.json", "weights.safetensors"]),
        ("hf://datasets/org/data@main", "data", &["weights.safetensors"]),
        (&pinned, "sub", &["d.json"]),
    ] {
        let point = machine.mount(uri, name);
        for path in paths {
            let (_, expected) = files.iter().find(|(name, _)| name.ends_with(path)).unwrap();
            assert_same(expected, &std::fs::read(point.join(path)).unwrap(), path);
        }
    }
    // It answers each question for the next page with the first one.
    machine.run(&["ls", "hf://org/pages"]).fails(&["hf://models/org/pages@", "its listing may never end"]);
    let anonymous = Machine::new().env("HF_ENDPOINT", &olah.url);
    for machine in [&machine, &anonymous] {
        machine.run(&["ls", "hf://org/gated"]).fails(&["hf://models/org/gated"]);
        machine.run(&["ls", "hf://org/none"]).fails(&["hf://models/org/none"]);
        machine.run(&["ls", "hf://org/model@v9"]).fails(&["v9"]);
    }
    anonymous.run(&["ls", "hf://org/private"]).fails(&["hf://models/org/private"]);
}
