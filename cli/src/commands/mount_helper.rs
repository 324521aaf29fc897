//! `mount.bdnfs` and `mount.fuse.bdnfs`: what mount(8), and with it fstab and systemd, runs to mount these types. They are links
//! to `bdnfs`, which knows by its name (`argv[0]`) that it is meant.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bdnfs::source::Uri;
use bdnfs_agent::api::MountInfo;
use bdnfs_agent::api::client::Client;
use bdnfs_agent::runtime;
use clap::{ArgAction, Args, FromArgMatches, Parser};

use crate::commands::mount::{self, MountArgs};
use crate::output::stderr_line;
use crate::probe::{self, MountHealth};
use crate::{log, mountpoint, options, progress, text};

/// The names of the helper: for the types `bdnfs` and `fuse.bdnfs`.
const HELPER_NAMES: [&str; 2] = ["mount.bdnfs", "mount.fuse.bdnfs"];
/// The exit code of mount(8) for incorrect invocation.
const EXIT_USAGE: u8 = 1;
/// The exit code of mount(8) for a mount that failed.
const EXIT_FAILURE: u8 = 32;
/// Options that mount(8) adds by itself, or that say who may run it: without effect here. Of them `user` alone has a value.
const MOUNT8_OPTIONS: [&str; 9] = ["rw", "suid", "dev", "exec", "nouser", "user", "users", "owner", "group"];
/// Options of `bdnfs mount` that are of no use in an fstab: what they do is said otherwise there, or not at all.
const NOT_IN_FSTAB: [&str; 6] = ["config", "root", "foreground", "wait", "json", "help"];

/// Mount a bdnfs source, as mount(8) asks for it.
#[derive(Debug, Parser)]
#[command(name = "mount.bdnfs", version)]
struct HelperArgs {
    /// Source
    source: OsString,
    /// Mount point
    mountpoint: PathBuf,
    /// Mount options
    #[arg(short)]
    options: Vec<String>,
    /// Check everything, and mount nothing
    #[arg(short)]
    fake: bool,
    /// Ignore unknown options
    #[arg(short)]
    sloppy: bool,
    /// Log more
    #[arg(short, action = ArgAction::Count)]
    verbose: u8,
    /// Write no /etc/mtab (it is never written)
    #[arg(short)]
    no_mtab: bool,
    /// Type of the file system, which the name of the helper says too
    #[arg(short)]
    type_name: Option<String>,
    /// Mount namespace
    #[arg(short = 'N')]
    namespace: Option<PathBuf>,
}

/// The name under which this program was started, if it is one of the helper's.
pub fn invoked_name() -> Option<&'static str> {
    let program = PathBuf::from(std::env::args_os().next()?);
    HELPER_NAMES.into_iter().find(|name| program.file_name().is_some_and(|program| program == *name))
}

/// Runs as the helper `name` of mount(8), and returns one of its exit codes.
pub fn main(name: &str) -> ExitCode {
    let args = HelperArgs::parse_from_environment();
    let (verbose, fake) = (args.verbose, args.fake);
    let mount = match args.mount_args() {
        Ok(mount) => mount,
        Err(error) => {
            stderr_line!("{name}: {}", text::line(&error));
            return EXIT_USAGE.into();
        }
    };
    if fake {
        return ExitCode::SUCCESS;
    }
    match run(mount, verbose) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            stderr_line!("{name}: {}", text::line(&error));
            EXIT_FAILURE.into()
        }
    }
}

fn run(args: MountArgs, verbose: u8) -> Result<()> {
    let _guards = log::start(log::LogKind::Command, verbose, None)?;
    let Some((client, mounted)) = args.target().map_or(Ok(None), |(uri, path)| find(uri, path))? else {
        return mount::run(args, verbose);
    };
    if args.wait {
        let staged =
            runtime::block_on(async { anyhow::Ok(progress::stage(&client, mounted.id, false).await?) });
        staged.with_context(|| format!("cannot stage {}", mounted.source))?;
    }
    Ok(())
}

/// The mount of `uri` on `path`, if it is there and alive: `mount -a` asks for it again.
fn find(uri: &Uri, path: &Path) -> Result<Option<(Client, MountInfo)>> {
    let path = mountpoint::resolve(path)?;
    if !mountpoint::is_ours(&path)? {
        return Ok(None);
    }
    let MountHealth::Alive(socket) = probe::mount(&path) else { return Ok(None) };
    let client = Client::new(socket);
    let status = runtime::block_on(async { anyhow::Ok(client.status().await?) })?;
    let mounted = status.at(&path).map(|mount| mount.mounted.clone());
    Ok(mounted.filter(|mounted| mounted.requested() == uri.to_string()).map(|mounted| (client, mounted)))
}

impl HelperArgs {
    fn parse_from_environment() -> Self {
        Self::try_parse().unwrap_or_else(|error| {
            let _ = error.print();
            // clap's own code for wrong usage is that of mount(8) for another failure.
            std::process::exit(if error.use_stderr() { EXIT_USAGE.into() } else { 0 })
        })
    }

