//! URIs of sources.
//!
//! A URI holds no secret: a user name or password in one is refused, and no message repeats such a text. Only the
//! part of a URI that is at fault is ever quoted.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use url::Url;

use super::hub_uri::{self, HubKind, HubRepository};
use super::uri_format::{below, invalid, is_scheme, parts, schemes, wrong};
use super::{access_point, file_uri};
use crate::checkpoint::{self, CheckpointSelector};
use crate::error::{Error, Kind, Result};

/// The URI of a source.
///
/// Prefixes and paths have no slash at either end, no empty part, no `.` and no `..`; they may be empty.
#[derive(Clone, PartialEq, Eq)]
pub enum Uri {
    /// `file:///dir`, or a plain path. A relative one is kept as it was given.
    File(PathBuf),
    /// `https://host/file`, `http://` likewise; without user, password and fragment. The query may hold a signature, so
    /// neither Display nor Debug shows it.
    Http(Url),
    /// `s3://bucket/prefix`.
    S3 {
        /// The bucket, or the ARN of an access point.
        bucket: String,
        /// The prefix below it.
        prefix: String,
    },
    /// `hf://[datasets/]owner/name[@revision][/path]`, or the address of a page of the Hugging Face Hub.
    Hf {
        /// The kind of the repository.
        kind: HubKind,
        /// `owner/name`, or for a few old models and datasets just `name`.
        id: String,
        /// The branch, tag or commit; the Hub's default branch where it is `None`.
        revision: Option<String>,
        /// The path in the repository.
        path: String,
    },
    /// `gs://bucket/prefix`, Google Cloud Storage.
    Gs {
        /// The bucket.
        bucket: String,
        /// The prefix below it.
        prefix: String,
    },
    /// `r2://account.bucket/prefix`, Cloudflare R2.
    R2 {
        /// The account's id.
        account: String,
        /// The bucket.
        bucket: String,
        /// The prefix below it.
        prefix: String,
    },
    /// `azure://account/container/path`, Azure Blob Storage.
    Azure {
        /// The storage account.
        account: String,
        /// The container.
        container: String,
        /// The prefix below it.
        prefix: String,
    },
    /// `bt://project[@job|@latest][/checkpoint]`, a checkpoint that a job saved into the mirror.
    Bt(CheckpointSelector),
    /// `cw://bucket/prefix`, CoreWeave AI Object Storage.
    Cw {
        /// The bucket.
        bucket: String,
        /// The prefix below it.
        prefix: String,
    },
}

impl Uri {
    /// The scheme: `s3`.
    pub fn scheme(&self) -> &str {
        match self {
            Self::File(_) => "file",
            Self::Http(url) => url.scheme(),
            Self::S3 { .. } => "s3",
            Self::Hf { .. } => "hf",
            Self::Gs { .. } => "gs",
            Self::R2 { .. } => "r2",
            Self::Azure { .. } => "azure",
            Self::Cw { .. } => "cw",
            Self::Bt(_) => checkpoint::SCHEME,
        }
    }

    /// A remark on a URI that is accepted all the same.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Hf { id, .. } if !id.contains('/') => Some(format!(
                "{id:?} has no owner: the Hub keeps such names of its first days as pointers to where the repository \
                 moved; write owner/name, for a pointer may change hands"
            )),
            _ => None,
        }
    }
}

impl FromStr for Uri {
    type Err = Error;

