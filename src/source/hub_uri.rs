//! `hf://` URIs, as the `huggingface_hub` library reads them (`parse_hf_uri`, version 2.4):
//! `hf://[KIND/]OWNER/NAME[@REVISION][/PATH]`. The addresses of the Hub's own pages mean the same. Other than there, a
//! name without an owner (`hf://gpt2`) is taken, as long as no path follows it: the Hub still answers to the old ones.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode_str;
use url::Url;

use super::uri_format::{below, parts, wrong};
use crate::error::Result;

/// The longest owner or name, in bytes (`validate_repo_id` of `huggingface_hub`).
const MAX_HUB_NAME_BYTES: usize = 96;

/// The parts of the address of a page that come between a repository and a revision.
const PAGE_VIEWS: [&str; 5] = ["blob", "tree", "resolve", "raw", "blame"];

/// The kind of a Hub repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HubKind {
    /// A model; what a URI without a kind means.
    Model,
    /// A dataset.
    Dataset,
    /// A space.
    Space,
    /// A kernel.
    Kernel,
}

/// A repository of the Hub, or what lies at a path in it.
#[derive(Debug)]
pub(super) struct HubRepository {
    pub(super) kind: HubKind,
    pub(super) id: String,
    pub(super) revision: Option<String>,
    pub(super) path: String,
}

impl HubKind {
    const ALL: [Self; 4] = [Self::Model, Self::Dataset, Self::Space, Self::Kernel];

    /// The name of the kind in a URI: `datasets`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
            Self::Space => "spaces",
            Self::Kernel => "kernels",
        }
    }

    /// The kind that the first part of `body` tells, and what comes after it.
    fn split(body: &str) -> Result<(Self, &str)> {
        let (first, rest) = body.split_once('/').unwrap_or((body, ""));
        if matches!(first, "bucket" | "buckets") {
            let text = "buckets of the Hub are not supported: they have no revisions to pin";
            return Err(wrong("hf", text));
        }
        for kind in Self::ALL {
            let plural = kind.plural();
            if first == plural {
                return Ok((kind, rest));
            }
            if plural.strip_suffix('s') == Some(first) {
                return Err(wrong("hf", format!("a kind is a plural: write {plural:?}, not {first:?}")));
            }
        }
        Ok((Self::Model, body))
    }
}

/// Whether `host` serves the Hub's pages.
pub(super) fn is_host(host: &str) -> bool {
    matches!(host, "huggingface.co" | "hf.co")
}

/// Parses what comes after `hf://`.
pub(super) fn parse(body: &str) -> Result<HubRepository> {
    let (kind, location) = HubKind::split(body)?;
    let location = location.trim_matches('/');
    let (owner, rest) = match location.split_once('/') {
        Some((owner, rest)) if !is_bare(location) => (owner, rest),
        _ if matches!(kind, HubKind::Model | HubKind::Dataset) => ("", location),
        _ => {
            let repository = location.split('@').next().unwrap_or_default();
            return Err(wrong("hf", format!("{repository:?} is not of the form owner/name")));
        }
    };
    let (name, path) = rest.split_once('/').unwrap_or((rest, ""));
    let Some((name, revision)) = name.split_once('@') else {
        return assemble(kind, owner, name, None, path);
    };
    // The revision and the path together, for a few revisions hold a slash.
    let after = &rest[name.len() + 1..];
    let (revision, path) = special(after).unwrap_or((revision, path));
    let Ok(revision) = percent_decode_str(revision).decode_utf8() else {
        return Err(wrong("hf", "its revision is not UTF-8 once its %xx are decoded"));
    };
    if revision.is_empty() {
        return Err(wrong("hf", "its revision is empty after the '@'"));
    }
    if revision.contains(char::is_control) {
        return Err(wrong("hf", format!("its revision has a control character: {revision:?}")));
    }
    assemble(kind, owner, name, Some(revision), path)
}

/// Whether `location` is a name without an owner, perhaps with a revision, and with no path: `gpt2@main`.
pub(super) fn is_bare(location: &str) -> bool {
    let (name, revision) = location.split_once('@').unwrap_or((location, ""));
    let whole = |revision| special(revision).is_some_and(|(_, path)| path.is_empty());
    is_name(name) && (!revision.contains('/') || whole(revision))
}

