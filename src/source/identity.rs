//! The identity of a source, known without any request.

use super::{Access, Uri};
use crate::digest::Digest;

/// The revision of a source of the Hub that names none: the Hub lets no repository have another default branch.
pub(crate) const HUB_DEFAULT_REVISION: &str = "main";

impl Uri {
    /// The identity of this source: its text, and what the text leaves out. A bucket's name is unique at one endpoint only,
    /// so that is part of it; a query may be secret, so its hash is. A branch stays the same source when it moves.
    pub fn identity(&self, access: &Access) -> String {
        match (self, access.endpoint(self)) {
            (Self::Http(url), _) => {
                let mut bare = url.clone();
                bare.set_query(None);
                match url.query() {
                    Some(query) => format!("{bare}#{}", Digest::of(query.as_bytes())),
                    None => bare.into(),
                }
            }
            (_, Some(endpoint)) => format!("{self} at {}", endpoint.trim_end_matches('/')),
            (_, None) => self.to_string(),
        }
    }

    /// The identity of this source as a tree that is mirrored or mounted: other files of it may be executable there.
    pub fn tree_identity(&self, access: &Access) -> String {
        tree_identity(self.identity(access), &access.executable)
    }

    /// The other name of the same source: the Hub's default branch is named or left out.
    pub fn synonym(&self) -> Option<Self> {
        let Self::Hf { kind, id, revision, path } = self else { return None };
        let revision = match revision.as_deref() {
            None => Some(HUB_DEFAULT_REVISION.to_owned()),
            Some(HUB_DEFAULT_REVISION) => None,
            Some(_) => return None,
        };
        Some(Self::Hf { kind: *kind, id: id.clone(), revision, path: path.clone() })
    }
}

/// The [`Uri::tree_identity`] of the source `identity` whose files that match `executable` may be executed.
pub(crate) fn tree_identity(identity: String, executable: &[String]) -> String {
    if executable.is_empty() {
        return identity;
    }
    let mut patterns = executable.to_vec();
    patterns.sort();
    patterns.dedup();
    format!("{identity} with executable {patterns:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::S3Access;

    #[test]
    fn synonym_names_the_default_branch_or_leaves_it_out() {
        let synonym = |text: &str| text.parse::<Uri>().expect(text).synonym().map(|uri| uri.to_string());
        assert_eq!(synonym("hf://a/b").as_deref(), Some("hf://models/a/b@main"));
        assert_eq!(synonym("hf://datasets/a/b@main/x").as_deref(), Some("hf://datasets/a/b/x"));
        assert_eq!((synonym("hf://a/b@v1"), synonym("s3://b/p")), (None, None));
    }

    #[test]
    fn tree_identity_tells_what_is_executable_in_any_order() {
        let tree = |patterns: &[&str]| {
            let executable = patterns.iter().map(ToString::to_string).collect();
            let uri: Uri = "s3://b/p".parse().expect("a URI");
            uri.tree_identity(&Access { executable, ..Access::default() })
        };
        assert_eq!(tree(&[]), "s3://b/p");
        assert_eq!(tree(&["bin/", "*.sh", "bin/"]), r#"s3://b/p with executable ["*.sh", "bin/"]"#);
    }

    #[test]
    fn identity_differs_for_each_source_and_shows_no_secret() {
        let identity = |text: &str, endpoint: Option<&str>| {
            let s3 = S3Access { endpoint: endpoint.map(Into::into), ..S3Access::default() };
            let access = Access { s3: Some(s3), ..Access::default() };
            text.parse::<Uri>().expect(text).identity(&access)
        };
        assert_eq!(identity("s3://b/p", None), "s3://b/p");
        assert_eq!(identity("s3://b/p/", Some("http://h:1/")), "s3://b/p at http://h:1");
        assert_eq!(identity("https://h/x", Some("http://h:1/")), "https://h/x");
        assert_eq!(identity("hf://a/b@main", Some("http://h:1/")), "hf://models/a/b@main");
        let signed =
            ["https://h/x?sig=hush", "https://h/x?sig=quiet", "https://h/x"].map(|u| identity(u, None));
        assert!(signed[0] != signed[1] && signed[0] != signed[2] && !signed[0].contains("hush"));
    }
}
