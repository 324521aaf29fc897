//! The units of a checkpoint directory: which of its files make up which checkpoint.
//!
//! Each directory in it is a checkpoint. Where directories one level deeper look like the Trainer's (`checkpoint-500`), each
//! of those is one, and what else lies in their parent is another, called like the parent. Loose files are [`LOOSE`]. What has
//! a temporary name belongs to none until it is renamed.

use std::collections::BTreeSet;

use super::LOOSE;
use super::marker::is_marker;

/// The prefix of the Trainer's names, before their numbers.
const NUMBERED_PREFIX: &[u8] = b"checkpoint-";

/// The division of a checkpoint directory into units.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointUnits {
    /// The directories that hold checkpoints themselves.
    parents: BTreeSet<Vec<u8>>,
}

impl CheckpointUnits {
    /// The units of a checkpoint directory in which there are these directories: their paths below it. Only the upper two
    /// levels matter.
    pub fn new<'a>(directories: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let parent = |path: &'a [u8]| match split(path) {
            (parent, Some(child)) if split(child).1.is_none() && is_numbered(child) => Some(parent.to_vec()),
            _ => None,
        };
        Self { parents: directories.into_iter().filter_map(parent).collect() }
    }

    /// The name of the checkpoint that the file at `path` below the directory belongs to, or a directory where
    /// `is_directory`; `None` where that has a temporary name.
    pub fn unit<'a>(&self, path: &'a [u8], is_directory: bool) -> Option<&'a [u8]> {
        let (top, below) = split(path);
        // DCP's `.metadata` is a checkpoint's marker, and no temporary name, where the checkpoint lies in no directory of its own.
        let is_loose_marker = below.is_none() && !is_directory && is_marker(top);
        if is_temporary(top) && !is_loose_marker {
            return None;
        }
        let Some(below) = below else { return Some(if is_directory { top } else { LOOSE.as_bytes() }) };
        let (child, deeper) = split(below);
        if !self.parents.contains(top) || (deeper.is_none() && !is_directory) {
            return Some(top);
        }
        match () {
            () if is_temporary(child) => None,
            () if is_numbered(child) => Some(&path[..top.len() + 1 + child.len()]),
            () => Some(top),
        }
    }

    /// The path up to the temporary name that makes the file at `path` belong to no checkpoint; `None` where there is none.
    pub fn temporary<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        if self.unit(path, false).is_some() {
            return None;
        }
        let (top, below) = split(path);
        match below.map(split) {
            Some((child, _)) if !is_temporary(top) => Some(&path[..top.len() + 1 + child.len()]),
            _ => Some(top),
        }
    }
}

/// Whether a file or directory with this name, beside the checkpoints, is not finished: it is to be renamed.
pub fn is_temporary(name: &[u8]) -> bool {
    let contains = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    name.starts_with(b".")
        || name.starts_with(b"tmp-")
        || contains(b".tmp")
        || contains(b"-tmp-")
        || name.ends_with(b".incomplete")
}

/// Whether a name is like `checkpoint-500` or `run-checkpoint-500-2`: `.*checkpoint-\d+(-\d+)?`.
fn is_numbered(name: &[u8]) -> bool {
    let is_number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let starts = (0..name.len()).filter(|at| name[*at..].starts_with(NUMBERED_PREFIX));
    starts.map(|at| &name[at + NUMBERED_PREFIX.len()..]).any(|numbers| {
        let mut parts = numbers.split(|b| *b == b'-');
        parts.clone().count() <= 2 && parts.all(is_number)
    })
}

