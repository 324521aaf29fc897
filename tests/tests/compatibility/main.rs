//! Third-party programs and servers: those that read a mount, and those that a mount reads from.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod manual;
mod programs;
mod transformers;

// What scripts/emulators installs.
#[cfg(feature = "emulators")]
mod chart;
#[cfg(feature = "emulators")]
mod emulators;
#[cfg(feature = "emulators")]
mod huggingface_hub;
#[cfg(feature = "emulators")]
mod kubernetes_page;
#[cfg(feature = "emulators")]
mod moto;
#[cfg(feature = "emulators")]
mod nginx;
#[cfg(feature = "emulators")]
mod olah;
#[cfg(feature = "emulators")]
mod truss;
