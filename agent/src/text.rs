//! Formats text for users: sizes, counts, times, errors.

use std::error::Error;

use bdnfs::manifest::ListingNotes;
use bdnfs::mirroring::MirrorOutcome;
use bytesize::ByteSize;
use chrono::TimeDelta;

/// The number of digits of a snapshot's id that are shown: they distinguish snapshots.
const SHORT_ID_LEN: usize = 12;

/// The beginning of a snapshot's id.
pub fn short_id(id: &str) -> &str {
    id.get(..SHORT_ID_LEN).unwrap_or(id)
}

/// A number of bytes with its unit, in powers of 1000 as disks and object stores count: `13.5 GB`.
pub fn size(bytes: u64) -> String {
    ByteSize(bytes).display().si().to_string()
}

/// A number of files: `12 files`.
pub fn files(count: u64) -> String {
    if count == 1 { "1 file".to_owned() } else { format!("{count} files") }
}

/// A number of things, each of them a `one`: `12 blobs`, `3 entries`.
pub fn count(number: u64, one: &str) -> String {
    match (number, one.strip_suffix('y')) {
        (1, _) => format!("1 {one}"),
        (_, Some(stem)) => format!("{number} {stem}ies"),
        _ => format!("{number} {one}s"),
    }
}

/// A time span, in its largest unit: `45 s`, `12 min`, `3 h`, `5 d`.
pub fn age(span: TimeDelta) -> String {
    match span.num_seconds().max(0) {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds / 60),
        seconds @ 3600..172_800 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// A time in seconds since 1970, to the minute, in UTC.
pub fn minute(seconds: i64) -> String {
    match chrono::DateTime::from_timestamp(seconds, 0) {
        Some(time) => time.format("%Y-%m-%d %H:%M").to_string(),
        None => "-".to_owned(),
    }
}

/// Notes for users on the listing of `source`, a sentence each.
pub fn notes(notes: &ListingNotes, source: &str) -> Vec<String> {
    let unmatched =
        notes.unmatched.iter().map(|pattern| format!("the pattern {pattern:?} matches nothing in {source}"));
    let skipped = notes.first_skipped.iter().map(|entry| format!("skipped {entry}"));
    let more = notes.skipped - notes.first_skipped.len() as u64;
    let more = (more > 0).then(|| format!("skipped {} of {source}", count(more, "other entry")));
    unmatched.chain(skipped).chain(more).collect()
}

/// An error in one line: each cause that adds something to what stands before it.
pub fn line(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        next = cause.source();
        let text = cause.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
    }
    line.replace('\n', " ")
}

/// The outcome of mirroring, in one line.
pub fn mirror_outcome(outcome: &MirrorOutcome) -> String {
    let MirrorOutcome { latest_ref: found, new, repaired, read, written, .. } = outcome;
    let digest = found.manifest.to_string();
    let id = short_id(&digest);
    let what = format!("{}: {}, {} (snapshot {id})", found.source, files(found.files), size(found.bytes));
    let moved = format!("read {}, wrote {}", size(*read), size(*written));
    match (*new, repaired.count) {
        (true, _) => format!("mirrored {what}; {moved} in {:.1} s", found.took),
        (false, 0) => format!("unchanged {what}"),
        (false, _) => format!("repaired {what}; {moved}"),
    }
}
