//! `bdnfs ls`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bdnfs::error::{Error, Kind};
use bdnfs::manifest::{Listing, Manifest, Node};
use bdnfs::origin;
use bdnfs_agent::runtime;
use rustix::fs::MemfdFlags;
use serde::Serialize;

use crate::{source, text};

/// What to list.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    source: source::Args,
    /// Tell each file as one JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs ls s3://models/llama-3-8b
  bdnfs ls --allow '*.safetensors' --json /data/models";

/// How many entries are looked at before the memory that they mapped is let go of.
const STRIDE: u32 = 100_000;

/// What can't be mounted.
#[derive(Serialize)]
struct Bad<'a> {
    bad: String,
    why: &'a str,
}

/// A file or a link.
#[derive(Debug, Serialize)]
struct Line {
    path: String,
    size: u64,
    mtime: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Lists its files by name.
pub fn run(args: &Args) -> Result<()> {
    if let Some(note) = args.source.uri().note() {
        eprintln!("note: {note}");
    }
    let manifest = runtime::block_on(manifest(args))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let name = if args.json { text::exact } else { text::name };
    walk(&manifest, name, |line| print(&mut out, args.json, line))?;
    if !args.json {
        let (files, size) = (text::files(manifest.files()), text::size(manifest.bytes()));
        writeln!(out, "total: {files}, {size} in {}", manifest.source())?;
    }
    Ok(out.flush()?)
}

async fn manifest(args: &Args) -> Result<Manifest> {
    let origin = origin::open(args.source.uri(), &args.source.how.access(args.source.uri())?).await?;
    let scratch = scratch();
    let mut listing = Listing::new(origin.name(), args.source.how.patterns()?, &scratch);
    let json = args.json;
    listing.on_rejected(move |path, why| {
        let bad = if json { text::exact(path) } else { text::name(path) };
        // That nobody reads it is no reason to say less on the standard error.
        let _ = match serde_json::to_string(&Bad { bad: bad.clone(), why }) {
            Ok(line) if json => writeln!(std::io::stdout(), "{line}"),
            _ => writeln!(std::io::stdout(), "{bad}: {why}"),
        };
    });
    origin.list(&mut listing).await.map_err(advise)?;
    for pattern in listing.unmatched() {
        eprintln!("note: {}", text::unmatched(pattern, &args.source.uri().to_string()));
    }
    let mut file = file(&scratch)?;
    listing.finish(&mut file).map_err(advise)?;
    Ok(Manifest::open(&file)?)
}

/// Where what is too much for memory goes. `/tmp` is memory on many machines.
fn scratch() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
}

/// Says where there could be room for what has none.
fn advise(error: Error) -> Error {
    match error.kind() {
        Kind::NoSpace | Kind::Disk => error.share().advise("TMPDIR can name another directory"),
        _ => error,
    }
}

/// A file without a name; in memory where the directory can't have one.
fn file(scratch: &Path) -> Result<File> {
    tempfile::tempfile_in(scratch).or_else(|_| {
        let file = rustix::fs::memfd_create("manifest", MemfdFlags::CLOEXEC);
        Ok(file.context("no memory for the listing")?.into())
    })
}

/// Goes through a tree, each directory in the order of its names; these as `name` writes them.
fn walk(
    manifest: &Manifest,
    name: fn(&[u8]) -> String,
    mut each: impl FnMut(&Line) -> Result<()>,
) -> Result<()> {
    let root = 0..1;
    let (mut ahead, mut looked) = (vec![root], 0);
    while let Some(range) = ahead.last_mut() {
        let Some(index) = range.next() else {
            ahead.pop();
            continue;
        };
        looked += 1;
        if looked % STRIDE == 0 {
            manifest.release_pages();
        }
        let entry = manifest.entry(index)?;
        let (size, target) = match entry.node {
            Node::Directory(children) => {
                ahead.push(children);
                continue;
            }
            Node::File(slice) => (slice.len, None),
            Node::Symlink(target) => (target.len() as u64, Some(name(target))),
        };
        each(&Line { path: name(&manifest.path(index)?), size, mtime: entry.mtime.0, target })?;
    }
    Ok(())
}

fn print(out: &mut impl Write, json: bool, line: &Line) -> Result<()> {
    if json {
        writeln!(out, "{}", serde_json::to_string(line)?)?;
        return Ok(());
    }
    write!(out, "{:>15}  {}  {}", line.size, text::minute(line.mtime), line.path)?;
    match &line.target {
        Some(target) => writeln!(out, " -> {target}")?,
        None => writeln!(out)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_reads_like_ls() {
        let line =
            Line { path: "a/b.bin".to_owned(), size: 13_500_000_000, mtime: 1_795_000_000, target: None };
        let mut out = Vec::new();
        print(&mut out, false, &line).expect("written");
        print(&mut out, true, &line).expect("written");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "    13500000000  2026-11-18 11:06  a/b.bin");
        assert_eq!(lines[1], r#"{"path":"a/b.bin","size":13500000000,"mtime":1795000000}"#);
    }
}
