//! Volumes whose pods' own tokens are exchanged for tokens of Google and of Entra ID.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bdnfs_tests::MIB;
use bdnfs_tests::clouds::CloudServer;
use bdnfs_tests::federation::{CLOUD_SECRET, TokenServices};
use bdnfs_tests::kubelet::PodVolume;
use bdnfs_tests::process::eventually;
use bdnfs_tests::tree::{assert_same, assert_same_tree};
use serde_json::json;
use tonic::Code;

use crate::kit::{KubernetesNode, POD_TOKEN, with_tokens};
use crate::publish::remaining;

const PROVIDER: &str =
    "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/pool/providers/k8s";
const ACCOUNT: &str = "models@project.iam.gserviceaccount.com";
const TENANT: &str = "11111111-2222-4333-8444-555555555555";
const CLIENT: &str = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee";
/// How long tokens of the services are good at first.
const TOKEN_LIFETIME: Duration = Duration::from_secs(4);

/// How a volume is read.
#[derive(Clone, Copy, Debug)]
enum CloudIdentity {
    /// By Google's STS alone.
    Federated,
    /// By impersonating a service account.
    Account,
    /// By an application of Entra ID.
    Entra,
}

const IDENTITIES: [CloudIdentity; 3] =
    [CloudIdentity::Federated, CloudIdentity::Account, CloudIdentity::Entra];

/// A node, token services, and a bucket that their tokens alone open.
struct IdentityNode {
    node: KubernetesNode,
    storage: CloudServer,
    services: TokenServices,
    identity: CloudIdentity,
}

impl CloudIdentity {
    /// The name that the services know it by.
    fn name(self) -> String {
        match self {
            Self::Federated => PROVIDER.to_owned(),
            Self::Account => ACCOUNT.to_owned(),
            Self::Entra => format!("{TENANT}/{CLIENT}"),
        }
    }

    /// The token of the pod with this number, for the identity's cloud.
    fn token(self, number: u32) -> String {
        match self {
            Self::Federated | Self::Account => format!("{POD_TOKEN}-google-{number}"),
            Self::Entra => format!("{POD_TOKEN}-azure-{number}"),
        }
    }
}

impl IdentityNode {
    /// One whose services trust the token `number`.
    fn new(identity: CloudIdentity, number: u32) -> Self {
        let node = KubernetesNode::with_pod_tokens();
        let services = TokenServices::start();
        let buckets = node.env.bucket();
        let storage = CloudServer::guarded(buckets.parent().unwrap(), &services.storage_tokens());
        services.grant(PROVIDER, ACCOUNT);
        let made = Self { node, storage, services, identity };
        made.trust(number);
        made
    }

    /// The services trust the token `number` from now on.
    fn trust(&self, number: u32) {
        let token = self.identity.token(number);
        match self.identity {
            CloudIdentity::Federated | CloudIdentity::Account => self.services.trust(PROVIDER, &token),
            CloudIdentity::Entra => self.services.trust(&self.identity.name(), &token),
        }
    }

    /// The bucket's PersistentVolume, with these further attributes.
    fn volume(&self, more: &[(&str, &str)]) -> PodVolume {
        let (storage, services) = (self.storage.server.url(), self.services.url());
        let (storage, services) = (storage.as_str(), services.as_str());
        let google = [("source", "gs://bucket"), ("workloadIdentityProvider", PROVIDER)];
        let google = [&google[..], &[("stsEndpoint", services), ("iamEndpoint", services)]].concat();
        let mut attributes = match self.identity {
            CloudIdentity::Federated => google,
            CloudIdentity::Account => [&google[..], &[("serviceAccount", ACCOUNT)]].concat(),
            CloudIdentity::Entra => vec![
                ("source", "azure://account/bucket"),
                ("clientId", CLIENT),
                ("tenantId", TENANT),
                ("authorityHost", services),
            ],
        };
        attributes.push(("endpoint", storage));
        attributes.extend(more);
        PodVolume::persistent("bucket", "pod", &attributes)
    }

    fn read(&self, volume: &PodVolume, name: &str) -> std::io::Result<Vec<u8>> {
        fs::read(self.node.kubelet.target(volume).join(name))
    }
}

/// The volume with the tokens `number` of its pod.
fn with_token(volume: &PodVolume, number: u32, in_secrets: bool) -> PodVolume {
    let tokens = json!({
        format!("https:{PROVIDER}"): {"token": CloudIdentity::Federated.token(number)},
        "api://AzureADTokenExchange": {"token": CloudIdentity::Entra.token(number)},
        "sts.amazonaws.com": {"token": format!("{POD_TOKEN}-aws-{number}")},
    });
    with_tokens(volume, &tokens, in_secrets)
}

