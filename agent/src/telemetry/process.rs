//! The kernel's figures of this process, under the names that every Prometheus client gives them.

use std::fmt;
use std::fs;

use prometheus_client::registry::Unit;
use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::page::{Page, sample};

/// The places of fields in `/proc/self/stat` behind the name: see proc_pid_stat(5), less 3.
const UTIME_FIELD: usize = 11;
const STIME_FIELD: usize = 12;
const THREADS_FIELD: usize = 17;
const RSS_FIELD: usize = 21;

/// The kernel's figures of this process; what the kernel does not tell is 0.
#[derive(Debug, Default)]
pub struct ProcessScrape {
    cpu: f64,
    threads: u64,
    resident: u64,
    open: u64,
    most: Option<u64>,
}

impl ProcessScrape {
    /// Reads the figures from /proc.
    pub fn read() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let open = fs::read_dir("/proc/self/fd").map_or(0, |fds| fds.count() as u64);
        Self { open, most: getrlimit(Resource::Nofile).current, ..Self::parse(&stat) }
    }

    fn parse(stat: &str) -> Self {
        // The name may hold spaces and parentheses; what comes behind it does not.
        let fields: Vec<u64> = stat
            .rsplit_once(") ")
            .map_or("", |(_, rest)| rest)
            .split(' ')
            .map(|field| field.trim().parse().unwrap_or_default())
            .collect();
        let field = |at: usize| fields.get(at).copied().unwrap_or_default();
        Self {
            cpu: (field(UTIME_FIELD) + field(STIME_FIELD)) as f64 / clock_ticks_per_second() as f64,
            threads: field(THREADS_FIELD),
            resident: field(RSS_FIELD) * page_size() as u64,
            ..Self::default()
        }
    }

    /// Writes the figures as metrics.
    pub fn encode(&self, page: &mut Page<'_>) -> fmt::Result {
        let text = "CPU time used by the agent.";
        page.counter("process_cpu", text, Some(Unit::Seconds), [sample([], self.cpu)])?;
        let text = "Resident memory of the agent.";
        page.gauge("process_resident_memory", text, Some(Unit::Bytes), [sample([], self.resident)])?;
        page.gauge("process_threads", "Threads of the agent.", None, [sample([], self.threads)])?;
        page.gauge("process_open_fds", "Open file descriptors of the agent.", None, [sample([], self.open)])?;
        let most = self.most.map(|most| sample([], most));
        page.gauge("process_max_fds", "Limit of open file descriptors of the agent.", None, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_stat_with_parentheses_in_the_name_is_parsed() {
        let stat =
            "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 250 50 5 6 20 0 9 0 100 1000 12 18446744073709551615";
        let process = ProcessScrape::parse(stat);
        assert_eq!((process.threads, process.resident), (9, 12 * page_size() as u64));
        assert!((process.cpu - 300.0 / clock_ticks_per_second() as f64).abs() < 1e-9);
        assert!(ProcessScrape::read().resident > 0 && ProcessScrape::read().open > 2);
    }
}
