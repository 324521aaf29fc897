//! Copies units that name what no name of a crate stands for, such as the standard library's atomics, with the names that they
//! have here in its place.

use std::{env, fs, path::Path};

const ATOMICS: (&str, &str) = ("std::sync::atomic", "shuttle::sync::atomic");

/// Each unit, its file, and what stands there and here.
const UNITS: [(&str, &str, &[(&str, &str)]); 4] = [
    ("presence", "../../src/cache/presence.rs", &[ATOMICS]),
    ("leases", "../../src/cache/leases.rs", &[("super::layout", "crate::room")]),
    // The queue, before a cache of which a test says how large it is.
    (
        "admission",
        "../../agent/src/deploy/admission.rs",
        &[
            ATOMICS,
            ("bdnfs::snapshot::Snapshot", "crate::room::RoomSnapshot as Snapshot"),
            ("bdnfs::task", "crate::room"),
        ],
    ),
    // With four slots, and memory that can be copied at any step, as it is when its process dies.
    (
        "ledger",
        "../../fs/src/ledger.rs",
        &[
            ATOMICS,
            ("mod shared_memory;", ""),
            ("shared_memory::SharedMemory", "crate::copied_memory::CopiedMemory as SharedMemory"),
            ("std::os::fd::OwnedFd", "crate::copied_memory::Words as OwnedFd"),
            ("SLOT_BITS: u32 = 20", "SLOT_BITS: u32 = 2"),
            ("pub(crate)", "pub"),
        ],
    ),
];

fn main() {
    let out = env::var("OUT_DIR").expect("cargo sets it");
    for (name, path, replacements) in UNITS {
        println!("cargo::rerun-if-changed={path}");
        let unit = fs::read_to_string(path).expect("the unit");
        // What is included can't have the comment of a module.
        let mut unit = unit.lines().filter(|line| !line.starts_with("//!")).collect::<Vec<_>>().join("\n");
        for (there, here) in replacements {
            assert!(unit.contains(there), "{path} has no `{there}` any more");
            unit = unit.replace(there, here);
        }
        fs::write(Path::new(&out).join(name).with_extension("rs"), unit).expect("written");
    }
}
