//! Servers with certificates that people make by `openssl req -x509`, and ports without TLS.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::tools::{program, python, run};
use bdnfs_tests::tree::{assert_same, write_file};
use bdnfs_tests::web::WebServer;
use tempfile::TempDir;

/// Serves its directory with the certificate and key that it is given, and prints its port.
const SERVER: &str = r#"
import http.server, ssl, sys
class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

/// A third-party web server with TLS.
struct TlsServer {
    child: Child,
    port: String,
}

impl TlsServer {
    fn start(root: &Path, certificate: &Path) -> Self {
        let mut server = python(SERVER);
        server.arg(certificate).arg(certificate.with_extension("key")).current_dir(root);
        let mut child = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut port = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut port).unwrap();
        Self { child, port: port.trim().to_owned() }
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A certificate of localhost that is signed by itself and says that it is an authority; its key lies beside it.
fn self_signed(directory: &Path, name: &str) -> PathBuf {
    let certificate = directory.join(format!("{name}.pem"));
    let mut openssl = program("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    openssl.args(["-addext", "subjectAltName=DNS:localhost", "-keyout"]);
    openssl.arg(certificate.with_extension("key")).arg("-out").arg(&certificate);
    run(openssl.stderr(Stdio::null()));
    let shown = run(program("openssl").args(["x509", "-noout", "-text", "-in"]).arg(&certificate));
    assert!(shown.contains("CA:TRUE"), "{shown}");
    certificate
}

#[test]
fn self_signed_certificate_of_openssl_is_trusted_when_ca_file_names_it() {
    let (root, keys, machine) = (TempDir::new().unwrap(), TempDir::new().unwrap(), Machine::new());
    let bytes = write_file(root.path(), "w", 2 * MIB + 9);
    let [ours, other] = ["ours", "other"].map(|name| self_signed(keys.path(), name));
    let server = TlsServer::start(root.path(), &ours);
    let url = format!("https://localhost:{}/w", server.port);
    let ls = |options: &[&str]| machine.run(&[&["ls", &url], options].concat());
    ls(&[]).fails(&[&url, "certificate is not signed by a trusted authority", "--ca-file"]);
    ls(&["--ca-file", other.to_str().unwrap()]).fails(&[&url, "nor by one of those named"]);
    let point = machine.mount_with(&url, "mnt", &["--ca-file", ours.to_str().unwrap()]);
    assert_same(&bytes, &fs::read(point.join("w")).unwrap(), "what came by TLS");
}

#[test]
fn https_on_a_port_without_tls_says_so() {
    let (root, machine) = (TempDir::new().unwrap(), Machine::new());
    write_file(root.path(), "w", 1000);
    let web = WebServer::start(root.path());
    let url = web.url("w").replace("http://", "https://");
    let point = machine.directory("mnt");
    for ran in [machine.run(&["ls", &url]), machine.try_mount(&url, &point, &[])] {
        ran.fails(&[&url, "the server does not speak TLS there"]);
    }
}
