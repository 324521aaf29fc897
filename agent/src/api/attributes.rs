//! Attributes: what a volume is to show, and how that is read, as keys and values of text. Volumes of Kubernetes and of Docker
//! have the same.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU32;

use bdnfs::source::{
    Access, AccessOption, AuthMethod, AzureAccess, GcsAccess, HubAccess, Patterns, Secret, TreeLayout, Uri,
    tenant,
};
use thiserror::Error;

use super::container_volume::{ContainerVolumeKind, ContainerVolumeRequest};
use super::publication::{PublicationRequest, Staging};
use super::{DEFAULT_TENANT, MAX_ID, MirrorRequest};

/// The error of an invalid attribute. It shows no value, since that may be a secret.
#[derive(Debug, Error)]
#[error("{key}: {why}")]
pub struct InvalidAttribute {
    key: String,
    why: String,
}

impl InvalidAttribute {
    /// Adds to the error of the attribute `key` why it is invalid.
    pub fn new(key: &str, why: impl ToString) -> Self {
        Self { key: key.to_owned(), why: why.to_string() }
    }
}

/// The attributes of a volume, not read yet.
#[derive(Default)]
pub struct Attributes(BTreeMap<String, String>);

impl FromIterator<(String, String)> for Attributes {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl Attributes {
    /// Whether `key` is one of them.
    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Takes the value of `key`.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    /// The request for a volume to write to, without an id, if they ask for one; for `tenant` unless they name another. It is not
    /// trusted.
    ///
    /// # Errors
    /// The first attribute that such a volume cannot have.
    pub fn volume(
        &mut self,
        tenant: Option<&str>,
    ) -> Result<Option<ContainerVolumeRequest>, InvalidAttribute> {
        let Some(kind) = ContainerVolumeKind::ALL.into_iter().find(|kind| self.has(kind.attribute())) else {
            return Ok(None);
        };
        let name = self.take(kind.attribute()).unwrap_or_default();
        let tenant = self.take("tenant").or_else(|| tenant.map(str::to_owned));
        let named = tenant.as_deref().map_or(Ok(()), tenant::check);
        named.map_err(|e| InvalidAttribute::new("tenant", e))?;
        kind.scope().check_name(&name).map_err(|e| InvalidAttribute::new(kind.attribute(), e))?;
        let keep = match kind {
            ContainerVolumeKind::Checkpoints => self.keep()?,
            ContainerVolumeKind::ProjectCache | ContainerVolumeKind::TeamCache => None,
        };
        if let Some(key) = self.0.keys().next() {
            return Err(InvalidAttribute::new(key, format!("cannot be used with {kind}")));
        }
        Ok(Some(ContainerVolumeRequest {
            kind,
            name,
            id: None,
            keep,
            tenant,
            target: None,
            consumer: None,
            trusted: false,
        }))
    }

    /// The request that the attributes make, with `secrets` that came along, for `tenant` unless they name another. It is not
    /// trusted. Touches the local disk.
    ///
    /// # Errors
    /// The attribute that can't be taken: it is missing, unknown, or has a value that is none.
    pub fn request(
        mut self,
        auth: Option<AuthMethod>,
        secrets: BTreeMap<String, Secret>,
        tenant: Option<String>,
    ) -> Result<PublicationRequest, InvalidAttribute> {
        let source = self.take("source").ok_or_else(|| InvalidAttribute::new("source", "is missing"))?;
        let source = Secret::new(source);
        let uri: Uri = source.expose().parse().map_err(|e| InvalidAttribute::new("source", e))?;
        let (allow, ignore) = (self.patterns("allow")?, self.patterns("ignore")?.unwrap_or_default());
        Patterns::filter(allow.as_deref(), &ignore).map_err(|e| InvalidAttribute::new("allow, ignore", e))?;
        let staging = match self.take("staging").as_deref() {
            None | Some("wait") => Staging::Wait,
            Some("lazy") => Staging::Lazy,
            Some(_) => return Err(InvalidAttribute::new("staging", "expected wait or lazy")),
        };
        let layout = self.layout(&uri)?;
        let has_secret = auth.is_some() || !secrets.is_empty();
        let executable = self.patterns("exec")?.unwrap_or_default();
        Patterns::new(&executable, &[]).map_err(|e| InvalidAttribute::new("exec", e))?;
        let access = self.access(&uri, Access { auth, executable, ..Access::default() }, has_secret)?;
        let tenant = self.take("tenant").or(tenant);
        let named = tenant.as_deref().map_or(Ok(()), tenant::check);
        named.map_err(|e| InvalidAttribute::new("tenant", e))?;
        let mirror = self.take("mirror").map(|url| MirrorRequest {
            url: Secret::new(url),
            tenant: tenant.clone().unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
            access: Access::default(),
        });
        let (uid, gid) = (self.id("uid")?, self.id("gid")?);
        self.refuse_others()?;
        Ok(PublicationRequest {
            source,
            allow,
            ignore,
            access,
            secrets,
            mirror,
            tenant,
            uid,
            gid,
            target: None,
            consumer: None,
            staging,
            layout,
            trusted: false,
            keep: false,
        })
    }