/// The first part of a path, and what is below it.
fn split(path: &[u8]) -> (&[u8], Option<&[u8]>) {
    match path.iter().position(|b| *b == b'/') {
        Some(at) => (&path[..at], Some(&path[at + 1..])),
        None => (path, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout(directories: &[&str]) -> CheckpointUnits {
        CheckpointUnits::new(directories.iter().map(|path| path.as_bytes()))
    }

    fn unit(layout: &CheckpointUnits, path: &'static str) -> Option<&'static str> {
        layout.unit(path.as_bytes(), false).map(|name| str::from_utf8(name).expect("ASCII"))
    }

    #[test]
    fn unit_of_a_file_is_its_directory_or_loose() {
        let plain = layout(&["step-1", "step-1/model", "checkpoint-9"]);
        for (path, name) in [
            ("latest", "."),
            (".metadata", "."),
            ("step-1/a", "step-1"),
            ("step-1/model/checkpoint-3", "step-1"),
            ("checkpoint-9/a/b/c", "checkpoint-9"),
        ] {
            assert_eq!(unit(&plain, path), Some(name), "{path}");
        }
        assert_eq!(plain.unit(b"empty", true), Some(&b"empty"[..]));
    }

    #[test]
    fn units_of_nested_numbered_directories_are_checkpoints_and_the_rest_another() {
        let nested = layout(&["out", "out/checkpoint-5", "out/checkpoint-5/x", "out/runs", "other/a"]);
        for (path, name) in [
            ("out/checkpoint-5/model.safetensors", Some("out/checkpoint-5")),
            ("out/checkpoint-5/x/checkpoint-1/y", Some("out/checkpoint-5")),
            ("out/model.safetensors", Some("out")),
            ("out/.done", Some("out")),
            ("out/runs/events", Some("out")),
            ("out/tmp-checkpoint-6/model", None),
            ("other/checkpoint-5", Some("other")),
        ] {
            assert_eq!(unit(&nested, path), name, "{path}");
        }
        assert_eq!(nested.unit(b"out/checkpoint-5", true), Some(&b"out/checkpoint-5"[..]));
        assert_eq!(nested.unit(b"out", true), Some(&b"out"[..]));
        // A level deeper than that, nothing is looked for.
        assert_eq!(layout(&["a/b/checkpoint-5"]), CheckpointUnits::default());
    }

    #[test]
    fn temporary_name_belongs_to_no_checkpoint() {
        for path in [
            "tmp-checkpoint-5/a",
            "step.tmp/a",
            "step.tmp123/a",
            "5.orbax-checkpoint-tmp-77/a",
            "x.incomplete/a",
            ".hidden/a",
            ".metadata/a",
            ".metadata.tmp",
            ".loose",
            "file.pt.tmp",
        ] {
            assert_eq!(unit(&CheckpointUnits::default(), path), None, "{path}");
        }
        assert_eq!(CheckpointUnits::default().unit(b".metadata", true), None, "a directory");
        for name in ["tmp", "temp-1", "a-tmp", "incomplete"] {
            assert!(!is_temporary(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn numbered_names_are_those_of_truss() {
        for name in ["checkpoint-5", "x-checkpoint-5-12", "checkpoint-checkpoint-1"] {
            assert!(is_numbered(name.as_bytes()), "{name}");
        }
        for name in ["checkpoint-", "checkpoint-5x", "checkpoint-1-2-3", "checkpoint-5-", "checkpoint5", ""] {
            assert!(!is_numbered(name.as_bytes()), "{name}");
        }
    }

    proptest! {
        #[test]
        fn unit_of_any_file_is_loose_or_a_directory_above_it(
            paths in proptest::collection::vec("(a|out|tmp-x|checkpoint-1|b\\.tmp|\\.c)(/(a|out|tmp-x|checkpoint-[12]|\\.c)){0,3}", 1..20),
        ) {
            let parents = paths.iter().filter_map(|path| path.rsplit_once('/')).map(|(parent, _)| parent.as_bytes());
            let layout = CheckpointUnits::new(parents);
            for path in &paths {
                let Some(name) = layout.unit(path.as_bytes(), false) else {
                    prop_assert!(path.split('/').take(2).any(|part| is_temporary(part.as_bytes())), "{path}");
                    continue;
                };
                if name == b"." {
                    prop_assert!(!path.contains('/'));
                    continue;
                }
                prop_assert!(path.as_bytes().starts_with(name) && path.as_bytes()[name.len()] == b'/');
                // The directory itself is of the same unit.
                prop_assert_eq!(layout.unit(name, true), Some(name));
            }
        }
    }
}