    /// The arguments of `bdnfs mount` that do the same.
    fn mount_args(self) -> Result<MountArgs> {
        if self.namespace.is_some() {
            bail!("-N: not supported; use `nsenter --mount=NAMESPACE mount ..`");
        }
        let command = MountArgs::augment_args(clap::Command::new("mount").no_binary_name(true));
        let mut words: Vec<OsString> = Vec::new();
        for option in self.options.iter().flat_map(|list| split(list)) {
            match translate(&command, &option) {
                Ok(word) => words.extend(word.map(Into::into)),
                Err(_) if self.sloppy => {}
                Err(error) => bail!(error),
            }
        }
        words.extend(["--".into(), self.source, self.mountpoint.into()]);
        let mut args = command
            .try_get_matches_from(words)
            .and_then(|matches| MountArgs::from_arg_matches(&matches))
            .map_err(|error| anyhow::Error::msg(first_paragraph(&error.to_string())))?;
        args.quiet = self.verbose == 0;
        Ok(args)
    }
}

/// The options of a list. A comma between double quotes belongs to a value; the quotes do not.
fn split(list: &str) -> Vec<String> {
    let (mut options, mut quoted) = (vec![String::new()], false);
    for letter in list.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => options.push(String::new()),
            letter => options.last_mut().into_iter().for_each(|option| option.push(letter)),
        }
    }
    options.retain(|option| !option.is_empty());
    options
}

/// The argument of `bdnfs mount`, whose options `command` has, that says the same as a mount option; `None` for one without
/// effect.
fn translate(command: &clap::Command, option: &str) -> Result<Option<String>, String> {
    let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
    let is_of_mount8 = MOUNT8_OPTIONS.contains(&name) && (value.is_none() || name == "user");
    if is_of_mount8 || options::is_ignored(option) {
        return Ok(None);
    }
    match (name, value) {
        ("staging", Some("wait")) => return Ok(Some("--wait".to_owned())),
        ("staging", Some("lazy")) => return Ok(None),
        ("staging", _) => return Err(format!("`{option}`: expected staging=wait or staging=lazy")),
        _ => {}
    }
    let long = name.replace('_', "-");
    let known = command.get_arguments().any(|argument| argument.get_long() == Some(long.as_str()));
    if !known || NOT_IN_FSTAB.contains(&long.as_str()) {
        return Err(options::unknown(option));
    }
    Ok(Some(value.map_or_else(|| format!("--{long}"), |value| format!("--{long}={value}"))))
}

/// The first paragraph of a clap error, which says what is wrong.
fn first_paragraph(error: &str) -> String {
    let lines = error.trim_start_matches("error: ").lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<MountArgs> {
        HelperArgs::try_parse_from([&["mount.bdnfs", "s3://b/p", "/mnt"], words].concat())?.mount_args()
    }

    #[test]
    fn helper_arguments_of_mount8_are_accepted() {
        let list =
            "rw,nosuid,nodev,allow_other,secret=hf,nofail,_netdev,user=me,exec,x-systemd.requires=a.service";
        let args = parse(&["-snv", "-t", "fuse.bdnfs", "-o", list]).expect("valid");
        assert!(!args.wait && !args.quiet);
        assert_eq!(
            args.target().map(|(uri, path)| (uri.to_string(), path)),
            Some(("s3://b/p".into(), Path::new("/mnt")))
        );
        assert!(parse(&["-o", "ro,staging=wait"]).expect("valid").wait);
        assert!(!parse(&["-o", "defaults,staging=lazy"]).expect("valid").wait);
    }

    #[test]
    fn exec_with_a_pattern_is_that_of_mount_and_exec_alone_is_ignored() {
        let command = MountArgs::augment_args(clap::Command::new("mount"));
        let translate = |option| translate(&command, option).expect(option);
        assert_eq!(translate("exec=*.sh").as_deref(), Some("--exec=*.sh"));
        assert_eq!((translate("exec"), translate("user"), translate("user=me")), (None, None, None));
        parse(&["-o", "exec=*.sh,exec"]).expect("valid");
    }

    #[test]
    fn option_list_with_quotes_keeps_commas_in_values() {
        let list = "rw,,allow=\"*.{json,txt}\",ignore=a";
        assert_eq!(split(list), ["rw", "allow=*.{json,txt}", "ignore=a"]);
        parse(&["-o", list]).expect("valid");
    }

    #[test]
    fn helper_misuse_is_refused_by_name_in_one_line() {
        for (words, name) in [
            (&["-o", "noexec"][..], "unknown mount option `noexec`"),
            (&["-o", "remount"], "`remount`"),
            (&["-o", "config=/etc/x"], "`config=/etc/x`"),
            (&["-o", "staging=soon"], "staging=wait"),
            (&["-o", "uid=me"], "me"),
            (&["-o", "secret=a,credentials=b"], "cannot be used with"),
            (&["-N", "/proc/1/ns/mnt"], "nsenter"),
        ] {
            let error = parse(words).expect_err(name).to_string();
            assert!(error.contains(name) && !error.contains('\n'), "{error}");
        }
        parse(&["-s", "-o", "noexec"]).expect("sloppy");
    }
}
