//! The mounts of a daemon: how they are made, kept, brought back and ended.

pub mod host;
pub mod hosted;
pub mod kept;
mod leave;
pub mod restore;
mod snapshot;
