//! The options that the author of a volume has: its attributes, the secret that comes with it, and the pod's own token.
//!
//! The author of a pod may choose what is read; where from, as whom and in whose name is chosen by an administrator, in a
//! PersistentVolume or a StorageClass.

use std::collections::{BTreeMap, HashMap};

use bdnfs::source::{AuthMethod, Secret};
use bdnfs_agent::api::attributes::{Attributes, InvalidAttribute};
use bdnfs_agent::api::container_volume::{ContainerVolumeKind, ContainerVolumeRequest, job_id};
use bdnfs_agent::api::publication::PublicationRequest;
use tonic::Status;

use crate::TrustPolicy;
use crate::events::PodReference;
use crate::pod_identity::{AUTHORITY_KEY, IAM_KEY, PodIdentity, STS_KEY, ServiceAccount};
use crate::pod_token::PodTokens;

/// The prefix of the attributes that the kubelet adds, whose keys no author may use.
const POD_INFO_PREFIX: &str = "csi.storage.k8s.io/";
/// The prefix of those that provisioners add.
const PROVISIONER_INFO_PREFIX: &str = "storage.kubernetes.io/";
/// Attributes that only an administrator may set.
const ADMIN_KEYS: [&str; 12] = [
    "endpoint",
    "region",
    "caFile",
    "allowHttp",
    "mirror",
    "tenant",
    "uid",
    "gid",
    "badNames",
    STS_KEY,
    IAM_KEY,
    AUTHORITY_KEY,
];
/// The number of digits behind `csi-` in a kubelet's id of an inline volume.
const INLINE_ID_DIGITS: usize = 64;

/// The request that a volume makes of the agent.
#[derive(Debug)]
pub enum VolumeOptions {
    /// A source, read-only.
    Source(Box<PublicationRequest>),
    /// A directory to write to.
    Written(ContainerVolumeRequest),
}

/// The attributes and the secrets of a volume and what the kubelet says of its pod, not read yet.
pub struct VolumeContext {
    own: Attributes,
    pod: BTreeMap<String, String>,
    secrets: BTreeMap<String, Secret>,
    tokens: Option<PodTokens>,
}

impl VolumeContext {
    /// Separates the author's attributes and secrets from the kubelet's.
    pub fn new(mut context: HashMap<String, String>, mut secrets: HashMap<String, String>) -> Self {
        let tokens = PodTokens::take(&mut context, &mut secrets);
        let secrets = secrets.into_iter().map(|(key, value)| (key, Secret::new(value))).collect();
        let (mut own, mut pod) = (BTreeMap::new(), BTreeMap::new());
        for (key, value) in context {
            match key.strip_prefix(POD_INFO_PREFIX) {
                Some(key) => drop(pod.insert(key.to_owned(), value)),
                None if key.starts_with(PROVISIONER_INFO_PREFIX) => {}
                None => drop(own.insert(key, value)),
            }
        }
        Self { own: own.into_iter().collect(), pod, secrets, tokens }
    }

    /// Whether it has credentials: a secret, or an identity for the pod's token.
    pub fn has_credentials(&self) -> bool {
        !self.secrets.is_empty() || PodIdentity::is_named(|key| self.own.has(key))
    }

