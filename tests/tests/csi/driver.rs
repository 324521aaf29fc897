//! The driver as the kubelet meets it: registration, identity, and what it refuses before anything is done.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use bdnfs_csi::proto::csi::node_service_capability::rpc::Type;
use bdnfs_tests::kubelet::{Kubelet, PodVolume};
use bdnfs_tests::test_env::TestEnv;
use tonic::Code;

use crate::kit::{DriverProcess, mode, secret};

#[test]
fn driver_registers_and_is_ready_when_its_agent_is() {
    let env = TestEnv::new();
    let root = env.machine.directory("kubelet");
    let mut driver = DriverProcess::start(&env, &[]);
    let mut kubelet = Kubelet::new(&root);
    let info = kubelet.register();
    assert_eq!((info.name.as_str(), info.supported_versions), ("csi.bdnfs.io", vec!["1.11.0".to_owned()]));
    assert_eq!(mode(Path::new(&info.endpoint)), 0o600);
    assert!(!kubelet.probe());
    let _agent = env.machine.agent("");
    assert!(kubelet.probe());
    assert!(
        kubelet.capabilities() == [Type::GetVolumeStats, Type::VolumeCondition, Type::SingleNodeMultiWriter]
    );
    // A new kubelet finds it, and a driver that ends leaves no socket behind.
    Kubelet::new(&root).register();
    assert!(driver.end(), "{}", driver.log());
    assert_eq!(fs::read_dir(root.join("plugins_registry")).unwrap().count(), 0);
}

#[test]
fn driver_that_was_killed_registers_again() {
    let env = TestEnv::new();
    let root = env.machine.directory("kubelet");
    let mut driver = DriverProcess::start(&env, &[]);
    Kubelet::new(&root).register();
    driver.crash();
    assert_eq!(fs::read_dir(root.join("plugins_registry")).unwrap().count(), 1, "what a crash leaves");
    let _driver = DriverProcess::start(&env, &[]);
    Kubelet::new(&root).register();
}

#[test]
fn driver_that_the_kubelet_refuses_ends_with_its_reason() {
    let env = TestEnv::new();
    let mut driver = DriverProcess::start(&env, &[]);
    let mut kubelet = Kubelet::new(&env.machine.directory("kubelet"));
    kubelet.register();
    kubelet.refuse("no such node");
    assert!(
        !driver.ended() && driver.log().contains("does not register the driver: no such node"),
        "{}",
        driver.log()
    );
}

#[test]
fn publish_with_a_wrong_attribute_is_refused_by_name_without_a_request() {
    let env = TestEnv::new();
    let (agent, driver) = (env.machine.agent(""), DriverProcess::start(&env, &[]));
    let mut kubelet = Kubelet::new(&env.machine.directory("kubelet"));
    kubelet.register();
    let refused = |attributes: &[(&str, &str)]| {
        let volume = PodVolume::inline("pod", attributes).secret("key", &secret());
        kubelet.publish(&volume).expect_err("refused")
    };
    let error = refused(&[("source", "s3://bucket"), ("cacheDir", "/")]);
    assert!(error.code() == Code::InvalidArgument && error.message().contains("cacheDir"), "{error}");
    let error = refused(&[("source", "s3://bucket"), ("endpoint", "https://169.254.169.254")]);
    assert!(error.code() == Code::PermissionDenied && error.message().contains("endpoint"), "{error}");
    // The rules of the agent refuse it, and no credentials help.
    let volume = PodVolume::inline("pod", &[("source", "https://169.254.169.254")]);
    let error = kubelet.publish(&volume).expect_err("refused");
    assert!(error.code() == Code::PermissionDenied && error.message().contains("everybody may"), "{error}");
    assert_eq!(env.fetched("").requests, 0);
    for text in [driver.log(), agent.log(), format!("{error:?}")] {
        assert!(!text.contains("aws_secret_access_key"), "{text}");
    }
}

#[test]
fn call_while_the_agent_is_stuck_is_unavailable_within_its_deadline() {
    let env = TestEnv::new();
    fs::create_dir_all(env.machine.cache()).unwrap();
    // It is connected to, and never answers.
    let _stuck = UnixListener::bind(env.machine.cache().join("control.sock")).unwrap();
    let _driver = DriverProcess::start(&env, &[]);
    let mut kubelet = Kubelet::new(&env.machine.directory("kubelet")).with_deadline(Duration::from_secs(4));
    kubelet.register();
    let volume = PodVolume::inline("pod", &[("source", "hf://o/m")]);
    let refused = PodVolume::inline("pod", &[("source", "hf://o/m"), ("uid", "0")]);
    for call in [
        kubelet.call_publish(&volume),
        kubelet.call_publish(&refused),
        kubelet.unpublish(&volume),
        kubelet.stats(&volume).map(drop),
    ] {
        let error = call.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.message().contains("does not respond"), "{error}");
    }
}

#[test]
fn block_volume_is_refused() {
    let env = TestEnv::new();
    let _driver = DriverProcess::start(&env, &[]);
    let mut kubelet = Kubelet::new(&env.machine.directory("kubelet"));
    kubelet.register();
    let volume = PodVolume::persistent("v", "pod", &[("source", "hf://o/m")]);
    let error = kubelet.call_publish_block(&volume).unwrap_err();
    assert!(error.code() == Code::InvalidArgument && error.message().contains("Filesystem"), "{error}");
}
