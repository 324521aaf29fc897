//! Jobs while mirror and origin are away: of what the cache has whole.

use std::time::Duration;

use bdnfs_tests::MIB;
use bdnfs_tests::proxy::NetworkFault;
use bdnfs_tests::test_env::TestEnv;

use crate::kit::{job, spec, text, toml};

const GONE: NetworkFault =
    NetworkFault { frozen: false, delay: Duration::ZERO, rate: None, cut: None, refuse: true };

#[test]
fn job_of_what_the_cache_has_runs_while_mirror_and_origin_are_away() {
    let env = TestEnv::new();
    env.put("weights", MIB + 7);
    env.mirror();
    let _agent = env.machine.agent("");
    let spec =
        spec(&env.machine, "job.toml", &toml(&[("s3://bucket", "/m")], &["cmp /m/weights /m/weights"]));
    let run = || job(&env.machine, &["run", text(&spec), "--mirror", "s3://mirror"]);
    env.proxy.set(GONE);
    let ran = run();
    assert_ne!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    env.proxy.set(NetworkFault::default());
    run().succeeds();
    env.proxy.set(GONE);
    let ran = run();
    assert!(ran.err.contains("goes on with what the cache has"), "{}{}", ran.out, ran.err);
    ran.succeeds();
}
