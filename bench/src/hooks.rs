//! Hooks: what a volume of a container costs, as a kubelet sees it: through `bdnfs csi`, one call after the other.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use bdnfs_tests::kubelet::{Kubelet, PodVolume};
use serde_json::json;

use crate::agent::BenchAgent;
use crate::bucket::BenchBucket;
use crate::fio::{self, FioJob, jobs};
use crate::lab::BenchEnv;
use crate::report::{BenchReport, Comparison, Figure, Rows};
use crate::run::{self, RunningProgram};
use crate::samples::{Side, in_turn};
use crate::unit::MeasureUnit;
use crate::{cold, interrupt, s3};

const ABOUT: &str = "Pods of one node that show the same source, an S3 server on loopback, one after the other, by a kubelet of \
    the test kit through `bdnfs csi`. The first publication stages it; gate to return: from the moment in which the last byte is \
    in the cache until the call returns. All others are binds of the same mount.";
/// How many pods show the same source.
const PODS: usize = 100;
/// The percentile of the calls' times that is reported.
const PERCENTILE: usize = 95;
/// Seconds of a publish call that stages nothing, at the most. The bind itself is a hundredth of a millisecond of it.
const MAX_PUBLISH_SECONDS: f64 = 0.020;
/// Seconds from the last byte to the answer, at the most.
const MAX_GATE_SECONDS: f64 = 0.250;
/// Seconds of an unpublish call, at the most.
const MAX_UNPUBLISH_SECONDS: f64 = 0.100;
/// Seconds of a publish call for what is published already, at the most.
const MAX_REPUBLISH_SECONDS: f64 = 0.005;
/// MiB of memory of the driver, at the most.
const MAX_DRIVER_MIB: f64 = 30.0;
/// The share of the base's speed that its binds must reach.
const WANTED_RATIO: f64 = 0.98;
/// How long an agent may take to take everything down.
const DRIVER_STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("hooks", "Container hooks", format!("{ABOUT} {} MiB.", size(lab) >> 20));
    let bucket = report.prepare("a bucket", || cold::bucket(lab, 1, size(lab)))?;
    let Some(bucket) = bucket else { return Ok(()) };
    report.measure("volumes of pods", || volumes(lab, &bucket))?;
    report.measure("reads through a bind", || bucket.in_room(lab, |room| reads(lab, &bucket, room)))
}

fn size(lab: &BenchEnv) -> u64 {
    lab.sizes.size / 4
}

/// An agent, its driver, and a kubelet. What is published ends with it.
struct BenchNode<'a> {
    lab: &'a BenchEnv,
    bucket: &'a BenchBucket,
    kubelet: Kubelet,
    driver: RunningProgram,
    agent: BenchAgent,
}

impl<'a> BenchNode<'a> {
    fn start(lab: &'a BenchEnv, bucket: &'a BenchBucket, room: &Path) -> Result<Self> {
        // Short, since paths of sockets must be.
        let root = room.join("k");
        let mut kubelet = Kubelet::new(&root);
        let targets = format!("[publications]\ntargets = [{:?}]\n", root.join("pods"));
        let agent = BenchAgent::start(lab, room, &targets)?;
        let endpoint = root.join("plugins/csi.sock");
        let mut command = run::command(&lab.bdnfs);
        command.args(["csi", "--node-id", "node"]).arg("--socket").arg(&agent.socket);
        command.arg("--registration").arg(root.join("plugins_registry/reg.sock"));
        command.arg("--endpoint").arg(&endpoint).arg("--kubelet-endpoint").arg(&endpoint);
        let out = tempfile::tempfile().context("cannot make a temporary file")?;
        let driver = RunningProgram::start(&mut command, out)?;
        kubelet.register();
        Ok(Self { lab, bucket, kubelet, driver, agent })
    }

