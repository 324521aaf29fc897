//! Copies units that use the standard library's atomics, with Shuttle's in their place: no name of a crate stands for those.

use std::{env, fs, path::Path};

const PRESENCE: &str = "../../src/cache/presence.rs";

fn main() {
    println!("cargo::rerun-if-changed={PRESENCE}");
    let unit = fs::read_to_string(PRESENCE).expect("the unit");
    // What is included can't have the comment of a module.
    let lines = unit.lines().filter(|line| !line.starts_with("//!")).collect::<Vec<_>>().join("\n");
    let unit = lines.replace("std::sync::atomic", "shuttle::sync::atomic");
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("presence.rs"), unit).expect("written");
}
