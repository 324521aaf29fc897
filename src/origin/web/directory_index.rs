//! Indexes: files on a web server that list the others of a directory.
//!
//! `bdnfs.json` has most to say; `SHA256SUMS` is what `sha256sum` prints, in either of its formats, and many servers of
//! weights have one already.

use serde::Deserialize;

use super::validator::Validator;
use crate::error::{Error, Kind, Result};
use crate::origin::range_request::condition;

/// A format of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexFormat {
    /// `{"files": [{"path": "a/b.bin", "size": 123, "etag": "\"..\"", "sha256": "..", "mtime": .., "executable": ..}]}`;
    /// all but the path are optional. Times are RFC 3339 or seconds since 1970.
    Json,
    /// The output of `sha256sum`.
    Sums,
}

impl IndexFormat {
    /// All formats, in the order in which they are looked for.
    pub(super) const ALL: [Self; 2] = [Self::Json, Self::Sums];

    /// The name of the index file.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Json => "bdnfs.json",
            Self::Sums => "SHA256SUMS",
        }
    }

    /// Reads an index.
    ///
    /// # Errors
    /// [`Kind::Invalid`], which says where it is wrong.
    pub(super) fn read(self, content: &[u8]) -> Result<Vec<IndexItem>> {
        match self {
            Self::Json => json(content),
            Self::Sums => sums(content),
        }
    }
}

/// A file in an index.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct IndexItem {
    /// Relative to the index, byte for byte.
    pub path: Vec<u8>,
    pub size: Option<u64>,
    /// The identity of its content.
    pub version: Option<Validator>,
    /// Whether the server ignores Range.
    pub whole: bool,
    pub sha256: Option<[u8; 32]>,
    pub mtime: Option<(i64, u32)>,
    pub executable: bool,
}

#[derive(Deserialize)]
struct Json {
    files: Vec<JsonFile>,
}

#[derive(Deserialize)]
struct JsonFile {
    path: String,
    size: Option<u64>,
    etag: Option<String>,
    sha256: Option<String>,
    mtime: Option<Time>,
    #[serde(default)]
    executable: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "an mtime is seconds since 1970 or a time as in RFC 3339")]
enum Time {
    Seconds(i64),
    Text(chrono::DateTime<chrono::FixedOffset>),
}

fn json(content: &[u8]) -> Result<Vec<IndexItem>> {
    let index: Json =
        serde_json::from_slice(content).map_err(|e| Error::with(Kind::Invalid, "not an index", e))?;
    index.files.into_iter().map(item).collect()
}

fn item(file: JsonFile) -> Result<IndexItem> {
    let wrong = |what: &str| Error::new(Kind::Invalid, format!("{:?} has {what}", file.path));
    let version = match &file.etag {
        // Each request would fail with it.
        Some(etag) if condition(etag).is_err() => {
            return Err(wrong("an etag with characters that no HTTP header may contain"));
        }
        Some(etag) => Some(Validator::etag(etag).ok_or_else(|| wrong("a weak or unquoted etag"))?),
        None => None,
    };
    let sha256 = match &file.sha256 {
        Some(hex) => {
            Some(sha256(hex.as_bytes()).ok_or_else(|| wrong("a sha256 that is not 64 hexadecimal digits"))?)
        }
        None => None,
    };
    let mtime = file.mtime.map(|time| match time {
        Time::Seconds(seconds) => (seconds, 0),
        Time::Text(date) => (date.timestamp(), date.timestamp_subsec_nanos()),
    });
    Ok(IndexItem {
        path: file.path.into(),
        size: file.size,
        version,
        whole: false,
        sha256,
        mtime,
        executable: file.executable,
    })
}