    /// The request that the attributes make, for the volume `id`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, and `PERMISSION_DENIED` for what only an administrator may set; both name the attribute.
    pub fn request(mut self, id: &str, policy: &TrustPolicy) -> Result<VolumeOptions, Status> {
        let trusted = self.is_trusted(id, policy);
        if let Some(key) = ADMIN_KEYS.into_iter().find(|key| !trusted && self.own.has(key)) {
            let text = format!(
                "volume attribute {key}: only an administrator may set it, in a PersistentVolume or a StorageClass"
            );
            return Err(Status::permission_denied(text));
        }
        // The data is the namespace's, unless an administrator says otherwise.
        let namespace = self.pod.get("pod.namespace");
        let tenant = namespace.map(|name| policy.tenants.get(name).unwrap_or(name)).cloned();
        let consumer = self.pod().map(|pod| format!("pod {}/{}", pod.namespace, pod.name));
        if let Some(request) = self.own.volume(tenant.as_deref()).map_err(invalid)? {
            if !self.secrets.is_empty() {
                let text = format!("{}: takes no secret; leave out nodePublishSecretRef", request.kind);
                return Err(Status::invalid_argument(format!("volume attribute {text}")));
            }
            let id = self.pod.get("pod.uid").and_then(|uid| job_id(uid));
            let id = id.filter(|_| request.kind == ContainerVolumeKind::Checkpoints);
            return Ok(VolumeOptions::Written(ContainerVolumeRequest { id, consumer, trusted, ..request }));
        }
        // Without this, no kubelet sends any, and what is there was written by an author.
        let tokens = self.tokens.take().filter(|_| policy.pod_tokens);
        let pod = |key: &str| self.pod.get(key).map_or("", String::as_str);
        let account = ServiceAccount { namespace: pod("pod.namespace"), name: pod("serviceAccount.name") };
        let identity = PodIdentity::take(&mut self.own, account, tokens, !self.secrets.is_empty());
        let identity = identity.map_err(invalid)?;
        let request = match identity {
            Some(identity) => {
                let (auth, secrets) = (Some(identity.auth()), identity.secrets());
                let request = self.own.request(auth, secrets, tenant).map_err(invalid)?;
                identity.add_to(request).map_err(invalid)?
            }
            None => {
                let auth = self.secret_key().map_err(invalid)?;
                self.own.request(auth, self.secrets, tenant).map_err(invalid)?
            }
        };
        Ok(VolumeOptions::Source(Box::new(PublicationRequest { consumer, trusted, ..request })))
    }

    /// Whether an administrator wrote them: the kubelet says that the volume is not inline. Where it says nothing, its author
    /// may say it, so the id is looked at too: an inline volume's is the kubelet's own.
    fn is_trusted(&self, id: &str, policy: &TrustPolicy) -> bool {
        let is_digest =
            |text: &str| text.len() == INLINE_ID_DIGITS && text.bytes().all(|b| b.is_ascii_hexdigit());
        if id.strip_prefix("csi-").is_some_and(is_digest) {
            return false;
        }
        self.pod.get("ephemeral").map_or(policy.trust_unmarked, |ephemeral| ephemeral == "false")
    }

    /// The authorization by a secret of the request: the named one, or the only one.
    fn secret_key(&mut self) -> Result<Option<AuthMethod>, InvalidAttribute> {
        let secrets = &self.secrets;
        let named = self.own.take("secretKey");
        let unknown = |why: String| Err(InvalidAttribute::new("secretKey", why));
        let keys: Vec<_> = secrets.keys().map(String::as_str).collect();
        match named {
            Some(key) if secrets.contains_key(&key) => Ok(Some(AuthMethod::Secret { auth_secret_name: key })),
            Some(key) if keys.is_empty() => {
                unknown(format!("no secret is given for the key {key:?}; add a nodePublishSecretRef"))
            }
            Some(key) => unknown(format!("the secret has no key {key:?}; its keys are {}", keys.join(", "))),
            None if keys.len() > 1 => {
                unknown(format!("the secret has several keys: name one of {}", keys.join(", ")))
            }
            None => Ok(None),
        }
    }

    /// The pod that the volume is for, if the kubelet sends it.
    pub fn pod(&self) -> Option<PodReference> {
        let [namespace, name] = ["pod.namespace", "pod.name"].map(|key| self.pod.get(key).cloned());
        let uid = self.pod.get("pod.uid").cloned().unwrap_or_default();
        Some(PodReference { namespace: namespace?, name: name?, uid })
    }
}

fn invalid(error: InvalidAttribute) -> Status {
    Status::invalid_argument(format!("volume attribute {error}"))
}

