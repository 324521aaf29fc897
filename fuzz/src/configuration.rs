//! What people write: configurations in three languages, jobs and other requests, URIs, attributes of volumes.

use std::collections::BTreeMap;

use bdnfs::source::{Access, Uri};
use bdnfs::weights::{self, Rules};
use bdnfs_agent::api::attributes::Attributes;
use bdnfs_agent::api::container_volume::ContainerVolumeRequest;
use bdnfs_agent::api::job::JobRequest;
use bdnfs_agent::api::publication::PublicationRequest;
use bdnfs_cli::config::{self, Format};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) fn yaml(bytes: &[u8]) {
    read(Format::Yaml, bytes);
}

pub(crate) fn json(bytes: &[u8]) {
    read(Format::Json, bytes);
}

pub(crate) fn toml(bytes: &[u8]) {
    read(Format::Toml, bytes);
}

/// Parses a configuration, and reads the weights in it by every set of rules. What is accepted can be a mount point, and
/// what is refused is told in a line of the file.
fn read(format: Format, bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    // A carriage return alone ends a line too, in YAML.
    let lines = text.split(['\n', '\r']).count() + 1;
    let document = match config::parse(format, text) {
        Ok(document) => document,
        Err(error) => {
            assert!((1..=lines).contains(&error.line), "{error}");
            return assert!(!error.message.contains('\n'), "{error}");
        }
    };
    for (local, lenient) in [(false, false), (true, true)] {
        let (accepted, findings) = weights::read(&document.value, Rules { bdnfs_schema: local, lenient });
        for weights in &accepted {
            let mount = &weights.weights.mount_location;
            let plain = mount.components().collect::<std::path::PathBuf>();
            assert!(mount.is_absolute() && plain == *mount && !format!("{mount:?}").contains("/../"));
            weights.weights.patterns().expect("patterns that were accepted");
        }
        for finding in findings.iter() {
            assert!((1..=lines).contains(&document.line(&finding.place)), "{finding:?}");
        }
    }
}

/// A job as it comes over the control socket.
pub(crate) fn job(bytes: &[u8]) {
    if let Some(job) = request::<JobRequest>(bytes) {
        let _ = job.without_secrets();
    }
}

/// What a container wants to have published, as it comes over the control socket.
pub(crate) fn publication(bytes: &[u8]) {
    request::<PublicationRequest>(bytes);
}

/// A volume that a container wants to write to, as it comes over the control socket.
pub(crate) fn container_volume(bytes: &[u8]) {
    request::<ContainerVolumeRequest>(bytes);
}

/// A request as it comes over the control socket. What is read is written as it was.
fn request<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let request = serde_json::from_slice::<T>(bytes).ok()?;
    let text = serde_json::to_value(&request).expect("what was read can be written");
    let again: T = serde_json::from_value(text.clone()).expect("what was written can be read");
    assert_eq!(serde_json::to_value(&again).expect("it can be written"), text);
    Some(request)
}

/// The attributes of a volume, a line each, as CSI and Docker bring them. What is refused is told in one line.
pub(crate) fn attributes(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    // No file of this machine is read for it.
    let pairs = text.split('\n').filter_map(|line| line.split_once('=')).filter(|(key, _)| *key != "caFile");
    let mut all: Attributes = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    match all.volume(Some("t")) {
        Ok(None) => {}
        Ok(Some(volume)) => return assert!(!volume.name.is_empty() && !volume.trusted),
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    }
    match all.request(None, BTreeMap::new(), None) {
        Ok(request) => {
            let _: Uri = request.source.expose().parse().expect("a source that was accepted");
            assert!(!request.trusted);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}

/// The URI of a source. What people are shown of one is the same one, but for a query, which may be secret.
pub(crate) fn uri(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let uri: Uri = match text.parse() {
        Ok(uri) => uri,
        Err(error) => return assert!(!error.to_string().contains('\n'), "{error}"),
    };
    if !matches!(&uri, Uri::Http(url) if url.query().is_some()) {
        assert_eq!(uri.to_string().parse::<Uri>().expect("what is shown can be read"), uri);
    }
    let _ = uri.identity(&Access::default());
}