fn sums(content: &[u8]) -> Result<Vec<IndexItem>> {
    let lines = content.split(|b| *b == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let read = |(number, line): (usize, &[u8])| {
        let (path, sha256) = sum(line.strip_suffix(b"\r").unwrap_or(line)).ok_or_else(|| {
            let text = format!("line {} is not in the format of sha256sum", number + 1);
            Error::new(Kind::Invalid, text)
        })?;
        // `find . -type f` leaves it, and it names the directory itself.
        let path = path.strip_prefix(b"./").map(<[u8]>::to_vec).unwrap_or(path);
        Ok(IndexItem { path, sha256: Some(sha256), ..IndexItem::default() })
    };
    lines.map(read).collect()
}

/// A line of `sha256sum`: `HEX  NAME` or `HEX *NAME`; with `--tag` it is `SHA256 (NAME) = HEX`. A backslash before it
/// says that the name is escaped.
fn sum(line: &[u8]) -> Option<(Vec<u8>, [u8; 32])> {
    let (line, escaped) = match line.strip_prefix(b"\\") {
        Some(rest) => (rest, true),
        None => (line, false),
    };
    let (hex, name) = match line.strip_prefix(b"SHA256 (") {
        Some(tagged) => {
            let (rest, hex) = tagged.split_at_checked(tagged.len().checked_sub(64)?)?;
            (hex, rest.strip_suffix(b") = ")?)
        }
        None => {
            let (hex, rest) = line.split_at_checked(64)?;
            (hex, rest.strip_prefix(b"  ").or_else(|| rest.strip_prefix(b" *"))?)
        }
    };
    let name = if escaped { unescape(name)? } else { name.to_vec() };
    (!name.is_empty()).then_some((name, sha256(hex)?))
}

/// A name as `sha256sum` escapes it: `\\`, `\n` and `\r` stand for a backslash, a newline and a carriage return.
fn unescape(name: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = name.iter();
    let mut plain = Vec::with_capacity(name.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => match bytes.next()? {
                b'\\' => b'\\',
                b'n' => b'\n',
                b'r' => b'\r',
                _ => return None,
            },
            other => *other,
        });
    }
    Some(plain)
}

/// A SHA-256 in hexadecimal.
fn sha256(hex: &[u8]) -> Option<[u8; 32]> {
    // BLAKE3's hashes are as long and written alike.
    blake3::Hash::from_hex(hex).ok().map(|hash| *hash.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn json_index_is_read_or_refused() {
        let text = format!(
            r#"{{"files": [
                {{"path": "a b/é", "size": 3, "etag": "\"x\"", "sha256": "{HEX}", "mtime": 7, "executable": true}},
                {{"path": "c", "mtime": "2026-01-02T03:04:05.5+01:00", "more": []}}]}}"#
        );
        let items = IndexFormat::Json.read(text.as_bytes()).expect("index");
        assert_eq!(items[0].path, "a b/é".as_bytes());
        assert_eq!((items[0].size, items[0].mtime, items[0].executable), (Some(3), Some((7, 0)), true));
        assert_eq!(items[0].version, Validator::etag("\"x\""));
        assert_eq!(items[0].sha256.map(|s| s[..2].to_vec()), Some(vec![0xe3, 0xb0]));
        assert_eq!(items[1].mtime, Some((1_767_319_445, 500_000_000)));
        for (bad, said) in [
            (r#"{"files": [{"size": 3}]}"#, "path"),
            (r#"{"files": [{"path": "a", "etag": "W/\"x\""}]}"#, "\"a\" has a weak"),
            (
                r#"{"files": [{"path": "a", "etag": "\"x\r\nX-Evil: 1\""}]}"#,
                "\"a\" has an etag with characters",
            ),
            (r#"{"files": [{"path": "a", "sha256": "00"}]}"#, "\"a\" has a sha256"),
            (
                r#"{"files": [{"path": "a", "mtime": "yesterday"}]}"#,
                "seconds since 1970 or a time as in RFC 3339",
            ),
            ("<html>", "not an index"),
        ] {
            let error = IndexFormat::Json.read(bad.as_bytes()).expect_err(bad);
            assert!(error.to_string().contains(said), "{error}");
            assert_eq!(error.kind(), Kind::Invalid);
        }
    }

    #[test]
    fn sums_index_is_read_in_both_formats_of_sha256sum() {
        let lines = [
            format!("{HEX}  ./a"),
            format!("{HEX} *b c"),
            format!("\\{HEX}  d\\\\e\\nf"),
            format!("SHA256 (g (h) = i) = {HEX}"),
            format!("\\SHA256 (j\\n) = {HEX}\r"),
            format!("{HEX}    two spaces\\n"),
        ];
        let paths = |text: &str| -> Result<Vec<Vec<u8>>> {
            Ok(IndexFormat::Sums.read(text.as_bytes())?.into_iter().map(|item| item.path).collect())
        };
        let read = paths(&(lines.join("\n") + "\n")).expect("sums");
        let expected: [&[u8]; 6] = [b"a", b"b c", b"d\\e\nf", b"g (h) = i", b"j\n", b"  two spaces\\n"];
        assert_eq!(read, expected);
        for bad in ["<html>", &HEX[..63], HEX, &format!("{HEX} a"), &format!("\\{HEX}  \\x")] {
            let error = paths(&format!("{HEX}  a\n{bad}")).expect_err(bad);
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }
}
