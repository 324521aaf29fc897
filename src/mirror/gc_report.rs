//! The report of a collection.

/// The objects that a collection deleted, or would delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GcReport {
    /// Objects deleted.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that nothing reaches, kept because they are young, or a running process may need them.
    pub kept: u64,
    /// Their bytes.
    pub kept_bytes: u64,
}
