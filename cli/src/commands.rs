//! The commands, one module each.

pub mod agent;
pub mod bench;
pub mod cache;
pub mod check;
pub mod checkpoint;
pub mod cluster;
pub mod csi;
pub mod daemon;
pub mod fdstore;
pub mod job;
pub mod ls;
pub mod mirror;
pub mod mount;
pub mod mount_helper;
pub mod oci_hook;
pub mod project;
pub mod slurm;
pub mod source;
pub mod status;
pub mod top;
pub mod umount;
pub mod wait;
