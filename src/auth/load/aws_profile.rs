//! Profiles of AWS's tools: sections of the files `~/.aws/credentials` and `~/.aws/config`
//! (<https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html>).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::source::{AwsProfile, S3Access, Secret};

/// The profile where none is named.
const DEFAULT_PROFILE: &str = "default";
/// The number of profiles that may name each other as `source_profile`: a loop has to end.
const PROFILE_CHAIN_LIMIT: usize = 5;

/// The origin of a profile's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileKeys {
    /// The profile names none.
    None,
    /// An access key in the profile.
    Given(S3Access),
    /// A role that is to be assumed.
    Role(ProfileRole),
}

/// A role that a profile names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileRole {
    /// The ARN.
    pub arn: String,
    /// The name of its session.
    pub session: Option<String>,
    /// The external ID that the role's owner asks for.
    pub external_id: Option<String>,
    /// The credentials that the role is assumed with.
    pub with: ProfileRoleWith,
}

/// The credentials with which a profile's role is assumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileRoleWith {
    /// A web identity token in a file.
    WebIdentity(PathBuf),
    /// The keys of another profile (`source_profile`).
    Profile(Box<ProfileKeys>),
    /// The keys of the environment, the container or the instance (`credential_source`).
    Machine,
}

/// The settings of a profile.
#[derive(Debug)]
pub struct ProfileSettings {
    /// The origin of the profile's keys. It is an error where they are not available, which says nothing of the other settings:
    /// [`Kind::Refused`] for a profile that is incomplete, or that only AWS's own tools can use.
    pub keys: Result<ProfileKeys>,
    /// The region.
    pub region: Option<String>,
    /// The URL of the service that it is for.
    pub endpoint: Option<String>,
}

type Section = BTreeMap<String, String>;

/// Reads a profile; `None` where it is the default one and does not exist.
///
/// # Errors
/// [`Kind::Refused`] where a file can't be read or a profile that was named does not exist.
pub fn read(profile: &AwsProfile) -> Result<Option<ProfileSettings>> {
    let files = ProfileFiles {
        credentials: sections(profile.credentials.as_deref(), |title| Some(title))?,
        config: sections(profile.config.as_deref(), |title| match title.split_once(char::is_whitespace) {
            Some(("profile", name)) => Some(name.trim()),
            _ => (title == DEFAULT_PROFILE).then_some(title),
        })?,
    };
    let name = profile.name.as_deref().unwrap_or(DEFAULT_PROFILE);
    let Some(section) = files.section(name) else {
        if profile.name.is_none() {
            return Ok(None);
        }
        let text = format!("no such AWS profile: {name:?} (AWS_PROFILE) in {}", file_names(profile));
        return Err(Error::new(Kind::Refused, text));
    };
    Ok(Some(ProfileSettings {
        keys: files.keys(name, PROFILE_CHAIN_LIMIT),
        region: section.get("region").cloned(),
        endpoint: section.get("endpoint_url").cloned(),
    }))
}

fn file_names(profile: &AwsProfile) -> String {
    let files = [&profile.credentials, &profile.config].into_iter().flatten();
    files.map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
}

/// The sections of the two files, by the names of profiles.
struct ProfileFiles {
    credentials: BTreeMap<String, Section>,
    config: BTreeMap<String, Section>,
}

