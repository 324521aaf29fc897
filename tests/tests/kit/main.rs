//! The test kit and the benchmark, tried themselves.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod bench;
mod servers;
