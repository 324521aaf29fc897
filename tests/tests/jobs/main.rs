//! Jobs: what they read is local before their commands run, and stays so whatever happens elsewhere.

mod crash;
mod kit;
mod room;
mod run;
mod stop;