#[cfg(test)]
mod tests {
    use bdnfs_agent::api::publication::Staging;
    use tonic::Code;

    use super::*;

    const INLINE: (&str, &str) = ("csi.storage.k8s.io/ephemeral", "true");
    const PERSISTENT: (&str, &str) = ("csi.storage.k8s.io/ephemeral", "false");
    const SOURCE: (&str, &str) = ("source", "s3://b/p");

    fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn options(pairs: &[(&str, &str)], secrets: &[(&str, &str)]) -> Result<VolumeOptions, Status> {
        VolumeContext::new(map(pairs), map(secrets)).request("volume", &TrustPolicy::default())
    }

    fn source(options: VolumeOptions) -> PublicationRequest {
        match options {
            VolumeOptions::Source(request) => *request,
            VolumeOptions::Written(request) => panic!("{request:?}"),
        }
    }

    fn request(pairs: &[(&str, &str)], secrets: &[(&str, &str)]) -> Result<PublicationRequest, Status> {
        options(pairs, secrets).map(source)
    }

    #[test]
    fn attribute_checkpoints_is_a_volume_of_the_pod_in_its_namespace() {
        let pod = [
            ("csi.storage.k8s.io/pod.namespace", "team"),
            ("csi.storage.k8s.io/pod.name", "trainer-0"),
            ("csi.storage.k8s.io/pod.uid", "3f1c9a2b-0d6e-4f0a-9c1b-2a3b4c5d6e7f"),
        ];
        let written = |own: (&str, &str)| match options(&[&pod[..], &[INLINE, own]].concat(), &[]) {
            Ok(VolumeOptions::Written(request)) => request,
            other => panic!("{other:?}"),
        };
        let made = written(("checkpoints", "llama"));
        assert_eq!((made.kind, made.name.as_str()), (ContainerVolumeKind::Checkpoints, "llama"));
        assert_eq!((made.id.as_deref(), made.tenant.as_deref()), (Some("3f1c9a2b"), Some("team")));
        assert_eq!((made.consumer.as_deref(), made.trusted), (Some("pod team/trainer-0"), false));
        let made = written(("projectCache", "llama"));
        assert_eq!((made.kind, made.id), (ContainerVolumeKind::ProjectCache, None));
        let error = options(&[INLINE, ("checkpoints", "llama"), SOURCE], &[]).expect_err("both");
        assert_eq!(error.message(), "volume attribute source: cannot be used with checkpoints");
        let error = options(&[INLINE, ("checkpoints", "llama")], &[("a", "hush")]).expect_err("a secret");
        assert!(
            error.code() == Code::InvalidArgument && error.message().contains("takes no secret"),
            "{error}"
        );
        let error = options(&[INLINE, ("checkpoints", "llama"), ("tenant", "a")], &[]).expect_err("tenant");
        assert_eq!(error.code(), Code::PermissionDenied);
    }

