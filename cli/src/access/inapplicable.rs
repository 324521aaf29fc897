//! Options without effect: each is refused by name, not ignored.

use anyhow::{Result, bail};
use bdnfs::source::{AccessOption, Uri};

use super::{AccessArgs, BadNames, MirrorAccessArgs};

/// Writes the name of an option of the command line.
pub fn option_name(name: &str) -> String {
    format!("--{name}")
}

/// Writes the name of a key of a configuration.
pub fn key_name(name: &str) -> String {
    name.replace('-', "_")
}

impl AccessArgs {
    /// Refuses options that have an effect neither on one of `sources` nor on `mirror`. Without a source, the mirror has all that
    /// concern a service; beside one, only those that concern connections. What the environment says is for all commands, so it is
    /// not refused.
    pub fn check(
        &self,
        sources: &[&Uri],
        mirror: Option<&Uri>,
        written: impl Fn(&str) -> String,
    ) -> Result<()> {
        for (name, option) in self.given_options() {
            let of_mirror = match option {
                AccessOption::Connections | AccessOption::BucketStyle => mirror,
                AccessOption::Endpoint
                | AccessOption::Region
                | AccessOption::Credentials
                | AccessOption::TokenFile => mirror.filter(|_| sources.is_empty()),
                AccessOption::RequesterPays
                | AccessOption::BadNames
                | AccessOption::Unpinned
                | AccessOption::RedirectHosts
                | AccessOption::Executable => None,
            };
            if sources.iter().copied().chain(of_mirror).any(|uri| option.applies_to(uri)) {
                continue;
            }
            let name = written(name);
            match sources.first().copied().or(of_mirror).and_then(|uri| option.refusal(uri)) {
                Some(why) => bail!("{name}: {why}"),
                None => bail!("{name}: has no effect here; leave it out"),
            }
        }
        match self.endpoint.as_ref().and_then(|_| find_different_services(sources)) {
            Some((one, other)) => bail!(
                "{}: {one}:// and {other}:// have no service in common; set endpoints in the environment \
                 (HF_ENDPOINT, AWS_ENDPOINT_URL_S3, ...) or name them in commands of their own",
                written("endpoint")
            ),
            None => Ok(()),
        }
    }

    /// The options that are given, of those that have no effect on some sources.
    fn given_options(&self) -> impl Iterator<Item = (&'static str, AccessOption)> {
        [
            ("endpoint", AccessOption::Endpoint, self.endpoint.is_some()),
            ("region", AccessOption::Region, self.region.is_some()),
            ("secret", AccessOption::Credentials, self.secret.is_some()),
            ("credentials", AccessOption::Credentials, self.credentials.is_some()),
            ("auth", AccessOption::Credentials, self.auth.is_given()),
            ("token-file", AccessOption::TokenFile, self.auth.token_file.is_some()),
            ("bucket-style", AccessOption::BucketStyle, self.bucket_style.is_some()),
            ("requester-pays", AccessOption::RequesterPays, self.requester_pays),
            ("bad-names", AccessOption::BadNames, self.bad_names == BadNames::Escape),
            ("unpinned", AccessOption::Unpinned, self.unpinned),
            ("allow-http", AccessOption::Connections, self.allow_http),
            ("ca-file", AccessOption::Connections, self.ca_file.is_some()),
            ("redirect-host", AccessOption::RedirectHosts, !self.redirect_hosts.is_empty()),
            ("exec", AccessOption::Executable, !self.executable.is_empty()),
        ]
        .into_iter()
        .filter_map(|(name, option, is_given)| is_given.then_some((name, option)))
    }
}

/// The schemes of two of `sources` that no service speaks both, if there are such.
fn find_different_services<'a>(sources: &[&'a Uri]) -> Option<(&'a str, &'a str)> {
    fn protocol(uri: &Uri) -> &str {
        match uri {
            Uri::R2 { .. } | Uri::Cw { .. } => "s3",
            uri => uri.scheme(),
        }
    }
    let mut with_endpoint = sources.iter().copied().filter(|uri| AccessOption::Endpoint.applies_to(uri));
    let first = with_endpoint.next()?;
    let other = with_endpoint.find(|uri| protocol(uri) != protocol(first))?;
    Some((first.scheme(), other.scheme()))
}

impl MirrorAccessArgs {
    /// Refuses options that have no effect on the mirror at `uri`.
    pub fn check(&self, uri: &Uri, written: impl Fn(&str) -> String) -> Result<()> {
        let given = [
            ("endpoint", AccessOption::Endpoint, self.mirror_endpoint.is_some()),
            ("region", AccessOption::Region, self.mirror_region.is_some()),
            ("credentials", AccessOption::Credentials, self.mirror_credentials.is_some()),
            ("secret", AccessOption::Credentials, self.mirror_secret.is_some()),
        ];
        for (name, option, is_given) in given {
            if let Some(why) = option.refusal(uri).filter(|_| is_given) {
                bail!("{}: {why}", written(name));
            }
        }
        Ok(())
    }
}
