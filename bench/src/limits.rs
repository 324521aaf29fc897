//! Limits: what this machine can do at the most, with any program. A figure elsewhere can be near one of these, not above it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::data::Noise;
use crate::fio::{self, FioJob, jobs};
use crate::interrupt;
use crate::lab::BenchEnv;
use crate::report::{BenchReport, Figure, Rows};
use crate::samples::Samples;
use crate::unit::MeasureUnit;

const ABOUT: &str = "What this machine can do at the most, with any program: the disk with large requests, one thread that copies \
    memory, one connection over loopback, one thread that hashes with BLAKE3.";
/// The size of a chunk: more than any processor's cache holds.
const CHUNK_BYTES: usize = 64 << 20;
/// How many chunks are moved in memory.
const CHUNKS: usize = 16;

/// A measurement of a limit in memory, in MB/s.
type Limit = fn() -> Result<f64>;

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    report.group("limits", "Limits of this machine", format!("{ABOUT} On the disk {} MiB.", size(lab) >> 20));
    report.measure("disk", || disk(lab))?;
    let limits =
        [("copying memory", copy as Limit), ("one connection over loopback", loopback), ("hashing", hash)];
    for (name, limit) in limits {
        report.measure(name, || {
            let samples =
                (0..lab.sizes.turns_when_noisy()).map(|_| interrupt::check().and_then(|()| limit()));
            Ok(figure(name, samples.collect::<Result<_>>()?))
        })?;
    }
    Ok(())
}

fn figure(name: &str, samples: Samples) -> Rows {
    Rows { figures: vec![Figure::new(name, MeasureUnit::Megabytes, samples)], ..Rows::default() }
}

fn size(lab: &BenchEnv) -> u64 {
    lab.sizes.size / 4
}

fn disk(lab: &BenchEnv) -> Result<Rows> {
    let (mut written, mut read) = (Samples::default(), Samples::default());
    let mut piece = vec![0; CHUNK_BYTES];
    Noise::new(1).fill(&mut piece);
    for _ in 0..lab.sizes.turns_when_noisy() {
        interrupt::check()?;
        let room = lab.room("limits", size(lab))?;
        let path = room.path().join("file");
        let begin = Instant::now();
        let mut file = File::create_new(&path).context("cannot make a file")?;
        for _ in 0..size(lab).div_ceil(CHUNK_BYTES as u64) {
            file.write_all(&piece).context("cannot write a file")?;
        }
        file.sync_all().context("cannot make a file durable")?;
        let bytes = size(lab).next_multiple_of(CHUNK_BYTES as u64);
        written.push(bytes as f64 / 1e6 / begin.elapsed().as_secs_f64());
        lab.drop_pages(&path)?;
        let job = FioJob { text: jobs::SEQUENTIAL_DROPPED, jobs: 2, seconds: 0, random: 0 };
        read.push(fio::read(&job, &path, bytes)?);
    }
    let mut rows = figure("disk: written and made durable", written);
    rows.figures.extend(figure("disk: read by 2 jobs", read).figures);
    Ok(rows)
}

fn rate(pieces: usize, begin: Instant) -> f64 {
    (pieces * CHUNK_BYTES) as f64 / 1e6 / begin.elapsed().as_secs_f64()
}

fn copy() -> Result<f64> {
    let (from, mut to) = (vec![1u8; CHUNK_BYTES], vec![0u8; CHUNK_BYTES]);
    let begin = Instant::now();
    for _ in 0..CHUNKS {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    Ok(rate(CHUNKS, begin))
}

fn loopback() -> Result<f64> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen on loopback")?;
    let address = listener.local_addr().context("cannot listen on loopback")?;
    let sender = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let piece = vec![1; CHUNK_BYTES];
        (0..CHUNKS).try_for_each(|_| stream.write_all(&piece))
    });
    let mut stream = TcpStream::connect(address).context("cannot connect over loopback")?;
    let (mut buffer, mut left) = (vec![0; 1 << 20], CHUNKS * CHUNK_BYTES);
    let begin = Instant::now();
    while left > 0 {
        match stream.read(&mut buffer).context("cannot read over loopback")? {
            0 => bail!("loopback ended early"),
            read => left -= read,
        }
    }
    let rate = rate(CHUNKS, begin);
    match sender.join() {
        Ok(sent) => sent.context("cannot send over loopback").map(|()| rate),
        Err(_) => bail!("a thread failed"),
    }
}

fn hash() -> Result<f64> {
    let mut work = hot::all().get("verify").context("verify is missing")?()?;
    let blocks = CHUNK_BYTES >> 20;
    let begin = Instant::now();
    (0..CHUNKS * blocks).for_each(|_| {
        std::hint::black_box(work());
    });
    Ok(rate(CHUNKS, begin))
}
