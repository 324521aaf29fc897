//! S3 on loopback: the test kit's server in a process of its own, and curl as somebody else's client of it.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::lab::Lab;
use crate::run::{self, Running};

/// How long the server may take to listen.
const START: Duration = Duration::from_secs(10);
/// How long a download may take.
const DOWNLOAD: Duration = Duration::from_secs(900);
/// How many ranges are downloaded at once.
pub const RANGES: u64 = 8;
/// The bucket, a directory below the server's root.
pub const BUCKET: &str = "bucket";
/// Keys that open nothing else: the server checks signatures, since checking them is part of what a client waits for.
const KEY_ID: &str = "AKIABENCH";
const SECRET: &str = "of-the-benchmark-alone";
const REGION: &str = "us-east-1";

/// A server; it ends when dropped.
#[derive(Debug)]
pub struct Server {
    url: String,
    _process: Running,
}

/// An object of the bucket.
#[derive(Clone, Debug)]
pub struct Object {
    /// Its key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
}

/// What a download took.
#[derive(Clone, Copy, Debug)]
pub struct Download {
    /// Seconds until curl had written all.
    pub written: f64,
    /// Seconds until all was on the disk, too.
    pub durable: f64,
    /// Seconds of CPU of all curls.
    pub cpu: f64,
}

impl Server {
    /// Serves the buckets below `root`.
    ///
    /// # Errors
    /// The server is not built or does not start.
    pub fn start(lab: &Lab, root: &Path) -> Result<Self> {
        if !lab.s3_server.exists() {
            bail!("{} is missing; scripts/bench builds it", lab.s3_server.display());
        }
        let mut out = tempfile::tempfile().context("cannot make a temporary file")?;
        let mut command = run::command(&lab.s3_server);
        command.arg("--root").arg(root).args(["--port", "0"]);
        command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
        let process = Running::start(&mut command, out.try_clone().context("cannot share a file")?)?;
        let begin = Instant::now();
        while begin.elapsed() < START {
            let mut said = String::new();
            out.rewind()
                .and_then(|()| out.read_to_string(&mut said))
                .context("cannot hear from the S3 server")?;
            // Its first line begins with its URL.
            if let Some((line, _)) = said.split_once('\n') {
                let url = line.split(' ').next().unwrap_or_default().to_owned();
                return Ok(Self { url, _process: process });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the S3 server does not listen after {} s", START.as_secs())
    }

    /// The environment that leads S3 clients to it.
    pub fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.url.clone()),
            ("AWS_REGION", REGION.to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ]
    }

    /// Downloads `objects` into `directory` with [`RANGES`] curls at once, each of which writes its own part of a file.
    ///
    /// # Errors
    /// curl is not installed or fails.
    pub fn download(&self, objects: &[Object], directory: &Path) -> Result<Download> {
        let begin = Instant::now();
        let each = RANGES / objects.len() as u64;
        let (mut files, mut curls) = (Vec::new(), Vec::new());
        for object in objects {
            let path = directory.join(&object.key);
            let at = || format!("cannot write {}", path.display());
            let file = File::create_new(&path).with_context(at)?;
            file.set_len(object.size).with_context(at)?;
            for part in 0..each {
                let (first, end) = (object.size * part / each, object.size * (part + 1) / each);
                let mut out = File::options().write(true).open(&path).with_context(at)?;
                out.seek(SeekFrom::Start(first)).with_context(at)?;
                let config = self.config(&object.key, first, end)?;
                let mut curl = run::command("curl");
                curl.args(["--config", "-"]).stdin(Stdio::from(config));
                curls.push(Running::start(&mut curl, out)?);
            }
            files.push(file);
        }
        let ran: Vec<_> = curls.into_iter().map(|curl| curl.wait(DOWNLOAD)).collect::<Result<_>>()?;
        let written = begin.elapsed().as_secs_f64();
        files.iter().try_for_each(File::sync_all).context("cannot make the download durable")?;
        let durable = begin.elapsed().as_secs_f64();
        Ok(Download { written, durable, cpu: ran.iter().map(|ran| ran.cpu).sum() })
    }

    /// What one curl is to do. It is read from a file, so that the keys stand in no process list.
    /// S3 wants a hash of the body among what is signed, which curl adds by itself in newer versions only.
    fn config(&self, key: &str, first: u64, end: u64) -> Result<File> {
        let mut file = tempfile::tempfile().context("cannot make a temporary file")?;
        let text = format!(
            "url = \"{}/{BUCKET}/{key}\"\nuser = \"{KEY_ID}:{SECRET}\"\naws-sigv4 = \"aws:amz:{REGION}:s3\"\n\
             header = \"x-amz-content-sha256: UNSIGNED-PAYLOAD\"\nrange = {first}-{}\nsilent\nshow-error\nfail\n",
            self.url,
            end - 1
        );
        file.write_all(text.as_bytes())
            .and_then(|()| file.rewind())
            .context("cannot tell curl what to do")?;
        Ok(file)
    }
}
