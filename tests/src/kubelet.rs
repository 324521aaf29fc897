//! A kubelet, as far as a CSI driver can tell: it finds the driver in its directory of plugins, gives each call a deadline, waits
//! after errors as the real one does, and removes what a final error leaves. The real one's times were measured (1.20.2).

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bdnfs_csi::proto::csi;
use bdnfs_csi::proto::csi::identity_client::IdentityClient;
use bdnfs_csi::proto::csi::node_client::NodeClient;
use bdnfs_csi::proto::csi::volume_capability::{
    AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode,
};
use bdnfs_csi::proto::pluginregistration::registration_client::RegistrationClient;
use bdnfs_csi::proto::pluginregistration::{InfoRequest, PluginInfo, RegistrationStatus};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::process::eventually;

/// The deadline of each call.
pub const CALL_DEADLINE: Duration = Duration::from_secs(120);
/// How long a kubelet waits after the first error, and at most after many.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(122));
/// The codes after which a volume may be there or not.
const UNCERTAIN: [Code; 4] =
    [Code::Aborted, Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded];

/// A kubelet with its directory. Each call is one of its own connections, as with the real one.
#[derive(Debug)]
pub struct Kubelet {
    root: PathBuf,
    deadline: Duration,
    driver: Option<PathBuf>,
    runtime: Runtime,
}

/// A volume of a pod.
#[derive(Clone)]
pub struct PodVolume {
    /// The volume's id: for an inline volume the kubelet's own, else that of the PersistentVolume.
    pub id: String,
    /// The pod's id.
    pub pod: String,
    /// The attributes that the driver gets, with the pod's own.
    pub context: HashMap<String, String>,
    /// The content of the publish secret.
    pub secrets: HashMap<String, String>,
    /// How the volume may be used.
    pub mode: Mode,
    /// Whether the pod is to get it read-only.
    pub read_only: bool,
}

impl PodVolume {
    /// An inline volume of the pod `pod` with these attributes.
    pub fn inline(pod: &str, attributes: &[(&str, &str)]) -> Self {
        let id = format!("csi-{}", blake3::hash(pod.as_bytes()));
        Self::new(&id, pod, "true", Mode::SingleNodeWriter, attributes)
    }

    /// The PersistentVolume `id` with these attributes, in the pod `pod`.
    pub fn persistent(id: &str, pod: &str, attributes: &[(&str, &str)]) -> Self {
        Self::new(id, pod, "false", Mode::MultiNodeReaderOnly, attributes)
    }

    fn new(id: &str, pod: &str, ephemeral: &str, mode: Mode, attributes: &[(&str, &str)]) -> Self {
        let info = [
            ("csi.storage.k8s.io/pod.name", pod),
            ("csi.storage.k8s.io/pod.namespace", "default"),
            ("csi.storage.k8s.io/pod.uid", pod),
            ("csi.storage.k8s.io/serviceAccount.name", "default"),
            ("csi.storage.k8s.io/ephemeral", ephemeral),
        ];
        let pairs = attributes.iter().chain(&info);
        let context = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Self {
            id: id.to_owned(),
            pod: pod.to_owned(),
            context,
            secrets: HashMap::new(),
            mode,
            read_only: false,
        }
    }

    /// The same, with a publish secret of one key.
    pub fn secret(mut self, key: &str, value: &str) -> Self {
        self.secrets.insert(key.to_owned(), value.to_owned());
        self
    }
}

impl Kubelet {
    /// A kubelet whose directory is `root`, and whose calls have the real [`CALL_DEADLINE`].
    ///
    /// # Panics
    /// When it can't be made.
    pub fn new(root: &Path) -> Self {
        for name in ["plugins", "plugins_registry", "pods"] {
            fs::create_dir_all(root.join(name)).expect("a directory");
        }
        let runtime = Runtime::new().expect("a runtime");
        Self { root: root.to_owned(), deadline: CALL_DEADLINE, driver: None, runtime }
    }

