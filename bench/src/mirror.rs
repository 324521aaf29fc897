//! The mirror: what it costs to copy a source into it, and what is gained by reading from there.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::bucket::BenchBucket;
use crate::clients::{self, CopyClient};
use crate::data::{self, FILES_IN_DIRECTORY};
use crate::lab::BenchEnv;
use crate::link::ShapedLink;
use crate::report::{BenchReport, Comparison, Figure, Rows};
use crate::run::{self, RunningProgram};
use crate::s3::{self, BucketObject};
use crate::samples::{Samples, Side, in_turn};
use crate::staging::{STAGED_FILE_BYTES, TREE_FILES_PER_STAGED_FILE};
use crate::unit::MeasureUnit;
use crate::{cold, interrupt};

const ABOUT: &str = "Source and mirror lie on one S3 server on loopback. Adding is compared with downloading and uploading by \
    aws at its fast settings; staging with an empty cache, until all is durable, with 8 curls and a sync. Small files are \
    staged beside one GET a file, by one curl that asks for one after the other and by 8 of them, each over connections that it \
    keeps, and then a sync; and beside bdnfs without the mirror. On loopback a request costs next to nothing, so all is measured \
    once more with a server that takes 10 ms to begin each answer, less than object stores do for who is in their region. Where one GET a \
    file takes long, as many files as tell the rate are fetched so; bdnfs without the mirror, one directory of 1,000.";
/// The share of a download and an upload that adding must reach.
const WANTED_ADD_RATIO: f64 = 0.6;
/// The share of a parallel download that staging must reach.
const WANTED_STAGE_RATIO: f64 = 0.85;
/// How much faster packs are to be than one request a file.
const WANTED_PACKED_RATIO: f64 = 10.0;
/// The size of a tiny file: a sample of a few hundred tokens.
const TINY_FILE_BYTES: usize = 4 << 10;
const LINK_RATE: &str = "1gbit";
/// The latency of a store on another machine. Amazon names 100 to 200 ms for small objects (its manual's chapter
/// on performance), measurements from within a region give 10 to 30: this is kind to one GET a file.
const STORE_LATENCY: Duration = Duration::from_millis(10);
/// How many files each curl fetches at the most: enough to know the rate.
const FILES_PER_CURL: usize = 250;

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    let (tiny, small) = (2 * lab.sizes.small, lab.sizes.small / TREE_FILES_PER_STAGED_FILE);
    let size = lab.sizes.size;
    let sizes = format!("{} MiB, of text {} MiB.", size >> 20, text_size(lab) >> 20);
    report.group("mirror", "Mirror", format!("{ABOUT} {sizes}"));
    report.measure("add", || add(lab))?;
    report.measure("one large file", || large(lab))?;
    for (name, files, bytes) in
        [("files of 4 KiB", tiny, TINY_FILE_BYTES), ("files of 64 KiB", small, STAGED_FILE_BYTES)]
    {
        report.measure(name, || packed(lab, &format!("{files} {name}"), files, bytes))?;
    }
    report.measure("text", || text(lab))
}

fn add(lab: &BenchEnv) -> Result<Comparison> {
    CopyClient::Aws.installed(lab)?;
    let size = lab.sizes.size;
    let bucket = cold::bucket(lab, 4, size)?;
    let sides = in_turn(lab.sizes.runs, |side| {
        bucket.delete_mirror()?;
        let seconds = bucket.in_room(lab, |room| match side {
            Side::Bdnfs => bucket.add(lab),
            Side::Baseline => {
                let down = CopyClient::Aws.copy(lab, &bucket, room, false)?;
                Ok(down + CopyClient::Aws.upload(lab, &bucket, room, "mirror")?)
            }
        })?;
        Ok(size as f64 / 1e6 / seconds)
    })?;
    Ok(Comparison::new("mirror add", MeasureUnit::Megabytes, "aws s3 cp down and up", sides)
        .with_wanted(WANTED_ADD_RATIO))
}

fn large(lab: &BenchEnv) -> Result<Comparison> {
    let size = lab.sizes.size;
    let bucket = cold::bucket(lab, 1, size)?;
    let objects = bucket.objects()?;
    bucket.add(lab)?;
    let sides = in_turn(lab.sizes.runs, |side| {
        let seconds = bucket.in_room(lab, |room| match side {
            Side::Bdnfs => Ok(bucket.mount(lab, room, true, &bucket.mirror())?.took),
            Side::Baseline => Ok(bucket.server.download(&objects, room)?.durable),
        })?;
        Ok(size as f64 / 1e6 / seconds)
    })?;
    let pair = Comparison::new("one large file, cold", MeasureUnit::Megabytes, "8 curls, then fsync", sides);
    Ok(pair.with_wanted(WANTED_STAGE_RATIO))
}