/// Splits `refs/pr/N` and `refs/convert/NAME` off the path after them: the revisions of the Hub that hold slashes.
fn special(text: &str) -> Option<(&str, &str)> {
    let rest = text.strip_prefix("refs/")?;
    let (space, rest) = rest.split_once('/')?;
    let (last, path) = rest.split_once('/').unwrap_or((rest, ""));
    let fits = match space {
        "pr" => last.chars().all(|c| c.is_ascii_digit()),
        "convert" => last.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.')),
        _ => false,
    };
    let revision = &text[..text.len() - rest.len() + last.len()];
    (fits && !last.is_empty()).then_some((revision, path))
}

fn assemble(
    kind: HubKind,
    owner: &str,
    name: &str,
    revision: Option<Cow<str>>,
    path: &str,
) -> Result<HubRepository> {
    if name.is_empty() && owner.is_empty() {
        return Err(wrong("hf", "it names no repository"));
    }
    let id = if owner.is_empty() { name.to_owned() } else { format!("{owner}/{name}") };
    if id.split('/').any(|part| !is_name(part)) || id.ends_with(".git") {
        return Err(wrong(
            "hf",
            format!(
                "{id:?} is not of the form owner/name: each has 1 to {MAX_HUB_NAME_BYTES} letters, digits, '_', '-' and '.', none of the \
                 last two at an end, no '--' or '..', no '.git'"
            ),
        ));
    }
    parts("hf", path)?;
    Ok(HubRepository { kind, id, revision: revision.map(Cow::into_owned), path: path.into() })
}

/// Whether `part` can be an owner or a name (`validate_repo_id` of `huggingface_hub`).
fn is_name(part: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric() || c == '_';
    part.len() <= MAX_HUB_NAME_BYTES
        && part.starts_with(edge)
        && part.ends_with(edge)
        && part.chars().all(|c| edge(c) || matches!(c, '-' | '.'))
        && !part.contains("--")
        && !part.contains("..")
}

/// The repository, file or directory that a page of the Hub shows. What follows `?` only changes how it is shown.
pub(super) fn page(url: &Url) -> Result<HubRepository> {
    let path: Vec<&str> = url.path().split('/').filter(|p| !p.is_empty()).collect();
    let kinds = usize::from(path.first().is_some_and(|p| HubKind::ALL.iter().any(|k| k.plural() == *p)));
    let repository =
        path.get(..kinds + 2).ok_or_else(|| wrong("hf", "the page is not one of a repository"))?.join("/");
    let Some((view, revision_and_path)) = path[kinds + 2..].split_first() else {
        return parse(&repository);
    };
    if !PAGE_VIEWS.contains(view) {
        return Err(wrong("hf", format!("no file or directory is at /{view}/ of a repository's page")));
    }
    let revision_and_path: Vec<String> = revision_and_path.iter().map(|part| decode(part)).collect();
    let separator = if revision_and_path.is_empty() { "" } else { "@" };
    parse(&format!("{repository}{separator}{}", revision_and_path.join("/")))
}

/// One part of a page's address in the form of a URI, where only a revision's slashes are encoded.
fn decode(part: &str) -> String {
    percent_decode_str(part).decode_utf8_lossy().replace('/', "%2F")
}

/// Writes the canonical URI.
pub(super) fn write(
    f: &mut fmt::Formatter<'_>,
    kind: HubKind,
    id: &str,
    revision: Option<&str>,
    path: &str,
) -> fmt::Result {
    let kind = kind.plural();
    let Some(revision) = revision else {
        return below(f, format_args!("hf://{kind}/{id}"), path);
    };
    let mut shown = revision.replace('%', "%25");
    if special(revision).is_none_or(|(whole, _)| whole != revision) {
        shown = shown.replace('/', "%2F");
    }
    // A branch `refs` with a path that looks like the rest of one of the Hub's own revisions.
    if revision == "refs" && special(&format!("{revision}/{path}")).is_some() {
        shown = "%72efs".into();
    }
    below(f, format_args!("hf://{kind}/{id}@{shown}"), path)
}

#[cfg(test)]
mod tests {
    use crate::error::Kind;
    use crate::source::Uri;
    use serde_json::Value;

