//! The part of the command line that reads files which others wrote: a library, so that fuzzers reach it too.
//!
//! ```text
//!   file ──> config: TOML, JSON or YAML ──> a tree of values with their lines ──> bdnfs::weights: what its keys mean
//! ```
//!
//! ```
//! use bdnfs_cli::config::{self, Format};
//!
//! let text = "weights:\n- source: hf://owner/model\n  mount_location: /mnt/model\n";
//! let document = config::parse(Format::Yaml, text)?;
//! assert_eq!(document.value["weights"][0]["mount_location"], "/mnt/model");
//! # Ok::<(), config::ParseError>(())
//! ```

pub mod config;