    /// The volume of the pod with this number: what the bucket has, as an administrator writes it.
    fn volume(&self, pod: usize) -> PodVolume {
        let (source, endpoint) = (self.bucket.source(), self.bucket.server.url());
        let attributes = [
            ("source", source.as_str()),
            ("endpoint", endpoint),
            ("region", s3::REGION),
            ("allowHttp", "true"),
        ];
        let keys = json!({
            "aws_access_key_id": s3::KEY_ID, "aws_secret_access_key": s3::SECRET, "aws_region": s3::REGION,
        });
        PodVolume::persistent("volume", &format!("pod-{pod}"), &attributes).secret("key", &keys.to_string())
    }

    /// Seconds until a pod's volume is published.
    fn publish(&self, pod: usize) -> Result<f64> {
        interrupt::check()?;
        let (volume, begin) = (self.volume(pod), Instant::now());
        self.kubelet.publish(&volume).context("cannot publish")?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Seconds until nothing of a pod's volume is left.
    fn unpublish(&self, pod: usize) -> Result<f64> {
        interrupt::check()?;
        let (volume, begin) = (self.volume(pod), Instant::now());
        self.kubelet.unpublish(&volume).context("cannot unpublish")?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// The only base.
    fn base(&self) -> Result<PathBuf> {
        let bases = fs::read_dir(self.agent.cache.join("bases")).context("cannot list the bases")?;
        let bases: Vec<_> = bases.flatten().map(|entry| entry.path()).collect();
        ensure!(bases.len() == 1, "there are {} mounts, and not one for all pods", bases.len());
        bases.into_iter().next().context("there is no base")
    }
}

impl Drop for BenchNode<'_> {
    fn drop(&mut self) {
        let mut command = run::command(&self.lab.bdnfs);
        command.args(["agent", "--stop"]).env("BDNFS_SOCKET", &self.agent.socket);
        // One that does not is ended by its owner.
        let _ = run::run(&mut command, DRIVER_STOP_TIMEOUT);
    }
}

/// The costs of the pods of a node.
struct PodCosts {
    gate: f64,
    publish: f64,
    republish: f64,
    unpublish: f64,
    driver: f64,
    /// Open files of the agent, for each publication but the first.
    descriptors: f64,
    fetched: f64,
    /// Requests of all publications but the first.
    publish_requests: f64,
    republish_requests: f64,
}

impl PodCosts {
    fn measure(lab: &BenchEnv, bucket: &BenchBucket, room: &Path) -> Result<Self> {
        let node = BenchNode::start(lab, bucket, room)?;
        let served = || bucket.server.served();
        let begin = served()?;
        node.publish(0)?;
        let gate = now()? - last_change(&node.agent.cache)?;
        let (staged, open) = (served()?, node.agent.process().open_files()?);
        let publish = percentile((1..PODS).map(|pod| node.publish(pod)))?;
        let (published, descriptors) = (served()?, node.agent.process().open_files()? - open);
        let republish = percentile((0..PODS).map(|pod| node.publish(pod)))?;
        let republished = served()?;
        node.base()?;
        let driver = node.driver.process().memory("VmRSS")?;
        let unpublish = percentile((0..PODS).map(|pod| node.unpublish(pod)))?;
        Ok(Self {
            gate,
            publish,
            republish,
            unpublish,
            driver,
            // What comes and goes by itself counts for less than one.
            descriptors: (descriptors / (PODS - 1) as f64).trunc(),
            fetched: (republished - begin).bytes as f64 / bucket.bytes()? as f64,
            publish_requests: (published - staged).requests as f64,
            republish_requests: (republished - published).requests as f64,
        })
    }
}

fn volumes(lab: &BenchEnv, bucket: &BenchBucket) -> Result<Rows> {
    let costs = (0..lab.sizes.runs)
        .map(|_| bucket.in_room(lab, |room| PodCosts::measure(lab, bucket, room)))
        .collect::<Result<Vec<_>>>()?;
    let figure = |name: &str, unit, limit: f64, of: fn(&PodCosts) -> f64| Figure {
        limit: Some(limit),
        ..Figure::new(name, unit, costs.iter().map(of).collect())
    };
    let calls = |what: &str| format!("{what}, of {PODS} at p{PERCENTILE}");
    let more = PODS - 1;
    let figures = vec![
        figure("gate to return", MeasureUnit::Seconds, MAX_GATE_SECONDS, |costs| costs.gate),
        figure(&calls("publish"), MeasureUnit::Seconds, MAX_PUBLISH_SECONDS, |costs| costs.publish),
        figure(&calls("republish"), MeasureUnit::Seconds, MAX_REPUBLISH_SECONDS, |costs| costs.republish),
        figure(&calls("unpublish"), MeasureUnit::Seconds, MAX_UNPUBLISH_SECONDS, |costs| costs.unpublish),
        // A listing each at the most.
        figure(&format!("requests of {more} more pods"), MeasureUnit::Requests, more as f64, |costs| {
            costs.publish_requests
        }),
        figure(&format!("requests of {PODS} republished"), MeasureUnit::Requests, 0.0, |costs| {
            costs.republish_requests
        }),
        // All of it once, and the listings.
        figure(&format!("bytes of {PODS} pods"), MeasureUnit::Fetched, 1.01, |costs| costs.fetched),
        figure(&format!("open files for each of {more} more pods"), MeasureUnit::Descriptors, 0.0, |costs| {
            costs.descriptors
        }),
        figure("memory of `bdnfs csi`", MeasureUnit::Mebibytes, MAX_DRIVER_MIB, |costs| costs.driver),
    ];
    Ok(Rows { figures, ..Rows::default() })
}

/// Reads through a bind, beside the mount that it is of.
fn reads(lab: &BenchEnv, bucket: &BenchBucket, room: &Path) -> Result<Rows> {
    let node = BenchNode::start(lab, bucket, room)?;
    node.publish(0)?;
    let (base, bind) = (node.base()?, node.kubelet.target(&node.volume(0)));
    let job = FioJob { text: jobs::SEQUENTIAL_HOT, jobs: 1, seconds: lab.sizes.hot, random: 0 };
    let sides = in_turn(lab.sizes.turns_when_noisy(), |side| {
        let directory = if side == Side::Baseline { &base } else { &bind };
        fio::read(&job, &directory.join(cold::name(0)), size(lab))
    })?;
    let name = "sequential 1 MiB through a bind, hot";
    Ok(Comparison::new(name, MeasureUnit::Megabytes, "the base", sides).with_wanted(WANTED_RATIO).into())
}

/// The value that [`PERCENTILE`] of a hundred do not exceed.
fn percentile(values: impl Iterator<Item = Result<f64>>) -> Result<f64> {
    let mut values = values.collect::<Result<Vec<_>>>()?;
    values.sort_by(f64::total_cmp);
    values
        .get((values.len() * PERCENTILE).div_ceil(100).saturating_sub(1))
        .copied()
        .context("nothing was measured")
}

/// Seconds since 1970.
fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is wrong")?.as_secs_f64())
}

/// When the last blob of a cache got its final name, in seconds since 1970.
fn last_change(cache: &Path) -> Result<f64> {
    let mut last = f64::NAN;
    let mut directories = vec![cache.join("tenants")];
    while let Some(directory) = directories.pop() {
        for entry in
            fs::read_dir(&directory).with_context(|| format!("cannot list {}", directory.display()))?
        {
            let entry = entry.context("cannot list the cache")?;
            let meta = entry.metadata().context("cannot stat a blob")?;
            if meta.is_dir() {
                directories.push(entry.path());
            } else if directory.ancestors().any(|ancestor| ancestor.ends_with("blobs")) {
                last = last.max(meta.ctime() as f64 + meta.ctime_nsec() as f64 / 1e9);
            }
        }
    }
    Ok(last)
}
