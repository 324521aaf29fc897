//! The options of the access to a source that have no effect on sources of some schemes.

use super::Uri;

/// An option that has no effect on sources of some schemes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessOption {
    /// The URL of the service.
    Endpoint,
    /// The region of the bucket.
    Region,
    /// The authorization of requests: a secret, a file of credentials, or a method.
    Credentials,
    /// The identity token of this machine.
    TokenFile,
    /// The place of a bucket's name in a request.
    BucketStyle,
    /// The requester's consent to pay.
    RequesterPays,
    /// The treatment of object keys that are not valid paths.
    BadNames,
    /// The consent to read files that have no version.
    Unpinned,
    /// The connections that may be made: without TLS, or by other authorities.
    Connections,
    /// Hosts that redirects may lead to.
    RedirectHosts,
    /// The files that may be executed.
    Executable,
}

impl AccessOption {
    /// Whether it has an effect on a source at `uri`.
    pub fn applies_to(self, uri: &Uri) -> bool {
        let speaks_s3 = matches!(uri, Uri::S3 { .. } | Uri::R2 { .. } | Uri::Cw { .. });
        let is_bucket = speaks_s3 || matches!(uri, Uri::Gs { .. } | Uri::Azure { .. });
        match self {
            Self::Endpoint => is_bucket || matches!(uri, Uri::Hf { .. }),
            Self::Region | Self::BucketStyle => speaks_s3,
            Self::Credentials | Self::Connections => !matches!(uri, Uri::File(_) | Uri::Bt(_)),
            Self::TokenFile | Self::RequesterPays => matches!(uri, Uri::S3 { .. } | Uri::Gs { .. }),
            Self::BadNames => is_bucket,
            Self::Unpinned => matches!(uri, Uri::Http(_)),
            // Services of buckets are not followed to other hosts.
            Self::RedirectHosts => matches!(uri, Uri::Http(_) | Uri::Hf { .. }),
            // Checkpoints are mounted as they were saved.
            Self::Executable => !matches!(uri, Uri::Bt(_)),
        }
    }

    /// The reason to refuse it for a source at `uri`, on which it has no effect.
    pub fn refusal(self, uri: &Uri) -> Option<String> {
        (!self.applies_to(uri)).then(|| format!("cannot be used with {}://", uri.scheme()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_options_without_effect_on_a_scheme_are_refused() {
        let all = [
            "file:///d",
            "https://h/f",
            "s3://b",
            "hf://o/n",
            "gs://b",
            "r2://a.b",
            "azure://a/c",
            "cw://b",
            "bt://p",
        ];
        for (option, schemes) in [
            (AccessOption::Endpoint, "s3 hf gs r2 azure cw"),
            (AccessOption::Region, "s3 r2 cw"),
            (AccessOption::BucketStyle, "s3 r2 cw"),
            (AccessOption::Credentials, "https s3 hf gs r2 azure cw"),
            (AccessOption::Connections, "https s3 hf gs r2 azure cw"),
            (AccessOption::TokenFile, "s3 gs"),
            (AccessOption::RequesterPays, "s3 gs"),
            (AccessOption::BadNames, "s3 gs r2 azure cw"),
            (AccessOption::Unpinned, "https"),
            (AccessOption::RedirectHosts, "https hf"),
            (AccessOption::Executable, "file https s3 hf gs r2 azure cw"),
        ] {
            let uris = all.map(|text| text.parse::<Uri>().expect(text));
            let fit = uris.iter().filter(|uri| option.refusal(uri).is_none());
            assert_eq!(fit.map(Uri::scheme).collect::<Vec<_>>().join(" "), schemes, "{option:?}");
        }
        let file = "/d".parse().expect("a path");
        assert_eq!(AccessOption::Endpoint.refusal(&file).as_deref(), Some("cannot be used with file://"));
    }
}
