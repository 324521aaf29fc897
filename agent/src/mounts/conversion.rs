//! Converts a mount that has just been staged into a [native](bdnfs_fs::native_mount) one, if its request asks for that and nobody
//! uses it.

use std::sync::Arc;

use bdnfs::error::Kind;
use bdnfs::native::{self, NativeSnapshot};
use bdnfs::snapshot::Snapshot;
use bdnfs::task::blocking;
use bdnfs_fs::mounts;
use bdnfs_fs::native_mount::NativeMount;

use super::attachment::Attachment;
use super::manager::MountManager;
use super::mount::ManagedMount;
use super::mounter::Mounter;
use crate::api::{ApiResult, Failure, MountBackend, MountRequest, StageStatus};
use crate::lifecycle::KeepAlive;

impl Mounter {
    /// Whether `request` wants a native mount of `snapshot`.
    fn wants_native(&self, snapshot: &Snapshot, request: &MountRequest) -> bool {
        match request.via.unwrap_or(self.defaults.via) {
            MountBackend::Fuse => false,
            MountBackend::Native => true,
            MountBackend::Auto => native::is_worthwhile(snapshot) && rustix::process::geteuid().is_root(),
        }
    }

    /// Takes over the native mount that an earlier process made for `request`, if any.
    pub(super) async fn resume_native(
        &self,
        snapshot: &Arc<Snapshot>,
        request: &MountRequest,
    ) -> ApiResult<Option<Attachment>> {
        let mountpoint = request.weights.mountpoint.clone();
        let at = mountpoint.clone();
        let is_native =
            move || Ok(mounts::all()?.iter().any(|mounted| mounted.is_native() && mounted.mountpoint == at));
        if !blocking(is_native).await? {
            return Ok(None);
        }
        let engine = self.engine_of(request).await?;
        let native = Arc::new(NativeSnapshot::reopen(&engine, Arc::clone(snapshot)).await?);
        let (superblocks, options) = (Arc::clone(&self.superblocks), self.options(request));
        let resumed = move || {
            let mounted = NativeMount::resume(&superblocks, &native, &mountpoint, &options)?;
            Ok(mounted.map(Attachment::Native))
        };
        Ok(blocking(resumed).await?)
    }
}

/// A mount that is marked as about to become native, until this is dropped, however that comes about.
struct Conversion {
    managed: Arc<ManagedMount>,
    /// The reason why it did not.
    note: Option<String>,
    _alive: KeepAlive,
}

impl Drop for Conversion {
    fn drop(&mut self) {
        self.managed.end_conversion(self.note.take());
    }
}

impl MountManager {
    /// Starts to stage `managed`, which is converted as soon as all of it is local, if its request wants that.
    pub(super) fn stage_and_convert(
        self: &Arc<Self>,
        managed: &Arc<ManagedMount>,
        verify: bool,
    ) -> StageStatus {
        // Marked first: a stage that is done at once must not be reported as done before the conversion.
        let conversion = self.begin_conversion(managed);
        let status = managed.stage(verify);
        if let Some(conversion) = conversion {
            tokio::spawn(Arc::clone(self).convert_when_staged(conversion));
        }
        status
    }

    /// Marks `managed` as about to become native, if its request wants that, and nothing does so already.
    fn begin_conversion(&self, managed: &Arc<ManagedMount>) -> Option<Conversion> {
        if !self.mounter.wants_native(managed.snapshot(), managed.request()) {
            return None;
        }
        let alive = self.lifecycle.begin().ok()?;
        let conversion = || Conversion { managed: Arc::clone(managed), note: None, _alive: alive };
        managed.begin_conversion().then(conversion)
    }

    /// Converts a mount whose stage has begun as soon as all of it is local.
    async fn convert_when_staged(self: Arc<Self>, mut conversion: Conversion) {
        let managed = Arc::clone(&conversion.managed);
        let staged = async {
            let stage = managed.snapshot().staged()?;
            stage.done().await.ok()
        };
        let attachment = managed.attachment();
        let staged = tokio::select! {
            staged = staged => staged.is_some(),
            () = attachment.await_end() => false,
            () = self.lifecycle.await_closing() => false,
        };
        let failure = if staged { self.convert(&managed).await.err() } else { None };
        if let Some(failure) = &failure {
            tracing::warn!("{} stays a FUSE mount: {failure}", managed.mountpoint().display());
        }
        conversion.note = failure.map(|failure| format!("it is served by FUSE: {failure}"));
    }

    async fn convert(&self, managed: &Arc<ManagedMount>) -> ApiResult<()> {
        let engine = self.mounter.engine_of(managed.request()).await?;
        let native = Arc::new(NativeSnapshot::prepare(&engine, Arc::clone(managed.snapshot())).await?);
        let (converted, superblocks) = (Arc::clone(managed), Arc::clone(&self.mounter.superblocks));
        let options = self.mounter.options(managed.request());
        let mounted = blocking(move || {
            converted.replace_attachment(|attachment| {
                let Attachment::Fuse(mount) = attachment else { return Ok(None) };
                let mounted = NativeMount::replace(&superblocks, mount, &native, &options)?;
                Ok(mounted.map(Attachment::Native))
            })
        });
        let busy = || Failure::new(Kind::Busy, "it was in use when all of it was local");
        if !mounted.await? {
            return Err(busy());
        }
        self.handover.remove(managed.id()).await;
        managed.set_stored(self.lifecycle.is_persistent());
        Ok(())
    }
}
