//! Escaped names: paths that are invalid as such, with their invalid bytes percent-encoded.
//!
//! Every `%` is encoded too, so [`decode`] has back what was given, and no two paths become one.

use percent_encoding::percent_decode;

use super::name::MAX_NAME_BYTES;

/// `path` with each part a name. Encoded are NULs, percent signs, the dots of `.` and `..`, and the slashes that begin
/// or end a path or follow another. A part that is too long ends in a percent sign and goes on below itself.
pub(super) fn encode(path: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(path.len() + 16);
    for (at, byte) in path.iter().enumerate() {
        let outer = at == 0 || at + 1 == path.len() || path[at - 1] == b'/';
        match byte {
            b'%' => text.extend(b"%25"),
            0 => text.extend(b"%00"),
            b'/' if outer => text.extend(b"%2F"),
            _ => text.push(*byte),
        }
    }
    let names: Vec<_> = text.split(|b| *b == b'/').map(parts).collect();
    names.join(&b'/')
}

/// The path that `encoded` was made of.
pub(crate) fn decode(encoded: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some(at) = rest.windows(2).position(|pair| pair == b"%/") {
        text.extend(&rest[..at]);
        rest = &rest[at + 2..];
    }
    text.extend(rest);
    percent_decode(&text).collect()
}

/// `name` for a file whose name a directory has: one byte more of it is encoded than [`encode`] would. The same where
/// there is no room for that.
pub(super) fn beside(name: &[u8]) -> Vec<u8> {
    let escaped = |at: usize| (at.saturating_sub(2)..=at).any(|at| name[at] == b'%');
    match (0..name.len()).find(|at| !escaped(*at)) {
        Some(at) if name.len() + 2 <= MAX_NAME_BYTES => {
            [&name[..at], format!("%{:02X}", name[at]).as_bytes(), &name[at + 1..]].concat()
        }
        _ => name.to_vec(),
    }
}

/// One part of a path as a name, or as several, each in the one before it.
fn parts(mut name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(name.len());
    while name.len() > MAX_NAME_BYTES {
        let cut = cut(name);
        path.extend(&name[..cut]);
        path.extend(b"%/");
        name = &name[cut..];
    }
    match name {
        b"." => path.extend(b"%2E"),
        b".." => path.extend(b"%2E%2E"),
        _ => path.extend(name),
    }
    path
}

/// The position at which a name that is too long is cut: in no character of UTF-8, and in no escape.
fn cut(name: &[u8]) -> usize {
    let most = MAX_NAME_BYTES - 1;
    let inside = |at: usize| name[at] & 0xc0 == 0x80 || name[at - 1] == b'%' || name[at - 2] == b'%';
    (most - 4..=most).rev().find(|at| !inside(*at)).unwrap_or(most)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::manifest::name;

    #[test]
    fn escape_of_invalid_paths_encodes_only_the_invalid_bytes() {
        for (path, encoded) in [
            ("a/b c", "a/b c"),
            ("a//b", "a/%2Fb"),
            ("/a", "%2Fa"),
            ("a/", "a%2F"),
            ("//", "%2F%2F"),
            ("../x", "%2E%2E/x"),
            ("a/./b", "a/%2E/b"),
            ("n\0", "n%00"),
            ("100%", "100%25"),
        ] {
            assert_eq!(String::from_utf8_lossy(&encode(path.as_bytes())), encoded);
            assert_eq!(decode(encoded.as_bytes()), path.as_bytes());
        }
        let long = "é".repeat(200);
        assert_eq!(encode(long.as_bytes()), format!("{}%/{}", "é".repeat(127), "é".repeat(73)).into_bytes());
        assert_eq!([beside(b"a.bin"), beside(b"%25"), beside(b"%25a")], [&b"%61.bin"[..], b"%25", b"%25%61"]);
    }

    proptest! {
        #[test]
        fn escape_of_any_path_is_valid_and_reversible(parts in "[a%/.\u{0}\u{e9}]{1,700}") {
            let path = parts.as_bytes();
            let encoded = encode(path);
            prop_assert_eq!(name::path(&encoded), Ok(()));
            prop_assert_eq!(decode(&encoded), path);
        }
    }
}
