//! `bdnfs umount`.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bdnfs::error::Kind;
use bdnfs_agent::api::client::Client;
use bdnfs_fs::mounts;

use crate::agents;
use crate::mountpoint;
use crate::probe::{self, MountHealth};
use crate::runtime;

/// The arguments of `bdnfs umount`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct UnmountArgs {
    /// Mount point
    mountpoint: PathBuf,
    /// Lazy unmount: detach the file system now, clean up when it is no longer busy
    #[arg(short, long)]
    lazy: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs umount /mnt/model
  bdnfs umount --lazy /mnt/model";
/// The time for which a mount may be busy though no process can be seen that uses it. A look at it, as `bdnfs status` and `df` take
/// at all mounts, uses it for microseconds, and longer only where the machine has no processor to spare.
const LOOK_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause before a busy mount is unmounted again.
const BUSY_RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Unmounts a mount and returns when its agent has ended it.
pub fn run(args: &UnmountArgs) -> Result<()> {
    let path = match mountpoint::resolve(&args.mountpoint) {
        Ok(path) => path,
        // The mount point of a mount that could not be restored may be gone.
        Err(missing) => {
            let path = std::path::absolute(&args.mountpoint)?;
            return if runtime::block_on(forget_lost(&path))? { Ok(()) } else { Err(missing) };
        }
    };
    if !mountpoint::is_ours(&path)? {
        if runtime::block_on(forget_lost(&path))? {
            return Ok(());
        }
        bail!("{}: not a bdnfs mount; `bdnfs status` lists them", path.display());
    }
    let end = Instant::now() + LOOK_TIMEOUT;
    loop {
        let is_last = Instant::now() >= end;
        if unmount(&path, args.lazy)? {
            return Ok(());
        }
        let holders = mountpoint::holders(&path);
        if !holders.is_empty() || is_last {
            bail!(mountpoint::busy_message(&path, &holders));
        }
        thread::sleep(BUSY_RETRY_PAUSE);
        // Somebody else may have unmounted it, and what it had covered is there.
        if !mountpoint::is_ours(&path)? {
            return Ok(());
        }
    }
}

/// Unmounts the bdnfs mount at `path`. False where it is in use.
fn unmount(path: &Path, lazy: bool) -> Result<bool> {
    match probe::mount(path) {
        MountHealth::Dead => {
            mounts::detach(path)?;
            runtime::block_on(forget_lost(path)).map(|_| true)
        }
        MountHealth::Alive(socket) => {
            let unmounted = runtime::block_on(async { Ok(request(socket, path, lazy).await) })?;
            unmounted.unwrap_or_else(|| unmount_without_agent(path, lazy))
        }
        // The pending probe keeps it busy.
        MountHealth::Unresponsive if !lazy => {
            bail!("{0}: mount does not respond; use `bdnfs umount --lazy {0}`", path.display())
        }
        MountHealth::Unresponsive | MountHealth::Unknown(_) => unmount_without_agent(path, lazy),
    }
}

/// Has the agent whose mount at `path` could not be restored forget it. False where no agent has any.
async fn forget_lost(path: &Path) -> Result<bool> {
    for (socket, status) in agents::query_all(None).await? {
        let lost = status.ok().into_iter().flat_map(|status| status.lost);
        if let Some(lost) = lost.into_iter().find(|lost| lost.mountpoint == path) {
            Client::new(socket).unmount(lost.id, true).await?;
            return Ok(true);
        }
    }
    Ok(false)
}

/// Unmounts through the agent at `socket`, false where the mount is in use; `None` if the agent is gone or does not know it.
async fn request(socket: PathBuf, path: &Path, lazy: bool) -> Option<Result<bool>> {
    let client = Client::new(socket);
    let status = client.status().await.ok()?;
    let mount = status.at(path)?;
    match client.unmount(mount.mounted.id, lazy).await {
        Ok(()) => Some(Ok(true)),
        Err(error) if error.is(Kind::Busy) => Some(Ok(false)),
        Err(error) if error.is_gone() || error.is(Kind::NotFound) => None,
        Err(error) => Some(Err(error.into())),
    }
}

/// Unmounts without the agent. False where the mount is in use.
fn unmount_without_agent(path: &Path, lazy: bool) -> Result<bool> {
    match if lazy { mounts::detach(path) } else { mounts::unmount(path) } {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == Kind::Busy => Ok(false),
        Err(error) => Err(error.into()),
    }
}
