//! `bdnfs ls`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bdnfs::error::{Error, Kind};
use bdnfs::manifest::{Listing, Manifest, Node};
use bdnfs::origin;
use rustix::fs::MemfdFlags;
use serde::Serialize;

use crate::access::option_name;
use crate::output::{STDOUT_CONTEXT, stderr_line};
use crate::runtime;
use crate::source::SourceArgs;
use crate::text;

/// The arguments of `bdnfs ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct ListArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// Print each file as a JSON object on a line of its own
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs ls s3://models/llama-3-8b
  bdnfs ls --allow '*.safetensors' --json /data/models";

/// The number of entries that are listed before their mapped memory is released.
const ENTRIES_PER_RELEASE: u32 = 100_000;

/// A file that cannot be mounted.
#[derive(Serialize)]
struct InvalidFile<'a> {
    bad: String,
    why: &'a str,
}

/// A file or symbolic link.
#[derive(Debug, Serialize)]
struct LsFile {
    path: String,
    size: u64,
    mtime: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

/// Lists the files of a source, by name.
pub fn run(args: &ListArgs) -> Result<()> {
    if let Some(note) = args.source.uri().note() {
        stderr_line!("note: {note}");
    }
    let manifest = runtime::block_on(manifest(args))?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let name = if args.json { text::json_name } else { text::printable };
    walk(&manifest, name, |line| print(&mut out, args.json, line))?;
    if !args.json {
        let (files, size) = (text::files(manifest.files()), text::size(manifest.bytes()));
        writeln!(out, "total: {files}, {size} in {}", manifest.source()).context(STDOUT_CONTEXT)?;
    }
    out.flush().context(STDOUT_CONTEXT)
}

async fn manifest(args: &ListArgs) -> Result<Manifest> {
    let (uri, options) = (args.source.uri(), &args.source.options);
    options.access.check(&[uri], None, option_name)?;
    let origin = origin::open(uri, &options.access(uri)?).await?;
    let scratch = scratch_directory();
    let mut listing = Listing::new(origin.name(), options.patterns()?, &scratch);
    let json = args.json;
    listing.on_rejected(move |path, why| {
        let bad = if json { text::json_name(path) } else { text::printable(path) };
        // A closed stdout is no reason to stop the listing, whose errors go to stderr.
        let _ = match serde_json::to_string(&InvalidFile { bad: bad.clone(), why }) {
            Ok(line) if json => writeln!(std::io::stdout(), "{line}"),
            _ => writeln!(std::io::stdout(), "{bad}: {why}"),
        };
    });
    origin.list(&mut listing).await.map_err(advise_scratch)?;
    for note in text::notes(&listing.notes(), &args.source.uri().to_string()) {
        stderr_line!("note: {note}");
    }
    let mut file = create_unnamed(&scratch)?;
    listing.finish(&mut file).map_err(advise_scratch)?;
    Ok(Manifest::open(&file)?)
}

/// The directory for listings that are too large for memory. `/tmp` is memory on many machines.
fn scratch_directory() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| "/var/tmp".into(), PathBuf::from)
}

/// Adds how to choose another scratch directory to an error.
fn advise_scratch(error: Error) -> Error {
    match error.kind() {
        Kind::NoSpace | Kind::Disk => error.share().advise("TMPDIR can name another directory"),
        _ => error,
    }
}

/// Creates an unnamed file, in memory where the directory cannot have one.
fn create_unnamed(scratch: &Path) -> Result<File> {
    tempfile::tempfile_in(scratch).or_else(|_| {
        let file = rustix::fs::memfd_create("manifest", MemfdFlags::CLOEXEC);
        Ok(file.context("cannot allocate memory for the listing")?.into())
    })
}

/// Walks a tree, each directory in name order; `name` formats names.
fn walk(
    manifest: &Manifest,
    name: fn(&[u8]) -> String,
    mut each: impl FnMut(&LsFile) -> Result<()>,
) -> Result<()> {
    let root = 0..1;
    let (mut pending, mut listed) = (vec![root], 0);
    while let Some(range) = pending.last_mut() {
        let Some(index) = range.next() else {
            pending.pop();
            continue;
        };
        listed += 1;
        if listed % ENTRIES_PER_RELEASE == 0 {
            manifest.release_pages();
        }
        let entry = manifest.entry(index)?;
        let (size, target) = match entry.node {
            Node::Directory(children) => {
                pending.push(children);
                continue;
            }
            Node::File(slice) => (slice.len, None),
            Node::Symlink(target) => (target.len() as u64, Some(name(target))),
        };
        each(&LsFile { path: name(&manifest.path(index)?), size, mtime: entry.mtime.0, target })?;
    }
    Ok(())
}

fn print(out: &mut impl Write, json: bool, line: &LsFile) -> Result<()> {
    let text = if json {
        serde_json::to_string(line)?
    } else {
        let target = line.target.as_ref().map_or(String::new(), |target| format!(" -> {target}"));
        format!("{:>15}  {}  {}{target}", line.size, text::minute(line.mtime), line.path)
    };
    writeln!(out, "{text}").context(STDOUT_CONTEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ls_prints_a_file_like_ls() {
        let line =
            LsFile { path: "a/b.bin".to_owned(), size: 13_500_000_000, mtime: 1_795_000_000, target: None };
        let mut out = Vec::new();
        print(&mut out, false, &line).expect("written");
        print(&mut out, true, &line).expect("written");
        let text = String::from_utf8(out).expect("text");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "    13500000000  2026-11-18 11:06  a/b.bin");
        assert_eq!(lines[1], r#"{"path":"a/b.bin","size":13500000000,"mtime":1795000000}"#);
    }
}
