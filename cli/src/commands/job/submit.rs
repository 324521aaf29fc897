//! `bdnfs job submit`, and the arguments that specify a job.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bdnfs::weights::{Variable, job_commands, training_cache, unsupported};
use bdnfs_agent::api::job::{CheckpointRequest, JobRequest, default_grace};
use rustix::fs::Mode;

use super::AgentArgs;
use super::training::{TrainingArgs, retries};
use crate::access::option_name;
use crate::mirror::MirrorArgs;
use crate::output::print_value;
use crate::source::SourceOptions;
use crate::text;
use crate::weights::{Configuration, WeightsEntry};

/// Environment variables that a job inherits from the command that submits it, unless it sets them. It inherits no others, which
/// may contain credentials.
const INHERITED_VARIABLES: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ"];

/// The unit of `volume_size_gib`, in bytes.
const GIB: u64 = 1 << 30;

/// The arguments that specify a job.
#[derive(Debug, clap::Args)]
pub struct JobSpecArgs {
    /// Training job of truss_train as JSON, config.yaml of Truss, or TOML; - is standard input
    #[arg(value_name = "SPEC")]
    spec: PathBuf,
    /// Command to run instead of the start_commands of SPEC
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
    /// Ignore unknown keys of SPEC with a warning, instead of refusing it
    #[arg(long)]
    lenient: bool,
    /// Working directory of the commands. Default: the current directory
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Grace period between SIGTERM and SIGKILL when the job is stopped, such as 90s. Default: 30s
    #[arg(long, value_name = "DURATION", value_parser = text::parse_duration)]
    grace: Option<Duration>,
    /// Stage directly from the sources, without a mirror
    #[arg(long, conflicts_with = "mirror")]
    no_mirror: bool,
    /// Keep only the N newest complete checkpoints of the project in the mirror. Default: keep of SPEC, else all
    #[arg(long, value_name = "N")]
    keep: Option<NonZeroU32>,
    #[command(flatten)]
    training: TrainingArgs,
    #[command(flatten)]
    options: SourceOptions,
    #[command(flatten)]
    mirror: MirrorArgs,
}

impl JobSpecArgs {
    /// The request that they specify.
    pub fn request(&self) -> Result<JobRequest> {
        let file = Configuration::read(&self.spec)?;
        let unsupported = unsupported(file.value());
        let items = file.weights(&self.options, self.lenient)?;
        file.report(&unsupported.refused)?;
        let sources: Vec<_> = items.iter().map(|item| item.source.uri()).collect();
        self.options.access.check(&sources, self.mirror.uri(), option_name)?;
        let job = job_commands(file.value());
        let start_commands = match &self.command[..] {
            [] => job.start_commands,
            words => vec![quote_command(words)],
        };
        if start_commands.is_empty() {
            let name = self.spec.display();
            bail!("{name} has no start_commands; add a command: bdnfs job run {name} -- COMMAND");
        }
        let mut secrets = self.options.access.stores()?;
        for variable in job.environment.values() {
            if let Variable::Secret { name } = variable {
                secrets.splice(0..0, self.options.access.stores_for(name)?);
            }
        }
        secrets.dedup();
        let mirror = self.mirror.request(&self.options.access, &sources)?;
        let workdir = self.workdir.clone().map_or_else(std::env::current_dir, Ok);
        let workdir =
            workdir.and_then(|path| path.canonicalize()).context("cannot use the working directory")?;
        let env = |name: &str| std::env::var(name).ok();
        let (training, retries) = (self.training.identity(job.project, job.team, env)?, retries(env)?);
        let keep = self.keep.or(job.keep);
        if keep.is_some() && job.checkpoints.is_none() {
            let name = self.spec.display();
            bail!("keep: {name} saves no checkpoints; enable checkpointing_config, or leave out keep");
        }
        let checkpoints = job.checkpoints.map(|config| CheckpointRequest {
            path: config.checkpoint_path,
            size_limit: config.volume_size_gib.map(|size| size.saturating_mul(GIB)),
            keep,
        });
        Ok(JobRequest {
            training,
            checkpoints,
            name: job.name,
            weights: items.into_iter().map(WeightsEntry::into_weights).collect(),
            start_commands,
            environment: environment(job.environment, |name| std::env::var(name).ok()),
            secrets,
            workdir,
            umask: umask(),
            grace: self.grace.map_or_else(default_grace, |grace| grace.as_secs()),
            tenant: self.mirror.tenant().map(str::to_owned),
            mirror,
            direct: self.no_mirror,
            attached: false,
            load: job.load,
            lazy: Vec::new(),
            pinned: BTreeMap::new(),
            retries,
            cache: training_cache(file.value()),
            notes: unsupported.ignored,
        })
    }
}

/// The environment of the job: the variables that it sets, and those that it inherits.
fn environment(
    own: BTreeMap<String, Variable>,
    env: impl Fn(&str) -> Option<String>,
) -> BTreeMap<String, Variable> {
    let inherited =
        INHERITED_VARIABLES.iter().filter_map(|name| Some(((*name).to_owned(), Variable::Text(env(name)?))));
    let mut all: BTreeMap<_, _> = inherited.collect();
    all.extend(own);
    all
}

/// Quotes a command for a shell.
fn quote_command(words: &[String]) -> String {
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

/// The umask of this process. It can only be read by changing it for a moment; there is no second thread yet that could notice.
fn umask() -> u32 {
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask.bits()
}

/// The arguments of `bdnfs job submit`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct JobSubmitArgs {
    #[command(flatten)]
    spec: JobSpecArgs,
    #[command(flatten)]
    agent: AgentArgs,
    /// Print the job as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  bdnfs job submit job.json
  bdnfs job submit --json job.toml | jq .id";

/// Submits the job.
pub async fn run(args: JobSubmitArgs) -> Result<()> {
    let client = args.agent.client()?;
    let job = client.submit(&args.spec.request()?).await?;
    print_value(args.json, &job, || format!("job {}", job.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quote_command_keeps_words_for_the_shell() {
        let words = ["python", "-c", "print('a b')", ""].map(str::to_owned);
        assert_eq!(quote_command(&words), r#"python -c 'print('\''a b'\'')' ''"#);
    }

    #[test]
    fn environment_of_the_job_precedes_inherited_variables() {
        let own = BTreeMap::from([("HOME".to_owned(), Variable::Text("/job".to_owned()))]);
        let all = environment(own, |name| Some(format!("my {name}")));
        assert_eq!(all["HOME"], Variable::Text("/job".to_owned()));
        assert_eq!(all["PATH"], Variable::Text("my PATH".to_owned()));
        assert!(!all.contains_key("AWS_SECRET_ACCESS_KEY"));
    }
}
