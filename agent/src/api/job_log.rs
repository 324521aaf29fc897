//! The output of a job, as it travels over the control socket.

/// The header with the offset of an answer's first byte in all that a job printed.
pub const LOG_OFFSET_HEADER: axum::http::HeaderName = axum::http::HeaderName::from_static("bdnfs-from");

/// The header that says on which stream a job printed an answer: `stdout` or `stderr`.
pub const LOG_STREAM_HEADER: axum::http::HeaderName = axum::http::HeaderName::from_static("bdnfs-stream");

/// A stream that a job prints on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output; also what an older agent or supervisor kept, which told nothing of streams.
    #[default]
    Stdout,
    /// Standard error.
    Stderr,
}

impl OutputStream {
    /// The name of the stream.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// A piece of what a job printed, all of it on one stream.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LogChunk {
    /// Offset of the first byte in the whole log.
    pub from: u64,
    /// The stream.
    pub stream: OutputStream,
    /// The job's output from there on. Empty at the end.
    pub bytes: Vec<u8>,
}
