//! The mirror: what it costs to copy a source into it, and what is gained by reading from there.

use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::bucket::Bucket;
use crate::clients::{self, Client};
use crate::data::{self, FILES_IN_DIRECTORY};
use crate::lab::Lab;
use crate::link::Link;
use crate::report::{Figure, Pair, Report, Rows};
use crate::run::{self, Running};
use crate::s3::{self, Object};
use crate::samples::{Side, in_turn};
use crate::staging::{FEWER, SMALL};
use crate::unit::Unit;
use crate::{cold, interrupt};

const ABOUT: &str = "Source and mirror lie on one S3 server on loopback. Adding is compared with downloading and uploading by \
    aws at its fast settings; staging with an empty cache, until all is durable, with 8 curls and a sync, and for small files \
    with 8 curls that ask for one file after the other, and with bdnfs without the mirror. On loopback a request costs next to \
    nothing: over a network, one request a file costs more.";
/// The part of a download and an upload that adding is to reach.
const WANTED_ADD: f64 = 0.6;
/// The part of a parallel download that staging is to reach.
const WANTED_STAGE: f64 = 0.85;
/// How much faster packs are to be than one request a file.
const WANTED_PACKED: f64 = 10.0;
/// The size of a tiny file: a sample of a few hundred tokens.
const TINY: usize = 4 << 10;
const RATE: &str = "1gbit";

/// Measures all of it.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &Lab, report: &mut Report) -> Result<()> {
    let (tiny, small) = (2 * lab.sizes.small, lab.sizes.small / FEWER);
    let size = lab.sizes.size;
    let sizes = format!("{} MiB, of text {} MiB.", size >> 20, text_size(lab) >> 20);
    report.group("mirror", "Mirror", format!("{ABOUT} {sizes}"));
    report.measure("add", || add(lab))?;
    report.measure("one large file", || large(lab))?;
    for (name, files, bytes) in [("files of 4 KiB", tiny, TINY), ("files of 64 KiB", small, SMALL)] {
        report.measure(name, || packed(lab, &format!("{files} {name}"), files, bytes))?;
    }
    report.measure("text", || text(lab))
}

fn add(lab: &Lab) -> Result<Pair> {
    Client::Aws.installed(lab)?;
    let size = lab.sizes.size;
    let bucket = cold::bucket(lab, 4, size)?;
    let sides = in_turn(lab.sizes.runs, |side| {
        bucket.forget()?;
        let seconds = bucket.in_room(lab, |room| match side {
            Side::Bdnfs => bucket.add(lab),
            Side::Baseline => {
                let down = Client::Aws.copy(lab, &bucket, room, false)?;
                Ok(down + Client::Aws.upload(lab, &bucket, room, "mirror")?)
            }
        })?;
        Ok(size as f64 / 1e6 / seconds)
    })?;
    Ok(Pair::new("mirror add", Unit::Megabytes, "aws s3 cp down and up", sides).wanting(WANTED_ADD))
}

fn large(lab: &Lab) -> Result<Pair> {
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
    let pair = Pair::new("one large file, cold", Unit::Megabytes, "8 curls, then fsync", sides);
    Ok(pair.wanting(WANTED_STAGE))
}

fn packed(lab: &Lab, name: &str, files: usize, bytes: usize) -> Result<Rows> {
    let bucket = Bucket::new(lab, (files * bytes.max(8 << 10)) as u64, |directory| {
        data::tree(directory, files, FILES_IN_DIRECTORY, bytes)
    })?;
    let objects = bucket.objects()?;
    bucket.add(lab)?;
    let (mut curl, mut origin, mut mirror) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..lab.sizes.runs {
        interrupt::check()?;
        curl.push(bucket.in_room(lab, |room| one_by_one(&bucket, &objects, room))?);
        origin.push(bucket.in_room(lab, |room| Ok(bucket.mount(lab, room, true, &[])?.took))?);
        mirror.push(bucket.in_room(lab, |room| Ok(bucket.mount(lab, room, true, &bucket.mirror())?.took))?);
    }
    let rate = |seconds: &[f64]| seconds.iter().map(|seconds| files as f64 / seconds).collect();
    let pair = |against, baseline: &[f64]| {
        Pair::new(&format!("{name}, cold"), Unit::Files, against, [rate(baseline), rate(&mirror)])
    };
    let pairs = vec![
        pair("one GET a file, 8 curls, then sync", &curl).wanting(WANTED_PACKED),
        pair("bdnfs without the mirror", &origin).wanting(WANTED_PACKED),
    ];
    Ok(Rows { pairs, ..Rows::default() })
}

/// Seconds in which as many curls as elsewhere bring all `objects`, each of them one after the other.
fn one_by_one(bucket: &Bucket, objects: &[Object], room: &Path) -> Result<f64> {
    let begin = Instant::now();
    let curls = objects.chunks(objects.len().div_ceil(s3::RANGES as usize)).map(|objects| {
        let mut curl = run::command("curl");
        curl.args(["--config", "-", "--create-dirs"]).stdin(Stdio::from(bucket.server.config_of(objects)?));
        let null = std::fs::File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
        Running::start(curl.current_dir(room), null)
    });
    let curls: Vec<_> = curls.collect::<Result<_>>()?;
    curls.into_iter().try_for_each(|curl| curl.wait(s3::DOWNLOAD).map(drop))?;
    clients::sync(room)?;
    Ok(begin.elapsed().as_secs_f64())
}

fn text_size(lab: &Lab) -> u64 {
    lab.sizes.size / 16
}

/// Text, which the mirror compresses, over a link that is slower than the machine.
fn text(lab: &Lab) -> Result<Rows> {
    let link = Link::new(RATE)?;
    let size = text_size(lab);
    let bucket =
        Bucket::behind(lab, Some(link), size, |directory| data::text(&directory.join("text.csv"), size))?;
    bucket.add(lab)?;
    let sides = in_turn(lab.sizes.runs, |side| {
        let mirror = bucket.mirror();
        let options = if side == Side::Bdnfs { &mirror[..] } else { &[] };
        let seconds = bucket.in_room(lab, |room| Ok(bucket.mount(lab, room, true, options)?.took))?;
        Ok(size as f64 / 1e6 / seconds)
    })?;
    let kept = [bucket.mirrored()? as f64 / size as f64].into_iter().collect();
    Ok(Rows {
        pairs: vec![
            Pair::new("text over 1 Gbit/s, cold", Unit::Megabytes, "bdnfs without the mirror", sides)
                .wanting(1.0),
        ],
        figures: vec![Figure {
            limit: Some(0.5),
            ..Figure::new("text as the mirror keeps it", Unit::Kept, kept)
        }],
        ..Rows::default()
    })
}
