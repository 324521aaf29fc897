//! Jobs: what they read is local before their commands run, and stays so whatever happens elsewhere.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it expects")]

mod caches;
mod covered;
mod crash;
mod damage;
mod killed;
mod kit;
mod posted;
mod pushed;
mod resume;
mod room;
mod run;
mod stop;
mod volumes;
