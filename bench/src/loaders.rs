//! Loaders: programs that read models and data sets, through a mount and from the disk's own file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::bucket::BenchBucket;
use crate::cat::cat;
use crate::data::{self, FILES_IN_DIRECTORY};
use crate::interrupt;
use crate::lab::BenchEnv;
use crate::mount::BenchMount;
use crate::report::{BenchReport, Comparison, Rows};
use crate::run;
use crate::samples::{Samples, Side, in_turn};
use crate::unit::MeasureUnit;

const ABOUT: &str = "Programs that load models and data sets, all of it local, through the mount and from the disk's own file \
    system. \"Hot\": the page cache has all of it; \"dropped\": the kernel has nothing in memory, neither content nor names. \
    Then the same model with nothing local, from S3 on loopback: seconds since `bdnfs mount` began, beside 8 curls that \
    download all of it before anything can begin.";
/// The share of native speed that what is local must reach.
const WANTED_RATIO: f64 = 0.95;
/// How long one loader may take.
const LOAD_TIMEOUT: Duration = Duration::from_secs(300);
const SHARDS: u64 = 4;
const SHARD: &str = "model-00001-of-00004.safetensors";
/// The size of a file of a data set: a label's, a thumbnail's.
const SMALL_FILE_BYTES: usize = 8 << 10;
const WORKERS: &str = "8";
const DOWNLOADED: &str = "8 curls first";

/// The loader, and its data.
#[derive(Clone, Copy)]
struct LoaderCase {
    name: &'static str,
    unit: MeasureUnit,
    load: fn(&BenchEnv, &Path) -> Result<f64>,
}

const MODEL: [LoaderCase; 2] = [
    LoaderCase {
        name: "safetensors, safe_open of every tensor",
        unit: MeasureUnit::Megabytes,
        load: open_tensors,
    },
    LoaderCase {
        name: "numpy.memmap, shuffled sequences of 8 KiB",
        unit: MeasureUnit::Megabytes,
        load: shuffle_tokens,
    },
];
const FILES: [LoaderCase; 2] = [
    LoaderCase {
        name: "small files in random order, 8 processes",
        unit: MeasureUnit::Files,
        load: shuffle_files,
    },
    LoaderCase { name: "tar of all small files", unit: MeasureUnit::Files, load: tar },
];

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    let (size, small) = (lab.sizes.size / 4, lab.sizes.small);
    let sizes =
        format!("The model {} MiB in 4 shards, as many of tokens, {small} files of 8 KiB.", size >> 20);
    report.group("loaders", "Loaders", format!("{ABOUT} {sizes}"));
    with(lab, report, &MODEL, 2 * size, |directory| {
        model(directory, size)?;
        data::file(&directory.join("tokens.bin"), size)
    })?;
    with(lab, report, &FILES, (small * 2 * SMALL_FILE_BYTES) as u64, |directory| {
        data::tree(directory, small, FILES_IN_DIRECTORY, SMALL_FILE_BYTES)
    })?;
    report.measure("a model from S3", || begin(lab, size))
}

fn with(
    lab: &BenchEnv,
    report: &mut BenchReport,
    cases: &[LoaderCase],
    bytes: u64,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let Some(place) = report.prepare("what is loaded", || LoaderFiles::make(lab, bytes, make))? else {
        return Ok(());
    };
    for case in cases {
        for hot in [true, false] {
            report.measure(case.name, || place.compare(lab, case, hot))?;
        }
    }
    Ok(())
}

/// The data, in a directory and in a mount of it.
struct LoaderFiles {
    room: TempDir,
    source: PathBuf,
}

impl LoaderFiles {
    fn make(lab: &BenchEnv, bytes: u64, make: impl FnOnce(&Path) -> Result<()>) -> Result<Self> {
        let room = lab.room("loaders", 2 * bytes)?;
        let source = room.path().join("source");
        fs::create_dir(&source).context("cannot make a directory")?;
        make(&source)?;
        let place = Self { room, source };
        place.mount(lab)?;
        Ok(place)
    }

    fn mount(&self, lab: &BenchEnv) -> Result<BenchMount> {
        let uri = format!("file://{}", self.source.display());
        BenchMount::plain(lab, &uri, self.room.path(), true)
    }

    fn compare(&self, lab: &BenchEnv, case: &LoaderCase, hot: bool) -> Result<Comparison> {
        let sides = in_turn(lab.sizes.runs, |side| {
            // A new mount for each turn: nothing of the last one is cached in it.
            let mount = (side == Side::Bdnfs).then(|| self.mount(lab)).transpose()?;
            let directory = mount.as_ref().map_or(self.source.as_path(), BenchMount::point);
            lab.drop_caches()?;
            if hot {
                (case.load)(lab, directory)?;
            }
            (case.load)(lab, directory)
        })?;
        let name = format!("{}, {}", case.name, if hot { "hot" } else { "dropped" });
        Ok(Comparison::new(&name, case.unit, &lab.native, sides).with_wanted(WANTED_RATIO))
    }
}

