//! The agent: restart, takeover, metrics, traces, API and packaging.

mod metrics;
mod openapi;
mod packaging;
mod restart;
mod takeover;
mod top;
mod traces;
