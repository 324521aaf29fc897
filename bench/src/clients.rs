//! Clients: the usual programs that download buckets, at the settings that their manuals give for speed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bucket::BenchBucket;
use crate::lab::BenchEnv;
use crate::run;
use crate::s3::{BUCKET, KEY_ID, REGION, S3Process, SECRET};

/// How long a copy may take.
const COPY_TIMEOUT: Duration = Duration::from_secs(900);
/// What makes `aws s3` fast: many requests at once, in parts as large as those of bdnfs, and the client in C where it is
/// installed (the chapter "AWS CLI S3 Configuration" of its manual).
const AWS: &str = "[default]\ns3 =\n  max_concurrent_requests = 32\n  max_queue_size = 10000\n  multipart_threshold = 16MB\n  \
    multipart_chunksize = 16MB\n  target_bandwidth = 100Gb/s\n  addressing_style = path\n";
const CRT: &str = "  preferred_transfer_client = crt\n";

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyClient {
    /// `aws s3 cp --recursive`.
    Aws,
    /// `rclone copy`.
    Rclone,
}

impl CopyClient {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Aws, Self::Rclone];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws s3 cp",
            Self::Rclone => "rclone copy",
        }
    }

    /// The name in tables of its command that copies only changes.
    pub fn again(self) -> &'static str {
        match self {
            Self::Aws => "aws s3 sync",
            Self::Rclone => "rclone copy",
        }
    }

    /// Whether it can be run.
    ///
    /// # Errors
    /// It is not installed.
    pub fn installed(self, lab: &BenchEnv) -> Result<()> {
        match self {
            Self::Aws if lab.venv("aws").is_some() => Ok(()),
            Self::Aws => run::find("aws").map(drop),
            Self::Rclone => run::find("rclone").map(drop),
        }
    }

    /// Copies the bucket into `directory`, or what it lacks, and returns the seconds that it took.
    ///
    /// # Errors
    /// It is not installed, or fails.
    pub fn copy(self, lab: &BenchEnv, bucket: &BenchBucket, directory: &Path, again: bool) -> Result<f64> {
        let from = match self {
            Self::Aws => format!("s3://{BUCKET}"),
            Self::Rclone => format!("bench:{BUCKET}"),
        };
        self.run(lab, &bucket.server, [Path::new(&from), directory], again)
    }

    /// Copies a directory into a bucket.
    ///
    /// # Errors
    /// It is not installed, or fails.
    pub fn upload(self, lab: &BenchEnv, bucket: &BenchBucket, directory: &Path, to: &str) -> Result<f64> {
        let to = match self {
            Self::Aws => format!("s3://{to}"),
            Self::Rclone => format!("bench:{to}"),
        };
        self.run(lab, &bucket.server, [directory, Path::new(&to)], false)
    }

    fn run(self, lab: &BenchEnv, server: &S3Process, [from, to]: [&Path; 2], again: bool) -> Result<f64> {
        let settings = tempfile::tempdir().context("cannot make a directory")?;
        let mut command = match self {
            Self::Aws => aws(lab, server, &settings.path().join("config"))?,
            Self::Rclone => rclone(server),
        };
        match (self, again) {
            (Self::Aws, false) => command.args(["s3", "cp", "--recursive", "--only-show-errors"]),
            (Self::Aws, true) => command.args(["s3", "sync", "--only-show-errors"]),
            (Self::Rclone, _) => command.arg("copy").args(RCLONE),
        };
        Ok(run::run(command.arg(from).arg(to), COPY_TIMEOUT)?.seconds)
    }
}

/// rclone's manual: as many files at once as the disk likes, parts of one file at once, listings in one go.
const RCLONE: [&str; 9] = [
    "--transfers=16",
    "--checkers=16",
    "--multi-thread-streams=8",
    "--multi-thread-cutoff=64M",
    "--buffer-size=32M",
    "--fast-list",
    "--s3-upload-concurrency=8",
    "--s3-chunk-size=16M",
    "--use-server-modtime",
];

/// `aws` for `server`, with its settings in the file `config`.
fn aws(lab: &BenchEnv, server: &S3Process, config: &Path) -> Result<Command> {
    let program = lab.venv("aws").unwrap_or_else(|| PathBuf::from("aws"));
    // The client in C is another package of Python, which not every aws has.
    let crt = lab.venv("aws").is_some();
    let text = format!("{AWS}{}", if crt { CRT } else { "" });
    fs::write(config, text).context("cannot write aws's settings")?;
    let mut command = run::command(program);
    command.envs(server.env()).env("AWS_CONFIG_FILE", config).env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    Ok(command)
}

/// `rclone` with `server` as its remote `bench`. Its keys stand in variables, so in no process list.
pub fn rclone(server: &S3Process) -> Command {
    let mut command = run::command("rclone");
    let remote = [
        ("TYPE", "s3"),
        ("PROVIDER", "Other"),
        ("ENDPOINT", server.url()),
        ("REGION", REGION),
        ("ACCESS_KEY_ID", KEY_ID),
        ("SECRET_ACCESS_KEY", SECRET),
        ("FORCE_PATH_STYLE", "true"),
        ("LIST_VERSION", "2"),
    ];
    for (name, value) in remote {
        command.env(format!("RCLONE_CONFIG_BENCH_{name}"), value);
    }
    command.env("RCLONE_CONFIG", "/dev/null");
    command
}

/// Writes what a client left in memory to the disk.
///
/// # Errors
/// The disk fails.
pub fn sync(directory: &Path) -> Result<()> {
    let file = fs::File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
    rustix::fs::syncfs(file).context("cannot make a copy durable")
}
