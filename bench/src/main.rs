//! `bdnfs-bench`: how fast a mount is, beside the disk's own file system and beside curl, measured in one run.
//!
//! It knows bdnfs from outside only: it runs the command, reads through mounts, and looks at the daemon in /proc.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};

mod cold;
mod data;
mod fio;
mod interrupt;
mod lab;
mod listing;
mod local;
mod machine;
mod memory;
mod mount;
mod probe;
mod process;
mod report;
mod run;
mod s3;
mod samples;
mod small;

use interrupt::Interrupted;
use lab::{Lab, Sizes};
use machine::Machine;
use probe::Probe;
use report::Report;

/// What a shell reports of a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Measure bdnfs on this machine; writes NAME.json and NAME.md
#[derive(Debug, Parser)]
#[command(name = "bdnfs-bench", version, max_term_width = 100, args_conflicts_with_subcommands = true)]
struct Cli {
    /// Small sizes and three runs: see that everything works; trust no figure
    #[arg(long)]
    quick: bool,
    /// Where to keep files meanwhile, on the disk that is to be measured
    #[arg(long, default_value = "target/bench")]
    dir: PathBuf,
    /// Where to write the report
    #[arg(long, default_value = "bench/results")]
    out: PathBuf,
    /// What to call it; by default the date
    #[arg(long)]
    name: Option<String>,
    /// How often to measure everything; by default 5 times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    runs: Option<u8>,
    /// Measure only these
    #[arg(long, value_enum, value_name = "GROUP", num_args = 1..)]
    only: Vec<Only>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Loop over the files of a tree, and say how many seconds it took
    #[command(hide = true)]
    Probe(Probe),
}

/// A group of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Only {
    /// A local file, beside the disk's own file system
    Local,
    /// Downloads from S3, beside curl
    Cold,
    /// Many small files, beside the disk's own file system
    Small,
    /// What a tree of a million files costs
    Memory,
}

impl Only {
    fn measure(self, lab: &Lab, report: &mut Report) -> Result<()> {
        match self {
            Self::Local => local::measure(lab, report),
            Self::Cold => cold::measure(lab, report),
            Self::Small => small::measure(lab, report),
            Self::Memory => memory::measure(lab, report),
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.command {
        Some(Command::Probe(probe)) => probe.here().map(|seconds| println!("{seconds}")),
        None => measure(&cli),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bdnfs-bench: {error:#}");
            if error.is::<Interrupted>() { ExitCode::from(INTERRUPTED) } else { ExitCode::FAILURE }
        }
    }
}

fn measure(cli: &Cli) -> Result<()> {
    interrupt::watch();
    let now = SystemTime::now();
    let sizes = if cli.quick { Sizes::QUICK } else { Sizes::FULL };
    let sizes = Sizes { runs: cli.runs.map_or(sizes.runs, usize::from), ..sizes };
    std::fs::create_dir_all(&cli.dir).with_context(|| format!("cannot make {}", cli.dir.display()))?;
    let machine = Machine::describe(&cli.dir, now);
    let lab = Lab::new(&cli.dir, sizes, machine.file_system().to_owned())?;
    let mut report = Report::new(machine, cli.quick);
    for group in Only::value_variants() {
        if cli.only.is_empty() || cli.only.contains(group) {
            group.measure(&lab, &mut report)?;
        }
    }
    let name = cli
        .name
        .clone()
        .unwrap_or_else(|| humantime::format_rfc3339_seconds(now).to_string()[..10].to_owned());
    for path in report.write(&cli.out, &name)? {
        println!("{}", path.display());
    }
    Ok(())
}
