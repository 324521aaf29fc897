//! Volumes on a node: the kubelet's calls, each of which becomes one of the agent's.

use std::collections::HashSet;
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
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use crate::TrustPolicy;
use crate::call_deadline::CallDeadline;
use crate::events::{EventPoster, PodReference};
use crate::proto::csi;
use crate::proto::csi::node_server::Node;
use crate::proto::csi::node_service_capability::{self, rpc};
use crate::proto::csi::volume_capability::{AccessType, access_mode::Mode};
use crate::single_pod_claim::{SinglePodClaim, SinglePodClaims};
use crate::status_code;
use crate::volume_context::{VolumeContext, VolumeOptions};
use crate::written_volume;

/// The time to the first event about a stage, and between later ones: short stages need none.
const EVENT_INTERVALS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));
/// The number of keys that a call may leave unread while it waits for the agent: far more than volumes end in that time.
const UNPUBLISHED_QUEUE_LEN: usize = 1024;

/// The CSI node service: publishes the volumes of a node.
pub struct NodeService {
    agent: Client,
    node_id: String,
    policy: TrustPolicy,
    events: Option<Arc<EventPoster>>,
    /// The keys that are unpublished, for calls that still want them.
    unpublished: broadcast::Sender<String>,
    /// The keys of which an event said that they are staged, and none that they were.
    announced: Mutex<HashSet<String>>,
    claims: SinglePodClaims,
}

impl NodeService {
    /// The volumes of the node `node_id`, for which `agent` does the work. `events`: where its progress is posted.
    pub fn new(agent: Client, node_id: String, policy: TrustPolicy, events: Option<EventPoster>) -> Self {
        let unpublished = broadcast::Sender::new(UNPUBLISHED_QUEUE_LEN);
        let (events, announced) = (events.map(Arc::new), Mutex::default());
        Self { agent, node_id, policy, events, unpublished, announced, claims: SinglePodClaims::default() }
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
        let mut event_time = Instant::now() + EVENT_INTERVALS.0;
        let mut unpublished = self.unpublished.subscribe();
        loop {
            let ask = || {
                let wait = until.min(event_time).saturating_duration_since(Instant::now());
                self.agent.publish(key, request, wait)
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
                    if Instant::now() >= event_time {
                        post(false, "Staging", &status.message);
                        self.announced.lock().insert(key.to_owned());
                        event_time = Instant::now() + EVENT_INTERVALS.1;
                    }
                    if Instant::now() < until {
                        continue;
                    }
                }
                Ok(status) if status.state == PublicationState::Failed => {
                    post(true, "StagingFailed", &status.message);
                }
                Err(ClientError::Failed(failure)) => post(true, "StagingFailed", &failure.message),
                // Also where it was staged between two calls.
                Ok(status) if self.announced.lock().remove(key) && !status.abnormal => {
                    post(false, "Staged", &status.message);
                }
                _ => {}
            }
            return answer;
        }
    }

    /// Publishes a volume.
    async fn publish_volume(
        &self,
        request: csi::NodePublishVolumeRequest,
        until: Instant,
    ) -> Result<(), Status> {
        let csi::NodePublishVolumeRequest {
            volume_id,
            target_path,
            volume_capability,
            readonly,
            secrets,
            volume_context,
            ..
        } = request;
        let (id, target) = (required("volume_id", volume_id)?, required("target_path", target_path)?);
        let mode = access_mode(volume_capability.as_ref())?;
        let key = target_key(&id, &target);
        let context = VolumeContext::new(volume_context, secrets);
        let (pod, has_secret) = (context.pod(), context.has_credentials());
        let options = match context.request(&id, &self.policy) {
            Ok(options) => options,
            // A volume in use is never taken away by an error, though the rules have changed since.
            Err(refused) if self.is_published(&key, until).await? => {
                tracing::warn!("volume {id} stays published: {}", refused.message());
                return Ok(());
            }
            Err(refused) => {
                // The kubelet asks no more, so nothing of it may be left: it was begun under other rules.
                self.unpublish(&key, until).await?;
                return Err(refused);
            }
        };
        if let VolumeOptions::Written(request) = &options {
            written_volume::check(request, readonly, mode)?;
        }
        let _claim = match mode {
            Mode::SingleNodeSingleWriter => self.claim_single(&id, &key, until).await?,
            _ => None,
        };
        let request = match options {
            VolumeOptions::Source(request) => PublicationRequest { target: Some(target.into()), ..*request },
            VolumeOptions::Written(request) => {
                let request = ContainerVolumeRequest { target: Some(target.into()), ..request };
                return written_volume::publish(&self.agent, &key, &request, until).await;
            }
        };
        let status = self.publish(&key, &request, pod.as_ref(), until).await;
        let status = status.map_err(|e| status_code::status(&e, has_secret))?;
        match (status.state, &status.failure) {
            (PublicationState::Published, _) => Ok(()),
            (PublicationState::Staging, _) => Err(Status::aborted(status.message)),
            (PublicationState::Failed, Some(failure)) => {
                Err(status_code::failure_status(failure, has_secret))
            }
            (PublicationState::Failed, None) => Err(Status::internal(status.message)),
        }
    }

    /// Whether a volume is published.
    ///
    /// # Errors
    /// `UNAVAILABLE` where no agent says that.
    async fn is_published(&self, key: &str, until: Instant) -> Result<bool, Status> {
        let source = retry_while_away(until, || self.agent.publication(key)).await;
        let written = retry_while_away(until, || self.agent.volume(key)).await;
        let source =
            not_found_as_none(source)?.is_some_and(|status| status.state == PublicationState::Published);
        // While one is being prepared, nothing is bound, and it has no path.
        Ok(source || not_found_as_none(written)?.is_some_and(|status| status.path.is_some()))
    }

    /// Ends what is published, or is about to be.
    async fn unpublish(&self, key: &str, until: Instant) -> Result<(), Status> {
        let end = || async {
            // Only the agent knows which of the two it is.
            self.agent.unpublish_volume(key).await?;
            self.agent.unpublish(key).await
        };
        retry_while_away(until, end).await.map_err(|error| status_code::status(&error, true))
    }

    /// Claims the volume `id` for the publication `key`, and refuses a second target. A published one needs no claim.
    async fn claim_single(
        &self,
        id: &str,
        key: &str,
        until: Instant,
    ) -> Result<Option<SinglePodClaim>, Status> {
        let (failed, volume) = (|e| status_code::status(&e, true), volume_key(id));
        let refused = |consumer: Option<&str>| {
            let consumer = consumer.unwrap_or("another pod");
            let text = format!("volume {id} is for one pod at a time and used by {consumer}");
            Err(Status::failed_precondition(text))
        };
        let Some(claim) = self.claims.claim(&volume, key) else {
            return if self.is_published(key, until).await? { Ok(None) } else { refused(None) };
        };
        let sources = retry_while_away(until, || self.agent.publications()).await.map_err(failed)?;
        let written = retry_while_away(until, || self.agent.volumes()).await.map_err(failed)?;
        let written =
            written.volumes.into_iter().filter(|volume| volume.state == ContainerVolumeState::Published);
        let sources = sources.publications.into_iter().filter(|one| one.state != PublicationState::Failed);
        let sources = sources.map(|one| (one.key, one.consumer, one.state == PublicationState::Published));
        let all: Vec<_> =
            sources.chain(written.map(|one| (one.key, one.consumer, one.path.is_some()))).collect();
        let (own, others): (Vec<_>, Vec<_>) = all
            .into_iter()
            .filter(|(other, ..)| other.starts_with(&volume))
            .partition(|(one, ..)| one == key);
        match others.first() {
            // A volume in use is never taken away by an error.
            Some((_, consumer, _)) if !own.iter().any(|(.., is_published)| *is_published) => {
                // The kubelet asks no more, so nothing of it may be left.
                retry_while_away(until, || self.agent.unpublish(key)).await.map_err(failed)?;
                refused(consumer.as_deref())
            }
            _ => Ok(Some(claim)),
        }
    }

    /// The statistics of a volume. They are answered by the agent from memory: nothing looks through a mount that may be dead.
    async fn volume_stats(
        &self,
        request: csi::NodeGetVolumeStatsRequest,
    ) -> Result<csi::NodeGetVolumeStatsResponse, Status> {
        let csi::NodeGetVolumeStatsRequest { volume_id, volume_path, .. } = request;
        let (id, path) = (required("volume_id", volume_id)?, required("volume_path", volume_path)?);
        let key = target_key(&id, &path);
        if let Ok(status) = self.agent.volume(&key).await {
            return Ok(written_volume::stats(status));
        }
        let status = not_found_as_none(self.agent.publication(&key).await)?;
        let status =
            status.ok_or_else(|| Status::not_found(format!("volume {id} is not published at {path}")))?;
        let progress = status.progress.unwrap_or_default();
        let usage = |unit: csi::volume_usage::Unit, used| {
            let used = i64::try_from(used).unwrap_or(i64::MAX);
            csi::VolumeUsage { available: 0, total: used, used, unit: unit.into() }
        };
        Ok(csi::NodeGetVolumeStatsResponse {
            usage: vec![
                usage(csi::volume_usage::Unit::Bytes, progress.bytes),
                usage(csi::volume_usage::Unit::Inodes, progress.files),
            ],
            volume_condition: Some(csi::VolumeCondition {
                abnormal: status.abnormal,
                message: status.message,
            }),
        })
    }
}

