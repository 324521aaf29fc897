//! Every decoder of foreign bytes: from a network, from a disk that may rot, or typed by a user.
//!
//! A decoder here takes any bytes and panics where the real one breaks its promise: by a panic of its own, or by handing
//! out what it must not. `scripts/fuzz` searches for such bytes with libFuzzer. What it found lies in `inputs/<decoder>/`,
//! beside one good input each to begin with, and `tests/inputs.rs` runs all of them with every change.

mod configuration;
mod credential_formats;
mod formats;
mod manifest;
mod peers;
mod server;
mod services;

/// Decodes any bytes. It panics where something is wrong with the decoder; bytes that it refuses are fine.
pub type Decoder = fn(&[u8]);

/// All decoders by name.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("manifest", manifest::decode),
    ("record", formats::record),
    ("ref", formats::mirror_ref),
    ("mirror-json", formats::mirror_json),
    ("mirror-draft", formats::mirror_draft),
    ("recipe", formats::recipe),
    ("lease", formats::lease),
    ("zstd-frame", formats::zstd_frame),
    ("presence-map", formats::presence_map),
    ("fuse-request", formats::fuse_request),
    ("fdstore-message", bdnfs_agent::fuzz::fdstore_message),
    ("agent-record", bdnfs_agent::fuzz::record),
    ("peer-request", peers::request),
    ("peer-response", peers::response),
    ("config-yaml", configuration::yaml),
    ("config-json", configuration::json),
    ("config-toml", configuration::toml),
    ("job-json", configuration::job),
    ("publication-json", configuration::publication),
    ("container-volume-json", configuration::container_volume),
    ("attributes", configuration::attributes),
    ("uri", configuration::uri),
    ("secret", credential_formats::secret),
    ("secrets-toml", credential_formats::secrets),
    ("token-aws", credential_formats::aws_token),
    ("token-google", credential_formats::google_token),
    ("token-azure", credential_formats::azure_token),
    ("listing-s3", services::s3),
    ("listing-gcs", services::gcs),
    ("listing-azure", services::azure),
    ("listing-hub", services::hub),
    ("index-json", services::index_json),
    ("index-sums", services::index_sums),
];
