//! The fields of a mount request as they are read: one by one, so that a reader sees which are unknown. Flattened ones hide that.

use std::path::PathBuf;

use bdnfs::source::{Access, Secret, TreeLayout};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::{MAX_ID, MirrorRequest, MountBackend, MountRequest, Weights};

/// The fields of [`Weights`] and [`MountRequest`].
#[derive(Deserialize)]
pub(super) struct MountFields {
    source: Secret,
    mountpoint: PathBuf,
    #[serde(default)]
    allow: Option<Vec<String>>,
    #[serde(default)]
    ignore: Vec<String>,
    #[serde(default)]
    access: Access,
    #[serde(default)]
    layout: Option<TreeLayout>,
    #[serde(default)]
    tenant: Option<String>,
    #[serde(default)]
    mirror: Option<MirrorRequest>,
    #[serde(default)]
    direct: bool,
    #[serde(default)]
    offline: bool,
    #[serde(default)]
    snapshot: Option<String>,
    #[serde(default)]
    allow_other: bool,
    #[serde(default, deserialize_with = "deserialize_id")]
    uid: Option<u32>,
    #[serde(default, deserialize_with = "deserialize_id")]
    gid: Option<u32>,
    #[serde(default)]
    via: Option<MountBackend>,
    #[serde(default)]
    cache_size: Option<u64>,
}

fn deserialize_id<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u32>, D::Error> {
    match Option::deserialize(value)? {
        Some(id) if id > MAX_ID => Err(D::Error::custom(format!("{id} is no id of a user or a group"))),
        id => Ok(id),
    }
}

impl From<MountFields> for MountRequest {
    fn from(fields: MountFields) -> Self {
        let MountFields {
            source,
            mountpoint,
            allow,
            ignore,
            access,
            layout,
            tenant,
            mirror,
            direct,
            offline,
            snapshot,
            allow_other,
            uid,
            gid,
            via,
            cache_size,
        } = fields;
        let weights = Weights { source, mountpoint, allow, ignore, access, layout };
        Self { weights, tenant, mirror, direct, offline, snapshot, allow_other, uid, gid, via, cache_size }
    }
}