#[test]
fn volume_by_an_identity_is_staged_with_the_token_of_its_pod() {
    for (identity, in_secrets) in IDENTITIES.into_iter().zip([true, false, true]) {
        let on = IdentityNode::new(identity, 1);
        on.node.env.put("weights", 2 * MIB);
        let volume = with_token(&on.volume(&[]), 1, in_secrets);
        let errors = on.node.kubelet.mount(&volume);
        assert!(errors.is_empty(), "{errors:?}");
        assert_same_tree(&on.node.env.bucket(), &on.node.kubelet.target(&volume));
        assert_eq!(on.services.issued_tokens(&identity.name()), 1, "{identity:?}");
        let readers = on.services.take_readers();
        assert!(
            !readers.is_empty() && readers.iter().all(|reader| *reader == identity.name()),
            "{readers:?}"
        );
        on.node.kubelet.unpublish(&volume).unwrap();
        assert_eq!(remaining(&on.node), (0, 0));
    }
}

#[test]
fn token_of_a_repeated_publish_renews_an_identity_without_a_request() {
    for identity in IDENTITIES {
        let mut on = IdentityNode::new(identity, 1);
        let bytes = ["a", "b", "c"].map(|name| on.node.env.put(name, 2 * MIB));
        let volume = on.volume(&[("staging", "lazy")]);
        on.services.set_lifetime(TOKEN_LIFETIME);
        let begin = Instant::now();
        on.node.kubelet.mount(&with_token(&volume, 1, true));
        assert_same(&bytes[0], &on.read(&volume, "a").unwrap(), "a");
        // The kubelet brings a new token, and the old one is refused from then on.
        on.trust(2);
        let before = on.services.requests.all().requests;
        on.services.take_readers();
        on.node.kubelet.publish(&with_token(&volume, 2, true)).unwrap();
        assert_eq!(on.services.requests.all().requests, before, "a repeated publish asks nobody");
        assert!(on.services.take_readers().is_empty(), "nor the storage");
        sleep(TOKEN_LIFETIME.saturating_sub(begin.elapsed()) + Duration::from_secs(1));
        assert_same(&bytes[1], &on.read(&volume, "b").unwrap(), "b");
        // The next agent has the new token, too.
        on.node.agent.take().unwrap().crash();
        on.node.start_agent();
        sleep(TOKEN_LIFETIME + Duration::from_secs(1));
        assert_same(&bytes[2], &on.read(&volume, "c").unwrap(), "c");
        // No call takes away what is published.
        on.node.kubelet.publish(&volume).unwrap();
        on.node.kubelet.unpublish(&volume).unwrap();
        assert_eq!(remaining(&on.node), (0, 0));
    }
}

#[test]
fn volume_whose_identity_is_refused_fails_with_the_reason_and_shows_no_token() {
    for identity in IDENTITIES {
        let on = IdentityNode::new(identity, 1);
        on.node.env.put("weights", MIB);
        let volume = on.volume(&[]);
        let refused = on.node.kubelet.publish(&with_token(&volume, 2, true)).unwrap_err();
        assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
        let said = match identity {
            CloudIdentity::Federated | CloudIdentity::Account => format!(
                "127.0.0.1 gives no token for {PROVIDER}: the server returned 400 Bad Request, invalid_grant; check the trust of \
                 the provider in the token's service account"
            ),
            CloudIdentity::Entra => format!(
                "127.0.0.1 gives no token for {CLIENT} of {TENANT}: the server returned 401 Unauthorized, invalid_client \
                 (AADSTS700213); check the trust of the application in the token's service account"
            ),
        };
        assert!(refused.message().ends_with(&said) && !refused.message().contains('\n'), "{refused}");
        let missing = on.node.kubelet.publish(&volume).unwrap_err();
        assert_eq!(missing.code(), Code::InvalidArgument, "{missing}");
        assert!(missing.message().contains("podTokenAudiences of the chart"), "{missing}");
        // The author of a pod names no service.
        let mut inline = PodVolume::inline("inline", &[]);
        inline.context.extend(on.volume(&[]).context.into_iter().filter(|(key, _)| !key.contains('.')));
        inline.context.remove("endpoint");
        let denied = on.node.kubelet.publish(&with_token(&inline, 1, true)).unwrap_err();
        let keys = ["stsEndpoint", "iamEndpoint", "authorityHost"];
        assert_eq!(denied.code(), Code::PermissionDenied, "{denied}");
        assert!(keys.iter().any(|key| denied.message().contains(key)), "{denied}");
        assert_eq!(on.services.issued_tokens(&identity.name()), 0);
        // One that succeeds, so that there is something to look for.
        let good = with_token(&volume, 1, true);
        on.node.kubelet.mount(&good);
        on.node.assert_not_leaked(&[POD_TOKEN, CLOUD_SECRET], &format!("{refused:?} {missing:?}"));
        on.node.kubelet.unpublish(&good).unwrap();
        assert_eq!(remaining(&on.node), (0, 0));
    }
}

