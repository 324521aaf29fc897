//! Tests of the test kit and of the benchmark.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod bench;
mod machine;
mod servers;