    /// The library's own readings of URIs; `scripts/vectors` recorded them.
    const VECTORS: [&str; 2] =
        [include_str!("testdata/hf_uri.json"), include_str!("testdata/hf_uri_more.json")];

    #[test]
    fn hub_uri_is_read_as_huggingface_hub_does() {
        let read = |text| serde_json::from_str::<Value>(text).expect("JSON")["uris"].take();
        let uris = VECTORS.map(read).into_iter().flat_map(|uris| uris.as_array().cloned().expect("uris"));
        let (mut same, mut ours) = (0, 0);
        for vector in uris {
            let text = vector["uri"].as_str().expect("uri");
            let parsed = text.parse::<Uri>();
            let uri = match parsed {
                Err(error) => {
                    assert!(vector["error"].is_string() || vector["type"] == "bucket", "{text}: {error}");
                    assert_eq!(error.kind(), Kind::Invalid);
                    assert!(error.to_string().contains("expected hf://"), "{error}");
                    continue;
                }
                Ok(uri) => uri,
            };
            assert_eq!(uri.to_string().parse::<Uri>().expect(text), uri);
            if vector["error"].is_string() {
                // A name without an owner, which the library refuses and the Hub answers.
                assert!(uri.note().is_some_and(|note| note.contains("no owner")), "{text}");
                ours += 1;
                continue;
            }
            let canonical = vector["canonical"].as_str().expect("canonical");
            let Uri::Hf { kind, id, revision, path } = &uri else { panic!("{text} is {uri}") };
            // The library leaves a percent sign as it is, and reads it differently the next time.
            if revision.as_ref().is_none_or(|revision| !revision.contains('%')) {
                assert_eq!(uri.to_string(), canonical);
            }
            assert_eq!(kind.plural().strip_suffix('s'), vector["type"].as_str());
            assert_eq!(Some(&id[..]), vector["id"].as_str());
            assert_eq!(revision.as_deref(), vector["revision"].as_str());
            assert_eq!(Some(&path[..]), vector["path_in_repo"].as_str());
            same += 1;
        }
        assert!(same > 200 && ours == 4, "{same} {ours}");
    }

    #[test]
    fn hub_page_url_and_odd_revisions_are_read() {
        for (text, canonical) in [
            ("https://huggingface.co/o/m", "hf://models/o/m"),
            ("https://hf.co/o/m/tree/feature%2Ffoo", "hf://models/o/m@feature%2Ffoo"),
            (
                "https://huggingface.co/o/m/resolve/main/a%20b/c.bin?download=true",
                "hf://models/o/m@main/a b/c.bin",
            ),
            ("https://huggingface.co/o/m/blob/refs%2Fpr%2F3/x", "hf://models/o/m@refs/pr/3/x"),
            ("hf://o/m@a%2541", "hf://models/o/m@a%2541"),
            ("hf://o/m@refs/pr/x/y", "hf://models/o/m@refs/pr/x/y"),
            ("hf://o/m@main/", "hf://models/o/m@main"),
            ("hf://o/m@main%2F", "hf://models/o/m@main%2F"),
            ("hf://o/m@refs%2Fpr%2F3%2F", "hf://models/o/m@refs%2Fpr%2F3%2F"),
            ("hf://o/m@refs%2Fpr/3", "hf://models/o/m@refs%2Fpr/3"),
            ("hf://o/m@%72efs/pr/3", "hf://models/o/m@%72efs/pr/3"),
            ("hf://gpt2@main/", "hf://models/gpt2@main"),
            ("hf://gpt2@refs/pr/3", "hf://models/gpt2@refs/pr/3"),
        ] {
            let uri: Uri = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(uri.to_string(), canonical);
            assert_eq!(canonical.parse::<Uri>().expect(canonical), uri);
        }
        for text in [
            "https://huggingface.co/o/m/commit/abc",
            "https://huggingface.co/o",
            "hf://o/m.git",
            "hf://o/-m",
            "hf://o/m/../x",
            "hf://o/m@%ff",
            "hf://o/m@a%1Fb",
            "hf://gpt2@",
            "hf://gpt2@main/config.json",
            "hf://spaces/x",
            "hf://datasets",
            "hf://buckets/o/b/p",
            "https://huggingface.co/buckets/o/b/tree/p",
        ] {
            assert!(text.parse::<Uri>().is_err(), "{text}");
        }
    }
}
