//! The options that mount(8) users write after `-o`.

/// What they ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `allow_other`.
    pub allow_other: bool,
    /// `uid=`.
    pub uid: Option<u32>,
    /// `gid=`.
    pub gid: Option<u32>,
}

/// Options that hold anyway on a read-only mount without devices, or that only tell others when to mount.
const HARMLESS: [&str; 13] = [
    "ro",
    "defaults",
    "nosuid",
    "nodev",
    "noatime",
    "nodiratime",
    "relatime",
    "async",
    "_netdev",
    "auto",
    "noauto",
    "nofail",
    "default_permissions",
];

/// Reads one list: `ro,allow_other,uid=1000`.
pub fn parse(list: &str) -> Result<Options, String> {
    let mut options = Options::default();
    for option in list.split(',').filter(|option| !option.is_empty()) {
        match option.split_once('=') {
            None if option == "allow_other" => options.allow_other = true,
            None if option == "rw" => return Err("the mount is always read-only; leave `rw` out".to_owned()),
            None if HARMLESS.contains(&option) => {}
            Some(("uid", id)) => options.uid = Some(number(option, id)?),
            Some(("gid", id)) => options.gid = Some(number(option, id)?),
            _ if option.starts_with("x-") => {}
            _ => return Err(format!("unknown option `{option}`")),
        }
    }
    Ok(options)
}

fn number(option: &str, id: &str) -> Result<u32, String> {
    id.parse().map_err(|_| format!("`{option}` needs a number"))
}

impl Options {
    /// These, and what `later` says beyond or against them.
    pub fn and(self, later: &Self) -> Self {
        Self {
            allow_other: self.allow_other || later.allow_other,
            uid: later.uid.or(self.uid),
            gid: later.gid.or(self.gid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mount_passes_is_understood() {
        let options =
            parse("ro,nosuid,,nodev,x-systemd.automount,allow_other,uid=1000,gid=0").expect("valid");
        assert_eq!(options, Options { allow_other: true, uid: Some(1000), gid: Some(0) });
        let both = options.and(&parse("uid=7,defaults").expect("valid"));
        assert_eq!(both, Options { allow_other: true, uid: Some(7), gid: Some(0) });
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        assert!(parse("ro,rw").expect_err("rw").contains("read-only"));
        assert_eq!(parse("uid=me").expect_err("word"), "`uid=me` needs a number");
        assert_eq!(parse("ro,noexec").expect_err("unknown"), "unknown option `noexec`");
    }
}
