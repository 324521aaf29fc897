//! The test kit: the outside world, in the process of a test.
//!
//! Servers run on loopback, each on threads of its own ([`serve`]): S3 ([`s3`]; of more objects than could be stored,
//! [`large_bucket`]), the other clouds ([`clouds`]), AWS's token service ([`sts`]), a Hugging Face Hub ([`hub`]), plain web
//! ([`web`]) and a collector of traces ([`collector`]). What they served can be counted ([`requests`]), and what they serve can
//! be broken while they run ([`fault`], [`proxy`]). The program under test is the real `bdnfs` binary with real mounts
//! ([`machine`]; as an [`agent`], in a [`mount_namespace`], with certificates of an [`ca`], or several of them in a [`cluster`]
//! with a [`network`] and [`dns`]; as a driver of a [`kubelet`]; with a bucket beside it, [`test_env`], or on a [`disk`] of its own,
//! a [`filled_disk`] or a [`tmpfs`]), what it mounts are trees of known content ([`tree`]), and what reads them are programs that
//! nobody here wrote ([`tools`]), or that hold every byte against the original ([`readers`]). The kit panics where a test could only
//! fail: its messages are for the one who reads the failed test.

pub mod agent;
pub mod ca;
pub mod clouds;
pub mod cluster;
pub mod collector;
pub mod command_output;
pub mod disk;
pub mod dns;
pub mod fault;
pub mod federation;
pub mod file;
pub mod filled_disk;
pub mod freezer;
pub mod hub;
pub mod kubelet;
pub mod large_bucket;
pub mod machine;
pub mod mount_namespace;
pub mod mounts;
pub mod network;
pub mod openapi;
pub mod process;
pub mod proxy;
pub mod readers;
pub mod requests;
pub mod rot;
pub mod s3;
pub mod serve;
pub mod sts;
pub mod test_env;
pub mod tmpfs;
pub mod tools;
pub mod tree;
pub mod web;

use std::path::{Path, PathBuf};

/// 2^20 bytes.
pub const MIB: usize = 1 << 20;

/// The directory of bdnfs's sources.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
