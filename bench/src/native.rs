//! Native: small files that the kernel serves alone, beside the disk's own file system, and beside an EROFS by mkfs.erofs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

use crate::data::FILES_IN_DIRECTORY;
use crate::lab::BenchEnv;
use crate::report::BenchReport;
use crate::run;
use crate::small::{Baseline, READ_CASES, SMALL_FILE_BYTES, SmallFiles};

const ABOUT: &str = "Files of 8 KiB in directories of 1,000, all local, in files per second: a mount that is an EROFS when all of it is \
    staged (`--via native`), beside the disk's own file system, and beside an EROFS of the same files by mkfs.erofs, without compression. \
    Both are mounted with `directio`: their pages are in memory once, and come from the disk where a mount is new.";
/// How long mkfs.erofs may take.
const IMAGE_TIMEOUT: Duration = Duration::from_secs(300);

/// Measures the group.
///
/// # Errors
/// Interruption only.
pub fn measure(lab: &BenchEnv, report: &mut BenchReport) -> Result<()> {
    let files = lab.sizes.small;
    report.group("native", "Native mounts", format!("{ABOUT} {files} files."));
    let make = || SmallFiles::make(lab, files, FILES_IN_DIRECTORY, SMALL_FILE_BYTES, true);
    let Some(tree) = report.prepare("a tree of files", make)? else { return Ok(()) };
    READ_CASES.iter().try_for_each(|case| report.measure(case.name, || tree.compare(lab, case)))?;
    let make = || ErofsImage::make(lab, tree.source(), files);
    let Some(image) = report.prepare("an image by mkfs.erofs", make)? else { return Ok(()) };
    let baseline =
        Baseline { name: "EROFS by mkfs.erofs", directory: &image.point, mount: &|| image.mount_again() };
    READ_CASES.iter().try_for_each(|case| {
        let row = format!("{}, beside {}", case.name, baseline.name);
        report.measure(&row, || tree.compare_with(lab, case, &baseline))
    })
}

/// An EROFS by mkfs.erofs, which is mounted; unmounted and removed when it is dropped.
struct ErofsImage {
    image: PathBuf,
    point: PathBuf,
    _room: TempDir,
}

impl ErofsImage {
    fn make(lab: &BenchEnv, source: &Path, files: usize) -> Result<Self> {
        let room = lab.room("erofs", (files * 2 * SMALL_FILE_BYTES) as u64)?;
        let (image, point) = (room.path().join("image"), room.path().join("mount"));
        std::fs::create_dir(&point).with_context(|| format!("cannot make {}", point.display()))?;
        let program = run::find("mkfs.erofs").context("install Debian's package erofs-utils")?;
        run::run(run::command(program).arg("--quiet").arg(&image).arg(source), IMAGE_TIMEOUT)?;
        let erofs = Self { image, point, _room: room };
        erofs.mount()?;
        Ok(erofs)
    }

    fn mount(&self) -> Result<()> {
        mount(&self.image, &self.point, "erofs", MountFlags::RDONLY, c"directio")
            .with_context(|| format!("cannot mount {}", self.image.display()))
    }

    fn mount_again(&self) -> Result<()> {
        unmount(&self.point, UnmountFlags::empty())
            .with_context(|| format!("cannot unmount {}", self.point.display()))?;
        self.mount()
    }
}

impl Drop for ErofsImage {
    fn drop(&mut self) {
        let _ = unmount(&self.point, UnmountFlags::DETACH);
    }
}
