//! Cost: processor time, memory and network traffic of reads through a mount, and how they grow.

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::bucket::BenchBucket;
use crate::fio::{self, FioJob, jobs};
use crate::lab::BenchEnv;
use crate::listing::IndexServer;
use crate::mount::BenchMount;
use crate::report::{BenchReport, Figure, Growth, Rows};
use crate::run::{self, RunningProgram};
use crate::samples::Samples;
use crate::unit::MeasureUnit;
use crate::{cold, interrupt};

const ABOUT: &str = "What bdnfs takes, from S3 on loopback with an empty cache, and how that grows. Files: a tree that an index \
    lists is mounted, and none of it read. Size: the last 4 KiB of a file of zeros are read. Readers: so many processes at once \
    read a file, each its own part in order, or all of them all of it.";
const GIB: f64 = (1u64 << 30) as f64;
const FILE: &str = "file-0.bin";
/// Bytes that are read at the end of a file.
const TAIL_BYTES: u64 = 4 << 10;

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("cost", "Cost", format!("{ABOUT} Read by so many: {} MiB.", size(lab) >> 20));
    report.measure("staging", || staging(lab))?;
    report.measure("readers", || readers(lab))?;
    report.measure("size of a file", || sizes(lab))?;
    report.measure("files", || files(lab))
}

fn size(lab: &BenchEnv) -> u64 {
    lab.sizes.size / 4
}

/// The cost of one mount.
#[derive(Clone, Copy, Default)]
struct Cost {
    cpu: f64,
    peak: f64,
    requests: f64,
    bytes: f64,
}

impl Cost {
    /// The result of `work` with a mount, and its cost since the mount began.
    fn of(
        lab: &BenchEnv,
        bucket: &BenchBucket,
        room: &Path,
        wait: bool,
        work: impl FnOnce(&BenchMount) -> Result<()>,
    ) -> Result<Self> {
        let before = bucket.server.served()?;
        let mount = bucket.mount(lab, room, wait, &[])?;
        work(&mount)?;
        let (agent, served) = (mount.agent()?, bucket.server.served()? - before);
        let (cpu, peak) = (agent.cpu()?, agent.memory("VmHWM")?);
        Ok(Self { cpu, peak, requests: served.requests as f64, bytes: served.bytes as f64 })
    }
}

fn staging(lab: &BenchEnv) -> Result<Rows> {
    let bucket = cold::bucket(lab, 1, size(lab))?;
    let (mut costs, gib) = (Vec::new(), size(lab) as f64 / GIB);
    for _ in 0..lab.sizes.turns_when_noisy() {
        interrupt::check()?;
        costs.push(bucket.in_room(lab, |room| Cost::of(lab, &bucket, room, true, |_| Ok(())))?);
    }
    let figure = |name: &str, unit, of: fn(&Cost) -> f64, by: f64| {
        let value = costs.iter().map(|cost| of(cost) / by).collect();
        Figure::new(&format!("mount --wait: {name}"), unit, value)
    };
    let figures = vec![
        figure("CPU of the daemon", MeasureUnit::SecondsPerGib, |cost| cost.cpu, gib),
        figure("peak memory of the daemon", MeasureUnit::Mebibytes, |cost| cost.peak, 1.0),
        figure("bytes fetched", MeasureUnit::Fetched, |cost| cost.bytes, size(lab) as f64),
        figure("requests", MeasureUnit::RequestsPerGib, |cost| cost.requests, gib),
    ];
    Ok(Rows { figures, ..Rows::default() })
}

/// Measurements along one axis, which become growths.
struct GrowthSeries {
    along: &'static str,
    growths: Vec<Growth>,
}

impl GrowthSeries {
    fn new(along: &'static str) -> Self {
        Self { along, growths: Vec::new() }
    }

    fn add(&mut self, at: u64, name: &str, unit: MeasureUnit, value: Samples) {
        let known = self.growths.iter().position(|growth| growth.name == name);
        let index = known.unwrap_or_else(|| {
            let (name, along) = (name.to_owned(), self.along.to_owned());
            self.growths.push(Growth { name, unit, along, points: Vec::new() });
            self.growths.len() - 1
        });
        self.growths[index].points.push((at as f64, value));
    }

    fn rows(self) -> Rows {
        Rows { growths: self.growths, ..Rows::default() }
    }
}

