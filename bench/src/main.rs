//! `bdnfs-bench`: how fast a mount is, beside the disk's own file system, other file systems and other ways to download,
//! measured in one run.
//!
//! It knows bdnfs from outside only: it runs the command, reads through mounts, and looks at the agent in /proc. Only the
//! hot functions, whose instructions it counts, it calls itself.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

mod agent;
mod bucket;
mod cat;
mod clients;
mod cluster;
mod cold;
mod comparison;
mod cost;
mod data;
mod docs;
mod fio;
mod groups;
mod hooks;
mod instructions;
mod interrupt;
mod lab;
mod limits;
mod link;
mod listing;
mod loaders;
mod local;
mod machine;
mod memory;
mod mirror;
mod mount;
mod native;
mod peer;
mod probe;
mod process;
mod report;
mod rivals;
mod run;
mod s3;
mod samples;
mod small;
mod staging;
mod unit;
mod volumes;

use bytesize::ByteSize;
use comparison::ReportComparison;
use groups::GroupName;
use interrupt::Interrupted;
use lab::{BenchEnv, Sizes};
use machine::{HostInfo, Ticks};
use probe::TreeProbe;
use report::BenchReport;

/// The page with the figures.
const FIGURES_PAGE: &str = "docs/performance.md";
/// What a shell reports of a process that SIGINT ended.
const INTERRUPTED_EXIT_CODE: u8 = 130;

/// Measure bdnfs on this machine; writes NAME.json and NAME.md
#[derive(Debug, Parser)]
#[command(name = "bdnfs-bench", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct MeasureArgs {
    /// Small sizes and three turns, to see that everything works; trust no figure
    #[arg(long)]
    quick: bool,
    /// Smaller sizes, but five turns a row: for a small machine, in half an hour
    #[arg(long, conflicts_with = "quick")]
    medium: bool,
    /// Bytes of a large file, or of all files of a group; by default 4G
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// Directory for temporary files, on the disk to be measured; by default target/bench in bdnfs's sources, elsewhere
    /// the current directory
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Where to write the report; by default bench/results in bdnfs's sources, elsewhere the current directory
    #[arg(long)]
    out: Option<PathBuf>,
    /// Name of the report; by default the date
    #[arg(long)]
    name: Option<String>,
    /// Turns of each row; by default 5
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    runs: Option<u8>,
    /// Measure only these groups
    #[arg(long, value_enum, value_name = "GROUP", num_args = 1..)]
    only: Vec<GroupName>,
    /// Keep the other groups of an existing report of this name
    #[arg(long)]
    keep: bool,
    /// Also write the figures into docs/performance.md
    #[arg(long)]
    publish: bool,
    /// Start no row after this time; each group has a share of it, and its rest goes to those after it
    #[arg(long, value_name = "TIME", default_value = "2h")]
    limit: humantime::Duration,
    /// Compare with an earlier report, and fail where a row that it has is worse
    #[arg(long, value_name = "JSON")]
    against: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<BenchCommand>,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Compare a report with an earlier one, and fail where it is worse
    Compare {
        /// The earlier one
        old: PathBuf,
        /// The later one
        new: PathBuf,
    },
    /// Write the tables of a report anew, beside it
    Tables {
        /// The report
        json: PathBuf,
    },
    /// Write a report's figures into a page between its marks, or check them
    Docs {
        /// The page
        text: PathBuf,
        /// Use this report instead, by its path from the page's directory
        #[arg(long, value_name = "JSON")]
        from: Option<String>,
        /// Change nothing, and fail where the page and its report differ
        #[arg(long, conflicts_with = "from")]
        check: bool,
    },
    /// Run a hot function
    #[command(hide = true)]
    Hot {
        /// Its name
        name: String,
        /// How often
        times: u32,
    },
    /// Loop over the files of a tree, and print the seconds
    #[command(hide = true)]
    Probe(TreeProbe),
}

fn work(name: &str, times: u32) -> Result<()> {
    let mut work = hot::all().get(name).with_context(|| format!("nothing hot is called {name}"))?()?;
    for _ in 0..times {
        std::hint::black_box(work());
    }
    Ok(())
}

