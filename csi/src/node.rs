//! Volumes on a node: the kubelet's calls, each of which becomes one of the agent's.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::Kind;
use bdnfs_agent::api::Failure;
use bdnfs_agent::api::client::agent_retry::retry_while_away;
use bdnfs_agent::api::client::{Client, ClientError};
use bdnfs_agent::api::container_volume::{ContainerVolumeRequest, ContainerVolumeState};
use bdnfs_agent::api::publication::{
    PublicationRequest, PublicationState, PublicationStatus, publication_key,
};
use tokio::sync::broadcast;
use tokio::time::Instant;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::TrustPolicy;
use crate::events::{EventPoster, PodReference};
use crate::proto::csi;
use crate::proto::csi::node_server::Node;
use crate::proto::csi::node_service_capability::{self, rpc};
use crate::proto::csi::volume_capability::{AccessType, access_mode::Mode};
use crate::status_code;
use crate::volume_context::{VolumeContext, VolumeOptions};
use crate::written_volume;

/// How long a call is held that has no deadline: less than the 120 s that a kubelet gives.
const CALL_HOLD_TIMEOUT: Duration = Duration::from_secs(100);
/// How long before its deadline a call is answered.
const DEADLINE_MARGIN: Duration = Duration::from_secs(10);
/// The time to the first event about a stage, and between later ones: short stages need none.
const EVENT_INTERVALS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// How many keys a call may leave unread while it waits for the agent: far more than volumes end in that time.
const UNPUBLISHED_QUEUE_LEN: usize = 1024;
/// How long after the hold an agent that has not answered counts as stuck.
const AGENT_STUCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The CSI node service: publishes the volumes of a node.
pub struct NodeService {
    agent: Client,
    node_id: String,
    policy: TrustPolicy,
    events: Option<Arc<EventPoster>>,
    /// The keys that are unpublished, for calls that still want them.
    unpublished: broadcast::Sender<String>,
}

impl NodeService {
    /// The volumes of the node `node_id`, for which `agent` does the work. `events`: where its progress is posted.
    pub fn new(agent: Client, node_id: String, policy: TrustPolicy, events: Option<EventPoster>) -> Self {
        let unpublished = broadcast::Sender::new(UNPUBLISHED_QUEUE_LEN);
        Self { agent, node_id, policy, events: events.map(Arc::new), unpublished }
    }

    /// Asks the agent to publish, across its restarts, until it has or `until` is reached, and posts the progress.
    async fn publish(
        &self,
        key: &str,
        request: &PublicationRequest,
        pod: Option<&PodReference>,
        until: Instant,
    ) -> Result<PublicationStatus, ClientError> {
        let post = |is_warning, reason, message: &str| {
            if let (Some(events), Some(pod)) = (&self.events, pod) {
                events.post(pod, is_warning, reason, message.to_owned());
            }
        };
        let mut interval = EVENT_INTERVALS.0;
        let mut unpublished = self.unpublished.subscribe();
        loop {
            let ask = || async {
                let wait = until.saturating_duration_since(Instant::now()).min(interval);
                let asked = self.agent.publish(key, request, wait);
                match tokio::time::timeout(wait + AGENT_STUCK_TIMEOUT, asked).await {
                    Ok(answer) => answer,
                    Err(_) => self.publication(key).await,
                }
            };
            let answer = retry_while_away(until, ask).await;
            // A concurrent unpublish may have ended it while this call was retrying.
            while let Ok(ended) = unpublished.try_recv() {
                if ended == key {
                    self.agent.unpublish(key).await?;
                    let failure = Failure::new(Kind::Interrupted, "the volume was unpublished meanwhile");
                    return Err(ClientError::Failed(failure));
                }
            }
            match &answer {
                Ok(status) if status.state == PublicationState::Staging => {
                    post(false, "Staging", &status.message);
                    interval = EVENT_INTERVALS.1;
                    if Instant::now() < until {
                        continue;
                    }
                }
                Ok(status) if status.state == PublicationState::Failed => {
                    post(true, "StagingFailed", &status.message);
                }
                Err(ClientError::Failed(failure)) => post(true, "StagingFailed", &failure.message),
                Ok(status) if interval == EVENT_INTERVALS.1 => post(false, "Staged", &status.message),
                _ => {}
            }
            return answer;
        }
    }

