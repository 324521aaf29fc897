//! What people write: configurations in three languages, and jobs.

use bdnfs::weights::{self, Rules};
use bdnfs_agent::api::job::JobRequest;
use bdnfs_cli::config::{self, Format};

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

/// A job as it comes over the control socket. What is read is written as it was.
pub(crate) fn job(bytes: &[u8]) {
    let Ok(job) = serde_json::from_slice::<JobRequest>(bytes) else { return };
    let _ = job.without_secrets();
    let text = serde_json::to_value(&job).expect("what was read can be written");
    let again: JobRequest = serde_json::from_value(text.clone()).expect("what was written can be read");
    assert_eq!(serde_json::to_value(&again).expect("it can be written"), text);
}
