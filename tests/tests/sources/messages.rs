//! Messages about servers that are not what they were taken for, or not there: they say what was asked, in plain words.

use std::fs;

use axum::Router;
use axum::http::StatusCode;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::serve::HttpServer;
use bdnfs_tests::test_env::TestEnv;

/// A server that answers everything alike.
fn server(status: u16, body: &'static str) -> HttpServer {
    let status = StatusCode::from_u16(status).unwrap();
    HttpServer::start(Router::new().fallback(move || async move { (status, body) }), 0)
}

/// Sources of each service, and the path that is asked of it for a listing.
const BUCKETS: [(&str, &str); 3] =
    [("s3://b/p", "/b"), ("gs://b/p", "/storage/v1/b/b/o"), ("azure://acc/c/p", "/c")];

#[test]
fn listing_of_an_endpoint_without_buckets_names_its_url() {
    let machine = Machine::new();
    for (status, body, words) in [
        (200, "{\"ok\": true}", "is not a listing of "),
        (200, "", "is not a listing of "),
        (200, "<html><body>Welcome</body></html>", "is not a listing of "),
        (403, "Forbidden", "the server returned 403 Forbidden; no credentials were sent"),
        (405, "<html>no</html>", "the server returned 405 Method Not Allowed"),
    ] {
        let server = server(status, body);
        for (source, path) in BUCKETS {
            let output = machine.run(&["ls", source, "--anonymous", "--endpoint", &server.url()]);
            let output = output.fails(&[&format!("{source}: cannot list {}{path}: ", server.url()), words]);
            for jargon in ["Event", "struct", "invalid type", "<", "Welcome"] {
                assert!(!output.contains(jargon), "{output}");
            }
        }
    }
}

#[test]
fn hub_endpoint_that_is_no_hub_is_named_in_the_error() {
    let machine = Machine::new();
    for (status, body, words) in [
        (405, "no", "the server returned 405 Method Not Allowed"),
        (403, "no", "the Hub refuses access; the request had no token (HF_TOKEN)"),
        (
            404,
            "no",
            "does not respond as a Hub does; check the name, and that it is a Hub (--endpoint, HF_ENDPOINT)",
        ),
        (200, "<html>hello</html>", "names no commit; check that it is a Hub (--endpoint, HF_ENDPOINT)"),
    ] {
        let server = server(status, body);
        let output = machine.run(&["ls", "hf://o/r", "--endpoint", &server.url()]).fails(&[words]);
        assert!(status == 403 || output.contains(&server.url()), "{output}");
    }
}

#[test]
fn server_that_is_down_is_named_in_the_error() {
    let machine = Machine::new();
    let mut server = server(200, "");
    let url = server.url();
    server.stop();
    for source in BUCKETS.map(|(source, _)| source).into_iter().chain(["hf://o/r"]) {
        let output = machine.run(&["ls", source, "--anonymous", "--endpoint", &url]);
        output.fails(&[&url, "cannot connect to the server: Connection refused"]);
    }
}

#[test]
fn mirror_endpoint_without_a_bucket_is_named_in_the_error() {
    let machine = Machine::new();
    let source = machine.directory("source");
    fs::write(source.join("x"), "x").unwrap();
    let server = server(405, "<html>no</html>");
    let url = server.url();
    let mirror = ["--mirror", "s3://m", "--mirror-endpoint", &url, "--mirror-anonymous"];
    let output = machine.run(&[&["mirror", "add", source.to_str().unwrap()], &mirror[..]].concat());
    output.fails(&[&format!(
        "cannot read s3://m/format.json at {url}: the server returned 405 Method Not Allowed"
    )]);
    for body in ["{\"ok\": true}", "", "<html><body>Welcome</body></html>"] {
        let server = self::server(200, body);
        let portal = server.url();
        let mirror = |url| ["--mirror", url, "--mirror-endpoint", &portal, "--mirror-anonymous"];
        let said = "the response is not that of an object storage; check --mirror-endpoint";
        machine.run(&[&["mirror", "ls"], &mirror("gs://m")[..]].concat()).fails(&["gs://m", said]);
        for command in [&["mirror", "ls"][..], &["mirror", "add", source.to_str().unwrap()]] {
            let output = machine.run(&[command, &mirror("s3://m")].concat()).fails(&["s3://m"]);
            for jargon in ["Event", "struct", "invalid type", "missing field", "Got invalid", "<", "Welcome"]
            {
                assert!(!output.contains(jargon), "{output}");
            }
        }
    }
}

#[test]
fn mirror_of_a_configuration_is_not_asked_at_the_endpoint_of_sources_of_another_scheme() {
    let env = TestEnv::new();
    env.put("w", 10);
    let (sources, mirrors) = (env.s3.server.url(), server(405, "no"));
    let machine = env.second_machine().env("STORAGE_EMULATOR_HOST", mirrors.url());
    let config = machine.directory("etc").join("weights.toml");
    fs::write(&config, "[[weights]]\nsource = \"s3://bucket\"\nmount_location = \"/m\"\n").unwrap();
    let config = config.to_str().unwrap();
    let command = ["mirror", "add", "--config", config, "--endpoint", &sources, "--mirror", "gs://m"];
    let error = machine.run(&command).fails(&["gs://m", &mirrors.url(), "405 Method Not Allowed"]);
    assert!(!error.contains(&sources), "{error}");
}

#[test]
fn read_while_mirror_and_origin_are_down_logs_connection_refused() {
    let mut env = TestEnv::new();
    env.put("weights", 8 << 20);
    env.mirror();
    // Without the proxy, which would take the connection.
    let machine = Machine::new().s3(&env.s3.server.url(), &Keys::sample());
    let agent = machine.agent("");
    let point = machine.mount_with("s3://bucket", "mnt", &["--mirror", "s3://mirror"]);
    env.s3.server.stop();
    let error = fs::read(point.join("weights")).expect_err("nobody has it");
    // Two limits of 30 seconds end at the same time.
    assert!(matches!(error.raw_os_error(), Some(libc::EIO | libc::ETIMEDOUT)), "{error}");
    // A thread of its own writes it.
    eventually("the reason is logged", || {
        let log = agent.log();
        log.contains("weights") && log.contains("Connection refused")
    });
    let log = agent.log();
    assert!(!log.contains("no tier had the bytes"), "{log}");
    machine.umount(&point);
    agent.stop();
}
