//! Small: many files, where names and opens are what costs.

use std::borrow::Cow;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::data::{self, FILES_IN_DIRECTORY};
use crate::lab::Lab;
use crate::mount::{Mount, Plan};
use crate::probe::{Probe, What};
use crate::report::{Pair, Prototype, Report, Rows};
use crate::run::{self, Running};
use crate::samples::{Side, in_turn};
use crate::unit::Unit;

const ABOUT: &str = "Files of 8 KiB in directories of 1,000, all local (open, read), and one directory of many files \
    (stat, list), in files per second. The prototypes' figures were taken once on Linux 6.18 with two cores: compare \
    their ratios alone.";
/// How long `ls -f` may take.
const LIST: Duration = Duration::from_secs(300);
/// The size of a small file: a tokenizer's, a label's, a thumbnail's.
const SMALL: usize = 8 << 10;
/// The size of a file that is never read.
const TINY: usize = 1;

const PASSTHROUGH: &str = "passthrough";
const ENOSYS: &str = "open answered ENOSYS";
const PACK: &str = "slices of one pack";
const PACK_ENOSYS: &str = "pack, open answered ENOSYS";
const READDIRPLUS: &str = "READDIRPLUS";

/// What the kernel has cached when a probe begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// All that the probe touches.
    Hot,
    /// All but what it knows through the mount.
    Mounted,
    /// Nothing.
    Cold,
}

/// What is done, beginning how.
struct Case {
    name: &'static str,
    work: Work,
    begin: Begin,
    prototypes: &'static [Prototype],
}

/// What is done.
#[derive(Clone, Copy)]
enum Work {
    Probe(What, usize),
    List,
}

const fn prototype(kind: &'static str, reached: f64, native: f64) -> Prototype {
    Prototype { kind: Cow::Borrowed(kind), reached, native }
}

const READ: [Case; 5] = [
    Case {
        name: "open, close; 1 thread, hot",
        work: Work::Probe(What::Open, 1),
        begin: Begin::Hot,
        prototypes: &[prototype(PASSTHROUGH, 23.6e3, 560e3), prototype(ENOSYS, 350e3, 560e3)],
    },
    Case {
        name: "open, close; 2 threads, hot",
        work: Work::Probe(What::Open, 2),
        begin: Begin::Hot,
        // 37,000 with a new backing id for each open, 67,000 with one that is kept.
        prototypes: &[prototype(PASSTHROUGH, 67e3, 850e3), prototype(ENOSYS, 650e3, 850e3)],
    },
    Case {
        name: "open, read, close; hot",
        work: Work::Probe(What::Read, 1),
        begin: Begin::Hot,
        prototypes: &[],
    },
    Case {
        name: "open, read, close; the mount is new, the cache's files are hot",
        work: Work::Probe(What::Read, 1),
        begin: Begin::Mounted,
        prototypes: &[prototype(PASSTHROUGH, 13e3, 260e3), prototype(PACK_ENOSYS, 17.4e3, 260e3)],
    },
    Case {
        name: "open, read, close; all cold",
        work: Work::Probe(What::Read, 1),
        begin: Begin::Cold,
        prototypes: &[prototype(PASSTHROUGH, 8.3e3, 14.2e3), prototype(PACK, 9.9e3, 14.2e3)],
    },
];

const LISTED: [Case; 5] = [
    Case {
        name: "stat; hot",
        work: Work::Probe(What::Stat, 1),
        begin: Begin::Hot,
        prototypes: &[prototype(READDIRPLUS, 900e3, 950e3)],
    },
    Case { name: "list and stat; hot", work: Work::Probe(What::Walk, 1), begin: Begin::Hot, prototypes: &[] },
    Case {
        name: "list and stat; cold",
        work: Work::Probe(What::Walk, 1),
        begin: Begin::Cold,
        prototypes: &[prototype(READDIRPLUS, 277e3, 133e3)],
    },
    Case { name: "ls -f; hot", work: Work::List, begin: Begin::Hot, prototypes: &[] },
    Case { name: "ls -f; cold", work: Work::List, begin: Begin::Cold, prototypes: &[] },
];

