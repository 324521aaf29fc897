//! The mounted file system: reads, names and attributes, errors, crashes.

mod crash;
mod errors;
mod mount;
mod posix;
mod read;
