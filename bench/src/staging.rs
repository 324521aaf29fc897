//! Staging: all of a source is made local and durable, beside the usual clients for downloads.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::bucket::BenchBucket;
use crate::clients::{self, CopyClient};
use crate::lab::BenchEnv;
use crate::report::{BenchReport, Comparison, Rows};
use crate::samples::Samples;
use crate::unit::MeasureUnit;
use crate::{cold, data, interrupt};

const ABOUT: &str = "A bucket is copied to the local disk, from the command's start until all of it is durable. bdnfs: `mount \
    --wait` with an empty cache, from the origin and from its mirror on the same server, and again with what an earlier mount \
    left. The others at the settings that their manuals give for speed, and then a sync.";
/// The share of a download that bdnfs must reach.
const WANTED_RATIO: f64 = 0.85;
const CURL: &str = "8 curls";
/// The size of a small file: what [`crate::probe`] reads at once.
pub const STAGED_FILE_BYTES: usize = 64 << 10;
/// How many small files of the other groups there are for one of these.
pub const TREE_FILES_PER_STAGED_FILE: usize = 25;

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    let (size, files) = (lab.sizes.size / 2, lab.sizes.small / TREE_FILES_PER_STAGED_FILE);
    let about = format!("{ABOUT} Large: 4 files, {} MiB in all. Small: {files} files of 64 KiB.", size >> 20);
    report.group("staging", "Staging", about);
    for client in CopyClient::ALL {
        if let Err(why) = client.installed(lab) {
            report.miss(client.name(), format!("{why:#}"));
        }
    }
    report.measure("large files", || compare(lab, "large files", &cold::bucket(lab, 4, size)?))?;
    report.measure("small files", || compare(lab, "small files", &small(lab, files)?))
}

/// A bucket with small files.
///
/// # Errors
/// The disk fails, or the server does not start.
pub fn small(lab: &BenchEnv, files: usize) -> Result<BenchBucket> {
    BenchBucket::new(lab, (files * STAGED_FILE_BYTES) as u64, |directory| {
        data::tree(directory, files, data::FILES_IN_DIRECTORY, STAGED_FILE_BYTES)
    })
}

/// Seconds of every contender, by what it did.
type TimesByClient = BTreeMap<&'static str, Samples>;

fn compare(lab: &BenchEnv, name: &str, bucket: &BenchBucket) -> Result<Rows> {
    bucket.add(lab)?;
    let clients: Vec<_> =
        CopyClient::ALL.into_iter().filter(|client| client.installed(lab).is_ok()).collect();
    let (mut first, mut again) = (TimesByClient::new(), TimesByClient::new());
    // No user would run one curl for each of many files.
    let curl = bucket.objects()?.len() <= 8;
    for _ in 0..lab.sizes.turns_when_noisy() {
        interrupt::check()?;
        for client in &clients {
            let [cold, warm] = bucket.in_room(lab, |room| copied(lab, *client, bucket, room))?;
            first.entry(client.name()).or_default().push(cold);
            again.entry(client.again()).or_default().push(warm);
        }
        if curl {
            let done = bucket.in_room(lab, |room| bucket.server.download(&bucket.objects()?, room))?;
            first.entry(CURL).or_default().push(done.durable);
        }
        for (kind, options) in [(ORIGIN, &[][..]), (MIRROR, &bucket.mirror()[..])] {
            let [cold, warm] = bucket.in_room(lab, |room| staged(lab, bucket, room, options))?;
            first.entry(kind).or_default().push(cold);
            if kind == MIRROR {
                again.entry(RESTAGE).or_default().push(warm);
            }
        }
    }
    let bytes = bucket.bytes()? as f64 / 1e6;
    let rates = |seconds: &Samples| seconds.rates(bytes);
    let mut rows = Rows::default();
    for kind in [ORIGIN, MIRROR] {
        let others = first.iter().filter(|(who, _)| ![ORIGIN, MIRROR].contains(who));
        rows.pairs.extend(others.map(|(who, seconds)| {
            let sides = [rates(seconds), rates(&first[kind])];
            Comparison::new(
                &format!("{name}, {kind}"),
                MeasureUnit::Megabytes,
                &format!("{who}, then sync"),
                sides,
            )
            .with_wanted(WANTED_RATIO)
        }));
    }
    let others = again.iter().filter(|(who, _)| **who != RESTAGE);
    rows.pairs.extend(others.map(|(who, seconds)| {
        Comparison::new(
            &format!("{name}, {RESTAGE}"),
            MeasureUnit::Seconds,
            who,
            [seconds.clone(), again[RESTAGE].clone()],
        )
    }));
    Ok(rows)
}

const ORIGIN: &str = "from the origin";
const MIRROR: &str = "from the mirror";
const RESTAGE: &str = "once more, all of it being here";

/// Seconds of a copy, and of another one over it.
fn copied(lab: &BenchEnv, client: CopyClient, bucket: &BenchBucket, room: &Path) -> Result<[f64; 2]> {
    let begin = Instant::now();
    client.copy(lab, bucket, room, false)?;
    clients::sync(room)?;
    let first = begin.elapsed().as_secs_f64();
    Ok([first, client.copy(lab, bucket, room, true)?])
}

/// Seconds of a mount until all is local, and of another one with the same cache.
fn staged(lab: &BenchEnv, bucket: &BenchBucket, room: &Path, options: &[&str]) -> Result<[f64; 2]> {
    let first = bucket.mount(lab, room, true, options)?.took;
    Ok([first, bucket.mount(lab, room, true, options)?.took])
}
