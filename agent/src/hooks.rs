//! Hooks of container runtimes that the agent serves itself. Those that runtimes run are commands.

pub mod docker;
