//! The daemon's end of the control API: its sockets, and who answers what.

pub mod routes;
pub mod socket;