    /// The current status of a publication.
    async fn publication(&self, key: &str) -> Result<PublicationStatus, ClientError> {
        self.agent.publication(key).await
    }

    async fn is_published(&self, key: &str) -> bool {
        self.publication(key).await.is_ok_and(|status| status.state == PublicationState::Published)
            || self
                .agent
                .volume(key)
                .await
                .is_ok_and(|status| status.state == ContainerVolumeState::Published)
    }

    /// Refuses a second target of the volume `id`.
    async fn ensure_single(&self, id: &str, key: &str) -> Result<(), Status> {
        let failed = |e| status_code::status(&e, true);
        let sources = self.agent.publications().await.map_err(failed)?.publications.into_iter();
        let written = self.agent.volumes().await.map_err(failed)?.volumes.into_iter();
        let written = written.filter(|volume| volume.state == ContainerVolumeState::Published);
        let mut all =
            sources.map(|one| (one.key, one.consumer)).chain(written.map(|one| (one.key, one.consumer)));
        let volume = volume_key(id);
        match all.find(|(other, _)| other.starts_with(&volume) && other != key) {
            Some((_, consumer)) => {
                let consumer = consumer.as_deref().unwrap_or("another pod");
                Err(Status::failed_precondition(format!(
                    "volume {id} is for one pod at a time and used by {consumer}"
                )))
            }
            None => Ok(()),
        }
    }
}

/// The prefix of the keys of all publications of a volume.
fn volume_key(id: &str) -> String {
    publication_key("csi", id, None)
}

/// The key of a volume's publication at `target`.
fn target_key(id: &str, target: &str) -> String {
    publication_key(&volume_key(id), "", Some(Path::new(target)))
}

/// How long a call is held at most. The kubelet waits longer after each error, so a long hold starts a pod sooner.
fn hold_time(metadata: &MetadataMap) -> Duration {
    let timeout = metadata.get("grpc-timeout").and_then(|value| parse_timeout(value.to_str().ok()?));
    timeout.map_or(CALL_HOLD_TIMEOUT, |timeout| timeout.saturating_sub(DEADLINE_MARGIN).max(timeout / 2))
}

/// Reads a timeout as gRPC writes it: `120S`, `119999m`.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(u64::checked_mul(number, 3600)?),
        "M" => Duration::from_secs(u64::checked_mul(number, 60)?),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// A field that a request must have.
fn required(name: &str, value: String) -> Result<String, Status> {
    if value.is_empty() { Err(Status::invalid_argument(format!("{name} is missing"))) } else { Ok(value) }
}

