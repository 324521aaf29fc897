//! The kind of model that a checkpoint holds, as truss distinguishes them.

use bdnfs::checkpoint::SavedCheckpoint;
use bdnfs::download::read_small_file;
use bdnfs::error::Result;
use bdnfs::mirror::Mirror;
use serde_json::Value;

/// The file of an adapter that peft writes; only those have it.
const ADAPTER_CONFIG: &[u8] = b"adapter_config.json";
/// The file of a model that transformers writes.
const MODEL_CONFIG: &[u8] = b"config.json";

/// The type of a checkpoint in truss's words, and its base model where it is one of an adapter.
#[derive(Debug, PartialEq, Eq)]
pub struct CheckpointModel {
    /// `lora`, `whisper` or `full`.
    pub kind: &'static str,
    /// The name of the base model, or nothing.
    pub base: String,
    /// The configuration of the adapter, if it is one.
    pub adapter: Option<Value>,
}

impl CheckpointModel {
    /// A model of which nothing is known.
    pub const UNKNOWN: Self = Self { kind: "full", base: String::new(), adapter: None };

    /// The kind of a checkpoint, by the configurations in it.
    pub async fn of(mirror: &Mirror, saved: &SavedCheckpoint) -> Result<Self> {
        let Some(manifest) = mirror.manifest(&saved.manifest).await? else { return Ok(Self::UNKNOWN) };
        let config = async |name| {
            let found = read_small_file(mirror, &manifest, name).await?;
            // A file that is not JSON tells nothing.
            Ok(found.map(|bytes| serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
        };
        if let Some(adapter) = config(ADAPTER_CONFIG).await? {
            let base = adapter["base_model_name_or_path"].as_str().unwrap_or_default().to_owned();
            return Ok(Self { kind: "lora", base, adapter: Some(adapter).filter(Value::is_object) });
        }
        let is_whisper = config(MODEL_CONFIG).await?.is_some_and(|model| model["model_type"] == "whisper");
        Ok(if is_whisper { Self { kind: "whisper", ..Self::UNKNOWN } } else { Self::UNKNOWN })
    }
}
