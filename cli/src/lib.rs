//! The part of the command line that reads files which others wrote: a library, so that fuzzers reach it too.

pub mod config;