    /// The access to the service of `uri`.
    fn access(
        &mut self,
        uri: &Uri,
        mut access: Access,
        has_secret: bool,
    ) -> Result<Access, InvalidAttribute> {
        let fits = |key, option: AccessOption, is_given: bool| match option.refusal(uri).filter(|_| is_given)
        {
            Some(why) => Err(InvalidAttribute::new(key, why)),
            None => Ok(()),
        };
        access.allow_http = self.flag("allowHttp")?;
        fits("allowHttp", AccessOption::Connections, access.allow_http)?;
        fits("exec", AccessOption::Executable, !access.executable.is_empty())?;
        fits("caFile", AccessOption::Connections, self.has("caFile"))?;
        fits("endpoint", AccessOption::Endpoint, self.has("endpoint"))?;
        fits("region", AccessOption::Region, self.has("region"))?;
        access.escape = match self.take("badNames").as_deref() {
            None | Some("refuse") => false,
            Some("escape") => true,
            Some(_) => return Err(InvalidAttribute::new("badNames", "expected refuse or escape")),
        };
        fits("badNames", AccessOption::BadNames, access.escape)?;
        if let Some(path) = self.take("caFile") {
            let text = fs::read_to_string(&path);
            let unreadable = |e| InvalidAttribute::new("caFile", format!("cannot read {path}: {e}"));
            access.authorities = Some(text.map_err(unreadable)?);
        }
        let anonymous = self.flag("anonymous")?;
        if anonymous && has_secret {
            let text = "cannot be used with a secret; remove one of them";
            return Err(InvalidAttribute::new("anonymous", text));
        }
        let (endpoint, region) = (self.take("endpoint"), self.take("region"));
        match uri {
            Uri::Hf { .. } => access.hub = Some(HubAccess { endpoint, token: None }),
            Uri::Gs { .. } => access.gcs = Some(GcsAccess { endpoint, anonymous, ..GcsAccess::default() }),
            Uri::Azure { .. } => {
                access.azure = Some(AzureAccess { endpoint, anonymous, ..AzureAccess::default() })
            }
            uri => {
                if let Some(s3) = access.s3_mut(uri) {
                    (s3.endpoint, s3.region, s3.anonymous) = (endpoint, region, anonymous);
                }
            }
        }
        Ok(access)
    }

    /// Refuses attributes that were not used: they may be misspelt.
    fn refuse_others(&self) -> Result<(), InvalidAttribute> {
        let Some(key) = self.0.keys().next() else { return Ok(()) };
        Err(InvalidAttribute::new(key, "no such attribute; docs/containers.md lists all"))
    }

    fn layout(&mut self, uri: &Uri) -> Result<Option<TreeLayout>, InvalidAttribute> {
        let checked = |text: String| {
            let layout: TreeLayout = text.parse()?;
            layout.check(uri).map(|()| layout)
        };
        self.take("layout").map(checked).transpose().map_err(|e| InvalidAttribute::new("layout", e))
    }

    fn patterns(&mut self, key: &str) -> Result<Option<Vec<String>>, InvalidAttribute> {
        let parse = |text: String| serde_json::from_str(&text);
        let text = r#"expected a JSON list of patterns, ["*.json"]"#;
        self.take(key).map(parse).transpose().map_err(|_| InvalidAttribute::new(key, text))
    }

    fn flag(&mut self, key: &str) -> Result<bool, InvalidAttribute> {
        match self.take(key).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(InvalidAttribute::new(key, "expected true or false")),
        }
    }

    fn keep(&mut self) -> Result<Option<NonZeroU32>, InvalidAttribute> {
        let parsed = self.take("keep").map(|number| number.parse()).transpose();
        parsed.map_err(|_| InvalidAttribute::new("keep", format!("expected a number from 1 to {}", u32::MAX)))
    }

