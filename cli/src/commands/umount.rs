//! `bdnfs umount`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bdnfs::error::Kind;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::runtime;
use bdnfs_fs::mounts;

use crate::mountpoint;
use crate::pulse::{self, Pulse};

/// What to unmount.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where it is mounted
    mountpoint: PathBuf,
    /// Take it out of sight at once; it ends when the last process lets it go
    #[arg(short, long)]
    lazy: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs umount /mnt/model
  bdnfs umount --lazy /mnt/model";

/// Unmounts it, and returns when its daemon has let it go.
pub fn run(args: &Args) -> Result<()> {
    let path = mountpoint::find(&args.mountpoint)?;
    if !mounts::at(&path)?.is_some_and(|mounted| mounted.ours()) {
        bail!("{} is not a bdnfs mount; `bdnfs status` lists those there are", path.display());
    }
    match pulse::of(&path) {
        Pulse::Dead => Ok(mounts::detach(&path)?),
        Pulse::Alive(socket) => {
            let asked = runtime::block_on(async { Ok(ask(socket, &path, args.lazy).await) })?;
            asked.unwrap_or_else(|| unmount(&path, args.lazy))
        }
        // The question that it didn't answer is still there, and keeps it busy.
        Pulse::Silent if !args.lazy => {
            bail!("{0} does not answer; take it away with `bdnfs umount --lazy {0}`", path.display())
        }
        Pulse::Silent | Pulse::Unknown(_) => unmount(&path, args.lazy),
    }
}

/// Has the daemon at `socket` do it. `None`: it is gone, or knows nothing of this mount.
async fn ask(socket: PathBuf, path: &Path, lazy: bool) -> Option<Result<()>> {
    let client = Client::new(socket);
    let status = client.status().await.ok()?;
    let mount = status.at(path)?;
    match client.unmount(mount.mounted.id, lazy).await {
        Ok(()) => Some(Ok(())),
        Err(trouble) if trouble.is(Kind::Busy) => Some(Err(busy(path))),
        Err(trouble) if trouble.is_gone() || trouble.is(Kind::NotFound) => None,
        Err(trouble) => Some(Err(trouble.into())),
    }
}

/// Does it without the daemon, which can't be asked.
fn unmount(path: &Path, lazy: bool) -> Result<()> {
    if lazy {
        return Ok(mounts::detach(path)?);
    }
    mounts::unmount(path).map_err(|error| if error.kind() == Kind::Busy { busy(path) } else { error.into() })
}

fn busy(path: &Path) -> anyhow::Error {
    anyhow::Error::msg(mountpoint::busy(path))
}
