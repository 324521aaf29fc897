//! The part of the command line that reads files which others wrote: a library, so that fuzzers reach it too.
//!
//! ```text
//!   file ──> config: TOML, JSON or YAML ──> a tree of values with their lines ──> bdnfs::weights: what its keys mean
//! ```

pub mod config;
