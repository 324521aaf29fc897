//! CDI devices for the sources that have a name: `podman run --device bdnfs.io/weights=NAME`.
//!
//! A runtime refuses a device that no file lists, so a source is listed when it is published, and not before: that is its gate.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bdnfs::error::{Error, Result};
use bdnfs::task::blocking;
use bdnfs_fs::mounts;
use serde_json::{Value, json};

use super::Publications;
use crate::api::publication::{NamedSource, PublicationState};

/// The first version of the specification that has all that is written here. podman 4.3 takes none after it.
const CDI_VERSION: &str = "0.5.0";
/// The vendor and class of the devices.
const CDI_KIND: &str = "bdnfs.io/weights";
/// The interval at which the file is compared with what is published, in memory. Containers can be started that much after the
/// gate.
const CDI_UPDATE_INTERVAL: Duration = Duration::from_secs(1);

impl Publications {
    /// Lists in the CDI file, if there is one, what is published. Never ends.
    pub async fn list_devices(self: Arc<Self>) {
        let Some(path) = self.config.cdi_file.clone() else { return };
        let mut written = None;
        loop {
            let (path, sources, last) = (path.clone(), self.sources(), written.clone());
            let update = move || {
                // Somebody else may have unmounted a base.
                let shown: HashSet<_> = mounts::list()?.into_iter().map(|entry| entry.mountpoint).collect();
                let devices = devices(&sources, |base| shown.contains(base));
                if last.as_ref() != Some(&devices) {
                    write(&path, &devices)?;
                }
                Ok(devices)
            };
            match blocking(update).await {
                Ok(devices) => written = Some(devices),
                Err(error) => tracing::warn!("{error}; containers cannot use sources by --device"),
            }
            tokio::time::sleep(CDI_UPDATE_INTERVAL).await;
        }
    }

    /// Removes the CDI file, if there is one: what it lists is not there any more. Touches the local disk.
    pub(super) fn remove_devices(&self) {
        if let Some(path) = &self.config.cdi_file
            && let Err(error) = write(path, &[])
        {
            tracing::warn!("{error}; it lists sources that are not there any more");
        }
    }
}

/// The devices of all that is published, and has a place in containers. `is_shown` says whether a base is mounted at its path.
fn devices(sources: &[NamedSource], is_shown: impl Fn(&Path) -> bool) -> Vec<Value> {
    let device = |source: &NamedSource| {
        let location = source.mount_location.as_ref()?;
        let published = source.publication.as_ref()?;
        let path = published.path.as_ref()?;
        let is_intact = published.state == PublicationState::Published && !published.abnormal;
        let is_there = is_intact && is_shown(path);
        let options = ["ro", "nosuid", "nodev", "bind", "rprivate"];
        let mount = json!({"hostPath": path, "containerPath": location, "options": options});
        is_there.then(|| json!({"name": source.name, "containerEdits": {"mounts": [mount]}}))
    };
    sources.iter().filter_map(device).collect()
}

/// Replaces the file atomically; one without devices is none at all.
fn write(path: &Path, devices: &[Value]) -> Result<()> {
    let written = || {
        if devices.is_empty() {
            return match fs::remove_file(path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory)?;
        // Runtimes read files whose names end in .json or .yaml, so this one only once it has its name.
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        let spec = json!({"cdiVersion": CDI_VERSION, "kind": CDI_KIND, "devices": devices});
        file.write_all(&serde_json::to_vec_pretty(&spec)?)?;
        file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
        file.persist(path)?;
        Ok(())
    };
    written().map_err(|e| Error::disk(format!("cannot write the CDI file {}", path.display()), e))
}

/// Whether `name` can be that of a device.
pub fn is_device_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric();
    name.starts_with(is_plain)
        && name.ends_with(is_plain)
        && name.chars().all(|c| is_plain(c) || matches!(c, '.' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(name: &str, state: &str, abnormal: bool) -> NamedSource {
        let text = json!({"name": name, "source": "hf://o/m", "mount_location": "/models/m", "publication": {
            "key": "k", "state": state, "source": "hf://o/m", "path": "/bases/1", "message": "", "abnormal": abnormal}});
        serde_json::from_value(text).expect("a source")
    }

    #[test]
    fn cdi_devices_list_published_intact_mounted_sources_only() {
        let sources =
            [source("a", "published", false), source("b", "staging", false), source("c", "published", true)];
        let listed = devices(&sources, |base| base == Path::new("/bases/1"));
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert_eq!(listed[0]["name"], "a");
        assert_eq!(listed[0]["containerEdits"]["mounts"][0]["hostPath"], "/bases/1");
        let nowhere = NamedSource { mount_location: None, ..source("a", "published", false) };
        assert!(devices(&[nowhere], |_| true).is_empty());
        assert!(devices(&sources, |_| false).is_empty());
    }

    #[test]
    fn cdi_file_without_devices_is_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("cdi/bdnfs.json");
        write(&path, &[]).expect("nothing to do");
        write(&path, &devices(&[source("a", "published", false)], |_| true)).expect("written");
        let spec: Value = serde_json::from_slice(&fs::read(&path).expect("there")).expect("JSON");
        assert_eq!((&spec["cdiVersion"], &spec["kind"]), (&json!("0.5.0"), &json!("bdnfs.io/weights")));
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o644);
        write(&path, &[]).expect("removed");
        assert!(!path.exists() && fs::read_dir(home.path().join("cdi")).expect("read").count() == 0);
    }
}
