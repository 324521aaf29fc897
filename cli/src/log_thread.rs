//! The log thread: writes log lines for threads that must not wait for the log's disk.

use std::io::{self, Write};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use crossbeam::channel::{Receiver, Sender, bounded};
use tracing_subscriber::fmt::MakeWriter;

/// The number of lines that may wait. Further ones are lost while the disk does not answer.
const LOG_QUEUE_LEN: usize = 4096;
/// The time that the last lines may take at the end of the process.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The queue of lines to the log thread.
#[derive(Clone, Debug)]
pub struct LogQueue(Sender<Vec<u8>>);

/// Waits for the last lines when it is dropped.
#[derive(Debug)]
pub struct LogGuard {
    queue: Option<LogQueue>,
    /// Disconnected when all lines are written.
    written: Receiver<()>,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        // An empty line ends the thread: the subscriber's own queue lives as long as the process.
        if let Some(LogQueue(queue)) = self.queue.take()
            && queue.send_timeout(Vec::new(), FLUSH_TIMEOUT).is_ok()
        {
            let _ = self.written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// Starts a thread that writes lines to stderr.
pub fn start() -> Result<(LogQueue, LogGuard)> {
    let (queue, lines) = bounded::<Vec<u8>>(LOG_QUEUE_LEN);
    let (done, written) = bounded(0);
    let write = move || {
        for line in lines.iter().take_while(|line| !line.is_empty()) {
            let _ = io::stderr().write_all(&line);
        }
        drop::<Sender<()>>(done);
    };
    thread::Builder::new().name("bdnfs-log".into()).spawn(write).context("cannot start a thread")?;
    let queue = LogQueue(queue);
    Ok((queue.clone(), LogGuard { queue: Some(queue), written }))
}

/// One line that is being put together. It is sent when it is dropped.
#[derive(Debug)]
pub struct LogLine<'a>(&'a LogQueue, Vec<u8>);

impl<'a> MakeWriter<'a> for LogQueue {
    type Writer = LogLine<'a>;

    fn make_writer(&'a self) -> LogLine<'a> {
        LogLine(self, Vec::new())
    }
}

impl Write for LogLine<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine<'_> {
    fn drop(&mut self) {
        if !self.1.is_empty() {
            let _ = self.0.0.try_send(std::mem::take(&mut self.1));
        }
    }
}
