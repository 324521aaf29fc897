//! S3 on loopback: the test kit's server in a process of its own, and curl as an independent client of it.

use std::fs::File;
use std::io::{PipeWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::lab::BenchEnv;
use crate::link::{self, ShapedLink};
use crate::run::{self, RunningProgram};

/// How long the server may take to listen.
const SERVER_START_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a download may take.
pub const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(900);
/// How many ranges are downloaded at once.
pub const PARALLEL_RANGES: u64 = 8;
/// The bucket, a directory below the server's root.
pub const BUCKET: &str = "bucket";
/// Keys that open nothing else: the server checks signatures, since checking them is part of what a client waits for.
pub const KEY_ID: &str = "AKIABENCH";
pub const SECRET: &str = "of-the-benchmark-alone";
pub const REGION: &str = "us-east-1";

/// A server; it ends when dropped.
#[derive(Debug)]
pub struct S3Process {
    url: String,
    /// What it says.
    out: File,
    /// What it is asked with.
    ask: PipeWriter,
    process: Option<RunningProgram>,
}

/// The requests that the server has served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedBytes {
    /// Requests.
    pub requests: u64,
    /// Bytes of the bodies that answered them.
    pub bytes: u64,
}

impl std::ops::Sub for ServedBytes {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { requests: self.requests - before.requests, bytes: self.bytes - before.bytes }
    }
}

/// An object of the bucket.
#[derive(Clone, Debug)]
pub struct BucketObject {
    /// Its key.
    pub key: String,
    /// Its size in bytes.
    pub size: u64,
}

/// The measurements of a download.
#[derive(Clone, Copy, Debug)]
pub struct Download {
    /// Seconds until curl had written all.
    pub written: f64,
    /// Seconds until all was on the disk, too.
    pub durable: f64,
    /// Seconds of CPU of all curls.
    pub cpu: f64,
}

impl S3Process {
    /// Serves the buckets below `root`, behind `link` where there is one.
    ///
    /// # Errors
    /// The server is not built or does not start.
    pub fn start(lab: &BenchEnv, root: &Path, link: Option<&ShapedLink>) -> Result<Self> {
        Self::on_port(lab, root, link, Duration::ZERO, "0")
    }

    /// Restarts it at the same address, with the latency `late`: mirrored sources are known by their address.
    ///
    /// # Errors
    /// The server does not start.
    pub fn set_latency(
        &mut self,
        lab: &BenchEnv,
        root: &Path,
        link: Option<&ShapedLink>,
        late: Duration,
    ) -> Result<()> {
        let (_, port) = self.url.rsplit_once(':').context("a URL without a port")?;
        let port = port.trim_end_matches('/').to_owned();
        drop(self.process.take());
        *self = Self::on_port(lab, root, link, late, &port)?;
        Ok(())
    }

