//! Layouts: how the tree of a source is shown.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Uri;
use crate::error::{Error, Kind, Result};

/// The layout in which the tree of a source is shown. Default: as its origin has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TreeLayout {
    /// The layout of `huggingface_hub`'s cache: `models--owner--name/{refs,blobs,snapshots}`.
    HfCache,
}

impl TreeLayout {
    /// Makes sure that `uri` can be shown like this.
    ///
    /// # Errors
    /// [`Kind::Invalid`].
    pub fn check(self, uri: &Uri) -> Result<()> {
        let text = match uri {
            Uri::Hf { path, .. } if path.is_empty() => return Ok(()),
            Uri::Hf { .. } => {
                "the layout hf-cache shows whole repositories; leave out the path, and choose files by patterns \
                 (a slash in the name of a branch is written %2F)"
            }
            _ => "the layout hf-cache is for hf:// sources only",
        };
        Err(Error::new(Kind::Invalid, format!("{uri}: {text}")))
    }
}

impl Uri {
    /// The directory of the layout [`HfCache`](TreeLayout::HfCache) that has this repository of the Hub: `models--owner--name`.
    pub fn hub_directory(&self) -> Option<String> {
        let Self::Hf { kind, id, .. } = self else { return None };
        Some(format!("{}--{}", kind.plural(), id.replace('/', "--")))
    }
}

impl FromStr for TreeLayout {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "hf-cache" => Ok(Self::HfCache),
            _ => Err(Error::new(Kind::Invalid, format!("{text:?} is not a layout; expected \"hf-cache\""))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hf_cache_layout_is_for_whole_repositories_of_the_hub() {
        for (uri, words) in [
            ("hf://owner/name@main", None),
            ("hf://datasets/owner/name", None),
            ("hf://owner/name@main/sub", Some("leave out the path")),
            ("s3://bucket/model", Some("for hf:// sources only")),
        ] {
            let checked = TreeLayout::HfCache.check(&uri.parse().expect("a URI"));
            assert_eq!(checked.is_ok(), words.is_none(), "{uri}");
            checked.map_or_else(
                |error| assert!(error.to_string().contains(words.unwrap_or_default()), "{error}"),
                |()| (),
            );
        }
        assert_eq!("hf-cache".parse::<TreeLayout>().expect("known"), TreeLayout::HfCache);
        assert!("flat".parse::<TreeLayout>().is_err());
    }
}
