//! Volumes of Docker and podman: `docker volume create -d bdnfs -o source=hf://o/m NAME`.
//!
//! ```text
//!  dockerd, podman ── HTTP over a unix socket ──> plugin_protocol ──> DockerVolumes ──> Publications
//!                                                                          ├─ ContainerVolumes, for what containers write
//!                                                                          └─ records: which volumes there are, who uses them
//! ```
//!
//! A volume of a source is a publication that is kept until the volume is removed; its runtime binds the base. It is staged from
//! the moment when it is created, and anew after a boot, since runtimes remember volumes for ever. One to write to is published
//! from the first mount to the last unmount.

mod plugin_protocol;
mod written_volumes;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bdnfs::backoff::jittered;
use bdnfs::boot;
use bdnfs::error::{Kind, Result};
use bdnfs::source::AuthMethod;
use bdnfs::task::{blocking, join_error};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use plugin_protocol::routes;

use crate::api::attributes::{Attributes, InvalidAttribute};
use crate::api::container_volume::ContainerVolumeRequest;
use crate::api::publication::{PublicationRequest, PublicationStatus, publication_key};
use crate::api::{ApiResult, Failure};
use crate::container_volumes::ContainerVolumes;
use crate::publications::{Milestone, Publications};
use crate::records::Records;
use crate::text;
use written_volumes::WrittenVolume;

/// The prefix of the keys of their publications.
const KEY_RUNTIME: &str = "docker";
/// The time that dockerd waits for an answer to create or mount; no configuration of it says another time.
const DOCKER_TIMEOUT: Duration = Duration::from_secs(120);
/// The least time before the end of a runtime's wait at which it is answered.
const ANSWER_MARGIN: Duration = Duration::from_secs(1);
/// The interval at which a failed publication is retried.
const PUBLISH_RETRY_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// The configuration of the volume plugin.
#[derive(Clone, Debug)]
pub struct DockerConfig {
    /// The socket of the plugin, by whose name runtimes know it.
    pub socket: PathBuf,
    /// The time that podman waits for an answer: its `volume_plugin_timeout`.
    pub podman_timeout: Duration,
}

/// The container runtime that asks. They differ in how long they wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeRuntime {
    /// dockerd.
    Docker,
    /// podman, which speaks an older version of the protocol.
    Podman,
}

/// The record of a volume. It holds no secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct DockerVolume {
    name: String,
    #[serde(flatten)]
    content: VolumeContent,
    /// The runtimes that have it mounted, by the id that each gave the mount.
    mounts: BTreeMap<String, VolumeRuntime>,
    /// The boot in which they did: containers do not outlive it.
    boot: String,
}

/// The content of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VolumeContent {
    /// A source.
    #[serde(rename = "request")]
    Source(Box<PublicationRequest>),
    /// A directory that containers write to.
    Written(WrittenVolume),
}

/// All volumes of an agent.
#[derive(Debug)]
pub struct DockerVolumes {
    config: DockerConfig,
    publications: Arc<Publications>,
    written: Arc<ContainerVolumes>,
    records: Records<DockerVolume>,
    /// The volumes, by name.
    table: Mutex<BTreeMap<String, DockerVolume>>,
    /// Held while a record is written, so that the last change is the one that stays.
    writing: Mutex<()>,
    boot: String,
}

impl DockerVolumes {
    /// The volumes of the cache in `cache`, whose lock the caller holds. Touches the local disk.
    ///
    /// # Errors
    /// [`Kind::Disk`].
    pub fn open(
        config: DockerConfig,
        cache: &Path,
        publications: Arc<Publications>,
        written: Arc<ContainerVolumes>,
    ) -> Result<Self> {
        let records = Records::<DockerVolume>::open(cache, "docker")?;
        let boot = boot::id()?;
        let mut table = BTreeMap::new();
        for (_, mut volume) in records.all()? {
            if volume.boot != boot {
                volume.mounts.clear();
                volume.content.end();
                volume.boot.clone_from(&boot);
            }
            table.insert(volume.name.clone(), volume);
        }
        let (table, writing) = (Mutex::new(table), Mutex::default());
        Ok(Self { config, publications, written, records, table, writing, boot })
    }

