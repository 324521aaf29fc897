//! Profiles of AWS's tools: sections of the files `~/.aws/credentials` and `~/.aws/config`
//! (<https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html>).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::source::{AwsProfile, S3Access, Secret};

/// The profile that counts where none is named.
const DEFAULT: &str = "default";
/// How many profiles may lead to each other.
const DEEPEST: usize = 5;

/// What a profile says of where keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// Nothing.
    None,
    /// They stand there.
    Given(S3Access),
    /// A role is to be taken on.
    Role(Role),
}

/// A role that a profile names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Role {
    /// Its ARN.
    pub arn: String,
    /// What its session is called.
    pub session: Option<String>,
    /// What whoever owns the role wants to be told.
    pub external_id: Option<String>,
    /// What is shown for it.
    pub by: By,
}

/// What a role is taken on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum By {
    /// A web identity token in a file.
    Token(PathBuf),
    /// The keys of another profile.
    Keys(Box<Keys>),
    /// The keys that the environment, a container or the instance has.
    Machine,
}

/// What a profile says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Where keys come from.
    pub keys: Keys,
    /// Its region.
    pub region: Option<String>,
    /// The URL of the service that it is for.
    pub endpoint: Option<String>,
}

type Section = BTreeMap<String, String>;

/// Reads a profile; `None` where it is the default one and not there.
///
/// # Errors
/// [`Kind::Refused`] where a file can't be read or a profile that was named isn't there, [`Kind::Unsupported`] for what
/// only AWS's own tools can do.
pub fn read(profile: &AwsProfile) -> Result<Option<Profile>> {
    let files = Files {
        credentials: sections(profile.credentials.as_deref(), |title| Some(title))?,
        config: sections(profile.config.as_deref(), |title| match title.split_once(char::is_whitespace) {
            Some(("profile", name)) => Some(name.trim()),
            _ => (title == DEFAULT).then_some(title),
        })?,
    };
    let name = profile.name.as_deref().unwrap_or(DEFAULT);
    let Some(section) = files.section(name) else {
        if profile.name.is_none() {
            return Ok(None);
        }
        let text = format!("there is no AWS profile {name:?} (AWS_PROFILE) in {}", places(profile));
        return Err(Error::new(Kind::Refused, text));
    };
    Ok(Some(Profile {
        keys: files.keys(name, DEEPEST)?,
        region: section.get("region").cloned(),
        endpoint: section.get("endpoint_url").cloned(),
    }))
}

fn places(profile: &AwsProfile) -> String {
    let files = [&profile.credentials, &profile.config].into_iter().flatten();
    files.map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
}

/// What the two files hold, by the names of profiles.
struct Files {
    credentials: BTreeMap<String, Section>,
    config: BTreeMap<String, Section>,
}

