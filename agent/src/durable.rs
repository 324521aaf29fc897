//! Small files that a crash leaves whole: the old content or the new one.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use tempfile::NamedTempFile;

/// The directory of an agent's state, in that of its cache: the records, the agent's claim, the last scrub.
pub const STATE_DIRECTORY: &str = "state";

/// Writes `content` as JSON into the file `name` of a directory; when this returns, it is on the disk. Touches the local disk.
///
/// # Errors
/// The disk's own.
pub fn write_json(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    let mut draft = NamedTempFile::new_in(directory)?;
    draft.write_all(&serde_json::to_vec(content)?)?;
    draft.as_file().sync_all()?;
    draft.persist(directory.join(name)).map_err(|e| e.error)?;
    File::open(directory)?.sync_all()
}