/// Turns an agent's error that something is not found into `None`, and its other errors into a status.
fn not_found_as_none<T>(answer: Result<T, ClientError>) -> Result<Option<T>, Status> {
    match answer {
        Ok(status) => Ok(Some(status)),
        Err(error) if error.is(Kind::NotFound) => Ok(None),
        Err(error) => Err(status_code::status(&error, true)),
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
        let deadline = CallDeadline::new(request.metadata());
        deadline.bound(self.publish_volume(request.into_inner(), deadline.hold)).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let deadline = CallDeadline::new(request.metadata());
        let csi::NodeUnpublishVolumeRequest { volume_id, target_path } = request.into_inner();
        let (id, target) = (required("volume_id", volume_id)?, required("target_path", target_path)?);
        let key = target_key(&id, &target);
        self.announced.lock().remove(&key);
        // Fails where no call wants to know.
        let _ = self.unpublished.send(key.clone());
        deadline.bound(self.unpublish(&key, deadline.hold)).await?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let deadline = CallDeadline::new(request.metadata());
        deadline.bound(self.volume_stats(request.into_inner())).await.map(Response::new)
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
    fn target_keys_of_a_volume_share_a_prefix_and_differ_by_target() {
        let [one, two] = ["/a", "/b"].map(|target| target_key("v", target));
        assert!(one != two && [&one, &two].iter().all(|key| key.starts_with(&volume_key("v"))));
        assert!(!target_key("w", "/a").starts_with(&volume_key("v")));
        assert!(bdnfs_agent::api::publication::is_publication_key(&one));
    }
}
