//! Checks of names, paths and link targets; and how messages quote bad ones.

use std::fmt;

/// The longest name, in bytes: `NAME_MAX` of Linux.
pub(crate) const MAX_NAME_BYTES: usize = 255;
/// The longest path, in bytes: `PATH_MAX` of Linux less its closing NUL.
pub(crate) const MAX_PATH_BYTES: usize = 4095;

/// The number of bytes of a bad name that are shown.
const MAX_QUOTED_BYTES: usize = 160;

/// Whether `name` can be a directory's entry; else why not.
pub(super) fn part(name: &[u8]) -> Result<(), &'static str> {
    match name {
        b"" => Err("a part is empty"),
        b"." | b".." => Err("a part is '.' or '..'"),
        _ if name.len() > MAX_NAME_BYTES => Err("a part has over 255 bytes"),
        _ if name.contains(&0) => Err("it holds a NUL"),
        _ if name.contains(&b'/') => Err("a part holds a '/'"),
        _ => Ok(()),
    }
}

/// Whether `path` can be a path below a root, `/` between parts; else why not.
pub(super) fn path(path: &[u8]) -> Result<(), &'static str> {
    match path {
        b"" => Err("it is empty"),
        [b'/', ..] => Err("it begins with '/'"),
        _ if path.len() > MAX_PATH_BYTES => Err("it has over 4095 bytes"),
        _ => path.split(|b| *b == b'/').try_for_each(part),
    }
}

/// Whether `target` can be what a symbolic link points at; else why not.
pub(super) fn target(target: &[u8]) -> Result<(), &'static str> {
    match target {
        b"" => Err("its target is empty"),
        _ if target.len() > MAX_PATH_BYTES => Err("its target has over 4095 bytes"),
        _ if target.contains(&0) => Err("its target holds a NUL"),
        _ => Ok(()),
    }
}

/// A name as messages show it: in quotes, escaped, cut off after [`MAX_QUOTED_BYTES`] bytes.
pub(super) struct QuotedName<'a>(pub &'a [u8]);

impl fmt::Display for QuotedName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for chunk in self.0[..self.0.len().min(MAX_QUOTED_BYTES)].utf8_chunks() {
            write!(f, "{}{}", chunk.valid().escape_debug(), chunk.invalid().escape_ascii())?;
        }
        f.write_str(if self.0.len() > MAX_QUOTED_BYTES { "..\"" } else { "\"" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_check_accepts_only_names_and_quotes_escape_them() {
        for rejected in
            [&b""[..], b"/a", b"a//b", b"a/", b"./a", b"a/..", b"a\0", &[b'x'; 256], &b"x/".repeat(2500)]
        {
            assert!(path(rejected).is_err(), "{}", QuotedName(rejected));
        }
        for good in
            [&b"a"[..], b"a/...", b"\xff\n", &[b'x'; 255], &[b"x/".repeat(2047), b"x".to_vec()].concat()]
        {
            assert_eq!(path(good), Ok(()), "{}", QuotedName(good));
        }
        assert_eq!(QuotedName(b"\xff\n\"\xc3\xa9").to_string(), r#""\xff\n\"é""#);
        assert_eq!(QuotedName(&[b'x'; 999]).to_string().len(), MAX_QUOTED_BYTES + 4);
    }
}
