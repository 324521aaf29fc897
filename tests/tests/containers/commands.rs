//! Publications in the output of `status` and `top`, and `bdnfs wait` for them.

use std::time::Duration;

use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;

use crate::kit::{bound, config, publish, put};

#[test]
fn status_and_top_list_publications_and_not_their_binds() {
    let env = TestEnv::new();
    env.put("file", 5);
    let agent = env.machine.agent(&config(&env.machine));
    let (mut request, target) = bound(&env, "", "pod");
    request["holder"] = "pod default/a".into();
    publish(&agent, "pod", &request);
    // Those of other machines are others' to tell.
    let cache = env.machine.cache().to_str().unwrap();
    let text = env.machine.run(&["status", "--cache-dir", cache]).succeeds();
    let row: Vec<_> =
        text.lines().find(|line| line.starts_with("pod ")).unwrap().split_whitespace().collect();
    assert_eq!(
        row[1..],
        ["pod", "default/a", "s3://bucket", target.to_str().unwrap(), "published"],
        "{text}"
    );
    assert_eq!(text.matches(target.to_str().unwrap()).count(), 1, "its bind is no mount of its own: {text}");
    let frozen = NetworkFault { refuse: false, frozen: true, delay: Duration::ZERO, rate: None, cut: None };
    env.proxy.set(frozen);
    let (mut pending, _) = bound(&env, "/prefix", "other");
    pending["holder"] = "pod default/b".into();
    assert_eq!(put(&agent, "other", &pending, 0).code, 202);
    let text = env.machine.run(&["top", "--once", "--interval", "100ms", "--cache-dir", cache]).succeeds();
    assert!(text.contains("pod default/b: staging"), "{text}");
}

#[test]
fn wait_for_a_named_source_returns_when_it_is_published_or_has_failed() {
    let env = TestEnv::new();
    env.put("file", 5);
    let names = "[sources.llama]\nsource = \"s3://bucket\"\n[sources.none]\nsource = \"s3://nothing\"";
    let agent = env.machine.agent(names);
    env.machine.run(&["wait", "llama", "--timeout", "60s"]).succeeds();
    let sources = agent.get("/v1/sources").json();
    assert_eq!(sources["sources"][0]["publication"]["state"], "published", "{sources}");
    env.machine.run(&["wait", "none", "--timeout", "60s"]).fails(&["waiting for none", "s3://nothing"]);
    env.machine.run(&["wait", "unknown"]).fails(&["no such source: \"unknown\"", "[sources.unknown]"]);
}
