//! Metrics: they can be scraped, they are well-formed, and they tell what happened.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use axum::http::StatusCode;
use bdnfs_tests::MIB;
use bdnfs_tests::agent::AgentProcess;
use bdnfs_tests::fault::ServerFault;
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::serve::ReservedPort;
use bdnfs_tests::test_env::TestEnv;

/// A page of metrics: the value of each sample by its name and labels, as they are written.
struct MetricsPage {
    text: String,
    samples: BTreeMap<String, f64>,
}

impl MetricsPage {
    /// Scrapes `agent`. What is not as OpenMetrics has it panics.
    fn of(agent: &AgentProcess) -> Self {
        let answer = agent.get("/metrics");
        assert_eq!(answer.code, 200, "{}", answer.body);
        assert!(answer.kind.starts_with("application/openmetrics-text; version=1.0.0"), "{}", answer.kind);
        Self::parse(answer.body)
    }

    fn parse(text: String) -> Self {
        assert!(text.ends_with("# EOF\n"), "{text}");
        let (mut samples, mut family, mut kinds) = (BTreeMap::new(), String::new(), BTreeMap::new());
        let mut helped = BTreeSet::new();
        for line in text.lines().filter(|line| *line != "# EOF") {
            let mut words = line.splitn(4, ' ');
            if line.starts_with('#') {
                let (what, name) = (words.nth(1).unwrap(), words.next().unwrap().to_owned());
                let rest = words.next().unwrap_or_default();
                match what {
                    "HELP" => {
                        assert!(rest.ends_with('.'), "a help is a sentence: {line}");
                        assert!(helped.insert(name.clone()), "twice: {line}");
                    }
                    "TYPE" => drop(kinds.insert(name.clone(), rest.to_owned())),
                    "UNIT" => assert!(name.ends_with(rest), "{line}"),
                    _ => panic!("{line}"),
                }
                family = name;
                continue;
            }
            assert!(line.starts_with(&family) && helped.contains(&family), "no help: {line}");
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            match kinds[&family].as_str() {
                "counter" => assert!(name.ends_with("_total"), "{line}"),
                "histogram" => assert!(["_bucket", "_count", "_sum"].iter().any(|e| name.ends_with(e))),
                "info" => assert!(name.ends_with("_info"), "{line}"),
                "gauge" => assert_eq!(name, family, "{line}"),
                other => panic!("{other}: {line}"),
            }
            let value: f64 = value.parse().unwrap_or_else(|e| panic!("{e}: {line}"));
            assert!(samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
        }
        Self { text, samples }
    }

    /// A sample, by its name and labels.
    fn get(&self, sample: &str) -> f64 {
        *self.samples.get(sample).unwrap_or_else(|| panic!("no {sample} in\n{}", self.text))
    }
}

#[test]
fn metrics_after_reads_count_traffic() {
    let env = TestEnv::new();
    let large = env.put("large", 20 * MIB);
    env.put("small", 5);
    let agent = env.machine.agent("");
    let before = MetricsPage::of(&agent);
    assert_eq!(before.get("bdnfs_tier_bytes_total{tier=\"origin\"}"), 0.0);
    assert_eq!(before.get("bdnfs_mounts{state=\"ready\"}"), 0.0);
    assert_eq!(before.get("bdnfs_ready"), 1.0);

    let name = "a \"quoted\" name";
    let point = env.machine.mount("s3://bucket", name);
    fs::read(point.join("large")).unwrap();
    eventually("all of it is whole", || bdnfs_tests::mounts::is_local(&point.join("large")));
    assert_eq!(fs::read(point.join("large")).unwrap().len(), large.len());
    // A blob is whole a moment before its last fetch lets go of its memory.
    eventually("no fetch is under way", || MetricsPage::of(&agent).get("bdnfs_flights") == 0.0);
    eventually("no memory is held", || {
        MetricsPage::of(&agent).get("bdnfs_memory_used_bytes{use=\"fetch\"}") == 0.0
    });
    let after = MetricsPage::of(&agent);
    assert_eq!(after.get("bdnfs_tier_bytes_total{tier=\"origin\"}"), large.len() as f64);
    assert_eq!(after.get("bdnfs_tier_bytes_total{tier=\"mirror\"}"), 0.0);
    let requests = after.get("bdnfs_tier_requests_total{tier=\"origin\",outcome=\"answered\"}");
    assert_eq!(requests, env.fetched("large").requests as f64);
    assert_eq!(after.get("bdnfs_tier_first_byte_seconds_count{tier=\"origin\"}"), requests);
    assert!(after.get("bdnfs_flights_begun_total") >= requests);
    assert!(after.get("bdnfs_fuse_request_seconds_count{operation=\"read\"}") > 0.0);
    let reads =
        |bound| after.get(&format!("bdnfs_fuse_request_seconds_bucket{{le=\"{bound}\",operation=\"read\"}}"));
    assert!(reads("16.0") > 0.0 && reads("+Inf") >= reads("16.0"));
    let opens =
        ["passthrough", "cached"].map(|mode| after.get(&format!("bdnfs_opens_total{{mode=\"{mode}\"}}")));
    assert_eq!(opens.iter().sum::<f64>(), 2.0);
    assert_eq!(after.get("bdnfs_mounts{state=\"ready\"}"), 1.0);
    assert_eq!(after.get("bdnfs_memory_limit_bytes{use=\"fetch\"}"), (256 * MIB) as f64);
    eventually("what it holds is counted", || {
        MetricsPage::of(&agent)
            .samples
            .get("bdnfs_cache_used_bytes")
            .is_some_and(|used| *used >= large.len() as f64)
    });
    let escaped = point.display().to_string().replace('"', "\\\"");
    let source = agent.status()["mounts"][0]["source"].as_str().unwrap().to_owned();
    let labels = format!("mountpoint=\"{escaped}\",source=\"{source}\"");
    assert_eq!(after.get(&format!("bdnfs_mount_size_bytes{{{labels}}}")), (large.len() + 5) as f64);
    let fetched = format!("bdnfs_mount_fetched_bytes_total{{{labels},tier=\"origin\"}}");
    assert_eq!(after.get(&fetched), large.len() as f64);
    for process in ["process_resident_memory_bytes", "process_open_fds", "process_threads"] {
        assert!(after.get(process) > 0.0);
    }

    // What counters told does not go with the mount; what is said of the mount does.
    env.machine.umount(&point);
    let gone = MetricsPage::of(&agent);
    for (sample, value) in after.samples.iter().filter(|(sample, _)| sample.contains("_total")) {
        if !sample.starts_with("bdnfs_mount_") {
            assert!(gone.get(sample) >= *value, "{sample} went down");
        }
    }
    assert!(!gone.text.contains("s3://bucket"), "{}", gone.text);
    assert!(!after.text.contains(&Keys::sample().secret) && !after.text.contains(&Keys::sample().access));
}

#[test]
fn metrics_after_errors_count_by_kind() {
    let env = TestEnv::new();
    env.put("file", 2 * MIB);
    let agent = env.machine.agent("");
    let point = env.machine.mount("s3://bucket", "mnt");
    env.s3.faults.set(ServerFault::Status(StatusCode::FORBIDDEN, None));
    fs::read(point.join("file")).expect_err("it is refused");
    // What the kernel reads ahead may be refused while a page is written.
    eventually("all that failed was refused", || {
        let page = MetricsPage::of(&agent);
        let failed = page.get("bdnfs_tier_requests_total{tier=\"origin\",outcome=\"failed\"}");
        failed > 0.0 && page.get("bdnfs_tier_errors_total{tier=\"origin\",kind=\"refused\"}") == failed
    });
    let page = MetricsPage::of(&agent);
    assert!(page.get("bdnfs_fuse_errors_total{errno=\"EACCES\"}") > 0.0);
    assert_eq!(page.get("bdnfs_fuse_errors_total{errno=\"EIO\"}"), 0.0);
}

/// An answer to a plain GET over TCP.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: bdnfs\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn metrics_port_serves_health_and_metrics_only() {
    let port = ReservedPort::take(0);
    let address = port.address;
    let machine = Machine::new();
    let agent = machine.agent(&format!("[telemetry]\nlisten = \"{address}\""));
    for path in ["/healthz", "/readyz"] {
        let answer = get(address, path).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    let answer = get(address, "/metrics").expect("an answer");
    MetricsPage::parse(answer.split_once("\r\n\r\n").expect("a body").1.to_owned());
    for path in ["/v1/status", "/v1/cache", "/"] {
        let answer = get(address, path).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    }
    agent.end();
    assert!(get(address, "/healthz").is_none());
}

#[test]
fn log_of_request_has_one_id_from_kernel_to_tier() {
    let env = TestEnv::new();
    env.put("file", 3 * MIB);
    let machine = Machine::new().s3(&env.proxy.url(), &Keys::sample()).env("BDNFS_LOG", "bdnfs=debug");
    let agent = machine.agent("");
    let point = machine.mount("s3://bucket", "mnt");
    fs::read(point.join("file")).unwrap();
    // A thread of its own writes it, a line after the other.
    eventually("the request is logged", || {
        let log = agent.log();
        let Some(line) = log.lines().find(|line| line.contains("answered")) else { return false };
        for span in
            ["request{operation=\"read\" id=", "}:flight{blob=file first=", "}:ask{tier=origin first="]
        {
            assert!(line.contains(span), "{line}");
        }
        let (_, id) = line.split_once(" id=").unwrap();
        let request = format!("request{{operation=\"read\" id={}}}: ", id.split('}').next().unwrap());
        log.lines().any(|line| line.contains(&request) && line.contains("path=file"))
    });
}
