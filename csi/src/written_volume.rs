//! Volumes that a pod writes to: which can be, how they are published, and what is known of them.

use bdnfs_agent::api::client::Client;
use bdnfs_agent::api::client::agent_retry::retry_while_away;
use bdnfs_agent::api::container_volume::{
    ContainerVolumeKind, ContainerVolumeRequest, ContainerVolumeStatus,
};
use tokio::time::Instant;
use tonic::Status;

use crate::proto::csi;
use crate::proto::csi::volume_capability::access_mode::Mode;
use crate::status_code;

/// Refuses a volume to write to that is to be read only, or whose pod is not known.
pub fn check(request: &ContainerVolumeRequest, readonly: bool, mode: Mode) -> Result<(), Status> {
    let (kind, is_reader) =
        (request.kind, matches!(mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly));
    let invalid = |text: &str| Err(Status::invalid_argument(format!("volume attribute {kind}: {text}")));
    if readonly || is_reader {
        return invalid(
            "the volume is there to be written; leave out readOnly, and use the access mode ReadWriteOnce",
        );
    }
    if kind == ContainerVolumeKind::Checkpoints && request.id.is_none() {
        return invalid("the uid of the pod is not known; the CSIDriver needs podInfoOnMount");
    }
    Ok(())
}

/// The statistics of a volume to write to: its size as far as its saver knows, and whether that fails.
pub fn stats(status: ContainerVolumeStatus) -> csi::NodeGetVolumeStatsResponse {
    let report = status.saving.unwrap_or_default();
    let used = report.checkpoints.iter().map(|unit| unit.bytes).sum::<u64>();
    let usage = csi::VolumeUsage {
        used: i64::try_from(used).unwrap_or(i64::MAX),
        unit: csi::volume_usage::Unit::Bytes.into(),
        ..Default::default()
    };
    csi::NodeGetVolumeStatsResponse {
        usage: vec![usage],
        volume_condition: Some(csi::VolumeCondition {
            abnormal: report.why.is_some(),
            message: status.message,
        }),
    }
}

/// Asks the agent to publish a volume to write to, across its restarts.
pub async fn publish(
    agent: &Client,
    key: &str,
    request: &ContainerVolumeRequest,
    until: Instant,
) -> Result<(), Status> {
    let ask = retry_while_away(until, || agent.publish_volume(key, request));
    match tokio::time::timeout_at(until, ask).await {
        Ok(answer) => answer.map(drop).map_err(|error| status_code::status(&error, true)),
        Err(_) => {
            let text = format!("{} of {} is being prepared; it goes on", request.kind, request.name);
            Err(Status::aborted(text))
        }
    }
}