    /// The same, with another deadline.
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Waits until a driver's socket is there, and registers the driver.
    ///
    /// # Panics
    /// When what it says is not to be accepted.
    pub fn register(&mut self) -> PluginInfo {
        let registry = self.root.join("plugins_registry");
        let sockets = || fs::read_dir(&registry).expect("a directory").flatten().map(|entry| entry.path());
        // A socket may be left of a driver that was killed.
        eventually("a driver registers", || {
            sockets().any(|path| std::os::unix::net::UnixStream::connect(path).is_ok())
        });
        let socket = sockets().next().expect("a socket");
        self.runtime.block_on(async {
            let mut registration = RegistrationClient::new(connect(&socket).await);
            let mut ask = Request::new(InfoRequest {});
            ask.set_timeout(Duration::from_secs(30));
            let info = registration.get_info(ask).await.expect("an answer").into_inner();
            assert_eq!(info.r#type, "CSIPlugin");
            assert!(
                info.supported_versions.iter().any(|version| version.starts_with("1.")),
                "{:?}",
                info.supported_versions
            );
            let driver = PathBuf::from(&info.endpoint);
            let mut identity = IdentityClient::new(connect(&driver).await);
            let name = identity.get_plugin_info(csi::GetPluginInfoRequest {}).await.expect("an answer");
            assert_eq!(name.into_inner().name, info.name);
            let mut node = NodeClient::new(connect(&driver).await);
            let node = node.node_get_info(csi::NodeGetInfoRequest {}).await.expect("an answer").into_inner();
            assert!(!node.node_id.is_empty());
            let status = RegistrationStatus { plugin_registered: true, error: String::new() };
            registration.notify_registration_status(status).await.expect("an answer");
            self.driver = Some(driver);
            info
        })
    }

    /// Tells the driver that it can't be registered.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn refuse(&self, why: &str) {
        let mut sockets = fs::read_dir(self.root.join("plugins_registry")).expect("a directory").flatten();
        let socket = sockets.next().expect("a socket").path();
        let status = RegistrationStatus { plugin_registered: false, error: why.to_owned() };
        self.runtime.block_on(async {
            let mut registration = RegistrationClient::new(connect(&socket).await);
            // The driver may end before it has answered.
            let _ = registration.notify_registration_status(status).await;
        });
    }

