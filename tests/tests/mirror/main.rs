//! Mirrors: adding sources, reading from them, damage and collection.

mod publish;