impl Files {
    /// All that is said of a profile. What stands with the keys goes before the settings.
    fn section(&self, name: &str) -> Option<Section> {
        let (config, credentials) = (self.config.get(name), self.credentials.get(name));
        config.or(credentials)?;
        let both = config.into_iter().chain(credentials).flatten();
        Some(both.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn keys(&self, name: &str, depth: usize) -> Result<Keys> {
        let wrong = |what: String| Error::new(Kind::Refused, format!("the AWS profile {name:?} {what}"));
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| wrong(format!("leads to itself, or comes after {DEEPEST} others")))?;
        let section = self.section(name).ok_or_else(|| wrong("is named by another and not there".into()))?;
        let of = |key: &str| section.get(key).cloned();
        if let Some(arn) = of("role_arn") {
            let by = match (of("web_identity_token_file"), of("source_profile"), of("credential_source")) {
                (Some(file), ..) => By::Token(file.into()),
                // A profile may hold both a role and the keys to take it on with.
                (None, Some(other), _) if other == name => By::Keys(Box::new(self.given(&section, &wrong)?)),
                (None, Some(other), _) => By::Keys(Box::new(self.keys(&other, depth)?)),
                (None, None, Some(_)) => By::Machine,
                (None, None, None) => {
                    return Err(wrong("names a role and nothing to take it on with (source_profile)".into()));
                }
            };
            let (session, external_id) = (of("role_session_name"), of("external_id"));
            return Ok(Keys::Role(Role { arn, session, external_id, by }));
        }
        self.given(&section, &wrong)
    }

    fn given(&self, section: &Section, wrong: &dyn Fn(String) -> Error) -> Result<Keys> {
        let of = |key: &str| section.get(key).cloned();
        match (of("aws_access_key_id"), of("aws_secret_access_key")) {
            (Some(id), Some(secret)) => {
                let session_token = of("aws_session_token").map(Secret::new);
                let (access_key_id, secret_access_key) = (Some(id), Some(Secret::new(secret)));
                let key = S3Access { access_key_id, secret_access_key, session_token, ..S3Access::default() };
                Ok(Keys::Given(key))
            }
            (None, None) => {
                match section.keys().find(|key| *key == "credential_process" || key.starts_with("sso_")) {
                    Some(key) => Err(wrong(format!(
                        "gets its keys by {key}, which only AWS's own tools do; `aws configure export-credentials --format env` \
                     prints them"
                    ))),
                    None => Ok(Keys::None),
                }
            }
            _ => Err(wrong("has one half of an access key".into())),
        }
    }
}

/// The sections of a file, by what `name` makes of their titles. What is not there holds none.
fn sections(file: Option<&Path>, name: impl Fn(&str) -> Option<&str>) -> Result<BTreeMap<String, Section>> {
    let Some(path) = file else { return Ok(BTreeMap::new()) };
    let text = match super::open(path).and_then(|file| super::text(file, path)) {
        Ok(text) => text,
        Err(_) if matches!(path.try_exists(), Ok(false)) => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let mut sections = BTreeMap::<String, Section>::new();
    let mut current = None;
    for line in text.lines() {
        // What is indented belongs to the settings of one service, or goes on from the line before.
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

    fn found(name: &str) -> Profile {
        let (_dir, profile) = profile(Some(name));
        read(&profile).expect(name).expect(name)
    }

    #[test]
    fn keys_and_roles_are_where_awss_tools_look() {
        let key = S3Access {
            access_key_id: Some("id".into()),
            secret_access_key: Some(Secret::new("s=e/c")),
            ..S3Access::default()
        };
        let role = |by| {
            let (arn, session, external_id) = ("arn".to_owned(), None, None);
            Keys::Role(Role { arn, session, external_id, by })
        };
        assert_eq!(found("base").keys, Keys::Given(key.clone()));
        let Keys::Role(taken) = found("role").keys else { panic!("no role") };
        assert_eq!((taken.arn.as_str(), taken.external_id.as_deref()), ("arn:aws:iam::1:role/r", Some("e")));
        assert_eq!(taken.by, By::Keys(Box::new(Keys::Given(key))));
        assert_eq!(found("here").keys, role(By::Machine));
        let Keys::Role(token) = found("token").keys else { panic!("no role") };
        assert_eq!((token.by, token.session.as_deref()), (By::Token("/token".into()), Some("s")));
        let (_dir, mut default) = profile(None);
        let read_default = read(&default).expect("default").expect("there");
        assert_eq!((read_default.keys, read_default.region.as_deref()), (Keys::None, Some("eu-west-2")));
        (default.config, default.credentials) = (Some("/none/config".into()), None);
        assert_eq!(read(&default).expect("no files"), None);
    }

    #[test]
    fn what_a_profile_lacks_is_said_and_no_key() {
        for (name, said) in [
            ("none", "there is no AWS profile \"none\" (AWS_PROFILE) in "),
            ("loop", "the AWS profile \"loop2\" leads to itself, or comes after 5 others"),
            (
                "sso",
                "the AWS profile \"sso\" gets its keys by sso_session, which only AWS's own tools do; `aws configure \
                     export-credentials --format env` prints them",
            ),
            ("half", "the AWS profile \"half\" has one half of an access key"),
            ("bare", "the AWS profile \"bare\" names a role and nothing to take it on with (source_profile)"),
        ] {
            let (_dir, profile) = profile(Some(name));
            let error = read(&profile).expect_err(said);
            assert!(error.to_string().starts_with(said) && !error.to_string().contains("hush"), "{error}");
        }
    }
}