    #[test]
    fn attributes_of_an_inline_volume_become_an_untrusted_request_of_its_namespace() {
        let pod = [
            ("csi.storage.k8s.io/pod.namespace", "team"),
            ("csi.storage.k8s.io/pod.name", "llama-0"),
            ("csi.storage.k8s.io/of.a.newer.kubelet", "x"),
            ("storage.kubernetes.io/csiProvisionerIdentity", "x"),
        ];
        let own = [("allow", r#"["*.json"]"#), ("staging", "lazy"), ("anonymous", "true")];
        let made = request(&[&pod[..], &own, &[INLINE, SOURCE]].concat(), &[]).expect("valid");
        assert!(!made.trusted && made.staging == Staging::Lazy);
        assert_eq!(
            (made.tenant.as_deref(), made.consumer.as_deref()),
            (Some("team"), Some("pod team/llama-0"))
        );
        assert_eq!(made.allow, Some(vec!["*.json".to_owned()]));
        assert!(made.access.s3.is_some_and(|s3| s3.anonymous));
        let policy =
            TrustPolicy { tenants: [("team".into(), "seven".into())].into(), ..TrustPolicy::default() };
        let made = VolumeContext::new(map(&[pod[0], SOURCE]), map(&[]))
            .request("v", &policy)
            .map(source)
            .expect("valid");
        assert_eq!(made.tenant.as_deref(), Some("seven"));
    }

    #[test]
    fn admin_attribute_in_an_inline_volume_is_refused_by_name() {
        for key in ADMIN_KEYS {
            for mark in [&[INLINE][..], &[]] {
                let error = request(&[mark, &[SOURCE, (key, "1")]].concat(), &[]).expect_err(key);
                assert!(error.code() == Code::PermissionDenied && error.message().contains(key), "{error}");
            }
        }
        let admin = [
            ("endpoint", "https://h"),
            ("region", "eu"),
            ("tenant", "a"),
            ("uid", "7"),
            ("allowHttp", "true"),
        ];
        let made = request(&[&[PERSISTENT, SOURCE][..], &admin].concat(), &[]).expect("valid");
        assert!(
            made.trusted
                && made.uid == Some(7)
                && made.access.allow_http
                && made.tenant.as_deref() == Some("a")
        );
        assert_eq!(made.access.s3.and_then(|s3| s3.endpoint).as_deref(), Some("https://h"));
    }

    #[test]
    fn inline_volume_that_claims_to_be_persistent_is_not_trusted() {
        let id = format!("csi-{}", "0a".repeat(32));
        let policy = TrustPolicy { trust_unmarked: true, ..TrustPolicy::default() };
        let made = |id: &str| {
            VolumeContext::new(map(&[PERSISTENT, SOURCE]), map(&[])).request(id, &policy).map(source)
        };
        assert!(!made(&id).expect("valid").trusted && made("csi-llama").expect("valid").trusted);
        let unmarked = VolumeContext::new(map(&[SOURCE]), map(&[])).request("v", &policy);
        assert!(source(unmarked.expect("valid")).trusted);
    }

    #[test]
    fn invalid_attribute_is_refused_by_name_without_secrets() {
        for (key, value) in [
            ("cacheDir", "/"),
            ("source", "ftp://h/x"),
            ("allow", "*.json"),
            ("ignore", r#""a""#),
            ("staging", "soon"),
            ("anonymous", "yes"),
            ("secretKey", "b"),
            ("uid", "root"),
            ("badNames", "drop"),
            ("tenant", "../x"),
            ("caFile", "/nowhere"),
        ] {
            let mut pairs = vec![PERSISTENT, SOURCE];
            pairs.retain(|(name, _)| *name != key);
            let error = request(&[&pairs[..], &[(key, value)]].concat(), &[("a", "hush")]).expect_err(key);
            assert_eq!(error.code(), Code::InvalidArgument, "{error}");
            assert!(!error.message().contains("hush") && !error.message().contains('\n'), "{error}");
        }
        assert!(request(&[], &[]).expect_err("no source").message().contains("source"));
        let error = request(&[SOURCE], &[("b", "hush"), ("a", "hush")]).expect_err("which one");
        assert!(error.message().ends_with("name one of a, b"), "{error}");
        assert!(request(&[SOURCE, ("anonymous", "true")], &[("a", "hush")]).is_err());
        assert!(request(&[PERSISTENT, ("source", "hf://o/m"), ("region", "eu")], &[]).is_err());
    }

    #[test]
    fn secret_key_is_the_named_or_the_only_one() {
        let only = request(&[SOURCE], &[("a", "hush")]).expect("valid");
        assert!(only.access.auth.is_none() && only.secrets.len() == 1);
        let named = request(&[SOURCE, ("secretKey", "b")], &[("a", "x"), ("b", "hush")]).expect("valid");
        assert_eq!(named.access.auth.as_ref().and_then(AuthMethod::secret), Some("b"));
        assert!(!format!("{named:?}").contains("hush"));
    }
}
