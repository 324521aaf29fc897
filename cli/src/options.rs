//! Mount options (`-o`), as mount(8) takes them, and the values of others.

use bdnfs_agent::api::{MAX_ID, MountBackend};

/// Parsed mount options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// `allow_other`.
    pub allow_other: bool,
    /// `uid=`.
    pub uid: Option<u32>,
    /// `gid=`.
    pub gid: Option<u32>,
}

/// Options without effect: a read-only mount without devices has them anyway, or they only say when to mount.
const IGNORED_OPTIONS: &str = "ro defaults nosuid nodev noatime nodiratime relatime async _netdev auto noauto nofail default_permissions";

/// Parses a list: `ro,allow_other,uid=1000`.
pub fn parse(list: &str) -> Result<MountOptions, String> {
    let mut options = MountOptions::default();
    for option in list.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            _ if is_ignored(option) => {}
            None if option == "allow_other" => options.allow_other = true,
            None if option == "rw" => return Err("mounts are read-only; remove `rw`".to_owned()),
            Some(("uid", id)) => options.uid = Some(number(option, id)?),
            Some(("gid", id)) => options.gid = Some(number(option, id)?),
            _ => return Err(unknown(option)),
        }
    }
    Ok(options)
}

/// Whether an option has no effect: a comment, or one of [`IGNORED_OPTIONS`].
pub fn is_ignored(option: &str) -> bool {
    option.starts_with("x-")
        || option.starts_with("X-")
        || IGNORED_OPTIONS.split(' ').any(|ignored| ignored == option)
}

/// The message for an option that is not known.
pub fn unknown(option: &str) -> String {
    format!("unknown mount option `{option}`")
}

fn number(option: &str, id: &str) -> Result<u32, String> {
    parse_id(id).map_err(|expected| format!("`{option}`: {expected}"))
}

/// Parses the id of a user or group.
pub fn parse_id(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|id| *id <= MAX_ID)
        .ok_or_else(|| format!("expected a numeric id, at most {MAX_ID}"))
}

impl MountOptions {
    /// Merges two sets of options; `later` takes precedence.
    pub fn merge(self, later: &Self) -> Self {
        Self {
            allow_other: self.allow_other || later.allow_other,
            uid: later.uid.or(self.uid),
            gid: later.gid.or(self.gid),
        }
    }
}

/// The values of `--via`.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum MountBackendArg {
    /// The agent.
    Fuse,
    /// The kernel alone.
    Native,
    /// The kernel alone where that is better.
    Auto,
}

impl From<MountBackendArg> for MountBackend {
    fn from(via: MountBackendArg) -> Self {
        match via {
            MountBackendArg::Fuse => Self::Fuse,
            MountBackendArg::Native => Self::Native,
            MountBackendArg::Auto => Self::Auto,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_mount8_are_parsed() {
        let options =
            parse("ro,nosuid,,nodev,x-systemd.automount,allow_other,uid=1000,gid=0").expect("valid");
        assert_eq!(options, MountOptions { allow_other: true, uid: Some(1000), gid: Some(0) });
        let both = options.merge(&parse("uid=7,defaults").expect("valid"));
        assert_eq!(both, MountOptions { allow_other: true, uid: Some(7), gid: Some(0) });
    }

    #[test]
    fn unsupported_option_is_refused_by_name() {
        assert!(parse("ro,rw").expect_err("rw").contains("read-only"));
        assert_eq!(parse("uid=me").expect_err("word"), "`uid=me`: expected a numeric id, at most 4294967294");
        assert!(parse("uid=4294967295").is_err());
        assert_eq!(parse("ro,noexec").expect_err("unknown"), "unknown mount option `noexec`");
    }
}
