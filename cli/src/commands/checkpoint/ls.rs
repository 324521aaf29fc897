//! `bdnfs checkpoint ls`: lists saved checkpoints; as JSON and CSV in the form of `truss train checkpoints list`.

use std::cmp::Ordering;

use anyhow::{Result, bail};
use bdnfs::checkpoint::group::CheckpointGroup;
use bdnfs::mirror::Mirror;
use bdnfs::mirror::index::checkpoint_key;
use bdnfs_agent::api::saving::UnsavedDirectory;
use bdnfs_agent::api::{DEFAULT_TENANT, socket};
use chrono::Local;
use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde_json::Value;

use super::model::CheckpointModel;
use super::{CheckpointMirrorArgs, state};
use crate::agents;
use crate::commands::status::unsaved::unsaved_table;
use crate::output::{print, print_line, short_id, stderr_line};
use crate::text;
use crate::truss_format::{self, ListFormat, SortOrder, human_size};

/// The arguments of `bdnfs checkpoint ls`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct CheckpointListArgs {
    #[command(flatten)]
    target: CheckpointMirrorArgs,
    /// Format of the output; JSON and CSV are those of `truss train checkpoints list`, of one job: the newest if none is named
    #[arg(short, long, value_enum, default_value_t = ListFormat::CliTable, conflicts_with = "json")]
    output: ListFormat,
    /// Sort key
    #[arg(long, value_enum, default_value_t = SortKey::Created)]
    sort: SortKey,
    /// Sort order
    #[arg(long, value_enum, default_value_t = SortOrder::Asc)]
    order: SortOrder,
}

const EXAMPLES: &str = "Examples:
  bdnfs checkpoint ls --mirror s3://mirror
  bdnfs checkpoint ls --project llama --sort size --order desc
  bdnfs checkpoint ls --job a1b2c3d4 -o json";

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SortKey {
    CheckpointId,
    Size,
    Created,
    Type,
}

/// The list in truss's form.
#[derive(Debug, Serialize)]
struct TrussList {
    job_id: String,
    total_checkpoints: usize,
    checkpoints: Vec<TrussCheckpoint>,
}

/// A checkpoint in truss's form, its keys in truss's order.
#[derive(Debug, Serialize)]
struct TrussCheckpoint {
    job_id: String,
    id: String,
    checkpoint_id: String,
    checkpoint_type: &'static str,
    base_model: String,
    size_bytes: u64,
    size_human_readable: String,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    lora_adapter_config: Option<Value>,
}

/// The number of checkpoints that are read at once to tell their types.
const GROUP_READS_IN_FLIGHT: usize = 8;
/// The first line of truss's CSV.
const CSV_HEADER: &str =
    "Job ID,Checkpoint ID,Checkpoint Name,Type,Base Model,Size (bytes),Size (human readable),Created At";

/// Lists the checkpoints; in a table also what this node keeps of those that could not be saved.
pub async fn run(args: CheckpointListArgs) -> Result<()> {
    let target = &args.target;
    let mirror = target.open().await?;
    let format = if target.json { ListFormat::Json } else { args.output };
    let projects = match (&target.project, &target.job) {
        (None, Some(job)) => mirror.projects_of(job).await?.into_iter().map(Some).collect(),
        (project, _) => vec![project.clone()],
    };
    if projects.len() > 1 && format != ListFormat::CliTable {
        let names: Vec<_> = projects.into_iter().flatten().collect();
        bail!("jobs of several projects have this ID: {}; name one with --project", names.join(", "));
    }
    let (mut groups, mut damaged) = (Vec::new(), Vec::new());
    for project in projects {
        let found = mirror.checkpoint_groups(project.as_deref(), target.job.as_deref()).await?;
        groups.extend(found.0);
        damaged.extend(found.1);
    }
    for (_, error) in &damaged {
        stderr_line!("bdnfs: {error}");
    }
    if format == ListFormat::CliTable {
        sort(&mut groups, args.sort, args.order);
        let unsaved = unsaved_table(&unsaved_directories(target).await?);
        print(&(table(&groups) + &unsaved))?;
    } else {
        // Oldest first, so the last one is of the newest job.
        let newest = groups.last().map(|group| group.job().to_owned());
        let job = target.job.clone().or(newest).unwrap_or_default();
        groups.retain(|group| group.job() == job);
        sort(&mut groups, args.sort, args.order);
        let mut checkpoints = truss_forms(&mirror, &groups).await;
        if let SortKey::Type = args.sort {
            checkpoints.sort_by(|a, b| {
                let ordering = a.checkpoint_type.cmp(b.checkpoint_type);
                if args.order == SortOrder::Desc { ordering.reverse() } else { ordering }
            });
        }
        if format == ListFormat::Json {
            let list = TrussList { job_id: job, total_checkpoints: checkpoints.len(), checkpoints };
            print_line(&serde_json::to_string_pretty(&list)?)?;
        } else {
            print(&csv(&checkpoints))?;
        }
    }
    if damaged.is_empty() {
        return Ok(());
    }
    bail!("{} damaged", text::count(damaged.len() as u64, "index entry"))
}

