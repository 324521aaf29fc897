//! Validates submitted jobs, of the command and of any other client of the API.

use std::fs;
use std::path::{Path, PathBuf};

use bdnfs::auth::load;
use bdnfs::error::{Error, Kind, Result};
use bdnfs::source::{SecretStore, Uri, tenant};
use bdnfs::weights::{check_label, check_locations, check_volume_path};

use super::job_caches;
use super::job_volume::checkpoint_path;
use super::mount_requests::mount_requests;
use super::supervisor::check_places;
use crate::api::job::{JobRequest, TrainingCache, Variable};
use crate::mounts::Mounter;
use crate::volumes::{SCRATCH_PLACE, Volumes};

/// Refuses a job that can never run. `stores` are searched for the secrets of its environment. Touches the local disk.
///
/// # Errors
/// [`Kind::Invalid`], which names what is wrong; [`Kind::Refused`] for a secret that is nowhere.
pub fn check(
    request: &JobRequest,
    mounter: &Mounter,
    volumes: &Volumes,
    stores: &[SecretStore],
) -> Result<()> {
    request.name.as_deref().map_or(Ok(()), |name| check_label("the name of the job", name))?;
    request.training.check()?;
    // It becomes a part of paths.
    request.tenant.as_deref().map_or(Ok(()), tenant::check)?;
    check_commands(&request.start_commands)?;
    let shown = request.shown_sources()?;
    let places: Vec<_> = shown.iter().map(|shown| shown.place.as_path()).collect();
    check_locations(&places)?;
    let loaded = request.load.as_ref().map(|load| load.download_folder.as_path());
    let saved = checkpoint_path(request);
    let own = [
        ("load_checkpoint_config.download_folder", loaded),
        ("checkpointing_config.checkpoint_path", saved.as_deref()),
    ];
    for (key, place) in own {
        place.map_or(Ok(()), check_volume_path).map_err(|e| e.context(key))?;
    }
    if saved.is_some() && request.direct {
        return invalid("checkpoints are saved in a mirror; leave out --no-mirror".to_owned());
    }
    job_caches::check(request, volumes.shared_directory().is_some())?;
    let caches = request.cache.as_ref().map_or_else(Vec::new, TrainingCache::paths);
    let caches = caches.iter().map(PathBuf::as_path);
    let places: Vec<_> =
        places.into_iter().chain(own.into_iter().filter_map(|(_, place)| place)).chain(caches).collect();
    check_places(&[&places[..], &[Path::new(SCRATCH_PLACE)]].concat())?;
    check_workdir(&request.workdir, &places)?;
    for mount in &mount_requests(mounter, request, |number| request.weights[number].mountpoint.clone())? {
        mounter.check(mount).map_err(|e| {
            let source = mount.weights.source.expose().parse::<Uri>();
            e.context(source.map_or_else(|_| "a source".to_owned(), |uri| uri.to_string()))
        })?;
    }
    request.environment.iter().try_for_each(|(name, value)| check_variable(name, value, stores))
}

fn check_commands(commands: &[String]) -> Result<()> {
    if commands.is_empty() {
        return invalid("the job has no start_commands, so there is nothing to run".to_owned());
    }
    match commands.iter().position(|command| command.contains('\0')) {
        Some(number) => {
            invalid(format!("start_commands[{number}] contains a NUL, which no process can be given"))
        }
        None => Ok(()),
    }
}

/// Refuses a working directory that is none, unless it may come with a source.
fn check_workdir(workdir: &Path, places: &[&Path]) -> Result<()> {
    if !workdir.is_absolute() {
        return invalid(format!("the working directory {} must be absolute", workdir.display()));
    }
    if places.iter().any(|place| workdir.starts_with(place)) {
        return Ok(());
    }
    match fs::metadata(workdir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => invalid(format!("the working directory {} is not a directory", workdir.display())),
        Err(error) => Err(Error::with(
            Kind::Invalid,
            format!("cannot use the working directory {}", workdir.display()),
            error,
        )),
    }
}

fn check_variable(name: &str, value: &Variable, stores: &[SecretStore]) -> Result<()> {
    if name.is_empty() || name.contains(['=', '\0']) {
        return invalid(format!("{name:?} cannot be the name of a variable"));
    }
    match value {
        Variable::Text(text) if text.contains('\0') => {
            invalid(format!("the variable {name} contains a NUL, which no process can be given"))
        }
        Variable::Text(_) => Ok(()),
        Variable::Secret { name: secret } => {
            load::find_secret(stores, secret).map(drop).map_err(|e| e.context(format!("the variable {name}")))
        }
    }
}

fn invalid(text: String) -> Result<()> {
    Err(Error::new(Kind::Invalid, text))
}