    fn id(&mut self, key: &str) -> Result<Option<u32>, InvalidAttribute> {
        let Some(number) = self.take(key) else { return Ok(None) };
        match number.parse() {
            Ok(id) if id <= MAX_ID => Ok(Some(id)),
            _ => Err(InvalidAttribute::new(key, format!("expected a number from 0 to {MAX_ID}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pairs: &[(&str, &str)]) -> Result<PublicationRequest, InvalidAttribute> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        pairs.collect::<Attributes>().request(None, BTreeMap::new(), None)
    }

    #[test]
    fn attribute_with_an_invalid_value_is_refused_by_name() {
        for (key, value, words) in [
            ("anonymous", "yes", "anonymous: expected true or false"),
            ("allowHttp", "1", "allowHttp: expected true or false"),
            ("uid", "root", "uid: expected a number from 0 to 4294967294"),
            ("gid", "-1", "gid: expected a number from 0 to 4294967294"),
            ("gid", "4294967295", "gid: expected a number from 0 to 4294967294"),
            ("staging", "soon", "staging: expected wait or lazy"),
            ("badNames", "drop", "badNames: expected refuse or escape"),
            ("allow", "*.json", "allow: expected a JSON list of patterns"),
            ("tenant", "../x", "tenant: "),
            ("layout", "flat", "layout: \"flat\" is not a layout"),
            ("layout", "hf-cache", "layout: s3://b: the layout hf-cache is for hf:// sources only"),
            ("cacheDir", "/", "cacheDir: no such attribute"),
        ] {
            let error = request(&[("source", "s3://b"), (key, value)]).expect_err(key).to_string();
            assert!(error.starts_with(words) && !error.contains('\n'), "{error}");
        }
        for (source, key, value, words) in [
            ("file:///d", "endpoint", "https://h", "endpoint: cannot be used with file://"),
            ("https://h/f", "endpoint", "https://h", "endpoint: cannot be used with https://"),
            ("hf://o/n", "region", "eu", "region: cannot be used with hf://"),
            ("hf://o/n", "badNames", "escape", "badNames: cannot be used with hf://"),
            ("file:///d", "allowHttp", "true", "allowHttp: cannot be used with file://"),
            ("file:///d", "caFile", "/dev/null", "caFile: cannot be used with file://"),
            ("bt://p", "exec", r#"["*.sh"]"#, "exec: cannot be used with bt://"),
        ] {
            let error = request(&[("source", source), (key, value)]).expect_err(key).to_string();
            assert_eq!(error, words);
        }
        // What asks for the usual has it.
        for (key, value) in
            [("allowHttp", "false"), ("badNames", "refuse"), ("anonymous", "true"), ("exec", "[]")]
        {
            request(&[("source", "file:///d"), (key, value)]).expect(key);
        }
        assert_eq!(request(&[]).expect_err("no source").to_string(), "source: is missing");
    }

    #[test]
    fn attributes_of_a_volume_to_write_to_refuse_all_others_by_name() {
        let volume = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            pairs.collect::<Attributes>().volume(Some("own"))
        };
        let made = volume(&[("projectCache", "llama")]).expect("valid").expect("a volume");
        assert_eq!((made.kind, made.name.as_str()), (ContainerVolumeKind::ProjectCache, "llama"));
        assert_eq!((made.tenant.as_deref(), made.trusted), (Some("own"), false));
        let made = volume(&[("teamCache", "research")]).expect("valid").expect("a volume");
        assert_eq!((made.kind, made.name.as_str()), (ContainerVolumeKind::TeamCache, "research"));
        assert_eq!((made.tenant.as_deref(), made.trusted), (Some("own"), false));
        let error = volume(&[("teamCache", "")]).expect_err("no name").to_string();
        assert!(error.starts_with("teamCache: the name of a team"), "{error}");
        let named =
            volume(&[("checkpoints", "llama"), ("tenant", "team")]).expect("valid").expect("a volume");
        assert_eq!((named.kind, named.tenant.as_deref()), (ContainerVolumeKind::Checkpoints, Some("team")));
        assert_eq!(named.keep, None);
        let kept = volume(&[("checkpoints", "llama"), ("keep", "3")]).expect("valid").expect("a volume");
        assert_eq!(kept.keep, NonZeroU32::new(3));
        let error =
            volume(&[("projectCache", "llama"), ("keep", "3")]).expect_err("no generations").to_string();
        assert_eq!(error, "keep: cannot be used with projectCache");
        assert_eq!(volume(&[("source", "s3://b")]).expect("valid"), None);
        for (key, value, words) in [
            ("source", "s3://b", "source: cannot be used with checkpoints"),
            ("staging", "lazy", "staging: cannot be used with checkpoints"),
            ("projectCache", "llama", "projectCache: cannot be used with checkpoints"),
            ("tenant", "../x", "tenant: "),
            ("checkpoints", "", "checkpoints: "),
            ("keep", "0", "keep: expected a number from 1 to 4294967295"),
        ] {
            let error = volume(&[("checkpoints", "llama"), (key, value)]).map_err(|e| e.to_string());
            assert!(error.as_ref().is_err_and(|error| error.starts_with(words)), "{key}: {error:?}");
        }
    }

    #[test]
    fn attributes_with_every_key_become_a_request() {
        let made = request(&[
            ("source", "s3://b/p"),
            ("allow", r#"["*.json"]"#),
            ("ignore", "[]"),
            ("staging", "lazy"),
            ("anonymous", "true"),
            ("endpoint", "https://h"),
            ("region", "eu"),
            ("caFile", "/dev/null"),
            ("allowHttp", "false"),
            ("mirror", "s3://m"),
            ("tenant", "team"),
            ("uid", "1"),
            ("gid", "2"),
            ("badNames", "escape"),
        ]);
        let made = made.expect("all of them");
        let s3 = made.access.s3.expect("that of its scheme");
        assert_eq!((s3.endpoint.as_deref(), s3.region.as_deref()), (Some("https://h"), Some("eu")));
        assert!(s3.anonymous && made.access.escape && !made.access.allow_http && !made.trusted);
        assert_eq!((made.uid, made.gid, made.staging), (Some(1), Some(2), Staging::Lazy));
        assert_eq!(made.mirror.expect("named").tenant, "team");
    }
}
