//! Traces: the way of a request from the kernel to the tier that was asked, as a collector sees it.

use std::fs;

use bdnfs_tests::MIB;
use bdnfs_tests::collector::{CollectedSpan, TraceCollector};
use bdnfs_tests::machine::Machine;
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::test_env::TestEnv;

/// The way of one span up to where its trace begins, itself first.
fn span_path(spans: &[CollectedSpan], from: &CollectedSpan) -> Vec<CollectedSpan> {
    let mut way = vec![from.clone()];
    while let Some(parent) = spans.iter().find(|span| span.id == way[way.len() - 1].parent) {
        assert_eq!(parent.trace, from.trace);
        way.push(parent.clone());
    }
    way
}

/// The first way from a tier that was asked to a request of the kernel.
fn path_from_tier(spans: &[CollectedSpan], tier: &str) -> Option<Vec<CollectedSpan>> {
    let asked = spans.iter().filter(|span| span.name == "ask" && span.attributes["tier"] == tier);
    asked.map(|span| span_path(spans, span)).find(|way| way[way.len() - 1].name == "request")
}

#[test]
fn read_traced_is_one_trace_from_kernel_to_tier() {
    let (env, collector) = (TestEnv::new(), TraceCollector::start());
    let content = env.put("weights", 3 * MIB + 5);
    let agent = env.machine.agent(&format!("[telemetry]\notlp = \"{}\"", collector.server.url()));
    let point = env.machine.mount("s3://bucket", "mnt");
    assert_eq!(fs::read(point.join("weights")).unwrap(), content);
    env.machine.umount(&point);
    // What is left is sent at the end.
    agent.end();
    let spans = collector.spans();
    let way = path_from_tier(&spans, "origin").unwrap_or_else(|| panic!("no way from a tier: {spans:#?}"));
    let names: Vec<_> = way.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["ask", "flight", "request"], "{way:#?}");
    let request = &way[2];
    assert!(
        request.parent.is_empty() && request.attributes["operation"].eq_ignore_ascii_case("read"),
        "{request:?}"
    );
    assert_eq!(way[1].attributes["first"], way[0].attributes["first"]);
    assert_eq!(request.resource["service.name"], "bdnfs");
    assert!(spans.iter().all(|span| span.events == 0));
    let keys = Keys::sample();
    assert!(!collector.contains(&keys.secret) && !collector.contains(&keys.access));
}

#[test]
fn agent_with_otlp_environment_exports_traces() {
    let collector = TraceCollector::start();
    let machine = Machine::new();
    let directory = machine.directory("source");
    fs::write(directory.join("file"), vec![7; 2 * MIB]).unwrap();
    let machine = machine
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.server.url())
        .env("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20let-me-in")
        .env("OTEL_SERVICE_NAME", "weights");
    let point = machine.mount(&directory, "mnt");
    assert_eq!(fs::read(point.join("file")).unwrap(), vec![7; 2 * MIB]);
    machine.umount(&point);
    eventually("the agent has sent what it had", || path_from_tier(&collector.spans(), "origin").is_some());
    assert_eq!(collector.spans()[0].resource["service.name"], "weights");
    assert_eq!(collector.authorization_values()[0], "Bearer let-me-in");
    assert!(!collector.contains("let-me-in"));
}

#[test]
fn collector_unreachable_is_logged_once() {
    let (env, mut collector) = (TestEnv::new(), TraceCollector::start());
    let names = ["a", "b"];
    let contents = names.map(|name| env.put(name, MIB));
    collector.server.stop();
    let TestEnv { machine, proxy, s3, .. } = env;
    let _still = (proxy, s3);
    let machine = machine.env("OTEL_BSP_SCHEDULE_DELAY", "100");
    let agent = machine.agent(&format!("[telemetry]\notlp = \"{}\"", collector.server.url()));
    let point = machine.mount("s3://bucket", "mnt");
    let output = || agent.log().matches("traces cannot be sent").count();
    assert_eq!(fs::read(point.join("a")).unwrap(), contents[0]);
    eventually("it is told of", || output() == 1);
    collector.server.resume();
    assert_eq!(fs::read(point.join("b")).unwrap(), contents[1]);
    eventually("traces are sent again", || agent.log().contains("again") && !collector.spans().is_empty());
    assert_eq!(output(), 1);
    machine.umount(&point);
    agent.end();
}
