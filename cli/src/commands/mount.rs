//! `bdnfs mount`.

mod session;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bdnfs::source::{TreeLayout, Uri};
use bdnfs_agent::api::{MirrorRequest, MountRequest, Weights};

use self::session::MountSession;
use crate::cache::CacheArgs;
use crate::mirror::MirrorArgs;
use crate::options::{self, MountBackendArg, MountOptions};
use crate::output::stderr_line;
use crate::runtime;
use crate::source::{self, Source, SourceOptions};
use crate::weights::WeightsEntry;
use crate::{mountpoint, weights};

/// The arguments of `bdnfs mount`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct MountArgs {
    /// hf://owner/name@revision, s3://bucket/prefix, gs://, r2://, cw://, azure://, https://host/file, or a local /path
    #[arg(value_parser = source::Parser, required_unless_present = "config")]
    source: Option<Source>,
    /// Mount point: an existing directory
    #[arg(required_unless_present = "config")]
    mountpoint: Option<PathBuf>,
    /// Mount all weights of a configuration: config.yaml of Truss, training job as JSON, or TOML with [[weights]]. Missing
    /// mount points are created
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["source", "mountpoint", "allow", "ignore", "secret", "credentials", "auth", "layout"])]
    config: Option<PathBuf>,
    /// With --config: directory under which all mount points are created
    #[arg(long, value_name = "DIR", requires = "config", conflicts_with = "source")]
    root: Option<PathBuf>,
    /// Ignore unknown keys of the configuration with a warning, instead of rejecting it
    #[arg(long, requires = "config", conflicts_with = "source")]
    lenient: bool,
    #[command(flatten)]
    source_options: SourceOptions,
    #[command(flatten)]
    mirror: MirrorArgs,
    #[command(flatten)]
    cache: CacheArgs,
    /// Run in the foreground; SIGINT and SIGTERM unmount, SIGHUP is ignored
    #[arg(long)]
    foreground: bool,
    /// Stage: return when all data is local and verified
    #[arg(long)]
    pub wait: bool,
    /// With --wait: also read and verify what was local before
    #[arg(long, requires = "wait")]
    verify: bool,
    /// With --wait: what serves the mount once all of it is local. fuse: the agent; native: the kernel alone (EROFS); auto: the
    /// kernel alone where no file exceeds 16 MiB. Default: as the agent is configured, else fuse
    #[arg(long, value_enum, requires = "wait")]
    via: Option<MountBackendArg>,
    /// How the tree is shown. hf-cache, for hf://: models--owner--name/{refs,blobs,snapshots}, as in a directory that HF_HUB_CACHE
    /// names. Default: as the source has it
    #[arg(long, value_name = "LAYOUT")]
    layout: Option<TreeLayout>,
    /// Use no network: mount the newest snapshot that is complete in the cache
    #[arg(long)]
    offline: bool,
    /// Allow other users to access the mount
    #[arg(long)]
    allow_other: bool,
    /// Owner of all files, a numeric user id. Default: the user who mounts
    #[arg(long, value_parser = options::parse_id)]
    uid: Option<u32>,
    /// Group of all files, a numeric group id. Default: that of the user who mounts
    #[arg(long, value_parser = options::parse_id)]
    gid: Option<u32>,
    /// Mount options, as of mount(8): ro, allow_other, uid=, gid=
    #[arg(short, value_name = "OPTIONS", value_parser = options::parse)]
    options: Vec<MountOptions>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// Whether to print nothing when it succeeds.
    #[arg(skip)]
    pub quiet: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs mount s3://models/llama-3-8b /mnt/model
  bdnfs mount --mirror s3://mirror s3://models/llama-3-8b /mnt/model
  bdnfs mount --wait --layout hf-cache hf://owner/name /mnt/hub && HF_HUB_CACHE=/mnt/hub HF_HUB_OFFLINE=1 python train.py
  bdnfs mount --wait --via native hf://datasets/owner/images /mnt/images
  bdnfs mount --wait --allow '*.safetensors' --allow '*.json' s3://models/llama-3-8b /mnt/model
  bdnfs mount --secrets /run/secrets --secret hf_access_token hf://owner/private /mnt/model
  bdnfs mount --secrets /run/secrets --config config.yaml --root /srv/weights
  bdnfs mount --endpoint http://127.0.0.1:9000 --credentials key.json s3://models/x /mnt/x
  bdnfs mount --cache-dir /nvme/bdnfs --cache-size 2T https://host/weights.bin /mnt/weights";

impl MountArgs {
    /// Whether this process may become the agent.
    pub fn is_foreground(&self) -> bool {
        self.foreground
    }

    /// The source and the mount point, where they are arguments.
    pub fn target(&self) -> Option<(&Uri, &Path)> {
        Some((self.source.as_ref()?.uri(), self.mountpoint.as_deref()?))
    }

    /// The sources to mount, of the arguments or a configuration.
    fn entries(&self) -> Result<Vec<WeightsEntry>> {
        match (&self.config, &self.source, &self.mountpoint) {
            (Some(file), ..) => weights::read(file, &self.source_options, self.lenient),
            (None, Some(source), Some(mountpoint)) => {
                let (allow, ignore) = self.source_options.globs();
                let access = self.source_options.access(source.uri())?;
                let (source, mountpoint) = (source.clone(), mountpoint.clone());
                self.layout.map_or(Ok(()), |layout| layout.check(source.uri()))?;
                Ok(vec![WeightsEntry { source, mountpoint, allow, ignore, access, layout: self.layout }])
            }
            _ => bail!("name a source and a mount point, or --config"),
        }
    }

    /// The request to mount `entry`, which `mirror` may have, on `mountpoint`, which is checked.
    fn request(
        &self,
        entry: WeightsEntry,
        mirror: Option<MirrorRequest>,
        mountpoint: &Path,
    ) -> Result<MountRequest> {
        let mountpoint = mountpoint::prepare(mountpoint)?;
        let name = mountpoint.path.display();
        let uri = entry.source.uri();
        if entry.source.is_below(&mountpoint.path) {
            bail!("{uri} is below {name}, so the mount would hide it; choose another mount point");
        }
        for note in uri.note().iter().chain(&mountpoint.notes) {
            stderr_line!("note: {note}");
        }
        let flags = MountOptions { allow_other: self.allow_other, uid: self.uid, gid: self.gid };
        let options = self.options.iter().fold(MountOptions::default(), MountOptions::merge).merge(&flags);
        Ok(MountRequest {
            mirror,
            weights: Weights { mountpoint: mountpoint.path, ..entry.into_weights() },
            tenant: self.mirror.tenant().map(str::to_owned),
            direct: false,
            offline: self.offline,
            snapshot: None,
            allow_other: options.allow_other,
            uid: options.uid,
            gid: options.gid,
            via: self.via.map(MountBackendArg::into),
            cache_size: self.cache.size(),
        })
    }
}

/// Mounts the sources.
pub fn run(args: MountArgs, verbose: u8) -> Result<()> {
    let foreground = args.is_foreground();
    let session = MountSession::new(args, verbose)?;
    if foreground {
        return runtime::block_on_threads(session.run_in_foreground());
    }
    runtime::block_on(session.run_in_background())
}