    /// Publishes all volumes, and ends publications without a volume, every few minutes. Call it when
    /// earlier publications are restored, before the first answer. Never ends.
    pub async fn watch(self: Arc<Self>, restored: Vec<PublicationStatus>) {
        let is_ours = |status: &&PublicationStatus| status.key.starts_with(&format!("{KEY_RUNTIME}-"));
        for status in restored.iter().filter(is_ours) {
            // The agent died while it was created or removed.
            if !self.all().iter().any(|volume| key(&volume.name) == status.key) {
                let _ = self.publications.unpublish(&status.key).await;
            }
        }
        self.end_forgotten().await;
        let mut orphans = HashSet::new();
        loop {
            orphans = self.end_orphans(&orphans).await;
            for DockerVolume { name, content, .. } in self.all() {
                let VolumeContent::Source(request) = content else { continue };
                if let Err(failure) =
                    self.publish(&name, *request, Duration::ZERO, Milestone::Published).await
                {
                    tracing::warn!("the volume {name} is not published: {failure}");
                }
            }
            tokio::time::sleep(jittered(PUBLISH_RETRY_INTERVAL)).await;
        }
    }

    /// Ends the publications without a volume, now and when `orphans` was found: a create or remove that is under way has such a
    /// one, but not for so long. Returns those without a volume now.
    async fn end_orphans(&self, orphans: &HashSet<String>) -> HashSet<String> {
        let all = self.publications.list().into_iter().map(|status| status.key);
        let mut found: HashSet<_> = all.filter(|key| key.starts_with(&format!("{KEY_RUNTIME}-"))).collect();
        for volume in self.all() {
            found.remove(&key(&volume.name));
        }
        for key in found.intersection(orphans) {
            if let Err(failure) = self.publications.unpublish(key).await {
                tracing::warn!("publication {key} has no volume, and cannot be ended: {failure}");
            }
        }
        found
    }

    /// Creates a volume, once its source was found; its staging goes on. It is no error to create the same again. Dropping the
    /// future does not stop it: a publication without a volume could be removed by nobody.
    ///
    /// # Errors
    /// Why it can't be published; then nothing of it is left. [`Failure::EXISTS`] for a name that another volume has.
    async fn create(
        self: &Arc<Self>,
        name: String,
        options: BTreeMap<String, String>,
        by: VolumeRuntime,
    ) -> ApiResult<()> {
        let volumes = Arc::clone(self);
        let created = tokio::spawn(async move { volumes.publish_new(name, options, by).await });
        created.await.unwrap_or_else(|error| Err(join_error(error).into()))
    }

    async fn publish_new(
        self: &Arc<Self>,
        name: String,
        options: BTreeMap<String, String>,
        by: VolumeRuntime,
    ) -> ApiResult<()> {
        let consumer = format!("docker volume {name}");
        let tenant = self.publications.tenant().to_owned();
        let content = blocking(move || Ok(content(options, consumer, tenant))).await??;
        let found = self.table.lock().get(&name).map(|volume| volume.content.clone());
        if found.is_some_and(|found| !found.is_same(&content)) {
            let text = format!("the volume {name} exists with other options; remove it first");
            return Err(Failure { kind: Failure::EXISTS.to_owned(), message: text });
        }
        if let VolumeContent::Source(request) = &content {
            self.publish(&name, (**request).clone(), self.wait_limit(by), Milestone::Resolved).await?;
        }
        let new =
            DockerVolume { name: name.clone(), content, mounts: BTreeMap::new(), boot: self.boot.clone() };
        self.table.lock().entry(name.clone()).or_insert(new);
        if let Err(failure) = self.write(&name).await {
            let _ = self.remove(&name).await;
            return Err(failure);
        }
        Ok(())
    }