/// A model of `size` bytes in shards, with its index and its configuration.
fn model(directory: &Path, size: u64) -> Result<()> {
    for shard in 1..=SHARDS {
        let name = format!("model-{shard:05}-of-{SHARDS:05}.safetensors");
        data::tensors(&directory.join(name), size / SHARDS)?;
    }
    for (name, text) in
        [("config.json", "{\"model_type\": \"none\"}\n"), ("model.safetensors.index.json", "{}\n")]
    {
        fs::write(directory.join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    Ok(())
}

fn open_tensors(lab: &BenchEnv, directory: &Path) -> Result<f64> {
    let [seconds, bytes] = python(lab, include_str!("../loaders/safetensors_open.py"), directory, &[])?;
    Ok(bytes / 1e6 / seconds)
}

fn shuffle_tokens(lab: &BenchEnv, directory: &Path) -> Result<f64> {
    // As many sequences as give a figure in a second or three from a disk.
    let sequences = (lab.sizes.random / (8 << 10)).to_string();
    let file = directory.join("tokens.bin");
    let script = include_str!("../loaders/memmap_shuffle.py");
    let [seconds, bytes] = python(lab, script, &file, &[&sequences])?;
    Ok(bytes / 1e6 / seconds)
}

fn shuffle_files(lab: &BenchEnv, directory: &Path) -> Result<f64> {
    let [seconds, files] = python(lab, include_str!("../loaders/files_shuffle.py"), directory, &[WORKERS])?;
    ensure!(files as usize == lab.sizes.small, "{files} files were read and not {}", lab.sizes.small);
    Ok(files / seconds)
}

fn tar(lab: &BenchEnv, directory: &Path) -> Result<f64> {
    // GNU tar reads nothing when it sees that it writes to /dev/null.
    let mut command = run::command("sh");
    command.args(["-c", "tar -C \"$1\" -cf - . | wc -c", "sh"]).arg(directory);
    let ran = run::run(&mut command, LOAD_TIMEOUT)?;
    let bytes: usize = ran.out.trim().parse().context("tar said no size")?;
    ensure!(bytes > lab.sizes.small * SMALL_FILE_BYTES, "tar wrote {bytes} bytes only");
    Ok(lab.sizes.small as f64 / ran.seconds)
}

/// Runs a loader, and returns the two numbers that it prints.
fn python(lab: &BenchEnv, script: &str, path: &Path, arguments: &[&str]) -> Result<[f64; 2]> {
    let program = lab.venv("python3").unwrap_or_else(|| PathBuf::from("python3"));
    let ran = run::run(run::command(program).args(["-c", script]).arg(path).args(arguments), LOAD_TIMEOUT)?;
    let mut numbers = ran.out.split_whitespace().filter_map(|number| number.parse().ok());
    numbers.next().zip(numbers.next()).map(|(one, two)| [one, two]).context("a loader said no figures")
}

/// The time from the start of `bdnfs mount`, and from that of a download, to each step of loading a model.
fn begin(lab: &BenchEnv, size: u64) -> Result<Rows> {
    let bucket = BenchBucket::new(lab, size, |directory| model(directory, size))?;
    let objects: Vec<_> =
        bucket.objects()?.into_iter().filter(|object| object.key.ends_with("tensors")).collect();
    let mut times: [[Samples; 2]; 4] = Default::default();
    for _ in 0..lab.sizes.turns_when_noisy() {
        interrupt::check()?;
        let curl = bucket.in_room(lab, |room| {
            let done = bucket.server.download(&objects, room)?;
            let loaded = load(lab, room)?;
            Ok([done.written + head(room)?, done.written + first(room)?, done.written + loaded, done.durable])
        })?;
        let lazy = bucket.in_room(lab, |room| {
            let mount = bucket.mount(lab, room, false, &[])?;
            let byte = mount.took + head(mount.point())?;
            Ok([byte, byte + first(mount.point())?])
        })?;
        let loaded = bucket.in_room(lab, |room| {
            let mount = bucket.mount(lab, room, false, &[])?;
            Ok(mount.took + load(lab, mount.point())?)
        })?;
        let ready = bucket.in_room(lab, |room| Ok(bucket.mount(lab, room, true, &[])?.took))?;
        for (times, (curl, bdnfs)) in
            times.iter_mut().zip(curl.into_iter().zip([lazy[0], lazy[1], loaded, ready]))
        {
            times[0].push(curl);
            times[1].push(bdnfs);
        }
    }
    let names = [
        "from nothing to the first byte",
        "from nothing to the first shard, read whole",
        "from nothing to every tensor loaded",
        "from nothing to all of it local and durable",
    ];
    let pairs = names
        .iter()
        .zip(times)
        .map(|(name, times)| Comparison::new(name, MeasureUnit::Seconds, DOWNLOADED, times));
    Ok(Rows { pairs: pairs.collect(), ..Rows::default() })
}

fn load(lab: &BenchEnv, directory: &Path) -> Result<f64> {
    let script = include_str!("../loaders/safetensors_open.py");
    Ok(python(lab, script, directory, &[])?[0])
}

/// Seconds that reading the beginning of a shard takes.
fn head(directory: &Path) -> Result<f64> {
    let mut command = run::command("head");
    Ok(run::run(command.args(["-c", "1"]).arg(directory.join(SHARD)), LOAD_TIMEOUT)?.seconds)
}

/// Seconds that reading a shard takes.
fn first(directory: &Path) -> Result<f64> {
    cat(&directory.join(SHARD))
}
