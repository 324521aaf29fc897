//! The test kit: the outside world, in the process of a test.
//!
//! Servers run on loopback, each on threads of its own ([`serve`]): S3 ([`s3`]; of more objects than anybody could put there, [`crowd`]), AWS's token service ([`sts`]), a Hugging Face Hub
//! ([`hub`]), plain web ([`web`]) and a collector of traces ([`collector`]). What they
//! served can be counted ([`tally`]), and what they serve can be broken while they run ([`fault`], [`proxy`]). The
//! program under test is the real `bdnfs` binary with real mounts ([`bdnfs`]; as an [`agent`], with certificates of an [`office`], or several of them in a [`lab`] with a [`network`] and [`dns`]; with a bucket beside it, [`world`]), what it mounts are trees of known
//! content ([`tree`]), and what reads them are programs that nobody here wrote ([`tools`]). The kit panics where a
//! test could only fail: its messages are for the one who reads the failed test.

pub mod agent;
pub mod bdnfs;
pub mod collector;
pub mod crowd;
pub mod disk;
pub mod dns;
pub mod fault;
pub mod file;
pub mod hub;
pub mod lab;
pub mod network;
pub mod office;
pub mod openapi;
pub mod proxy;
pub mod s3;
pub mod serve;
pub mod sts;
pub mod tally;
pub mod tools;
pub mod tree;
pub mod web;
pub mod world;
