//! Notes for the users of a cache home.

use std::time::Duration;

use super::HomeUser;
use crate::text;
use crate::volumes::cache_home::CacheHome;
use crate::volumes::cache_sync::{PulledCache, SavedCache};

/// The number of names that a note lists.
const MAX_SHOWN_PATHS: usize = 5;
/// The number of bytes of each name that it shows.
const MAX_SHOWN_PATH_BYTES: usize = 160;

/// The home as commands of `bdnfs project` name it.
fn argument(home: &CacheHome) -> String {
    format!("{}{}", home.scope().option(), home.name().escape_debug())
}

/// Advice for the case that another node has unsaved changes.
pub fn unsaved_advice(home: &CacheHome) -> String {
    let name = argument(home);
    format!(
        "wait for its jobs, save it there with `bdnfs project save {name}`, give up a node that is gone with `bdnfs project forget \
         {name}`, or set require_cache_affinity to false"
    )
}

/// Notes what was pulled into a home.
pub fn note_pulled(user: &impl HomeUser, home: &CacheHome, pulled: &PulledCache, took: Duration) {
    if pulled.is_emptied {
        user.note(format!("{home} was removed elsewhere, and is emptied here"));
    }
    if pulled.taken + pulled.removed > 0 {
        let (taken, bytes) = (text::count(pulled.taken as u64, "entry"), text::size(pulled.bytes));
        user.note(format!(
            "updated {home} to the state that is saved: {taken} new or changed, {} removed, {bytes} in {:.1} s",
            pulled.removed,
            took.as_secs_f64()
        ));
    }
    if !pulled.conflicts.is_empty() {
        let names = names(&pulled.conflicts);
        user.note(format!(
            "{home} was changed here and on another node, and the later change is kept, at {names}"
        ));
    }
}

/// Notes what was saved of a home.
pub fn note_saved(user: &impl HomeUser, home: &CacheHome, saved: &SavedCache, took: Duration) {
    if let Some(published) = &saved.published {
        let (files, bytes) =
            (text::files(published.latest_ref.files), text::size(published.latest_ref.bytes));
        let (written, took) = (text::size(published.written), took.as_secs_f64());
        user.note(format!("saved {home}: {files}, {bytes}, of which {written} were new, in {took:.1} s"));
    }
    if !saved.left_out.busy.is_empty() {
        user.note(format!("{home} is saved without what is being written: {}", names(&saved.left_out.busy)));
    }
    if !saved.left_out.unwritten.is_empty() {
        user.warn(format!(
            "what the disk failed to write of {home} is not saved: {}; write it again",
            names(&saved.left_out.unwritten)
        ));
    }
    if saved.skipped > 0 {
        let skipped = text::count(saved.skipped as u64, "entry");
        user.note(format!("{home} is saved without {skipped} other than files, directories and links"));
    }
    if let Some((_, why)) = saved.unreadable.first() {
        let paths: Vec<_> = saved.unreadable.iter().map(|(path, _)| path.clone()).collect();
        let names = names(&paths);
        user.warn(format!(
            "{home} is saved without {names}, which stays as it was saved before, if it was: {why}"
        ));
    }
    if let Some(error) = &saved.unreported {
        let name = argument(home);
        user.warn(format!(
            "{home} is saved, but other nodes were not told, whose jobs may wait for it: {error}; tell them with \
             `bdnfs project save {name}`"
        ));
    }
}

/// Paths for a note, the first ones.
fn names(paths: &[Vec<u8>]) -> String {
    let shown: Vec<_> = paths.iter().take(MAX_SHOWN_PATHS).map(|path| shown_path(path)).collect();
    let more = paths.len().saturating_sub(MAX_SHOWN_PATHS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &more
}

/// A path for a note, the beginning of a long one.
fn shown_path(path: &[u8]) -> String {
    let (begin, rest) = path.split_at(path.len().min(MAX_SHOWN_PATH_BYTES));
    format!("{}{}", begin.escape_ascii(), if rest.is_empty() { "" } else { "..." })
}

/// Explains why a home that was written when the node restarted is not saved, and what to do.
pub fn torn_message(home: &CacheHome) -> String {
    let name = argument(home);
    format!(
        "the node restarted while a job wrote to it, so some of it may be torn; save it as it is with `bdnfs project save {name}`, \
         or remove it with `bdnfs project rm {name}`"
    )
}
