//! A rival's mount: how each is started, and how it is taken down.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::mount::{UnmountFlags, unmount};

use crate::bucket::BenchBucket;
use crate::clients;
use crate::run::{self, RunningProgram};
use crate::s3::{BUCKET, KEY_ID, REGION, SECRET};

/// How long a rival may take to mount.
const RIVAL_MOUNT_TIMEOUT: Duration = Duration::from_secs(30);

/// A file system that serves buckets.
pub struct Rival {
    /// What tables call it, with the setting that matters.
    pub name: &'static str,
    /// The program that has to be there.
    pub program: &'static str,
    /// How it is started in the foreground.
    start: fn(&RivalPaths<'_>) -> Result<Command>,
}

/// The paths and the server that a rival is started with.
struct RivalPaths<'a> {
    bucket: &'a BenchBucket,
    point: &'a Path,
    /// A directory that it may keep things in.
    cache: &'a Path,
}

/// All that are known. Those that can't read this run's bucket say why.
pub const RIVALS: [Rival; 10] = [
    Rival { name: "mount-s3", program: "mount-s3", start: |place| Ok(mount_s3(place)) },
    Rival {
        name: "mount-s3, cache",
        program: "mount-s3",
        start: |place| {
            let mut command = mount_s3(place);
            command.arg("--cache").arg(place.cache);
            Ok(command)
        },
    },
    Rival { name: "rclone mount, no cache", program: "rclone", start: |place| Ok(rclone(place, "off")) },
    Rival { name: "rclone mount, full cache", program: "rclone", start: |place| Ok(rclone(place, "full")) },
    Rival { name: "s3fs", program: "s3fs", start: |place| Ok(s3fs(place, None)) },
    Rival { name: "s3fs, cache", program: "s3fs", start: |place| Ok(s3fs(place, Some(place.cache))) },
    Rival { name: "goofys", program: "goofys", start: |place| Ok(goofys(place)) },
    Rival {
        name: "hf-mount",
        program: "hf-mount",
        start: |_| bail!("it reads the Hugging Face Hub only, and this run's server is S3"),
    },
    Rival {
        name: "juicefs",
        program: "juicefs",
        start: |_| bail!("it reads only what was written through it, and not a bucket as it is"),
    },
    Rival {
        name: "gcsfuse",
        program: "gcsfuse",
        start: |_| bail!("it reads Google Cloud Storage only, and this run's server is S3"),
    },
];

/// Mountpoint's manual: as much throughput as there is, and metadata that is never asked for again. Nor is Amazon's service
/// asked that tells a machine about itself: elsewhere that only costs time.
fn mount_s3(place: &RivalPaths<'_>) -> Command {
    let mut command = run::command("mount-s3");
    command.arg(BUCKET).arg(place.point).args(["--foreground", "--read-only", "--force-path-style"]);
    command.args(["--metadata-ttl", "indefinite", "--maximum-throughput-gbps", "100", "--region", REGION]);
    command.args(["--endpoint-url", place.bucket.server.url()]).envs(place.bucket.server.env());
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    command
}

/// rclone's manual ("VFS File Caching", "Performance"): large chunks, no request for a time that the listing has.
fn rclone(place: &RivalPaths<'_>, mode: &str) -> Command {
    let mut command = clients::rclone(&place.bucket.server);
    command.arg("mount").arg(format!("bench:{BUCKET}")).arg(place.point).arg("--cache-dir").arg(place.cache);
    command.args(["--vfs-cache-mode", mode, "--read-only", "--use-server-modtime", "--no-checksum"]);
    command.args(["--dir-cache-time=1h", "--attr-timeout=1h", "--vfs-fast-fingerprint", "--transfers=16"]);
    command.args(["--buffer-size=64M", "--vfs-read-ahead=128M", "--vfs-read-chunk-size=64M"]);
    command
}

/// s3fs's manual: parts in parallel, large ones, and what was asked once is remembered.
fn s3fs(place: &RivalPaths<'_>, cache: Option<&Path>) -> Command {
    let mut command = run::command("s3fs");
    command.arg(BUCKET).arg(place.point).arg("-f");
    let cache = cache.map(|path| format!(",use_cache={}", path.display())).unwrap_or_default();
    command.arg("-o").arg(format!(
        "url={},endpoint={REGION},use_path_request_style,listobjectsv2,ro,parallel_count=16,multipart_size=16,multireq_max=32,\
         max_stat_cache_size=1000000,stat_cache_expire=3600,enable_noobj_cache,kernel_cache{cache}",
        place.bucket.server.url()
    ));
    // It knows the names without underscores since long, and those with them since 1.86.
    command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.env("AWSACCESSKEYID", KEY_ID).env("AWSSECRETACCESSKEY", SECRET);
    command
}

/// goofys's manual: names and sizes are remembered.
fn goofys(place: &RivalPaths<'_>) -> Command {
    let mut command = run::command("goofys");
    command.args(["-f", "--stat-cache-ttl", "1h", "--type-cache-ttl", "1h", "--region", REGION]);
    command.args(["--endpoint", place.bucket.server.url(), "-o", "ro"]).arg(BUCKET).arg(place.point);
    command.envs(place.bucket.server.env());
    command
}

/// A rival at work. Dropping it unmounts it and ends it.
pub struct RivalMount {
    point: PathBuf,
    process: Option<RunningProgram>,
    /// Seconds until it was there.
    pub took: f64,
}

impl RivalMount {
    /// Mounts `bucket` below `room`.
    ///
    /// # Errors
    /// It can't be started, ends, or is not there in time; with what it said.
    pub fn new(rival: &Rival, bucket: &BenchBucket, room: &Path) -> Result<Self> {
        let (point, cache) = (room.join("mount"), room.join("cache"));
        for directory in [&point, &cache] {
            std::fs::create_dir(directory).context("cannot make a directory")?;
        }
        let mut command = (rival.start)(&RivalPaths { bucket, point: &point, cache: &cache })?;
        let out = tempfile::tempfile().context("cannot make a temporary file")?;
        let begin = Instant::now();
        let process = RunningProgram::start(&mut command, out)?;
        let mut mounted = Self { point, process: Some(process), took: 0.0 };
        while !mounted.is_there() {
            let process = mounted.process.take().context("a rival was lost")?;
            if process.has_ended() {
                process.wait(RIVAL_MOUNT_TIMEOUT)?;
                bail!("{} ended by itself", rival.program);
            }
            mounted.process = Some(process);
            if begin.elapsed() > RIVAL_MOUNT_TIMEOUT {
                bail!("{} is not there after {} s", rival.program, RIVAL_MOUNT_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        mounted.took = begin.elapsed().as_secs_f64();
        Ok(mounted)
    }

    /// Where it is.
    pub fn point(&self) -> &Path {
        &self.point
    }

    fn is_there(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        mounts.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == self.point))
    }
}

impl Drop for RivalMount {
    fn drop(&mut self) {
        // Detached, the file system ends by itself; what doesn't is killed with its handle.
        let _ = unmount(&self.point, UnmountFlags::DETACH);
        if let Some(process) = self.process.take() {
            let begin = Instant::now();
            while !process.has_ended() && begin.elapsed() < RIVAL_MOUNT_TIMEOUT {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