    /// Waits until all of a volume is local, for the mount `id`, and returns its path.
    ///
    /// # Errors
    /// [`Kind::NotFound`]; [`Kind::Busy`] with the progress when it is not there in time: it goes on; and why it failed.
    async fn mount(self: &Arc<Self>, name: &str, id: &str, by: VolumeRuntime) -> ApiResult<PathBuf> {
        let request = match self.find(name)?.content {
            VolumeContent::Source(request) => *request,
            VolumeContent::Written(_) => return self.mount_written(name, id, by).await,
        };
        let status = self.publish(name, request, self.wait_limit(by), Milestone::Published).await?;
        let Some(path) = status.path else { return Err(Failure::new(Kind::Busy, status.message)) };
        if let Some(volume) = self.table.lock().get_mut(name) {
            volume.mounts.insert(id.to_owned(), by);
        }
        self.note_mounts(name).await;
        Ok(path)
    }

    /// Forgets the mount `id`. It is no error where there is none.
    async fn unmount(self: &Arc<Self>, name: &str, id: &str) {
        if let Some(volume) = self.table.lock().get_mut(name) {
            volume.mounts.remove(id);
        }
        self.end_unmounted(name).await;
        self.note_mounts(name).await;
    }

    /// Forgets the mounts of a dockerd that has ended, when the next one introduces itself: dockerd announces
    /// that by nothing else. It removes no volumes of containers that it goes on to run.
    async fn forget_mounts_of_docker(self: &Arc<Self>) {
        for volume in self.all() {
            if let Some(volume) = self.table.lock().get_mut(&volume.name) {
                volume.mounts.retain(|_, by| *by != VolumeRuntime::Docker);
            }
            self.end_unmounted(&volume.name).await;
            self.note_mounts(&volume.name).await;
        }
    }

    /// Removes a volume that is not mounted, and ends its publication. It is no error where there is none.
    ///
    /// # Errors
    /// [`Kind::Busy`].
    async fn remove(self: &Arc<Self>, name: &str) -> ApiResult<()> {
        {
            let mut table = self.table.lock();
            let Some(volume) = table.get(name) else { return Ok(()) };
            if !volume.mounts.is_empty() {
                let containers = text::count(volume.mounts.len() as u64, "container");
                let text = format!("the volume {name} is mounted by {containers}");
                return Err(Failure::new(Kind::Busy, text));
            }
            table.remove(name);
        }
        self.write(name).await?;
        self.publications.unpublish(&key(name)).await
    }

    /// The volume `name`, and how its publication is doing.
    ///
    /// # Errors
    /// [`Kind::NotFound`].
    fn find(&self, name: &str) -> ApiResult<DockerVolume> {
        let missing = || Failure::new(Kind::NotFound, format!("no such volume: {name}"));
        self.table.lock().get(name).cloned().ok_or_else(missing)
    }

    /// The status of a volume's publication, if it has one.
    fn status(&self, name: &str) -> Option<PublicationStatus> {
        self.publications.status(&key(name)).ok()
    }

    fn all(&self) -> Vec<DockerVolume> {
        self.table.lock().values().cloned().collect()
    }

    async fn publish(
        &self,
        name: &str,
        request: PublicationRequest,
        wait: Duration,
        milestone: Milestone,
    ) -> ApiResult<PublicationStatus> {
        self.publications.publish(&key(name), request, wait, milestone).await
    }

    /// Returns the time for which a call of `by` is held: a little less than it waits for an answer.
    fn wait_limit(&self, by: VolumeRuntime) -> Duration {
        let timeout = match by {
            VolumeRuntime::Docker => DOCKER_TIMEOUT,
            VolumeRuntime::Podman => self.config.podman_timeout,
        };
        timeout.saturating_sub(ANSWER_MARGIN.max(timeout / 8))
    }

    /// Writes which runtimes have a volume mounted. A failed write costs nothing until the agent restarts.
    async fn note_mounts(self: &Arc<Self>, name: &str) {
        if let Err(failure) = self.write(name).await {
            tracing::warn!("{failure}; after a restart the mounts of the volume {name} are unknown");
        }
    }

