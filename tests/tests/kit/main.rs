//! The test kit and the benchmark, tried themselves.

mod bench;
mod servers;
