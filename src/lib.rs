//! # bdnfs, the engine
//!
//! Model weights and datasets, read lazily through a file system, verified block by block, kept on the local disk. This
//! crate is all of it but the surfaces: it knows no FUSE, no command line, no environment variables and no globals, and it
//! prints nothing.
//!
//! ## Words
//!
//! A *source* is what a user names; its *origin* is the service that it lives on. A *snapshot* is one immutable state of a
//! source: a [`manifest`] of entries and of the *blobs* that hold their content. Every file is a *slice* of a blob. A
//! [`block`] is 1 MiB of a blob, the unit of verification and of presence; an [`extent`] is a run of blocks moved by one
//! request. A *tier* holds blobs: the node's [`cache`], and below it, seen through one trait each ([`tier`]), peers, the
//! mirror and the origin. A [`flight`] is one fetch under way, however many wait for it. A *lease* keeps a blob from being
//! evicted. To [`stage`] a snapshot is to make all of it local, verified, durable and leased.
//!
//! ## The way of a read
//!
//! ```text
//!  Snapshot::open ──> Reader ── backing() ──────────────> the whole blob's own file: the kernel reads it
//!                       │
//!                    read_at ──> window: what comes next ─┐
//!                       │                                 v
//!                    Content (one a blob) ── here? ──> cache ── Partial: presence, doubt
//!                       │ not here                        ^
//!                       v                                 │ Verified
//!                    Flight ──> Budget ──> Ladder ──> Tier ──> Arrival::verify ──> whoever waits for the block
//! ```
//!
//! [`read`] turns a file's bytes into blocks of its [`content`], which knows what is here. What isn't is brought by a
//! flight: it waits for its share of the [`budget`] (readers first, then reading ahead, then staging), and goes down the
//! ladder in [`fetch`] until a tier has the right bytes. Each block is verified as it arrives, given to whoever waits for
//! it, and stored; a block that can't be stored is delivered all the same. When none is missing the blob is made durable,
//! gets its final name, and from then on the kernel can read it with no help from here.
//!
//! ## What holds it together
//!
//! - The [`mirror`] is the tier that a job is prepared in: [`publish`] copies a source there once, and from then on a
//!   snapshot comes from there, its small files packed together, whatever becomes of its origin. What it lacks or has
//!   damaged is fetched from the origin through [`tier::lazy_origin`].
//! - The nodes of a cluster are tiers to each other ([`peer`]): so many of them read a mirror about once. What a node has it
//!   gives ([`peer_service`]); what it fetches for others waits for no other node ([`fetch::FetchScope`]).
//! - Imports point one way. Pure modules know no I/O: [`digest`], [`block`], [`blob`], [`extent`], [`manifest`] (but that it
//!   keeps on the disk what of a listing is too much for memory), [`source`], [`error`]. Tiers are siblings and do not know each other: [`cache`], [`peer`], [`mirror`], [`origin`]; [`auth`]
//!   loads, resolves and refreshes the credentials that they are asked with. Above them stands what they are
//!   used for: [`budget`], [`flight`], [`fetch`],
//!   [`content`], [`read`], [`stage`], [`publish`], [`snapshot`], [`engine`].
//! - [`block::Arrival::verify`] is the only way to make a [`block::Verified`], and only that can be stored or read. What
//!   nobody published a digest for is pinned to the origin's own version of it ([`blob::Key::Origin`]); every request is
//!   conditional on that version.
//! - The file system is the index ([`cache`]). There is nothing to recover after a crash and nothing to corrupt; bits from
//!   before an unclean stop are doubted until their blocks have been verified again ([`cache::presence`]).
//! - Everything is bounded: bytes in flight by the budget, the cache by its limits, waiting by
//!   [`content::DEADLINE`], queues by their sizes.
//! - Blocking work, hashing and the disk, runs on the runtime's blocking threads; no lock is held over an await.

pub mod auth;
pub mod backoff;
pub mod blob;
pub mod block;
pub mod budget;
pub mod buffer;
pub mod cache;
pub mod content;
pub mod digest;
pub mod engine;
pub mod error;
pub mod extent;
pub mod fetch;
pub mod flight;
mod http_client;
pub mod manifest;
pub mod metrics;
pub mod mirror;
pub mod origin;
pub mod peer;
pub mod peer_service;
pub mod placement;
pub mod publish;
pub mod read;
pub mod snapshot;
pub mod source;
pub mod stage;
pub mod task;
pub mod tier;
mod xml;
