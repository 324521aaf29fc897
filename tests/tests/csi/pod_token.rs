//! Volumes whose pods' own tokens are exchanged for keys of a role.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bdnfs_tests::MIB;
use bdnfs_tests::kubelet::PodVolume;
use bdnfs_tests::process::eventually;
use bdnfs_tests::s3::Keys;
use bdnfs_tests::sts::{STS_SECRET, StsServer};
use bdnfs_tests::tree::{assert_same, assert_same_tree};
use serde_json::{Value, json};
use tonic::Code;

use crate::kit::{KubernetesNode, POD_TOKEN, TOKENS_KEY, secret, with_tokens};
use crate::publish::remaining;

/// How long keys of the token service are good at first.
const KEY_LIFETIME: Duration = Duration::from_secs(4);

/// A node, and a token service whose keys alone open the bucket, for the token `number`.
fn node_with_sts(number: u32) -> (KubernetesNode, StsServer) {
    let node = KubernetesNode::with_pod_tokens();
    let sts = StsServer::start(&node.env.s3, Keys::sample(), &token(number));
    node.env.s3.allowed_keys().revoke_all();
    (node, sts)
}

fn token(number: u32) -> String {
    format!("{POD_TOKEN}-{number}")
}

/// What a kubelet sends of a pod's tokens.
fn tokens(number: u32) -> Value {
    json!({
        "sts.amazonaws.com": {"token": token(number), "expirationTimestamp": "2030-01-01T00:00:00Z"},
        "vault": {"token": "of another audience", "expirationTimestamp": "2030-01-01T00:00:00Z"},
    })
}

/// The bucket's PersistentVolume, by a role and without a secret, with these further attributes.
fn volume(node: &KubernetesNode, sts: &StsServer, more: &[(&str, &str)]) -> PodVolume {
    let mut volume = node.volume("pod");
    volume.secrets.clear();
    let sts = sts.url();
    let role = [("roleArn", "arn:aws:iam::1:role/models"), ("stsEndpoint", &sts)];
    let attributes = role.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    volume.context.extend(attributes);
    volume
}

/// The volume with the token `number` as kubelets send it: before 1.35 among the attributes, since then among the secrets.
fn with_token(volume: &PodVolume, number: u32, in_secrets: bool) -> PodVolume {
    with_tokens(volume, &tokens(number), in_secrets)
}

#[test]
fn volume_by_a_role_is_staged_with_the_token_of_its_pod() {
    for in_secrets in [false, true] {
        let (node, sts) = node_with_sts(1);
        node.env.put("weights", 2 * MIB);
        let volume = with_token(&volume(&node, &sts, &[]), 1, in_secrets);
        let errors = node.kubelet.mount(&volume);
        assert!(errors.is_empty(), "{errors:?}");
        assert_same_tree(&node.env.bucket(), &node.kubelet.target(&volume));
        assert_eq!(sts.issued_keys(), 1);
        node.kubelet.unpublish(&volume).unwrap();
        assert_eq!(remaining(&node), (0, 0));
    }
}

