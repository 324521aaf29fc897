//! # bdnfs, the engine
//!
//! Serves model weights and datasets lazily: read on demand, verified block by block, cached on the local disk. This crate is
//! everything but the surfaces: it knows no FUSE, no command line, no environment variables and no globals, and it prints
//! nothing.
//!
//! ## Terms
//!
//! A *source* is what a user names; its *origin* is the service that it lives on. A *snapshot* is one immutable state of a
//! source: a [`manifest`] of entries and of the *blobs* that hold their content. Every file is a *slice* of a blob. A
//! [`block`] is 1 MiB of a blob, the unit of verification and of presence; an [`extent`] is a run of blocks moved by one
//! request. A *tier* holds blobs: the node's [`cache`], and below it, behind one trait ([`tier`]), peers, the mirror and the
//! origin. A *ladder* is the tiers below the cache, nearest first ([`fetch`]). A [`flight`] is one fetch under way, however many
//! wait for it. A *lease* keeps a blob from being evicted. To [`stage`] a snapshot is to make all of it local, verified, durable
//! and leased. An *agent* is the process that owns a cache: the *node agent*, a service, or an *on-demand agent*, which
//! `bdnfs mount` starts and which exits with its last mount.
//!
//! A [`content`] is a blob on this node, shared by all its readers: the blocks that are here, and the way to fetch the others. An
//! *arrival* is a block as it came from a tier, not verified yet. A *fragment* is a sixteenth of a block: where there is nothing to
//! verify a block against, a reader at random places fetches it without the rest; it stays in memory only. A *refutation* records
//! that what was fetched is not the content that the origin publishes, and when it may be fetched anew.
//!
//! A *tenant* is whose data it is: nothing is shared between tenants. In a cluster, the *owner* of a group of blocks is the
//! member that fetches them for all. A *pack* is a blob that holds several small files. In a mirror, a *recipe* is a digest of
//! the files and versions that a blob is made of, by which it is found again; a *draft* records an upload that is not finished;
//! a *ref* names the snapshot of a source, in numbered *generations*, of which the highest counts.
//!
//! A *volume* is a directory of the node's disk that jobs or containers write to. A *unit* is a part of one that is saved as a
//! checkpoint of its own. It is *settled* when nothing has written to it for a while, *sealed* when it is safe on the node's disk,
//! and *saved* when it is in the mirror. A *home* is the directory on one node of a training cache, which nodes merge and share.
//!
//! ## The data path
//!
//! ```text
//!  Snapshot::open ──> Reader ── backing() ──────────────────> the whole blob's own file, read by the kernel
//!                       │
//!                    read_at ──> ReadAhead: what comes next ─┐
//!                       │                                    v
//!                    Content (one a blob) ── present? ──> Cache ── Partial: which blocks are present
//!                       │ no                                 ^
//!                       v                                    │ Verified
//!                    Flight ──> Budget ──> Ladder ──> Tier ──> Arrival::verify ──> all who wait for the block
//!                                            │
//!                                        Placement: which node of the cluster fetches it
//! ```
//!
//! A cold read, in the order in which to read the files:
//!
//! 1. [`snapshot`]: opens a file of the manifest as a [`read::Reader`], which tracks sequential access
//!    ([`read::read_ahead`]) and turns file ranges into ranges of its [`content`].
//! 2. [`content`]: knows which blocks are present. `content/single_flight.rs` joins the [`flight`] of a missing block or
//!    starts one; `content/ingest.rs` fetches, verifies, delivers and stores its blocks; `content/completion.rs` makes the
//!    blob durable when no block is missing. From then on the kernel reads it with no help from here.
//! 3. [`budget`]: bounds the bytes in flight. Readers go first, then read-ahead, then staging.
//! 4. [`fetch`]: goes down the ladder of tiers until one has the right bytes, with [`backoff`] between tries.
//!    [`placement`] says whether this node fetches a block itself or waits for the peer that owns it.
//! 5. [`tier`] and its implementations [`peer`], [`mirror`] and [`origin`]; [`buffer`] receives what they send.
//! 6. [`cache`]: stores verified blocks, and evicts what is not leased.
//!
//! Staging ([`staging`]) takes the same path at the lowest urgency. [`peer_service`] serves the blocks of this node to others,
//! [`mirroring`] copies a source into a mirror, and [`download`] what a mirror has into a directory. [`native`] writes what is
//! staged as an EROFS image for the kernel alone. `announcements` tells a cluster which snapshots are complete here.
//!
//! What jobs write takes the other way: [`volume`] scans a directory, finds what has settled and seals it, [`checkpoint`] names it,
//! [`tree_merge`] combines what two nodes changed in one tree, and [`mirroring`] copies it. [`weights`] reads what a configuration
//! names, [`source`] the URIs in it, and [`auth`] finds the credentials for them.
//!
//! [`engine`] holds all of it together, and is where to begin:
//!
//! ```
//! use std::time::SystemTime;
//! use bdnfs::cache::Limits;
//! use bdnfs::engine::{Config, Engine};
//! use bdnfs::source::{Access, Patterns};
//! use bdnfs::{manifest::Node, origin};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! # let (cache, model) = (home.path().join("cache"), home.path().join("model"));
//! # std::fs::create_dir(&model)?;
//! # std::fs::write(model.join("config.json"), "{}")?;
//! let config = Config {
//!     cache,
//!     tenant: "default".into(),
//!     limits: Limits { capacity: Some(1 << 30), reserve: 0 },
//!     quotas: Default::default(),
//!     memory: 64 << 20,
//!     now: SystemTime::now,
//! };
//! let engine = Engine::open(&config, tokio::runtime::Handle::current())?;
//!
//! // List a source, and pin what it holds now.
//! let uri = format!("file://{}", model.display()).parse()?;
//! let origin = origin::open(&uri, &Access::default()).await?;
//! let snapshot = engine.snapshot(origin, Patterns::default()).await?;
//!
//! // Read a file of it: what is not in the cache yet is fetched.
//! let manifest = snapshot.manifest();
//! let entry = manifest.lookup(0, b"config.json")?.expect("it is listed");
//! let Node::File(slice) = manifest.entry(entry)?.node else { panic!("a regular file") };
//! let pieces = snapshot.open(slice)?.read_at(0, 4096).await?;
//! assert_eq!(pieces.concat(), b"{}");
//!
//! // Make all of it local, verified, durable and leased.
//! let stage = snapshot.stage();
//! stage.done().await?;
//! assert_eq!(stage.progress().files_done, 1);
//! # Ok(())
//! # }
//! ```
//!
//! ## Invariants
//!
//! - Imports point one way. Pure modules do no I/O: [`backoff`], [`digest`], [`block`], [`blob`], [`buffer`], [`extent`],
//!   [`manifest`] (except that a listing too large for memory is sorted on the disk), [`source`], [`weights`], [`checkpoint`],
//!   [`error`], [`tree_merge`], `xml`. Tiers are siblings and do not know each other: [`cache`], [`peer`], [`mirror`],
//!   [`origin`]; [`auth`] loads, resolves and refreshes their credentials.
//! - [`block::Arrival::verify`] is the only way to make a [`block::Verified`], and only that can be stored or read. Content
//!   without a published digest is pinned to the origin's own version of it ([`blob::Key::Origin`]); every request is
//!   conditional on that version.
//! - The file system is the index ([`cache`]). There is nothing to recover after a crash and nothing to corrupt; of a
//!   part, what was written before an unclean stop is verified again before it is used ([`cache::presence`]).
//! - A node that fetches for other nodes waits for none of them ([`fetch::FetchScope`]), so requests can't circle.
//! - Everything is bounded: bytes in flight by the budget, the cache by its limits, reads by [`content::READ_DEADLINE`],
//!   queues by their sizes.
//! - Blocking work, hashing and disk I/O, runs on the runtime's blocking threads ([`task`]); no lock is held over an await.

mod announcements;
pub mod auth;
pub mod backoff;
pub mod blob;
pub mod block;
pub mod boot;
pub mod budget;
pub mod buffer;
pub mod cache;
pub mod checkpoint;
pub mod content;
pub mod digest;
pub mod download;
pub mod engine;
pub mod error;
pub mod extent;
pub mod fetch;
pub mod flight;
mod http_client;
pub mod manifest;
pub mod metrics;
pub mod mirror;
pub mod mirroring;
pub mod native;
pub mod origin;
pub mod peer;
pub mod peer_service;
pub mod placement;
pub mod read;
pub mod snapshot;
pub mod source;
pub mod stage;
pub mod staging;
pub mod task;
pub mod tier;
pub mod timeout;
pub mod tree_merge;
pub mod volume;
pub mod watchdog;
pub mod weights;
mod xml;