    /// Whether the driver says that it is ready.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn probe(&self) -> bool {
        self.runtime.block_on(async {
            let mut identity = IdentityClient::new(self.connect().await);
            identity.probe(csi::ProbeRequest {}).await.expect("an answer").into_inner().ready.unwrap_or(true)
        })
    }

    /// The directory where a pod sees the volume.
    pub fn target(&self, volume: &PodVolume) -> PathBuf {
        self.folder(volume).join("mount")
    }

    /// The directory of a volume, with its target and what the kubelet knows of it.
    pub fn folder(&self, volume: &PodVolume) -> PathBuf {
        self.root.join("pods").join(&volume.pod).join("volumes/kubernetes.io~csi/v")
    }

    /// One call to publish a volume, whose folder is prepared before, and removed after a final error.
    pub fn publish(&self, volume: &PodVolume) -> Result<(), Status> {
        let answer = self.call_publish(volume);
        if answer.as_ref().is_err_and(|status| !UNCERTAIN.contains(&status.code())) {
            // The real one removes the directory, and never asks again: so must nothing be there.
            let _ = fs::remove_dir(self.target(volume));
            assert!(!self.target(volume).exists(), "a final error left something: {answer:?}");
        }
        answer
    }

    /// One call to publish a volume, without what a kubelet does after an error.
    pub fn call_publish(&self, volume: &PodVolume) -> Result<(), Status> {
        self.call_publish_as(volume, AccessType::Mount(MountVolume::default()))
    }

    /// The same for a raw block volume.
    pub fn call_publish_block(&self, volume: &PodVolume) -> Result<(), Status> {
        self.call_publish_as(volume, AccessType::Block(BlockVolume::default()))
    }

    fn call_publish_as(&self, volume: &PodVolume, access_type: AccessType) -> Result<(), Status> {
        let request = self.publish_request(volume, access_type);
        self.runtime.block_on(async {
            NodeClient::new(self.connect().await).node_publish_volume(request).await.map(drop)
        })
    }

    /// The request to publish a volume, whose folder is prepared.
    fn publish_request(
        &self,
        volume: &PodVolume,
        access_type: AccessType,
    ) -> Request<csi::NodePublishVolumeRequest> {
        let folder = self.folder(volume);
        fs::create_dir_all(&folder).expect("a directory");
        fs::write(folder.join("vol_data.json"), "{}").expect("written");
        let mut request = Request::new(csi::NodePublishVolumeRequest {
            volume_id: volume.id.clone(),
            target_path: self.target(volume).to_str().expect("text").to_owned(),
            volume_capability: Some(csi::VolumeCapability {
                access_type: Some(access_type),
                access_mode: Some(AccessMode { mode: volume.mode.into() }),
            }),
            secrets: volume.secrets.clone(),
            volume_context: volume.context.clone(),
            readonly: volume.read_only,
            ..Default::default()
        });
        request.set_timeout(self.deadline);
        request
    }

    /// Dies with a call to publish a volume under way, once `is_time`: the connection breaks, and no other call follows.
    ///
    /// # Panics
    /// When the call has ended before.
    pub fn die_in_mid_publish(self, volume: &PodVolume, is_time: impl FnMut() -> bool) {
        let request = self.publish_request(volume, AccessType::Mount(MountVolume::default()));
        let driver = self.driver.clone().expect("a driver is registered");
        let call = self.runtime.spawn(async move {
            NodeClient::new(connect(&driver).await).node_publish_volume(request).await.map(drop)
        });
        eventually("the time to die comes", is_time);
        assert!(!call.is_finished(), "the call has ended");
        self.runtime.shutdown_background();
    }

    /// Publishes a volume, again after each error that is not final, and returns the errors on the way.
    ///
    /// # Panics
    /// When an error is final.
    pub fn mount(&self, volume: &PodVolume) -> Vec<Status> {
        let (mut errors, mut pause) = (Vec::new(), BACKOFF.0);
        let begin = Instant::now();
        loop {
            match self.publish(volume) {
                Ok(()) => return errors,
                Err(status) if UNCERTAIN.contains(&status.code()) => errors.push(status),
                Err(status) => panic!("{status:?}"),
            }
            assert!(begin.elapsed() < 2 * CALL_DEADLINE, "{errors:?}");
            std::thread::sleep(pause);
            pause = (pause * 2).min(BACKOFF.1);
        }
    }

    /// One call to unpublish a volume. Its folder goes when it succeeds.
    pub fn unpublish(&self, volume: &PodVolume) -> Result<(), Status> {
        let target = self.target(volume);
        let mut request = Request::new(csi::NodeUnpublishVolumeRequest {
            volume_id: volume.id.clone(),
            target_path: target.to_str().expect("text").to_owned(),
        });
        request.set_timeout(self.deadline);
        self.runtime.block_on(async {
            NodeClient::new(self.connect().await).node_unpublish_volume(request).await.map(drop)
        })?;
        assert!(!target.exists(), "{} is still there", target.display());
        let _ = fs::remove_dir_all(self.folder(volume));
        Ok(())
    }

    /// The driver's statistics of a volume: bytes, files, and whether it is abnormal.
    pub fn stats(&self, volume: &PodVolume) -> Result<(i64, i64, bool), Status> {
        let stats = self.volume_stats(volume)?;
        let total = |unit: csi::volume_usage::Unit| {
            stats.usage.iter().find(|usage| usage.unit() == unit).map_or(0, |usage| usage.total)
        };
        let abnormal = stats.volume_condition.as_ref().is_some_and(|condition| condition.abnormal);
        Ok((total(csi::volume_usage::Unit::Bytes), total(csi::volume_usage::Unit::Inodes), abnormal))
    }

    /// The driver's condition of a volume: whether it is abnormal, and what is said of it.
    pub fn condition(&self, volume: &PodVolume) -> Result<(bool, String), Status> {
        let condition = self.volume_stats(volume)?.volume_condition.unwrap_or_default();
        Ok((condition.abnormal, condition.message))
    }

    fn volume_stats(&self, volume: &PodVolume) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
        let mut request = Request::new(csi::NodeGetVolumeStatsRequest {
            volume_id: volume.id.clone(),
            volume_path: self.target(volume).to_str().expect("text").to_owned(),
            ..Default::default()
        });
        request.set_timeout(self.deadline);
        let stats = self
            .runtime
            .block_on(async { NodeClient::new(self.connect().await).node_get_volume_stats(request).await });
        stats.map(tonic::Response::into_inner)
    }

    /// The capabilities of a driver's node.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn capabilities(&self) -> Vec<csi::node_service_capability::rpc::Type> {
        let answer = self.runtime.block_on(async {
            let mut node = NodeClient::new(self.connect().await);
            node.node_get_capabilities(csi::NodeGetCapabilitiesRequest {}).await.expect("an answer")
        });
        let kinds = answer.into_inner().capabilities.into_iter().filter_map(|capability| capability.r#type);
        kinds.map(|csi::node_service_capability::Type::Rpc(rpc)| rpc.r#type()).collect()
    }

    async fn connect(&self) -> Channel {
        connect(self.driver.as_deref().expect("a driver is registered")).await
    }
}

async fn connect(socket: &Path) -> Channel {
    let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).expect("an address");
    endpoint.connect().await.unwrap_or_else(|e| panic!("{}: {e:?}", socket.display()))
}