#[test]
fn service_account_that_the_identity_may_not_impersonate_is_refused_with_the_role_that_it_needs() {
    let on = IdentityNode::new(CloudIdentity::Account, 1);
    on.node.env.put("weights", MIB);
    let other = "other@project.iam.gserviceaccount.com";
    let mut volume = on.volume(&[]);
    volume.context.insert("serviceAccount".to_owned(), other.to_owned());
    let refused = on.node.kubelet.publish(&with_token(&volume, 1, true)).unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let said = format!(
        "127.0.0.1 gives no token for {other}: the server returned 403 Forbidden, PERMISSION_DENIED; grant the federated identity \
         roles/iam.workloadIdentityUser on it"
    );
    assert!(refused.message().ends_with(&said), "{refused}");
    on.node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&on.node), (0, 0));
}

#[test]
fn pods_with_other_identities_of_a_cloud_read_by_their_own_only() {
    for identity in [CloudIdentity::Account, CloudIdentity::Entra] {
        let on = IdentityNode::new(identity, 1);
        let bytes = ["a", "b"].map(|name| on.node.env.put(name, 2 * MIB));
        let own = on.volume(&[("staging", "lazy")]);
        let mut other = own.clone();
        other.pod = "other".to_owned();
        let (key, value) = match identity {
            // The federated identity has access of its own.
            CloudIdentity::Federated | CloudIdentity::Account => ("serviceAccount", None),
            CloudIdentity::Entra => ("clientId", Some(TENANT.to_owned())),
        };
        other.context.remove(key);
        other.context.extend(value.map(|value| (key.to_owned(), value)));
        let other_name = match identity {
            CloudIdentity::Federated | CloudIdentity::Account => PROVIDER.to_owned(),
            CloudIdentity::Entra => format!("{TENANT}/{TENANT}"),
        };
        on.services.trust(&other_name, &identity.token(1));
        on.node.kubelet.mount(&with_token(&own, 1, true));
        on.node.kubelet.mount(&with_token(&other, 1, true));
        assert_eq!(remaining(&on.node), (2, 4), "each has a base of its own");
        on.services.take_readers();
        for (volume, name, file, bytes) in
            [(&own, identity.name(), "a", &bytes[0]), (&other, other_name, "b", &bytes[1])]
        {
            assert_same(bytes, &on.read(volume, file).unwrap(), file);
            let readers = on.services.take_readers();
            assert!(
                !readers.is_empty() && readers.iter().all(|reader| *reader == name),
                "{name}: {readers:?}"
            );
        }
        for volume in [&own, &other] {
            on.node.kubelet.unpublish(volume).unwrap();
        }
        assert_eq!(remaining(&on.node), (0, 0));
    }
}

#[test]
fn pods_of_several_service_accounts_with_one_identity_share_no_token() {
    // The federated identity is the service account: each reads what that may.
    let on = IdentityNode::new(CloudIdentity::Federated, 1);
    on.node.env.put("weights", 2 * MIB);
    let of = |account: &str, pod: &str| {
        let mut volume = on.volume(&[("staging", "lazy")]);
        volume.pod = pod.to_owned();
        volume.context.insert("csi.storage.k8s.io/serviceAccount.name".to_owned(), account.to_owned());
        volume
    };
    let volumes = [of("models", "first"), of("models", "second"), of("other", "third")];
    for volume in &volumes {
        on.node.kubelet.mount(&with_token(volume, 1, true));
    }
    assert_eq!(remaining(&on.node), (3, 5), "a base for each service account");
    for volume in &volumes {
        on.node.kubelet.unpublish(volume).unwrap();
    }
    assert_eq!(remaining(&on.node), (0, 0));
}

#[test]
fn identity_whose_token_is_lost_with_the_fdstore_is_used_with_the_next_one() {
    let mut on = IdentityNode::new(CloudIdentity::Entra, 1);
    let bytes = on.node.env.put("weights", 2 * MIB);
    let volume = on.volume(&[("staging", "lazy")]);
    on.node.kubelet.mount(&with_token(&volume, 1, true));
    on.node.agent.take().unwrap().crash();
    on.node.env.machine.kill_fdstore();
    on.node.start_agent();
    assert!(on.read(&volume, "weights").is_err(), "no agent has the token");
    on.node.kubelet.publish(&with_token(&volume, 1, true)).unwrap();
    eventually("it can be read", || on.read(&volume, "weights").is_ok());
    assert_same(&bytes, &on.read(&volume, "weights").unwrap(), "weights");
    on.node.kubelet.unpublish(&volume).unwrap();
    assert_eq!(remaining(&on.node), (0, 0));
}
