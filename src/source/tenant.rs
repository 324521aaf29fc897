//! Tenants: whose data it is.

use crate::error::{Error, Kind, Result};

/// The longest name, in bytes.
const MAX_TENANT_NAME_BYTES: usize = 64;

/// Checks that `name` can be a tenant's: it becomes the name of a directory and a part of keys.
///
/// # Errors
/// [`Kind::Invalid`].
pub fn check(name: &str) -> Result<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !name.is_empty() && name.len() <= MAX_TENANT_NAME_BYTES && name.chars().all(plain) {
        return Ok(());
    }
    let text = format!(
        "{name:?} cannot be a tenant: expected up to {MAX_TENANT_NAME_BYTES} letters, digits, '-' and '_'"
    );
    Err(Error::new(Kind::Invalid, text))
}
