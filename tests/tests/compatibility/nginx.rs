//! A third-party web server: nginx, with ranges, certificates of its own, basic authentication and redirects.
//! `scripts/emulators` installs it and runs this.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use bdnfs_tests::MIB;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::serve::ReservedPort;
use bdnfs_tests::tools::{program, run, target};
use bdnfs_tests::tree::{assert_same, assert_same_tree, regular_files, write_file, write_tree};
use tempfile::TempDir;

/// nginx over a directory of files, on one port with TLS and on another without.
struct Nginx {
    child: Child,
    directory: TempDir,
    tls: u16,
    plain: u16,
    _ports: [ReservedPort; 2],
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Nginx {
    fn start() -> Self {
        let directory = TempDir::with_prefix("bdnfs-nginx-").unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["www", "www/open", "www/shut", "tmp"] {
            fs::create_dir(at(name)).unwrap();
        }
        let subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"];
        let key = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"];
        let mut openssl = program("openssl");
        // It says of itself that it is an authority.
        openssl.args(key).args(subject).arg("-keyout").arg(at("key.pem")).arg("-out").arg(at("cert.pem"));
        run(openssl.stderr(Stdio::null()));
        let hash = run(program("openssl").args(["passwd", "-apr1", "pass word"]));
        fs::write(at("users"), format!("user:{hash}")).unwrap();
        let reserved = [(); 2].map(|()| ReservedPort::take(0));
        let [tls, plain] = reserved.each_ref().map(|port| port.address.port());
        let root = directory.path().display();
        let config = format!(
            "daemon off; master_process off; pid {root}/pid; error_log {root}/error.log;
             events {{}}
             http {{
                 access_log off; gzip on; gzip_types *; gzip_min_length 1;
                 client_body_temp_path {root}/tmp/a; proxy_temp_path {root}/tmp/b; fastcgi_temp_path {root}/tmp/c;
                 uwsgi_temp_path {root}/tmp/d; scgi_temp_path {root}/tmp/e;
                 server {{
                     listen 127.0.0.1:{tls} ssl; ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem;
                     root {root}/www;
                     location /shut/ {{ auth_basic x; auth_basic_user_file {root}/users; }}
                     location /moved/ {{ rewrite ^/moved/(.*) /open/$1 redirect; }}
                     location /loop/ {{ return 302 https://localhost:{tls}$request_uri; }}
                     location /down/ {{ return 302 http://localhost:{plain}/open/w; }}
                 }}
                 server {{
                     listen 127.0.0.1:{plain}; root {root}/www;
                     location /up/ {{ return 302 https://localhost:{tls}/open/w; }}
                     location /shut/ {{ auth_basic x; auth_basic_user_file {root}/users; }}
                 }}
             }}"
        );
        fs::write(at("nginx.conf"), config).unwrap();
        let emulators = target().parent().unwrap().join("emulators");
        let mut nginx = Command::new(emulators.join("usr/sbin/nginx"));
        nginx.arg("-p").arg(directory.path()).arg("-c").arg(at("nginx.conf")).stderr(Stdio::null());
        let child = nginx.spawn().unwrap_or_else(|e| panic!("{nginx:?}: {e}; see scripts/emulators"));
        eventually("nginx listens", || std::net::TcpStream::connect(("127.0.0.1", plain)).is_ok());
        Self { child, directory, tls, plain, _ports: reserved }
    }

    fn tls(&self, path: &str) -> String {
        format!("https://localhost:{}/{path}", self.tls)
    }

    fn plain(&self, path: &str) -> String {
        format!("http://localhost:{}/{path}", self.plain)
    }
}

#[test]
fn nginx_directory_mounts_and_reads_ranges() {
    let nginx = Nginx::start();
    let open = nginx.directory.path().join("www/open");
    write_tree(&open);
    let bytes = write_file(&open, "w", 20 * MIB);
    let mut index = Vec::new();
    for (path, meta) in regular_files(&open) {
        if meta.is_file() {
            index.push(serde_json::json!({ "path": path.to_str().unwrap() }));
        }
    }
    fs::write(open.join("bdnfs.json"), serde_json::json!({ "files": index }).to_string()).unwrap();
    let machine = Machine::new();
    let ca = nginx.directory.path().join("cert.pem").display().to_string();
    let point = machine.mount_with(nginx.tls("open/w"), "one", &["--ca-file", &ca]);
    let mut page = vec![0; 100_000];
    fs::File::open(point.join("w")).unwrap().read_exact_at(&mut page, 12_345_678).unwrap();
    assert_same(&bytes[12_345_678..12_445_678], &page, "a part");
    let point = machine.mount_with(nginx.tls("open/"), "all", &["--ca-file", &ca, "--wait"]);
    fs::remove_file(open.join("bdnfs.json")).unwrap();
    assert_same_tree(&open, &point);
    machine
        .run(&["ls", &nginx.tls("open/w")])
        .fails(&["the server's certificate is not signed by a trusted authority; if its authority is a private one, name a file"]);
}

#[test]
fn nginx_with_basic_auth_accepts_credentials() {
    let nginx = Nginx::start();
    let bytes = write_file(&nginx.directory.path().join("www/shut"), "w", 2 * MIB);
    let ca = nginx.directory.path().join("cert.pem").display().to_string();
    let machine =
        Machine::new().env("BDNFS_SECRET_WEB", "user:pass word").env("BDNFS_SECRET_BAD", "user:other");
    for url in [nginx.tls("shut/w"), nginx.plain("shut/w")] {
        let name = url.split(':').next().unwrap();
        let point = machine.mount_with(&url, name, &["--ca-file", &ca, "--secret", "web"]);
        assert_same(&bytes, &fs::read(point.join("w")).unwrap(), &url);
        let line = machine.run(&["ls", &url, "--ca-file", &ca, "--secret", "bad"]).fails(&[]);
        let said = format!("bdnfs: {url}: the server returned 401 Unauthorized; check the secret \"bad\"");
        assert_eq!(line, said);
        machine.run(&["ls", &url, "--ca-file", &ca]).fails(&["401 Unauthorized; no credentials were sent"]);
    }
}

#[test]
fn nginx_redirects_are_followed_up_to_the_limit() {
    let nginx = Nginx::start();
    let bytes = write_file(&nginx.directory.path().join("www/open"), "w", 2 * MIB);
    let ca = nginx.directory.path().join("cert.pem").display().to_string();
    let machine = Machine::new();
    for (url, name) in [(nginx.tls("moved/w"), "within"), (nginx.plain("up/w"), "up")] {
        let point = machine.mount_with(&url, name, &["--ca-file", &ca]);
        assert_same(&bytes, &fs::read(point.join("w")).unwrap(), &url);
    }
    for (url, said) in [
        (nginx.tls("loop/w"), "the server's redirect is not followed: there are more than 10 redirects"),
        (nginx.tls("down/w"), "the server's redirect is not followed: it leads to plain http"),
        (nginx.tls("open/none"), "the server returned 404 Not Found; check the name"),
    ] {
        let line = machine.run(&["ls", &url, "--ca-file", &ca]).fails(&[]);
        assert_eq!(line, format!("bdnfs: {url}: {said}"));
    }
}