    /// # Errors
    /// [`Kind::Invalid`], which says what is wrong and what a right one looks like.
    fn from_str(text: &str) -> Result<Self> {
        if text.chars().any(char::is_control) {
            return Err(invalid("the source contains a control character"));
        }
        if file_uri::is_path(text) {
            return Ok(Self::File(text.into()));
        }
        let (scheme, rest) = text.split_once("://").ok_or_else(|| no_scheme(text))?;
        if !is_scheme(scheme) {
            return Err(unknown(scheme));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@')
            && scheme != checkpoint::SCHEME
            && !(scheme == "hf" && hub_uri::is_bare(rest.trim_end_matches('/')))
        {
            let what = "nothing may come before an '@' there, least of all a user name or password; \
                        give credentials separately";
            return Err(wrong(scheme, what));
        }
        match scheme {
            "file" => file_uri::parse(rest).map(Self::File),
            "http" | "https" => http(scheme, text),
            "hf" => Ok(hub_uri::parse(rest)?.into()),
            checkpoint::SCHEME => rest.parse().map(Self::Bt).map_err(|e: Error| wrong(scheme, e)),
            "azure" => {
                let (container, path) = path.split_once('/').unwrap_or((path, ""));
                Ok(Self::Azure {
                    account: name(scheme, "account", authority)?,
                    container: self::container(container)?,
                    prefix: prefix(scheme, path)?,
                })
            }
            "r2" => {
                let (account, bucket) = authority
                    .split_once('.')
                    .ok_or_else(|| wrong(scheme, "the account and the bucket are separated by a dot"))?;
                let (account, bucket) = (name(scheme, "account", account)?, name(scheme, "bucket", bucket)?);
                Ok(Self::R2 { account, bucket, prefix: prefix(scheme, path)? })
            }
            "s3" if rest.starts_with("arn:") => {
                let (bucket, path) = access_point::split(rest)?;
                Ok(Self::S3 { bucket, prefix: prefix(scheme, path)? })
            }
            _ => {
                let (bucket, prefix) = (name(scheme, "bucket", authority)?, prefix(scheme, path)?);
                Ok(match scheme {
                    "s3" => Self::S3 { bucket, prefix },
                    "gs" => Self::Gs { bucket, prefix },
                    _ => Self::Cw { bucket, prefix },
                })
            }
        }
    }
}

impl From<HubRepository> for Uri {
    fn from(HubRepository { kind, id, revision, path }: HubRepository) -> Self {
        Self::Hf { kind, id, revision, path }
    }
}

impl fmt::Display for Uri {
    /// The canonical form, for people: it parses to the same URI again, except that a query is only hinted at.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => file_uri::write(f, path),
            Self::Http(url) => {
                let mut shown = url.clone();
                shown.set_query(url.query().map(|_| "***"));
                shown.fmt(f)
            }
            Self::Hf { kind, id, revision, path } => hub_uri::write(f, *kind, id, revision.as_deref(), path),
            Self::S3 { bucket, prefix } => below(f, format_args!("s3://{bucket}"), prefix),
            Self::Gs { bucket, prefix } => below(f, format_args!("gs://{bucket}"), prefix),
            Self::Bt(selector) => selector.fmt(f),
            Self::Cw { bucket, prefix } => below(f, format_args!("cw://{bucket}"), prefix),
            Self::R2 { account, bucket, prefix } => below(f, format_args!("r2://{account}.{bucket}"), prefix),
            Self::Azure { account, container, prefix } => {
                below(f, format_args!("azure://{account}/{container}"), prefix)
            }
        }
    }
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Uri({self})")
    }
}

/// The error for a text that has no scheme and is no path.
fn no_scheme(text: &str) -> Error {
    // It may be a URI that lacks its scheme and holds a password.
    let quoted = if text.contains('@') { "the source".into() } else { format!("the source {text:?}") };
    let schemes = schemes();
    invalid(format!("{quoted} has no scheme; write ./directory for a local one, or one of {schemes}"))
}

fn http(scheme: &str, text: &str) -> Result<Uri> {
    if text[scheme.len() + "://".len()..].starts_with(['/', '\\']) {
        return Err(wrong(scheme, "it names no host"));
    }
    let url =
        Url::parse(text).map_err(|e| Error::with(Kind::Invalid, wrong(scheme, "bad URL").to_string(), e))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong(scheme, "it may not contain a user name or password"));
    }
    if url.fragment().is_some() {
        return Err(wrong(scheme, "what comes after '#' is never sent; leave it out, or write %23"));
    }
    if url.host_str().is_some_and(hub_uri::is_host) {
        Ok(hub_uri::page(&url)?.into())
    } else {
        Ok(Uri::Http(url))
    }
}

