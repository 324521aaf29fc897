//! The machine of a run: processors, memory, disk, kernel, load.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use bdnfs::digest::Digest;
use serde::{Deserialize, Serialize};

use crate::run;

/// How long git may take to name its revision.
const GIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Processor time of this machine, and of it what other machines on the hardware took ("steal", proc_stat(5)).
#[derive(Clone, Copy, Debug, Default)]
pub struct Ticks {
    all: u64,
    stolen: u64,
}

impl Ticks {
    /// Since the machine was started.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal. What guests take is part of user.
    fn parse(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        let ticks: Vec<u64> = line.split_whitespace().skip(1).take(8).flat_map(str::parse).collect();
        Self { all: ticks.iter().sum(), stolen: ticks.get(7).copied().unwrap_or(0) }
    }

    /// Those since `before`.
    pub fn since(self, before: Self) -> Self {
        Self { all: self.all - before.all, stolen: self.stolen - before.stolen }
    }

    /// The part of them that other machines on the same hardware took.
    pub fn stolen(self) -> f64 {
        self.stolen as f64 / self.all.max(1) as f64
    }
}

/// The machine of a run. Unknown values are empty or 0.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct HostInfo {
    date: String,
    revision: String,
    /// How this program was built, and so the one beside it.
    build: String,
    /// The BLAKE3 digest of the program that is measured: whether two reports are of one build.
    #[serde(default)]
    program: String,
    cpu: String,
    cores: usize,
    kernel: String,
    memory_gib: f64,
    memory_free_gib: f64,
    file_system: String,
    disk: String,
    disk_free_gib: f64,
    load: String,
}

impl HostInfo {
    /// Describes this machine at the time `now`, with the disk that `directory` lies on, and `program`, which is measured.
    pub fn describe(directory: &Path, program: &Path, now: SystemTime) -> Self {
        let device = BlockDevice::below(directory);
        let name = rustix::system::uname();
        let kib =
            |name: &str| field("/proc/meminfo", name).split(' ').next().and_then(|kib| kib.parse().ok());
        let gib = |name: &str| kib(name).unwrap_or(0.0) / f64::from(1 << 20);
        Self {
            date: humantime::format_rfc3339_seconds(now).to_string(),
            revision: revision(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            program: fs::read(program).map(|bytes| Digest::of(&bytes).to_string()).unwrap_or_default(),
            cpu: field("/proc/cpuinfo", "model name"),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: format!("{} {}", name.sysname().to_string_lossy(), name.release().to_string_lossy()),
            memory_gib: gib("MemTotal"),
            memory_free_gib: gib("MemAvailable"),
            file_system: device.file_system,
            disk: device.name,
            disk_free_gib: free(directory).0 as f64 / f64::from(1 << 30),
            load: load(),
        }
    }

    /// How many processors it has.
    pub fn cores(&self) -> usize {
        self.cores
    }

    /// The type of the file system that everything is compared on.
    pub fn file_system(&self) -> &str {
        &self.file_system
    }

    /// One line of Markdown.
    pub fn markdown(&self) -> String {
        format!(
            "{} cores of {}, {:.0} GiB of memory ({:.0} available), {} on {} ({:.0} GiB free), {}; revision {}, {} build; {}; load {}.",
            self.cores,
            self.cpu,
            self.memory_gib,
            self.memory_free_gib,
            self.file_system,
            self.disk,
            self.disk_free_gib,
            self.kernel,
            self.revision,
            self.build,
            self.date,
            self.load,
        )
    }
}

/// The time, as in reports.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

/// The counters of all disks, and their requests in flight, as the kernel writes them.
pub fn disks() -> String {
    fs::read_to_string("/proc/diskstats").unwrap_or_default()
}

/// The load average of the last 1, 5 and 15 minutes (proc_loadavg(5)).
pub fn load() -> String {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Bytes that may still be written to the disk of `directory`, and how many of them a cache leaves free.
pub fn free(directory: &Path) -> (u64, u64) {
    let disk = rustix::fs::statvfs(directory);
    disk.map_or((0, 0), |disk| {
        let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
        // By default a twentieth of the disk, up to 20 GiB.
        (bytes(disk.f_bavail), (bytes(disk.f_blocks) / 20).min(20 << 30))
    })
}

/// A mounted block device.
#[derive(Default)]
struct BlockDevice {
    name: String,
    file_system: String,
}

impl BlockDevice {
    /// The one that `directory` lies on.
    fn below(directory: &Path) -> Self {
        let Ok(meta) = fs::metadata(directory) else { return Self::default() };
        let number = format!("{}:{}", rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let found = mounts.lines().find_map(|line| Self::parse(line, &number)).unwrap_or_default();
        // A partition has its disk's attributes one directory up, and a virtual disk has no model.
        let model = |up: &str| fs::read_to_string(format!("/sys/dev/block/{number}/{up}device/model"));
        let model = model("").or_else(|_| model("../")).unwrap_or_default();
        Self { name: format!("{} {}", found.name, model.trim()).trim_end().to_owned(), ..found }
    }

    /// A line of mountinfo (proc_pid_mountinfo(5)), if it is of device `number`.
    fn parse(line: &str, number: &str) -> Option<Self> {
        let (fixed, rest) = line.split_once(" - ")?;
        let mut rest = rest.split(' ');
        (fixed.split(' ').nth(2)? == number)
            .then(|| Some(Self { file_system: rest.next()?.to_owned(), name: rest.next()?.to_owned() }))?
    }
}

/// The value of the first line `name : value` of a file of /proc.
fn field(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find_map(|line| {
        let (field, value) = line.split_once(':')?;
        (field.trim() == name).then(|| value.trim().to_owned())
    });
    value.unwrap_or_default()
}

/// The revision of the sources in the current directory, by git.
fn revision() -> String {
    let said = run::run(run::command("git").args(["describe", "--always", "--dirty"]), GIT_TIMEOUT);
    said.map_or_else(|_| "unknown".to_owned(), |ran| ran.out.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_ticks_are_a_share_of_all_ticks() {
        let at = |text| Ticks::parse(text);
        let took = at("cpu 50 0 20 130 0 0 0 10 7 0\n").since(at("cpu 10 0 10 80 0 0 0 0 0 0\n"));
        assert_eq!(took.stolen(), 10.0 / 110.0);
        assert_eq!(at("").stolen(), 0.0);
        assert!(Ticks::now().all > 0);
    }

    #[test]
    fn device_by_number_is_found() {
        let line = "25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,errors=remount-ro";
        let device = BlockDevice::parse(line, "254:0").unwrap();
        assert_eq!((device.file_system.as_str(), device.name.as_str()), ("ext4", "/dev/vda"));
        assert!(BlockDevice::parse(line, "254:1").is_none());
    }
}
