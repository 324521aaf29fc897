//! Decoders for the fuzzer of what the agent reads and nobody else: messages of its fd store, and records.

use std::fs::File;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::MountRequest;
use crate::container_volumes::container_volume::ContainerVolumeRecord;
use crate::fdstore::{self, Message};
use crate::jobs::JobRecord;
use crate::mounts::MountRecord;
use crate::publications::PublicationRecord;
use crate::records;

/// Decodes a message between agent and fd store, and the request that one with a mount has.
///
/// # Panics
/// When it is not decoded as it was sent.
pub fn fdstore_message(bytes: &[u8]) {
    let message = fdstore::decode(bytes);
    let text = |message: &Message| serde_json::to_string(message).expect("JSON");
    assert_eq!(text(&fdstore::decode(text(&message).as_bytes())), text(&message));
    let Message::Keep { note, .. } = message else { return };
    let mut descriptors = vec![File::open("/dev/null").expect("a descriptor").into()];
    if let Ok(request) = fdstore::unpack(note, &mut descriptors)
        && let Ok(request) = serde_json::from_str::<MountRequest>(&request)
    {
        let _ = request.without_secrets();
    }
}

/// Decodes the file of a record, as each kind of them.
///
/// # Panics
/// When one is not decoded as it was written.
pub fn record(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    decode::<MountRecord>(text);
    decode::<JobRecord>(text);
    decode::<PublicationRecord>(text);
    decode::<ContainerVolumeRecord>(text);
}

fn decode<T: Serialize + DeserializeOwned>(text: &str) {
    let Ok(record) = records::decode::<T>(text) else { return };
    let value = |record: &T| -> Value { serde_json::to_value(record).expect("JSON") };
    let written = value(&record);
    let again: T = serde_json::from_value(written.clone()).expect("a record");
    assert_eq!(value(&again), written);
}