    fn on_port(
        lab: &BenchEnv,
        root: &Path,
        link: Option<&ShapedLink>,
        late: Duration,
        port: &str,
    ) -> Result<Self> {
        if !lab.s3_server.exists() {
            bail!("{} is missing; scripts/bench builds it", lab.s3_server.display());
        }
        let out = tempfile::tempfile().context("cannot make a temporary file")?;
        let (asked, ask) = std::io::pipe().context("cannot make a pipe")?;
        let mut command = link::command(link, &lab.s3_server);
        command.arg("--root").arg(root).args(["--port", port]).stdin(asked);
        command.arg("--latency").arg(late.as_millis().to_string());
        command.env("AWS_ACCESS_KEY_ID", KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
        let process = RunningProgram::start(&mut command, out.try_clone().context("cannot share a file")?)?;
        let mut server = Self { url: String::new(), out, ask, process: Some(process) };
        // Its first line begins with its URL.
        server.url = server.line(0)?.split(' ').next().unwrap_or_default().to_owned();
        Ok(server)
    }

    /// The requests that it has served so far.
    ///
    /// # Errors
    /// It is gone.
    pub fn served(&self) -> Result<ServedBytes> {
        let lines = self.said()?.lines().count();
        (&self.ask).write_all(b"\n").context("cannot ask the S3 server")?;
        let line = self.line(lines)?;
        let mut numbers = line.split([' ', ',']).filter_map(|word| word.parse().ok());
        let (requests, bytes) = (numbers.next(), numbers.next());
        let (requests, bytes) = requests.zip(bytes).context("the S3 server does not tell what it served")?;
        Ok(ServedBytes { requests, bytes })
    }

    /// A line of its output, once it is there.
    fn line(&self, number: usize) -> Result<String> {
        let begin = Instant::now();
        while begin.elapsed() < SERVER_START_TIMEOUT {
            let said = self.said()?;
            if let Some(line) =
                said.split_inclusive('\n').nth(number).and_then(|line| line.strip_suffix('\n'))
            {
                return Ok(line.to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("the S3 server says nothing for {} s", SERVER_START_TIMEOUT.as_secs())
    }

    /// All of its output. The file's position is the server's own, and stays.
    fn said(&self) -> Result<String> {
        use std::os::unix::fs::FileExt;
        let len = self.out.metadata().context("cannot hear from the S3 server")?.len();
        let mut said = vec![0; len as usize];
        self.out.read_exact_at(&mut said, 0).context("cannot hear from the S3 server")?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Where it listens.
    pub fn url(&self) -> &str {
        &self.url
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

    /// Downloads `objects` into `directory` with [`PARALLEL_RANGES`] curls at once, each of which writes its own part of a file.
    ///
    /// # Errors
    /// curl is not installed or fails.
    pub fn download(&self, objects: &[BucketObject], directory: &Path) -> Result<Download> {
        let begin = Instant::now();
        let each = PARALLEL_RANGES / objects.len() as u64;
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
                curls.push(RunningProgram::start(&mut curl, out)?);
            }
            files.push(file);
        }
        let ran: Vec<_> = curls.into_iter().map(|curl| curl.wait(DOWNLOAD_TIMEOUT)).collect::<Result<_>>()?;
        let written = begin.elapsed().as_secs_f64();
        files.iter().try_for_each(File::sync_all).context("cannot make the download durable")?;
        let durable = begin.elapsed().as_secs_f64();
        Ok(Download { written, durable, cpu: ran.iter().map(|ran| ran.cpu).sum() })
    }

    /// The work of one curl: a range of an object.
    fn config(&self, key: &str, first: u64, end: u64) -> Result<File> {
        let url = self.object(key);
        curl_config(&format!("url = \"{url}\"\nrange = {first}-{}\n", end - 1))
    }

    /// The work of one curl that brings `objects` one after the other.
    ///
    /// # Errors
    /// The disk fails.
    pub fn config_of(&self, objects: &[BucketObject]) -> Result<File> {
        let one = |object: &BucketObject| {
            format!("url = \"{}\"\noutput = \"{}\"\n", self.object(&object.key), object.key)
        };
        curl_config(&objects.iter().map(one).collect::<String>())
    }

    fn object(&self, key: &str) -> String {
        format!("{}/{BUCKET}/{key}", self.url)
    }
}

/// A file that tells a curl `what` to do, so that the keys stand in no process list. S3 wants a hash of the body among what
/// is signed, which curl adds by itself in newer versions only.
fn curl_config(what: &str) -> Result<File> {
    let text = format!(
        "{what}user = \"{KEY_ID}:{SECRET}\"\naws-sigv4 = \"aws:amz:{REGION}:s3\"\n\
         header = \"x-amz-content-sha256: UNSIGNED-PAYLOAD\"\nsilent\nshow-error\nfail\n"
    );
    let mut file = tempfile::tempfile().context("cannot make a temporary file")?;
    file.write_all(text.as_bytes()).and_then(|()| file.rewind()).context("cannot tell curl what to do")?;
    Ok(file)
}