/// Checks the name of a bucket, account or container. Every service has narrower rules of its own, and says so.
fn name(scheme: &str, what: &str, text: &str) -> Result<String> {
    if text.is_empty() {
        return Err(wrong(scheme, format!("it names no {what}")));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if text.len() > 255 || !text.chars().all(fits) || matches!(text, "." | "..") {
        return Err(wrong(scheme, format!("letters, digits, '.', '-' and '_' make the name of its {what}")));
    }
    Ok(text.into())
}

/// A container. Those that the service has for ends of its own begin with a dollar sign: `$web`, `$root`, `$logs`.
fn container(text: &str) -> Result<String> {
    let own = text.strip_prefix('$').filter(|rest| !rest.is_empty());
    name("azure", "container", own.unwrap_or(text)).map(|_| text.into())
}

fn prefix(scheme: &str, path: &str) -> Result<String> {
    let path = path.strip_suffix('/').unwrap_or(path);
    parts(scheme, path)?;
    Ok(path.into())
}

fn unknown(scheme: &str) -> Error {
    let schemes = schemes();
    // The text may be anything, a password among them, unless it looks like a scheme.
    let scheme = if scheme.len() <= 16 && scheme.chars().all(|c| c.is_ascii_alphanumeric()) {
        format!("the scheme {scheme}://")
    } else {
        "the source's scheme".into()
    };
    invalid(format!("{scheme} is unknown; known are {schemes}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uri_of_each_scheme_has_a_canonical_form() {
        for (text, canonical) in [
            ("file:///srv/models", "file:///srv/models"),
            ("file://localhost/srv/a%20b", "file:///srv/a%20b"),
            ("/srv/a b#c", "file:///srv/a%20b%23c"),
            ("./models/x", "./models/x"),
            ("..", ".."),
            ("https://Example.org:443/a/b", "https://example.org/a/b"),
            ("http://127.0.0.1:8000/x?sig=hush", "http://127.0.0.1:8000/x?***"),
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("s3://bucket/a/b@1 é/", "s3://bucket/a/b@1 é"),
            ("gs://bucket/a", "gs://bucket/a"),
            ("r2://acct.my.bucket/a", "r2://acct.my.bucket/a"),
            ("azure://account/container/a/b", "azure://account/container/a/b"),
            ("azure://account/$web/a", "azure://account/$web/a"),
            ("cw://bucket/a", "cw://bucket/a"),
            ("bt://my project@latest/out/checkpoint-5/", "bt://my%20project/out/checkpoint-5"),
            ("bt://p@a1b2c3d4", "bt://p@a1b2c3d4"),
        ] {
            let uri: Uri = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(uri.to_string(), canonical);
            if !canonical.contains('?') {
                assert_eq!(canonical.parse::<Uri>().expect(canonical), uri);
            }
        }
        let r2 = Uri::R2 { account: "acct".into(), bucket: "b".into(), prefix: "p/q".into() };
        assert_eq!("r2://acct.b/p/q/".parse::<Uri>().expect("r2"), r2);
        assert_eq!("/x".parse::<Uri>().expect("path"), Uri::File("/x".into()));
    }

    #[test]
    fn uri_that_is_wrong_is_refused_with_the_right_form() {
        for (text, said) in [
            ("owner/name", "./directory"),
            ("", "no scheme"),
            (".hidden/x", "no scheme"),
            ("ftp://host/x", "ftp:// is unknown; known are file://, https://"),
            ("S3://bucket", "S3:// is unknown"),
            ("file://host/x", "third slash"),
            ("file:///a#b", "%23"),
            ("file:///a%00b", "NUL"),
            ("https:///x", "no host"),
            ("https://", "expected https://host/file"),
            ("https://h/x#y", "%23"),
            ("s3:///key", "no bucket (expected s3://bucket/prefix)"),
            ("s3://b//x", "the part \"\""),
            ("s3://b/../x", "the part \"..\""),
            ("s3://b c/x", "letters, digits"),
            ("r2://bucket/x", "dot (expected r2://account.bucket/prefix)"),
            ("azure://account", "no container"),
            ("azure://account/$/x", "letters, digits"),
            ("azure://$web/x/y", "letters, digits"),
            ("bt://p@a b", "bad job ID \"a b\""),
            ("bt://", "project is empty (expected bt://project[@job|@latest][/checkpoint])"),
            ("gs://b/\0", "control character"),
        ] {
            let error = text.parse::<Uri>().expect_err(text);
            assert!(error.to_string().contains(said), "{text}: {error}");
            assert_eq!(error.kind(), Kind::Invalid);
        }
    }

    #[test]
    fn uri_with_a_secret_is_refused_without_showing_it() {
        for text in [
            "https://user:hush@host/x",
            "https://hush@host",
            "https:///user:hush@host/x",
            "https://\\user:hush@host/x",
            "https:user:hush@host/x",
            "s3://key:hush@bucket/x",
            "hf://user:hush@huggingface.co/a/b",
            "user:hush@host/x",
            "user:hush@host://x",
            "https://host:hush/x",
        ] {
            let error = text.parse::<Uri>().expect_err(text);
            assert!(!format!("{error} {error:?}").contains("hush"), "{error}");
        }
        let signed: Uri = "https://host/x?sig=hush".parse().expect("signed");
        assert!(!format!("{signed} {signed:?}").contains("hush"));
    }
}