fn main() -> ExitCode {
    let cli = MeasureArgs::parse();
    let done = match &cli.command {
        Some(BenchCommand::Probe(probe)) => probe.here().map(|seconds| println!("{seconds}")),
        Some(BenchCommand::Tables { json }) => tables(json),
        Some(BenchCommand::Docs { text, check: true, .. }) => docs::check(text),
        Some(BenchCommand::Docs { text, from, .. }) => docs::write(text, from.as_deref()),
        Some(BenchCommand::Hot { name, times }) => work(name, *times),
        Some(BenchCommand::Compare { old, new }) => {
            BenchReport::read(old).and_then(|old| judge(&old, &BenchReport::read(new)?))
        }
        None => measure(&cli),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bdnfs-bench: {error:#}");
            if error.is::<Interrupted>() { ExitCode::from(INTERRUPTED_EXIT_CODE) } else { ExitCode::FAILURE }
        }
    }
}

fn measure(cli: &MeasureArgs) -> Result<()> {
    interrupt::watch();
    // Before anything is measured, it is known whether it can be judged.
    let old = cli.against.as_deref().map(BenchReport::read).transpose()?;
    anyhow::ensure!(
        !cli.publish || Path::new(FIGURES_PAGE).is_file(),
        "{FIGURES_PAGE} is not here; --publish needs bdnfs's sources"
    );
    let now = SystemTime::now();
    let name = cli
        .name
        .clone()
        .unwrap_or_else(|| humantime::format_rfc3339_seconds(now).to_string()[..10].to_owned());
    let sources = Path::new("bench/results").is_dir();
    let or_here = |path: &Option<PathBuf>, usual: &str| {
        path.clone().unwrap_or_else(|| if sources { usual.into() } else { ".".into() })
    };
    let (dir, out) = (or_here(&cli.dir, "target/bench"), or_here(&cli.out, "bench/results"));
    std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let machine = HostInfo::describe(&dir, &lab::sibling_program("bdnfs")?, now);
    let sizes = sizes(cli);
    let lab = BenchEnv::new(&dir, sizes, machine.file_system().to_owned())?;
    let mut report = BenchReport::new(machine, sizes);
    let earlier = out.join(format!("{name}.json"));
    if cli.keep && earlier.exists() {
        report.keep(BenchReport::read(&earlier)?);
    }
    let mut paths = None;
    for (group, until) in groups::in_time(&cli.groups(), Instant::now(), cli.limit.into()) {
        let (begin, ticks) = (Instant::now(), Ticks::now());
        report.until(until);
        group.measure(&lab, &mut report)?;
        report.took(begin.elapsed(), Ticks::now().since(ticks));
        // After each, so that an interruption costs no more than the group that it falls into.
        paths = Some(report.write(&out, &name)?);
    }
    paths.iter().flatten().for_each(|path| println!("{}", path.display()));
    if cli.publish {
        docs::write(Path::new(FIGURES_PAGE), Some(&format!("../{}/{name}.json", out.display())))?;
    }
    eprint!("{}", report.noise());
    old.map_or(Ok(()), |old| judge(&old, &report))
}

fn tables(json: &Path) -> Result<()> {
    let directory = json.parent().unwrap_or(Path::new("."));
    let name = json.file_stem().and_then(|name| name.to_str()).context("a report's name ends in .json")?;
    let paths = BenchReport::read(json)?.write(directory, name)?;
    paths.iter().for_each(|path| println!("{}", path.display()));
    Ok(())
}

fn sizes(cli: &MeasureArgs) -> Sizes {
    let sizes = match (cli.quick, cli.medium) {
        (true, _) => Sizes::QUICK,
        (_, true) => Sizes::MEDIUM,
        _ => Sizes::FULL,
    };
    Sizes {
        runs: cli.runs.map_or(sizes.runs, usize::from),
        size: cli.size.map_or(sizes.size, |size| size.as_u64()),
        ..sizes
    }
}

impl MeasureArgs {
    /// The groups to measure.
    fn groups(&self) -> Vec<GroupName> {
        GroupName::all().filter(|group| self.only.is_empty() || self.only.contains(group)).collect()
    }
}

fn judge(old: &BenchReport, new: &BenchReport) -> Result<()> {
    let verdict = ReportComparison::new(old, new);
    print!("{verdict}");
    match (verdict.compared(), verdict.worse()) {
        (0, _) => bail!("the reports have no row in common"),
        (_, 0) => Ok(()),
        (all, worse) => bail!("{worse} of {all} rows are worse than they were"),
    }
}