impl ProfileFiles {
    /// All settings of a profile. Those of the credentials file win.
    fn section(&self, name: &str) -> Option<Section> {
        let (config, credentials) = (self.config.get(name), self.credentials.get(name));
        config.or(credentials)?;
        let both = config.into_iter().chain(credentials).flatten();
        Some(both.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// The origin of the keys of the profile `name`; at most `depth` profiles may be involved.
    fn keys(&self, name: &str, depth: usize) -> Result<ProfileKeys> {
        let refuse = |what: String| Error::new(Kind::Refused, format!("the AWS profile {name:?} {what}"));
        let depth = depth.checked_sub(1).ok_or_else(|| {
            refuse(format!(
                "is in a loop of source_profile, or in a chain of more than {PROFILE_CHAIN_LIMIT}"
            ))
        })?;
        let section = self
            .section(name)
            .ok_or_else(|| refuse("is the source_profile of another and does not exist".into()))?;
        let of = |key: &str| section.get(key).cloned();
        let Some(arn) = of("role_arn") else { return access_key(&section, &refuse) };
        let with = match (of("web_identity_token_file"), of("source_profile"), of("credential_source")) {
            (Some(file), ..) => ProfileRoleWith::WebIdentity(file.into()),
            // A profile may hold both a role and the key to assume it with.
            (None, Some(other), _) if other == name => {
                ProfileRoleWith::Profile(Box::new(access_key(&section, &refuse)?))
            }
            (None, Some(other), _) => ProfileRoleWith::Profile(Box::new(self.keys(&other, depth)?)),
            (None, None, Some(_)) => ProfileRoleWith::Machine,
            (None, None, None) => {
                let what = "names a role but no source_profile, credential_source or web_identity_token_file to assume it \
                            with";
                return Err(refuse(what.into()));
            }
        };
        let (session, external_id) = (of("role_session_name"), of("external_id"));
        Ok(ProfileKeys::Role(ProfileRole { arn, session, external_id, with }))
    }
}

/// The access key in a section.
fn access_key(section: &Section, refuse: &dyn Fn(String) -> Error) -> Result<ProfileKeys> {
    let of = |key: &str| section.get(key).cloned();
    match (of("aws_access_key_id"), of("aws_secret_access_key")) {
        (Some(id), Some(secret)) => {
            let session_token = of("aws_session_token").map(Secret::new);
            let (access_key_id, secret_access_key) = (Some(id), Some(Secret::new(secret)));
            let key = S3Access { access_key_id, secret_access_key, session_token, ..S3Access::default() };
            Ok(ProfileKeys::Given(key))
        }
        (None, None) => {
            match section.keys().find(|key| *key == "credential_process" || key.starts_with("sso_")) {
                Some(key) => Err(refuse(format!(
                    "gets its keys by {key}, which only AWS's own tools support; run `aws configure export-credentials \
                     --format env` to get them"
                ))),
                None => Ok(ProfileKeys::None),
            }
        }
        _ => Err(refuse(
            "has only one half of an access key (aws_access_key_id, aws_secret_access_key)".into(),
        )),
    }
}

/// Reads the sections of a file that `name` takes for profiles, by the name it gives them. A missing file has none.
fn sections(file: Option<&Path>, name: impl Fn(&str) -> Option<&str>) -> Result<BTreeMap<String, Section>> {
    let Some(path) = file else { return Ok(BTreeMap::new()) };
    let text = match super::open(path).and_then(|file| super::read_text(file, path)) {
        Ok(text) => text,
        Err(_) if matches!(path.try_exists(), Ok(false)) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut sections = BTreeMap::<String, Section>::new();
    let mut current = None;
    for line in text.lines() {
        // An indented line belongs to the settings of one service, or continues the one before.
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            current = name(title.trim()).map(str::to_owned);
            continue;
        }
        if let (Some(current), Some((key, value))) = (&current, line.split_once('=')) {
            let value = value.split(" #").next().unwrap_or_default().trim();
            if !value.is_empty() {
                let section = sections.entry(current.clone()).or_default();
                section.insert(key.trim().to_ascii_lowercase(), value.to_owned());
            }
        }
    }
    Ok(sections)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
# a comment
[default]
region = eu-west-1
[profile role]
role_arn = arn:aws:iam::1:role/r   # of theirs
source_profile = base
external_id = e
s3 =
  endpoint_url = http://ignored
[profile token]
role_arn = arn
web_identity_token_file = /token
role_session_name = s
[ profile here ]
ROLE_ARN=arn
credential_source = Ec2InstanceMetadata
[profile loop]
role_arn = arn
source_profile = loop2
[profile loop2]
role_arn = arn
source_profile = loop
[profile sso]
sso_session = x
region = eu-north-1
endpoint_url = https://minio.corp
[profile half]
aws_access_key_id = hush
[profile bare]
role_arn = arn
[services x]
region = nowhere
";
    const KEYS: &str = "\
[base]
aws_access_key_id = id
aws_secret_access_key = s=e/c
aws_session_token =
[default]
region = eu-west-2
";

    fn profile(name: Option<&str>) -> (tempfile::TempDir, AwsProfile) {
        let dir = tempfile::tempdir().expect("directory");
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).expect("written");
            Some(dir.path().join(name))
        };
        let name = name.map(str::to_owned);
        let profile =
            AwsProfile { name, credentials: file("credentials", KEYS), config: file("config", CONFIG) };
        (dir, profile)
    }