#[test]
fn token_of_a_repeated_publish_renews_the_keys_without_a_request() {
    let (mut node, sts) = node_with_sts(1);
    let bytes = ["a", "b", "c"].map(|name| node.env.put(name, 2 * MIB));
    let volume = volume(&node, &sts, &[("staging", "lazy")]);
    sts.set_lifetime(KEY_LIFETIME);
    let begin = Instant::now();
    node.kubelet.mount(&with_token(&volume, 1, false));
    let target = node.kubelet.target(&volume);
    assert_same(&bytes[0], &fs::read(target.join("a")).unwrap(), "a");
    // The kubelet brings a new token, and the old one is refused from then on.
    sts.set_token(&token(2));
    let requests = || (node.env.s3.requests.all().requests, sts.requests.all().requests);
    let before = requests();
    // At least one call is as quick as that, however busy the machine is.
    eventually("a repeated publish waits for nothing", || {
        let call = Instant::now();
        node.kubelet.publish(&with_token(&volume, 2, true)).unwrap();
        call.elapsed() < Duration::from_millis(500)
    });
    assert_eq!(requests(), before, "a repeated publish asks nobody");
    // The keys end.
    sleep(KEY_LIFETIME.saturating_sub(begin.elapsed()) + Duration::from_secs(1));
    sts.set_lifetime(KEY_LIFETIME);
    assert_same(&bytes[1], &fs::read(target.join("b")).unwrap(), "b");
    // The next agent has the new token, too.
    node.agent.take().unwrap().crash();
    node.start_agent();
    sleep(KEY_LIFETIME + Duration::from_secs(1));
    assert_same(&bytes[2], &fs::read(target.join("c")).unwrap(), "c");
    // No call takes away what is published: not without a token, nor with one that can't be read.
    node.kubelet.publish(&volume).unwrap();
    let mut unreadable = volume.clone();
    unreadable.secrets.insert(TOKENS_KEY.to_owned(), "no JSON".to_owned());
    node.kubelet.publish(&unreadable).unwrap();
    node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn volume_whose_token_is_refused_or_missing_fails_with_the_reason_and_shows_no_token() {
    let (node, sts) = node_with_sts(1);
    node.env.put("weights", MIB);
    let volume = volume(&node, &sts, &[]);
    let refused = node.kubelet.publish(&with_token(&volume, 2, true)).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    for words in ["cannot assume the role arn:aws:iam::1:role/models", "trust in the token's service account"]
    {
        assert!(refused.message().contains(words), "{refused}");
    }
    let missing = node.kubelet.publish(&volume).unwrap_err();
    assert!(missing.code() == Code::InvalidArgument && missing.message().contains("podTokens"), "{missing}");
    // The author of a pod names no token service, and no other token than that of the pod is sent anywhere.
    let inline = PodVolume::inline(
        "inline",
        &[
            ("source", "s3://bucket"),
            ("roleArn", "arn:aws:iam::1:role/models"),
            ("stsEndpoint", &sts.url()),
            (TOKENS_KEY, &tokens(1).to_string()),
        ],
    );
    let error = node.kubelet.publish(&inline).unwrap_err();
    assert!(error.code() == Code::PermissionDenied && error.message().contains("stsEndpoint"), "{error}");
    assert_eq!(sts.issued_keys(), 0);
    // One that succeeds, so that there is something to look for.
    let good = with_token(&volume, 1, true);
    node.kubelet.mount(&good);
    node.assert_not_leaked(&[POD_TOKEN, STS_SECRET], &format!("{refused:?} {missing:?}"));
    node.kubelet.unpublish(&good).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn pods_with_other_identities_for_one_snapshot_keep_their_own() {
    let (mut node, sts) = node_with_sts(1);
    node.env.s3.allowed_keys().allow(Keys::sample(), None);
    let bytes = ["a", "b", "c", "d"].map(|name| node.env.put(name, 2 * MIB));
    let role = |pod: &str, arn: &str| {
        let mut volume = volume(&node, &sts, &[("staging", "lazy"), ("roleArn", arn)]);
        volume.pod = pod.to_owned();
        volume
    };
    let [models, other] = ["models", "other"].map(|name| role(name, &format!("arn:aws:iam::1:role/{name}")));
    let mut by_secret = node.volume("secret");
    by_secret.context.insert("staging".to_owned(), "lazy".to_owned());
    node.kubelet.mount(&by_secret);
    node.kubelet.mount(&with_token(&models, 1, true));
    node.kubelet.mount(&with_token(&other, 1, true));
    assert_eq!(remaining(&node), (3, 6), "each has a base of its own");
    // Another secret is one of the pod that has a secret; the other role's token is that role's.
    node.kubelet.publish(&by_secret.clone().secret("key", &(secret() + " "))).unwrap();
    sts.set_token(&token(2));
    node.kubelet.publish(&with_token(&other, 2, true)).unwrap();
    // The next agent has what each of them brought.
    node.agent.take().unwrap().crash();
    node.start_agent();
    let read = |volume: &PodVolume, name: &str| fs::read(node.kubelet.target(volume).join(name));
    assert_same(&bytes[0], &read(&by_secret, "a").unwrap(), "a");
    assert_same(&bytes[1], &read(&other, "b").unwrap(), "b");
    assert!(read(&models, "c").is_err(), "its own token is not valid any more");
    node.kubelet.publish(&with_token(&models, 2, true)).unwrap();
    eventually("it is read by its own token", || read(&models, "c").is_ok());
    assert_same(&bytes[2], &read(&models, "c").unwrap(), "c");
    // What one has read is there for all.
    assert_same(&bytes[2], &read(&by_secret, "c").unwrap(), "c");
    for volume in [&by_secret, &models, &other] {
        node.kubelet.unpublish(volume).unwrap();
    }
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn volume_whose_token_is_lost_with_the_fdstore_is_read_with_the_next_one() {
    let (mut node, sts) = node_with_sts(1);
    let bytes = node.env.put("weights", 2 * MIB);
    let volume = volume(&node, &sts, &[("staging", "lazy")]);
    node.kubelet.mount(&with_token(&volume, 1, true));
    node.agent.take().unwrap().crash();
    node.env.machine.kill_fdstore();
    node.start_agent();
    let read = || fs::read(node.kubelet.target(&volume).join("weights"));
    assert!(read().is_err(), "no agent has the token");
    node.kubelet.publish(&with_token(&volume, 1, true)).unwrap();
    eventually("it can be read", || read().is_ok());
    assert_same(&bytes, &read().unwrap(), "weights");
    node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}

#[test]
fn volume_whose_token_never_expires_fails_and_leaves_nothing() {
    let (node, sts) = node_with_sts(1);
    let mut volume = volume(&node, &sts, &[]);
    // {"exp":9000000000000000000}: no calendar has that.
    let token = "e30.eyJleHAiOjkwMDAwMDAwMDAwMDAwMDAwMDB9.x";
    let tokens = json!({"sts.amazonaws.com": {"token": token}}).to_string();
    volume.secrets.insert(TOKENS_KEY.to_owned(), tokens);
    let error = node.kubelet.publish(&volume).unwrap_err();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    assert!(error.message().contains("cannot assume the role"), "{error}");
    node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&node), (0, 0));
}
