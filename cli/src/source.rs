//! Sources on the command line.

use std::ffi::OsStr;
use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use bdnfs::source::{Access, Patterns, Secret, Uri};
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};

use crate::access::AccessArgs;
/// A source, which of its files, and the access to it.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct SourceArgs {
    /// hf://owner/name@revision, s3://bucket/prefix, gs://, r2://, cw://, azure://, https://host/file, or a local /path
    #[arg(value_parser = Parser)]
    source: Source,
    #[command(flatten)]
    pub options: SourceOptions,
}

/// The selection of a source's files, and the access to it.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct SourceOptions {
    /// Include only files that match the pattern; repeatable
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    allow: Vec<String>,
    /// Exclude files that match the pattern; repeatable
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    ignore: Vec<String>,
    #[command(flatten)]
    pub access: AccessArgs,
}

/// The URI of a source or mirror.
#[derive(Clone, Debug)]
pub struct Source {
    uri: Uri,
    /// The URI as text, with the signature that `uri` does not show.
    text: Secret,
}

impl Source {
    /// The URI; that of a local source has an absolute path.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The URI as text, signature included, that parses back.
    pub fn text(&self) -> &Secret {
        &self.text
    }
}

impl From<Uri> for Source {
    fn from(uri: Uri) -> Self {
        let text = match &uri {
            Uri::Http(url) => url.as_str().to_owned(),
            uri => uri.to_string(),
        };
        Self { text: Secret::new(text), uri }
    }
}

impl Source {
    /// Whether the source is a local directory at or below `directory`.
    pub fn is_below(&self, directory: &Path) -> bool {
        matches!(&self.uri, Uri::File(path) if path.canonicalize().is_ok_and(|p| p.starts_with(directory)))
    }
}

impl SourceArgs {
    /// The URI; that of a local source has an absolute path.
    pub fn uri(&self) -> &Uri {
        self.source.uri()
    }
}

impl SourceOptions {
    /// The patterns of files to allow, `None` for all, and those of files to ignore.
    pub fn globs(&self) -> (Option<Vec<String>>, Vec<String>) {
        let allow = Some(self.allow.clone()).filter(|allow| !allow.is_empty());
        (allow, self.ignore.clone())
    }

    /// The patterns, compiled.
    pub fn patterns(&self) -> Result<Patterns> {
        Ok(Patterns::new(&self.allow, &self.ignore)?)
    }

    /// Loads the access to `uri` from the options and the environment.
    pub fn access(&self, uri: &Uri) -> Result<Access> {
        self.access.load(uri)
    }
}

impl FromStr for Source {
    type Err = bdnfs::error::Error;

    fn from_str(text: &str) -> bdnfs::error::Result<Self> {
        let uri = text.parse()?;
        let Uri::File(path) = &uri else { return Ok(Self { uri, text: Secret::new(text) }) };
        // The agent has another working directory.
        let path = std::path::absolute(path)
            .map_err(|e| bdnfs::error::Error::disk("cannot get the current directory", e))?;
        Ok(Uri::File(path).into())
    }
}

/// The parser of sources. Unlike clap's own, its errors do not repeat the value, which may contain a password.
#[derive(Clone)]
pub struct Parser;

impl TypedValueParser for Parser {
    type Value = Source;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, value: &OsStr) -> Result<Source, Error> {
        let refused =
            |why: &str| Error::raw(ErrorKind::ValueValidation, format!("{why}\n")).with_cmd(command);
        let text = value
            .to_str()
            .ok_or_else(|| refused("the source is not valid UTF-8; write a file:// URI with %-escapes"))?;
        Source::from_str(text).map_err(|error| refused(&error.to_string()))
    }
}

fn glob(text: &str) -> Result<String, String> {
    Patterns::new(&[text.to_owned()], &[]).map_err(|e| e.to_string())?;
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signed_source_is_sent_whole_and_shown_without_signature() {
        let signed: Source = "https://host/x?sig=hush".parse().expect("valid");
        assert_eq!(signed.text.expose(), "https://host/x?sig=hush");
        assert!(!format!("{signed:?}").contains("hush"));
    }

    #[test]
    fn local_source_is_made_absolute() {
        let local: Source = "./a b".parse().expect("valid");
        let here = std::env::current_dir().expect("a directory");
        assert!(matches!(&local.uri, Uri::File(path) if *path == here.join("a b")));
        assert_eq!(local.text.expose().parse::<Uri>().expect("valid"), local.uri);
    }

    #[test]
    fn source_with_a_password_is_refused_without_repeating_it() {
        let command = Command::new("bdnfs");
        let error =
            Parser.parse_ref(&command, None, OsStr::new("https://me:hush@host/x")).expect_err("a password");
        assert_eq!(error.exit_code(), 2);
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}
