//! The mounts that a job asks for: one request for each of its sources.

use std::path::PathBuf;

use bdnfs::error::Result;

use crate::api::job::JobRequest;
use crate::api::{MirrorRequest, MountRequest, Weights};
use crate::mirror;
use crate::mounts::Mounter;

/// The mount requests of a job, one for each source, each with its mount point by its number.
pub fn mount_requests(
    mounter: &Mounter,
    request: &JobRequest,
    mountpoint: impl Fn(usize) -> PathBuf,
) -> Result<Vec<MountRequest>> {
    let mirror = named_mirror(mounter, request)?;
    let requests = request.weights.iter().enumerate().map(|(number, weights)| MountRequest {
        weights: Weights { mountpoint: mountpoint(number), ..weights.clone() },
        tenant: request.tenant.clone(),
        mirror: mirror.clone(),
        direct: request.direct,
        offline: false,
        snapshot: request.pinned.get(&weights.mountpoint).cloned(),
        // Commands may become another user.
        allow_other: rustix::process::geteuid().is_root(),
        uid: None,
        gid: None,
        via: None,
        cache_size: None,
    });
    Ok(requests.collect())
}

/// Returns the mirror that a job names, else this machine's own. `None` where the job wants none, or where the agent has one: that
/// is added to all requests anyway.
pub fn named_mirror(mounter: &Mounter, request: &JobRequest) -> Result<Option<MirrorRequest>> {
    Ok(match &request.mirror {
        _ if request.direct => None,
        Some(mirror) => Some(mirror.clone()),
        None if mounter.defaults.mirror.is_some() => None,
        None => {
            let tenant = request.tenant.as_deref().unwrap_or(mounter.engine.tenant());
            Some(mirror::default_request(tenant)?)
        }
    })
}