/// Measures all of it.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &Lab, report: &mut Report) -> Result<()> {
    let (small, listed) = (lab.sizes.small, lab.sizes.listed);
    report.group("small", "Many files", format!("{ABOUT} {small} files; {listed} in the one directory."));
    with_tree(lab, report, &READ, || Tree::make(lab, small, FILES_IN_DIRECTORY, SMALL))?;
    with_tree(lab, report, &LISTED, || Tree::make(lab, listed, listed, TINY))
}

fn with_tree(
    lab: &Lab,
    report: &mut Report,
    cases: &[Case],
    make: impl FnOnce() -> Result<Tree>,
) -> Result<()> {
    let mut tree = None;
    report.measure("a tree of files", || {
        tree = Some(make()?);
        Ok(Rows::default())
    })?;
    let Some(tree) = tree else { return Ok(()) };
    cases.iter().try_for_each(|case| report.measure(case.name, || tree.compare(lab, case)))
}

/// A directory with many files.
struct Tree {
    room: TempDir,
    source: PathBuf,
    files: usize,
    per_directory: usize,
    /// Whether the files are read, and so are to be local.
    read: bool,
    /// For how many seconds what is hot is done.
    hot: u64,
}

impl Tree {
    fn make(lab: &Lab, files: usize, per_directory: usize, size: usize) -> Result<Self> {
        // Each small file takes a block of 4 KiB at the least, in the source and in the cache, and an inode.
        let room = lab.room("small", 2 * (files * (size + (8 << 10))) as u64)?;
        let source = room.path().join("source");
        data::tree(&source, files, per_directory, size)?;
        let (read, hot) = (size == SMALL, lab.sizes.hot);
        let tree = Self { room, source, files, per_directory, read, hot };
        tree.mount(lab)?;
        Ok(tree)
    }

    fn mount(&self, lab: &Lab) -> Result<Mount> {
        let uri = format!("file://{}", self.source.display());
        Mount::new(
            lab,
            &Plan {
                source: &uri,
                room: self.room.path(),
                wait: self.read,
                env: &[],
                options: &[],
                link: None,
            },
        )
    }

    fn compare(&self, lab: &Lab, case: &Case) -> Result<Pair> {
        if case.begin == Begin::Mounted {
            // What lies below the mount is to be in memory, and so is what it is compared with.
            self.work(case, &self.source)?;
            self.work(case, self.mount(lab)?.point())?;
        }
        // What is hot is repeated within each turn.
        let turns = if case.begin == Begin::Hot { lab.sizes.runs } else { lab.sizes.more() };
        let sides = in_turn(turns, |side| {
            // A new mount for each turn: nothing of the last one is cached in it.
            let mount = (side == Side::Bdnfs).then(|| self.mount(lab)).transpose()?;
            let directory = mount.as_ref().map_or(self.source.as_path(), Mount::point);
            if case.begin == Begin::Cold {
                lab.drop_caches()?;
            }
            self.work(case, directory)
        })?;
        let pair = Pair::new(case.name, Unit::Files, &lab.native, sides);
        Ok(Pair { prototypes: case.prototypes.to_vec(), ..pair })
    }

    fn work(&self, case: &Case, directory: &Path) -> Result<f64> {
        let hot = (case.begin == Begin::Hot).then_some(self.hot);
        match case.work {
            Work::List => {
                if hot.is_some() {
                    list(directory)?;
                }
                let (mut seconds, mut passes) = (0.0, 0);
                while passes == 0 || seconds < hot.unwrap_or(0) as f64 {
                    seconds += list(directory)?;
                    passes += 1;
                }
                Ok((passes * self.files) as f64 / seconds)
            }
            Work::Probe(what, threads) => {
                let (directory, files, per_directory) =
                    (directory.to_owned(), self.files, self.per_directory);
                Probe { what, directory, files, per_directory, threads, hot }.run()
            }
        }
    }
}

/// Lists the one directory in `tree`, and answers with the seconds that it took.
fn list(tree: &Path) -> Result<f64> {
    let null = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    let directory = tree.join(data::name(0, 1));
    let directory = directory.parent().unwrap_or(tree);
    Ok(Running::start(run::command("ls").arg("-f").arg(directory), null)?.wait(LIST)?.seconds)
}
