//! Deploying what a job reads: it is mirrored, admitted to the cache and staged.

pub mod mirroring;
pub mod room;
pub mod staging;