/// The access mode of a capability. Every mode is accepted: sources are read-only whatever it is.
fn access_mode(capability: Option<&csi::VolumeCapability>) -> Result<Mode, Status> {
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    match &capability.access_type {
        Some(AccessType::Mount(_)) => {}
        Some(AccessType::Block(_)) => {
            return Err(Status::invalid_argument("volumes are directories: use volumeMode: Filesystem"));
        }
        None => return Err(Status::invalid_argument("volume_capability: the access type is missing")),
    }
    Ok(capability.access_mode.map_or(Mode::Unknown, |mode| mode.mode()))
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let until = Instant::now() + hold_time(request.metadata());
        let csi::NodePublishVolumeRequest {
            volume_id,
            target_path,
            volume_capability,
            readonly,
            secrets,
            volume_context,
            ..
        } = request.into_inner();
        let (id, target) = (required("volume_id", volume_id)?, required("target_path", target_path)?);
        let mode = access_mode(volume_capability.as_ref())?;
        let (key, has_secret) = (target_key(&id, &target), !secrets.is_empty());
        let published = Ok(Response::new(csi::NodePublishVolumeResponse {}));
        let context = VolumeContext::new(volume_context);
        let pod = context.pod();
        let request = match context.request(&id, secrets, &self.policy) {
            Ok(VolumeOptions::Source(request)) => {
                PublicationRequest { target: Some(target.into()), ..*request }
            }
            Ok(VolumeOptions::Written(request)) => {
                let request = ContainerVolumeRequest { target: Some(target.into()), ..request };
                written_volume::check(&request, readonly, mode)?;
                if mode == Mode::SingleNodeSingleWriter {
                    self.ensure_single(&id, &key).await?;
                }
                written_volume::publish(&self.agent, &key, &request, until).await?;
                return published;
            }
            // A volume in use is never taken away by an error, though the rules have changed since.
            Err(refused) if self.is_published(&key).await => {
                tracing::warn!("volume {id} stays published: {}", refused.message());
                return published;
            }
            Err(refused) => return Err(refused),
        };
        if mode == Mode::SingleNodeSingleWriter {
            self.ensure_single(&id, &key).await?;
        }
        let status = self
            .publish(&key, &request, pod.as_ref(), until)
            .await
            .map_err(|e| status_code::status(&e, has_secret))?;
        match (status.state, &status.failure) {
            (PublicationState::Published, _) => published,
            (PublicationState::Staging, _) => Err(Status::aborted(status.message)),
            (PublicationState::Failed, Some(failure)) => {
                Err(status_code::failure_status(failure, has_secret))
            }
            (PublicationState::Failed, None) => Err(Status::internal(status.message)),
        }
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let until = Instant::now() + hold_time(request.metadata());
        let csi::NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        let (id, target) = (required("volume_id", volume_id)?, required("target_path", target_path)?);
        let key = target_key(&id, &target);
        // Fails where no call wants to know.
        let _ = self.unpublished.send(key.clone());
        let end = || async {
            // Only the agent knows which of the two it is.
            self.agent.unpublish_volume(&key).await?;
            self.agent.unpublish(&key).await
        };
        let ended = retry_while_away(until, end).await;
        ended.map_err(|error| status_code::status(&error, true))?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let csi::NodeGetVolumeStatsRequest { volume_id, volume_path, .. } = request.into_inner();
        let (id, path) = (required("volume_id", volume_id)?, required("volume_path", volume_path)?);
        // Answered by the agent from memory: nothing looks through a mount that may be dead.
        let key = target_key(&id, &path);
        if let Ok(status) = self.agent.volume(&key).await {
            return Ok(Response::new(written_volume::stats(status)));
        }
        let status = self.publication(&key).await;
        let status = status.map_err(|e| match e.is(Kind::NotFound) {
            true => Status::not_found(format!("volume {id} is not published at {path}")),
            false => status_code::status(&e, true),
        })?;
        let progress = status.progress.unwrap_or_default();
        let usage = |unit: csi::volume_usage::Unit, used| {
            let used = i64::try_from(used).unwrap_or(i64::MAX);
            csi::VolumeUsage { available: 0, total: used, used, unit: unit.into() }
        };
        Ok(Response::new(csi::NodeGetVolumeStatsResponse {
            usage: vec![
                usage(csi::volume_usage::Unit::Bytes, progress.bytes),
                usage(csi::volume_usage::Unit::Inodes, progress.files),
            ],
            volume_condition: Some(csi::VolumeCondition {
                abnormal: status.abnormal,
                message: status.message,
            }),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let capability = |kind: rpc::Type| {
            let rpc = node_service_capability::Rpc { r#type: kind.into() };
            csi::NodeServiceCapability { r#type: Some(node_service_capability::Type::Rpc(rpc)) }
        };
        // Not STAGE_UNSTAGE_VOLUME: inline volumes are never staged, and the two calls race in the kubelet.
        let kinds = [rpc::Type::GetVolumeStats, rpc::Type::VolumeCondition, rpc::Type::SingleNodeMultiWriter];
        let capabilities = kinds.into_iter().map(capability).collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let node_id = self.node_id.clone();
        Ok(Response::new(csi::NodeGetInfoResponse { node_id, ..Default::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_call_is_held_until_shortly_before_its_deadline() {
        let held = |timeout: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", timeout.parse().expect("text"));
            hold_time(&metadata)
        };
        assert_eq!(hold_time(&MetadataMap::new()), CALL_HOLD_TIMEOUT);
        for (timeout, seconds) in [("2M", 110), ("120S", 110), ("15000m", 7), ("4000000u", 2), ("soon", 100)]
        {
            assert_eq!(held(timeout).as_secs(), seconds, "{timeout}");
        }
    }

    #[test]
    fn target_keys_of_a_volume_share_a_prefix_and_differ_by_target() {
        let [one, two] = ["/a", "/b"].map(|target| target_key("v", target));
        assert!(one != two && [&one, &two].iter().all(|key| key.starts_with(&volume_key("v"))));
        assert!(!target_key("w", "/a").starts_with(&volume_key("v")));
        assert!(bdnfs_agent::api::publication::is_publication_key(&one));
    }
}