/// The directories with checkpoints that could not be saved, of the tenant, the project and the job that are named, as the agent of
/// this node lists them: none where there is no agent. One whose project is not known is listed with any.
async fn unsaved_directories(target: &CheckpointMirrorArgs) -> Result<Vec<UnsavedDirectory>> {
    let agents = agents::query(socket::well_known().into_iter().collect()).await?;
    let mut unsaved = Vec::new();
    for status in agents.into_values() {
        match status {
            Ok(status) => unsaved.extend(status.unsaved),
            Err(error) => stderr_line!("bdnfs: cannot list what this node keeps: {error}"),
        }
    }
    let tenant = target.mirror.tenant().unwrap_or(DEFAULT_TENANT);
    let is_of =
        |named: Option<&String>, own: Option<&String>| named.is_none() || own.is_none() || named == own;
    unsaved.retain(|one: &UnsavedDirectory| {
        let is_of_project = is_of(target.project.as_ref(), one.project.as_ref());
        one.tenant == tenant && is_of_project && is_of(target.job.as_ref(), Some(&one.id))
    });
    Ok(unsaved)
}

fn sort(groups: &mut [CheckpointGroup], key: SortKey, order: SortOrder) {
    groups.sort_by(|a, b| {
        let ordering = match key {
            SortKey::CheckpointId => a.name().cmp(b.name()),
            SortKey::Size => a.bytes().cmp(&b.bytes()),
            SortKey::Created => a.written().cmp(&b.written()),
            // The table does not tell it.
            SortKey::Type => Ordering::Equal,
        };
        if order == SortOrder::Desc { ordering.reverse() } else { ordering }
    });
}

fn table(groups: &[CheckpointGroup]) -> String {
    let head = ["CHECKPOINT", "JOB", "PROJECT", "RANKS", "FILES", "SIZE", "SAVED", "STATE"]
        .map(str::to_owned)
        .to_vec();
    let rows = groups.iter().map(|group| {
        vec![
            text::printable(group.name().as_bytes()),
            group.job().to_owned(),
            text::printable(group.project().as_bytes()),
            group.ranks().len().to_string(),
            group.files().to_string(),
            text::size(group.bytes()),
            text::minute(group.saved().timestamp()),
            state(group).to_owned(),
        ]
    });
    text::table(&std::iter::once(head).chain(rows).collect::<Vec<_>>(), &[3, 4, 5])
}

/// The checkpoints in truss's form, in the same order.
async fn truss_forms(mirror: &Mirror, groups: &[CheckpointGroup]) -> Vec<TrussCheckpoint> {
    let forms = stream::iter(groups).map(|group| async move {
        let saved = group.rank(0).unwrap_or(&group.ranks()[0]);
        let model = CheckpointModel::of(mirror, saved).await.unwrap_or_else(|error| {
            stderr_line!("note: cannot tell the type of {}: {error}", saved.id);
            CheckpointModel::UNKNOWN
        });
        truss_form(group, model)
    });
    forms.buffered(GROUP_READS_IN_FLIGHT).collect().await
}

fn truss_form(group: &CheckpointGroup, model: CheckpointModel) -> TrussCheckpoint {
    TrussCheckpoint {
        job_id: group.job().to_owned(),
        id: short_id(&checkpoint_key(&group.ranks()[0].id).to_string()).to_owned(),
        checkpoint_id: group.name().to_owned(),
        checkpoint_type: model.kind,
        base_model: model.base,
        size_bytes: group.bytes(),
        size_human_readable: human_size(group.bytes()),
        // Local time, as truss prints it.
        created_at: group.written().with_timezone(&Local).format("%Y-%m-%d %H:%M:%S").to_string(),
        lora_adapter_config: model.adapter,
    }
}

/// The lines of truss's CSV.
fn csv(checkpoints: &[TrussCheckpoint]) -> String {
    let rows = checkpoints.iter().map(|one| {
        let size = one.size_bytes.to_string();
        let cells = [
            &*one.job_id,
            &one.id,
            &one.checkpoint_id,
            one.checkpoint_type,
            &one.base_model,
            &size,
            &one.size_human_readable,
            &one.created_at,
        ];
        cells.map(str::to_owned).to_vec()
    });
    truss_format::csv(CSV_HEADER, rows)
}