fn readers(lab: &BenchEnv) -> Result<Rows> {
    let bucket = cold::bucket(lab, 1, size(lab))?;
    let mut along = GrowthSeries::new("readers");
    for readers in [1, 4, 16, 64] {
        let (mut agent, mut reading, mut memory) =
            (Samples::default(), Samples::default(), Samples::default());
        let (mut theirs, mut fetched, mut requests) =
            (Samples::default(), Samples::default(), Samples::default());
        let (mut shared, gib) = (Samples::default(), size(lab) as f64 / GIB);
        for _ in 0..lab.sizes.turns_when_noisy() {
            interrupt::check()?;
            let mut read = None;
            let job = FioJob { text: jobs::SEQUENTIAL_DROPPED, jobs: readers, seconds: 0, random: 0 };
            let cost = bucket.in_room(lab, |room| {
                Cost::of(lab, &bucket, room, false, |mount| {
                    read = Some(fio::measure(&job, &mount.point().join(FILE), size(lab))?);
                    Ok(())
                })
            })?;
            let read = read.context("nothing was read")?;
            agent.push(cost.cpu / gib);
            reading.push(read.cpu / gib);
            memory.push(cost.peak);
            theirs.push(read.peak);
            fetched.push(cost.bytes / size(lab) as f64);
            requests.push(cost.requests / gib);
            let all = bucket.in_room(lab, |room| {
                Cost::of(lab, &bucket, room, false, |mount| same(&mount.point().join(FILE), readers))
            })?;
            shared.push(all.bytes / (size(lab) * readers) as f64);
        }
        along.add(readers, "CPU of the daemon", MeasureUnit::SecondsPerGib, agent);
        along.add(readers, "CPU of the readers", MeasureUnit::SecondsPerGib, reading);
        along.add(readers, "peak memory of the daemon", MeasureUnit::Mebibytes, memory);
        along.add(readers, "peak memory of a reader (fio)", MeasureUnit::Mebibytes, theirs);
        along.add(readers, "each its part", MeasureUnit::Fetched, fetched);
        along.add(readers, "all of them all of it", MeasureUnit::Fetched, shared);
        along.add(readers, "asked, each its part", MeasureUnit::RequestsPerGib, requests);
    }
    Ok(along.rows())
}

/// `readers` processes read all of `file` at once.
fn same(file: &Path, readers: u64) -> Result<()> {
    let cat = |_| {
        let null = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
        RunningProgram::start(run::command("cat").arg(file), null)
    };
    let cats: Vec<_> = (0..readers).map(cat).collect::<Result<_>>()?;
    cats.into_iter().try_for_each(|cat| cat.wait(fio::FIO_TIMEOUT).map(drop))
}

fn sizes(lab: &BenchEnv) -> Result<Rows> {
    let mut along = GrowthSeries::new("bytes of the file");
    for size in [4 << 10, 1 << 20, 1 << 30, 64 << 30] {
        // Nothing of it takes room on the disk.
        let bucket = BenchBucket::new(lab, 0, |directory| {
            let file = File::create_new(directory.join(FILE)).context("cannot make a file")?;
            file.set_len(size).context("cannot make a sparse file")
        })?;
        let (mut time, mut bytes, mut requests, mut memory) =
            (Samples::default(), Samples::default(), Samples::default(), Samples::default());
        for _ in 0..lab.sizes.turns_when_noisy() {
            interrupt::check()?;
            let room = lab.room("cost", 0)?;
            let begin = Instant::now();
            let cost = Cost::of(lab, &bucket, room.path(), false, |mount| {
                let mut tail = run::command("tail");
                let ran = run::run(
                    tail.arg("-c").arg(TAIL_BYTES.to_string()).arg(mount.point().join(FILE)),
                    fio::FIO_TIMEOUT,
                )?;
                anyhow::ensure!(
                    ran.out.len() as u64 == TAIL_BYTES,
                    "the last {TAIL_BYTES} bytes were not read"
                );
                Ok(())
            })?;
            time.push(begin.elapsed().as_secs_f64());
            bytes.push(cost.bytes / f64::from(1 << 20));
            requests.push(cost.requests);
            memory.push(cost.peak);
        }
        along.add(size, "mounted, and the last 4 KiB read", MeasureUnit::Seconds, time);
        along.add(size, "fetched for the last 4 KiB", MeasureUnit::Mebibytes, bytes);
        along.add(size, "peak memory of the daemon", MeasureUnit::Mebibytes, memory);
        along.add(size, "asked for the last 4 KiB", MeasureUnit::Requests, requests);
    }
    Ok(along.rows())
}

fn files(lab: &BenchEnv) -> Result<Rows> {
    let mut along = GrowthSeries::new("files");
    let most = lab.sizes.many;
    for files in [most / 1000, most / 100, most / 10, most] {
        let server = IndexServer::start(files)?;
        let (mut time, mut memory, mut peak) = (Samples::default(), Samples::default(), Samples::default());
        for _ in 0..lab.sizes.turns_when_noisy() {
            interrupt::check()?;
            let room = lab.room("cost", 1 << 30)?;
            let mount = BenchMount::plain(lab, &server.url(), room.path(), false)?;
            let agent = mount.agent()?;
            time.push(mount.took);
            memory.push(agent.memory("VmRSS")?);
            peak.push(agent.memory("VmHWM")?);
        }
        along.add(files as u64, "mounted", MeasureUnit::Seconds, time);
        along.add(files as u64, "memory of the daemon", MeasureUnit::Mebibytes, memory);
        along.add(files as u64, "its peak, while listing", MeasureUnit::Mebibytes, peak);
    }
    Ok(along.rows())
}