    /// Makes the record of a volume what it is in the table.
    async fn write(self: &Arc<Self>, name: &str) -> ApiResult<()> {
        let (volumes, name) = (Arc::clone(self), name.to_owned());
        let write = move || {
            let _order = volumes.writing.lock();
            let volume = volumes.table.lock().get(&name).cloned();
            match volume {
                Some(volume) => volumes.records.put(&key(&name), &volume),
                None => volumes.records.remove(&key(&name)),
            }
        };
        Ok(blocking(write).await?)
    }
}

fn key(name: &str) -> String {
    publication_key(KEY_RUNTIME, name, None)
}

/// The content of a volume with these options. Touches the local disk.
fn content(options: BTreeMap<String, String>, consumer: String, tenant: String) -> ApiResult<VolumeContent> {
    let mut options: Attributes = options.into_iter().collect();
    let invalid = |error: InvalidAttribute| Failure::new(Kind::Invalid, format!("option {error}"));
    // A user that may speak to a container runtime is root.
    if let Some(request) = options.volume(Some(&tenant)).map_err(invalid)? {
        let request = ContainerVolumeRequest { consumer: Some(consumer), trusted: true, ..request };
        return Ok(VolumeContent::Written(WrittenVolume::new(request)));
    }
    let secret = options.take("secret").map(|name| AuthMethod::Secret { auth_secret_name: name });
    let request = options.request(secret, BTreeMap::new(), Some(tenant)).map_err(invalid)?;
    let request = PublicationRequest { consumer: Some(consumer), trusted: true, keep: true, ..request };
    if request.is_signed()? {
        let text = "a signed URL expires, and a volume does not; name a secret instead";
        return Err(invalid(InvalidAttribute::new("source", text)));
    }
    Ok(VolumeContent::Source(Box::new(request)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content_of(pairs: &[(&str, &str)]) -> ApiResult<VolumeContent> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        content(pairs.collect(), "docker volume v".to_owned(), "team".to_owned())
    }

    #[test]
    fn docker_volume_options_become_a_trusted_kept_request() {
        let made = content_of(&[("source", "https://h/x"), ("secret", "hf"), ("uid", "7")]).expect("valid");
        let VolumeContent::Source(made) = made else { panic!("{made:?}") };
        assert!(made.trusted && made.keep && made.uid == Some(7) && made.tenant.as_deref() == Some("team"));
        assert_eq!(made.access.auth.as_ref().and_then(AuthMethod::secret), Some("hf"));
        for (key, value, words) in [
            ("source", "https://h/x?sig=hush", "option source: a signed URL expires"),
            ("anonymous", "yes", "option anonymous: expected true or false"),
            ("secretKey", "hf", "option secretKey: no such attribute"),
        ] {
            let mut pairs = vec![("source", "https://h/x")];
            pairs.retain(|(name, _)| *name != key);
            pairs.push((key, value));
            let failure = content_of(&pairs).expect_err(key);
            assert!(failure.is(Kind::Invalid) && failure.message.starts_with(words), "{failure}");
            assert!(!failure.message.contains("hush"));
        }
    }

    #[test]
    fn docker_volume_record_of_a_source_keeps_its_form_and_a_written_one_is_read_again() {
        let source = content_of(&[("source", "s3://b")]).expect("valid");
        let written = content_of(&[("checkpoints", "llama")]).expect("valid");
        for (content, key) in [(source, "request"), (written, "written")] {
            let (name, boot) = ("v".to_owned(), "b".to_owned());
            let volume = DockerVolume { name, content: content.clone(), mounts: BTreeMap::new(), boot };
            let text = serde_json::to_value(&volume).expect("JSON");
            assert!(text[key].is_object(), "{text}");
            assert_eq!(serde_json::from_value::<DockerVolume>(text).expect("a record").content, content);
        }
    }
}
