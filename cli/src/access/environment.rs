//! The environment variables of a command, by the names that the clouds' own tools read.

use bdnfs::source::Secret;

/// A lookup of variables.
pub struct Environment<'a>(pub &'a dyn Fn(&str) -> Option<String>);

impl Environment<'_> {
    /// The first of `names` that is set and not empty.
    pub fn first(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| (self.0)(name).filter(|value| !value.is_empty()))
    }

    /// The first of `names` that is set and not empty, as a secret.
    pub fn secret(&self, names: &[&str]) -> Option<Secret> {
        self.first(names).map(Secret::new)
    }
}