    fn found(name: &str) -> ProfileSettings {
        let (_dir, profile) = profile(Some(name));
        read(&profile).expect(name).expect(name)
    }

    fn keys(name: &str) -> ProfileKeys {
        found(name).keys.expect(name)
    }

    #[test]
    fn profile_keys_and_roles_are_read_as_the_aws_cli_does() {
        let key = S3Access {
            access_key_id: Some("id".into()),
            secret_access_key: Some(Secret::new("s=e/c")),
            ..S3Access::default()
        };
        let role = |with| {
            let (arn, session, external_id) = ("arn".to_owned(), None, None);
            ProfileKeys::Role(ProfileRole { arn, session, external_id, with })
        };
        assert_eq!(keys("base"), ProfileKeys::Given(key.clone()));
        let ProfileKeys::Role(taken) = keys("role") else { panic!("no role") };
        assert_eq!((taken.arn.as_str(), taken.external_id.as_deref()), ("arn:aws:iam::1:role/r", Some("e")));
        assert_eq!(taken.with, ProfileRoleWith::Profile(Box::new(ProfileKeys::Given(key))));
        assert_eq!(keys("here"), role(ProfileRoleWith::Machine));
        let ProfileKeys::Role(token) = keys("token") else { panic!("no role") };
        assert_eq!(
            (token.with, token.session.as_deref()),
            (ProfileRoleWith::WebIdentity("/token".into()), Some("s"))
        );
        let (_dir, mut default) = profile(None);
        let read_default = read(&default).expect("default").expect("there");
        assert_eq!(
            (read_default.keys.expect("none"), read_default.region.as_deref()),
            (ProfileKeys::None, Some("eu-west-2"))
        );
        (default.config, default.credentials) = (Some("/none/config".into()), None);
        assert!(read(&default).expect("no files").is_none());
    }

    #[test]
    fn profile_whose_keys_are_unsupported_keeps_region_and_endpoint() {
        let ProfileSettings { keys, region, endpoint } = found("sso");
        keys.expect_err("only AWS's own tools have them");
        assert_eq!(
            (region.as_deref(), endpoint.as_deref()),
            (Some("eu-north-1"), Some("https://minio.corp"))
        );
    }

    #[test]
    fn profile_that_is_incomplete_is_refused_without_showing_keys() {
        for (name, said) in [
            ("none", "no such AWS profile: \"none\" (AWS_PROFILE) in "),
            (
                "loop",
                "the AWS profile \"loop2\" is in a loop of source_profile, or in a chain of more than 5",
            ),
            (
                "sso",
                "the AWS profile \"sso\" gets its keys by sso_session, which only AWS's own tools support; run `aws configure \
                 export-credentials --format env` to get them",
            ),
            (
                "half",
                "the AWS profile \"half\" has only one half of an access key (aws_access_key_id, aws_secret_access_key)",
            ),
            (
                "bare",
                "the AWS profile \"bare\" names a role but no source_profile, credential_source or web_identity_token_file to assume it with",
            ),
        ] {
            let (_dir, profile) = profile(Some(name));
            let error = read(&profile).and_then(|found| found.expect("it was named").keys).expect_err(said);
            assert!(error.to_string().starts_with(said) && !error.to_string().contains("hush"), "{error}");
        }
    }
}