fn packed(lab: &BenchEnv, name: &str, files: usize, bytes: usize) -> Result<Rows> {
    let mut bucket = BenchBucket::new(lab, (files * bytes.max(8 << 10)) as u64, |directory| {
        data::tree(directory, files, FILES_IN_DIRECTORY, bytes)
    })?;
    bucket.add(lab)?;
    let mut pairs = beside(lab, &bucket, &format!("{name}, cold"))?;
    bucket.set_latency(lab, STORE_LATENCY)?;
    let away = format!("{name}, cold, each answer after {} ms", STORE_LATENCY.as_millis());
    pairs.extend(beside(lab, &bucket, &away)?);
    Ok(Rows { pairs, ..Rows::default() })
}

/// Staging from the mirror, beside one curl, beside many, and beside bdnfs without the mirror.
fn beside(lab: &BenchEnv, bucket: &BenchBucket, name: &str) -> Result<Vec<Comparison>> {
    let others = [1, s3::PARALLEL_RANGES as usize];
    let objects = bucket.objects()?;
    let all = objects.len();
    let (mut curls, mut origin, mut mirror) =
        ([Samples::default(), Samples::default()], Samples::default(), Samples::default());
    for _ in 0..lab.sizes.runs {
        interrupt::check()?;
        for (samples, curls) in curls.iter_mut().zip(others) {
            let objects = &objects[..(curls * FILES_PER_CURL).min(all)];
            let seconds = bucket.in_room(lab, |room| one_by_one(bucket, objects, curls, room))?;
            samples.push(objects.len() as f64 / seconds);
        }
        let seconds =
            bucket.in_room(lab, |room| Ok(bucket.mount_part(lab, &data::directory(0), room, true)?.took))?;
        origin.push(all.min(FILES_IN_DIRECTORY) as f64 / seconds);
        let seconds =
            bucket.in_room(lab, |room| Ok(bucket.mount(lab, room, true, &bucket.mirror())?.took))?;
        mirror.push(all as f64 / seconds);
    }
    let pair = |against: &str, baseline: Samples| {
        Comparison::new(name, MeasureUnit::Files, against, [baseline, mirror.clone()])
            .with_wanted(WANTED_PACKED_RATIO)
    };
    let [one, several] = curls;
    Ok(vec![
        pair("one GET a file, one after the other, then sync", one),
        pair(&format!("one GET a file, {} curls, then sync", others[1]), several),
        pair("bdnfs without the mirror", origin),
    ])
}

/// Seconds in which so many `curls` bring all `objects`, each of them one after the other.
fn one_by_one(bucket: &BenchBucket, objects: &[BucketObject], curls: usize, room: &Path) -> Result<f64> {
    let begin = Instant::now();
    let curls = objects.chunks(objects.len().div_ceil(curls)).map(|objects| {
        let mut curl = run::command("curl");
        curl.args(["--config", "-", "--create-dirs"]).stdin(Stdio::from(bucket.server.config_of(objects)?));
        let null = std::fs::File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
        RunningProgram::start(curl.current_dir(room), null)
    });
    let curls: Vec<_> = curls.collect::<Result<_>>()?;
    curls.into_iter().try_for_each(|curl| curl.wait(s3::DOWNLOAD_TIMEOUT).map(drop))?;
    clients::sync(room)?;
    Ok(begin.elapsed().as_secs_f64())
}

fn text_size(lab: &BenchEnv) -> u64 {
    lab.sizes.size / 16
}

/// Text, which the mirror compresses, over a link that is slower than the machine.
fn text(lab: &BenchEnv) -> Result<Rows> {
    let link = ShapedLink::new(LINK_RATE)?;
    let size = text_size(lab);
    let bucket = BenchBucket::behind(lab, Some(link), size, |directory| {
        data::text(&directory.join("text.csv"), size)
    })?;
    let mut kept = Samples::default();
    for _ in 0..lab.sizes.runs {
        bucket.delete_mirror()?;
        bucket.add(lab)?;
        kept.push(bucket.mirrored()? as f64 / size as f64);
    }
    let sides = in_turn(lab.sizes.runs, |side| {
        let mirror = bucket.mirror();
        let options = if side == Side::Bdnfs { &mirror[..] } else { &[] };
        let seconds = bucket.in_room(lab, |room| Ok(bucket.mount(lab, room, true, options)?.took))?;
        Ok(size as f64 / 1e6 / seconds)
    })?;
    Ok(Rows {
        pairs: vec![
            Comparison::new(
                "text over 1 Gbit/s, cold",
                MeasureUnit::Megabytes,
                "bdnfs without the mirror",
                sides,
            )
            .with_wanted(1.0),
        ],
        figures: vec![Figure {
            limit: Some(0.5),
            ..Figure::new("text as the mirror keeps it", MeasureUnit::StoredPerByte, kept)
        }],
        ..Rows::default()
    })
}
