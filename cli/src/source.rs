//! The source, as the command line names it.

use std::ffi::OsStr;
use std::path::Path;
use std::str::FromStr;

use anyhow::Result;
use bdnfs::source::{Access, Patterns, Secret, Uri};
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command, Error};

use crate::access;

/// Which source, which of its files, and how it may be read.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct Args {
    /// hf://owner/name@revision, s3://bucket/prefix, gs://, r2://, cw://, azure://, https://host/file, or a local /path
    #[arg(value_parser = Parser)]
    source: Source,
    #[command(flatten)]
    pub how: How,
}

/// Which of a source's files are wanted, and how it may be read.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct How {
    /// Take only files that match; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    allow: Vec<String>,
    /// Leave out files that match; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    ignore: Vec<String>,
    #[command(flatten)]
    pub access: access::Args,
}

/// Where a source, or a mirror, lives.
#[derive(Clone, Debug)]
pub struct Source {
    uri: Uri,
    /// The same as text, whole: a URL may be signed, and then `uri` doesn't show all of it.
    text: Secret,
}

impl Source {
    /// Where it lives; a local one by its absolute path.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// The same as text, which can be read again.
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
    /// Whether it is a local directory at or below `directory`.
    pub fn is_below(&self, directory: &Path) -> bool {
        matches!(&self.uri, Uri::File(path) if path.canonicalize().is_ok_and(|p| p.starts_with(directory)))
    }
}

impl Args {
    /// Where it lives; a local one by its absolute path.
    pub fn uri(&self) -> &Uri {
        self.source.uri()
    }
}

impl How {
    /// Which files are wanted, as patterns were given: to allow, all where there are none, and to ignore.
    pub fn globs(&self) -> (Option<Vec<String>>, Vec<String>) {
        let allow = Some(self.allow.clone()).filter(|allow| !allow.is_empty());
        (allow, self.ignore.clone())
    }

    /// Which files are wanted.
    pub fn patterns(&self) -> Result<Patterns> {
        Ok(Patterns::new(&self.allow, &self.ignore)?)
    }

    /// How `uri` may be read, from the environment and the arguments.
    pub fn access(&self, uri: &Uri) -> Result<Access> {
        self.access.gather(uri)
    }
}

impl FromStr for Source {
    type Err = bdnfs::error::Error;

    fn from_str(text: &str) -> bdnfs::error::Result<Self> {
        let uri = text.parse()?;
        let Uri::File(path) = &uri else { return Ok(Self { uri, text: Secret::new(text) }) };
        // A daemon has another working directory.
        let path = std::path::absolute(path)
            .map_err(|e| bdnfs::error::Error::disk("there is no current directory", e))?;
        Ok(Uri::File(path).into())
    }
}

/// Reads a source. Unlike the parsers that clap has, it doesn't repeat what it refuses: there may be a password in it.
#[derive(Clone)]
pub struct Parser;

impl TypedValueParser for Parser {
    type Value = Source;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, value: &OsStr) -> Result<Source, Error> {
        let refused =
            |why: &str| Error::raw(ErrorKind::ValueValidation, format!("{why}\n")).with_cmd(command);
        let text = value
            .to_str()
            .ok_or_else(|| refused("the source is not valid UTF-8; write file:// with %-escapes"))?;
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
    fn a_source_is_sent_whole_and_shown_without_its_signature() {
        let signed: Source = "https://host/x?sig=hush".parse().expect("valid");
        assert_eq!(signed.text.expose(), "https://host/x?sig=hush");
        assert!(!format!("{signed:?}").contains("hush"));
    }

    #[test]
    fn a_local_source_is_absolute() {
        let local: Source = "./a b".parse().expect("valid");
        let here = std::env::current_dir().expect("a directory");
        assert!(matches!(&local.uri, Uri::File(path) if *path == here.join("a b")));
        assert_eq!(local.text.expose().parse::<Uri>().expect("valid"), local.uri);
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        let command = Command::new("bdnfs");
        let error =
            Parser.parse_ref(&command, None, OsStr::new("https://me:hush@host/x")).expect_err("a password");
        assert_eq!(error.exit_code(), 2);
        assert!(!error.to_string().contains("hush"), "{error}");
    }
}
