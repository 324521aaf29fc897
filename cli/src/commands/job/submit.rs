//! `bdnfs job submit`, and how a job is put together.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use bdnfs::source::weights::{Variable, runs};
use bdnfs_agent::api::job::{JobRequest, default_grace};
use rustix::fs::Mode;

use super::{Whose, say};
use crate::mirror;
use crate::source;
use crate::weights::{Configuration, Item};

/// Variables that programs need to find their way, and that a job gets from the command that submits it unless it says
/// otherwise. All others stay behind: there may be credentials in them.
const TAKEN_ALONG: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR"];

/// What a job is.
#[derive(Debug, clap::Args)]
pub struct Spec {
    /// Training job of truss_train as JSON, config.yaml of Truss, or TOML; - is standard input
    #[arg(value_name = "SPEC")]
    spec: PathBuf,
    /// Run this instead of the start_commands that SPEC has
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// The directory that the commands run in; by default the present one
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// How many seconds the job's processes have to end when it is stopped
    #[arg(long, value_name = "SECONDS", default_value_t = default_grace())]
    grace: u64,
    /// Stage the sources from where they live, and copy them into no mirror
    #[arg(long, conflicts_with = "mirror")]
    no_mirror: bool,
    #[command(flatten)]
    how: source::How,
    #[command(flatten)]
    mirror: mirror::Args,
}

impl Spec {
    /// Puts the job together.
    pub fn request(&self) -> Result<JobRequest> {
        let file = Configuration::read(&self.spec)?;
        let items = file.weights(&self.how)?;
        let (runs, found) = runs(file.value());
        file.judge(&found)?;
        let start_commands = match &self.command[..] {
            [] => runs.start_commands,
            words => vec![quoted(words)],
        };
        if start_commands.is_empty() {
            let name = self.spec.display();
            bail!("{name} has no start_commands; name a command: bdnfs job run {name} -- COMMAND");
        }
        let mut secrets = self.how.access.stores()?;
        for variable in runs.environment.values() {
            if let Variable::Secret { name } = variable {
                secrets.splice(0..0, self.how.access.holding(name)?);
            }
        }
        secrets.dedup();
        let uri = items.first().map(|item| item.source.uri().clone());
        let workdir = self.workdir.clone().map_or_else(std::env::current_dir, Ok);
        let workdir = workdir.and_then(|path| path.canonicalize()).context("the working directory")?;
        Ok(JobRequest {
            name: runs.name,
            weights: items.into_iter().map(Item::weights).collect(),
            start_commands,
            environment: environment(runs.environment, |name| std::env::var(name).ok()),
            secrets,
            workdir,
            umask: umask(),
            grace: self.grace,
            tenant: self.mirror.tenant().map(str::to_owned),
            mirror: self.mirror.request(&self.how.access, uri.as_ref())?,
            direct: self.no_mirror,
            attached: false,
        })
    }
}

/// What the job says, and what it needs besides.
fn environment(
    said: BTreeMap<String, Variable>,
    env: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, Variable> {
    let along = TAKEN_ALONG.iter().filter_map(|name| Some(((*name).to_owned(), Variable::Text(env(name)?))));
    let mut all: BTreeMap<_, _> = along.collect();
    all.extend(said);
    all
}

/// A command for a shell, word by word as it was given.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=/.,:+@%".contains(c);
    let quote = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// This process's own. The only way to learn it is to change it for a moment; this one has no second thread that could mind.
fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.bits()
}

/// What to submit.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    spec: Spec,
    #[command(flatten)]
    whose: Whose,
    /// Tell the job as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job submit job.json
  bdnfs job submit --json job.toml | jq .id";

/// Submits it.
pub async fn run(args: Args) -> Result<()> {
    let client = args.whose.client()?;
    let job = client.submit(&args.spec.request()?).await?;
    say(&if args.json { serde_json::to_string(&job)? } else { format!("job {}", job.id) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_shell_as_they_are() {
        let words = ["python", "-c", "print('a b')", ""].map(str::to_owned);
        assert_eq!(quoted(&words), r#"python -c 'print('\''a b'\'')' ''"#);
    }

    #[test]
    fn what_the_job_says_goes_before_what_is_taken_along() {
        let said = BTreeMap::from([("HOME".to_owned(), Variable::Text("/job".to_owned()))]);
        let all = environment(said, |name| Some(format!("my {name}")));
        assert_eq!(all["HOME"], Variable::Text("/job".to_owned()));
        assert_eq!(all["PATH"], Variable::Text("my PATH".to_owned()));
        assert!(!all.contains_key("AWS_SECRET_ACCESS_KEY"));
    }
}
