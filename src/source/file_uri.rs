//! `file://` URIs and plain paths. A URI names the path that it shows: `..` is left to the file system, for behind a symbolic link
//! it leads elsewhere than the text says.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;
use url::Url;

use super::uri_format::wrong;
use crate::error::Result;

/// Whether `text` is a plain path: it begins with a slash, `./` or `../`.
pub(super) fn is_path(text: &str) -> bool {
    !text.is_empty() && matches!(text.split('/').next(), Some("" | "." | ".."))
}

/// Parses what comes after `file://`.
pub(super) fn parse(body: &str) -> Result<PathBuf> {
    // In other URIs these begin a query and a fragment, and a backslash is a slash; a file's name may hold them.
    if let Some(c) = body.chars().find(|c| matches!(c, '?' | '#')) {
        return Err(wrong("file", format!("{c:?} is written as %{:02X}", u32::from(c))));
    }
    if body.contains('\\') {
        return Err(wrong(
            "file",
            "a backslash in a name is written as %5C, and directories are separated by '/'",
        ));
    }
    let path = match body.split_once('/') {
        Some((host, _)) if host.is_empty() || host.eq_ignore_ascii_case("localhost") => &body[host.len()..],
        _ => return Err(wrong("file", "a local path begins with a third slash")),
    };
    if path.to_ascii_uppercase().contains("%2F") {
        return Err(wrong("file", "%2F is a slash, which no name has; write '/' between directories"));
    }
    let path: Vec<u8> = percent_decode_str(path).collect();
    if path.contains(&0) {
        return Err(wrong("file", "no path has a NUL character"));
    }
    Ok(OsString::from_vec(path).into())
}

/// Writes the canonical URI; of a relative path, the path.
pub(super) fn write(f: &mut fmt::Formatter<'_>, path: &Path) -> fmt::Result {
    match Url::from_file_path(path) {
        Ok(url) => fmt::Display::fmt(&url, f),
        Err(()) => fmt::Display::fmt(&path.display(), f),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use crate::error::Kind;
    use crate::source::Uri;

    #[test]
    fn file_uri_names_the_path_that_it_shows() {
        for (text, path, shown) in [
            ("/a/../b", "/a/../b", "file:///a/../b"),
            ("file:///a/../b/", "/a/../b", "file:///a/../b"),
            ("file:///a/%2e%2E/b", "/a/../b", "file:///a/../b"),
            ("file:///./a//b", "/a/b", "file:///a/b"),
            ("file:///C|/x", "/C|/x", "file:///C|/x"),
            ("file:///a ", "/a ", "file:///a%20"),
            ("file:///100%", "/100%", "file:///100%25"),
            ("file:///s3://b/x", "/s3:/b/x", "file:///s3:/b/x"),
            ("/cache/s3://b/x", "/cache/s3://b/x", "file:///cache/s3:/b/x"),
            ("./s3://b/x", "./s3://b/x", "./s3://b/x"),
            ("../https://host", "../https://host", "../https://host"),
            ("/a\\b", "/a\\b", "file:///a%5Cb"),
            ("file:///a%5Cb", "/a\\b", "file:///a%5Cb"),
        ] {
            let uri: Uri = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(uri, Uri::File(path.into()), "{text}");
            assert_eq!(uri.to_string(), shown);
            assert_eq!(shown.parse::<Uri>().expect(shown), uri);
        }
        let bytes = Uri::File(OsStr::from_bytes(b"/\xff").into());
        assert_eq!("file://LocalHost/%ff".parse::<Uri>().expect("a path"), bytes);
        assert_eq!(bytes.to_string(), "file:///%FF");
    }

    #[test]
    fn file_uri_that_names_another_path_than_it_shows_is_refused() {
        for (text, said) in [
            ("file:///a%2fb", "write '/' between directories"),
            ("file:///a%2Fb", "write '/' between directories"),
            ("file:///a\\b", "a backslash in a name is written as %5C"),
            ("file://\\a", "a backslash in a name is written as %5C"),
            ("file:///a?b", "'?' is written as %3F"),
            ("file://", "third slash"),
            ("file://..", "third slash"),
        ] {
            let error = text.parse::<Uri>().expect_err(text);
            assert!(error.to_string().contains(said), "{text}: {error}");
            assert_eq!(error.kind(), Kind::Invalid);
        }
    }
}
