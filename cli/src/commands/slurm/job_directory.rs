//! The directory of a job: where its sources appear, and how far they are.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bdnfs_agent::api::publication::{PublicationState, SLURM_STATE_FILE as STATE_FILE, publication_key};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

/// The temporary name of a new state file. No source has a dot in its name.
const NEW_STATE_FILE: &str = "state.new";
/// The file that the watcher has locked while it runs.
const WATCHER_LOCK: &str = "watcher.lock";

/// The directory of a job, which belongs to its user.
#[derive(Debug)]
pub struct SlurmJobDirectory {
    path: PathBuf,
    id: u32,
}

/// The progress of a job's sources.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobSources {
    /// Published when all are.
    pub state: PublicationState,
    /// The last event, or why it failed.
    pub message: String,
    /// The paths at which they appear, by their names.
    pub sources: BTreeMap<String, PathBuf>,
}

impl SlurmJobDirectory {
    /// The directory of the job `id` in `directory`.
    pub fn new(directory: &Path, id: u32) -> Self {
        Self { path: directory.join(id.to_string()), id }
    }

    /// The job's number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The prefix of the keys of the job's publications.
    pub fn key_prefix(&self) -> String {
        format!("{}-", publication_key("slurm", &self.id.to_string(), Some(&self.path)))
    }

    /// The Slurm job that the publications are for, as shown to users.
    pub fn consumer(&self) -> String {
        format!("Slurm job {}", self.id)
    }

    /// The path at which the source `name` appears.
    pub fn target(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether it is there: the job named sources, and they are not released yet.
    pub fn exists(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Creates the directory for the user `uid`, with a first state. Other users have no access.
    pub fn create(&self, uid: u32, state: &JobSources) -> Result<()> {
        let make = || {
            if let Some(parent) = self.path.parent() {
                DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
                // Also where the umask is stricter.
                fs::set_permissions(parent, fs::Permissions::from_mode(0o755))?;
            }
            match DirBuilder::new().mode(0o500).create(&self.path) {
                // That of a job whose epilog was not run: its user, who may be another, made of it what they wanted.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    chown(&self.path, Some(geteuid().as_raw()), None)?;
                    fs::set_permissions(&self.path, fs::Permissions::from_mode(0o500))?;
                }
                made => made?,
            }
            self.write(STATE_FILE, state)?;
            chown(&self.path, Some(uid), None)
        };
        make().with_context(|| format!("cannot make {}", self.path.display()))
    }

    /// Replaces the state. Answers `false`, and writes nothing, where the job has ended.
    pub fn update(&self, state: &JobSources) -> Result<bool> {
        let [new, old] = [NEW_STATE_FILE, STATE_FILE].map(|name| self.path.join(name));
        let replaced = self.write(NEW_STATE_FILE, state).and_then(|()| {
            // In place of one that is there, and never of one that was removed.
            let exchanged = renameat_with(CWD, &new, CWD, &old, RenameFlags::EXCHANGE);
            remove_any(&new)?;
            Ok(exchanged?)
        });
        match replaced {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).with_context(|| format!("cannot write {}", old.display())),
        }
    }

    /// The state; `None` where the job has none.
    pub fn state(&self) -> Result<Option<JobSources>> {
        let path = self.path.join(STATE_FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        serde_json::from_slice(&text).map(Some).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Takes the lock of the watcher, which is held as long as the returned file is open.
    pub fn watcher_lock(&self) -> Result<File> {
        let lock = || {
            let file = self.create_file(WATCHER_LOCK)?;
            flock(&file, FlockOperation::LockExclusive)?;
            Ok::<_, io::Error>(file)
        };
        lock().with_context(|| format!("cannot lock {}", self.path.join(WATCHER_LOCK).display()))
    }

    /// Whether the watcher has ended, in whatever way.
    pub fn watcher_is_gone(&self) -> bool {
        let lock = File::open(self.path.join(WATCHER_LOCK));
        lock.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
    }

    /// Removes the state, which says that the job has ended, also to the agent. Returns whether there was one.
    pub fn end(&self) -> Result<bool> {
        remove_any(&self.path.join(STATE_FILE)).with_context(|| format!("cannot end {}", self.path.display()))
    }

    /// Removes the directory, once nothing is mounted there any more.
    pub fn remove(&self) -> Result<()> {
        fs::remove_dir_all(&self.path).with_context(|| format!("cannot remove {}", self.path.display()))
    }

    fn write(&self, name: &str, state: &JobSources) -> io::Result<()> {
        self.create_file(name)?.write_all(&serde_json::to_vec(state)?)
    }

    /// A new file, which the job's user may read.
    fn create_file(&self, name: &str) -> io::Result<File> {
        // The directory is the user's: what lies there is neither followed nor kept.
        let path = self.path.join(name);
        remove_any(&path)?;
        let file = File::options().write(true).create_new(true).mode(0o644).open(&path)?;
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        Ok(file)
    }
}

/// Removes what is at `path`, a directory with all that it has; links are not followed. Returns whether there was anything.
fn remove_any(path: &Path) -> io::Result<bool> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => fs::remove_dir_all(path),
        removed => removed,
    };
    match removed {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(message: &str) -> JobSources {
        JobSources { state: PublicationState::Staging, message: message.to_owned(), sources: BTreeMap::new() }
    }

    #[test]
    fn watcher_is_gone_without_its_lock_held_is_true() {
        let home = tempfile::tempdir().expect("a directory");
        let job = SlurmJobDirectory::new(&home.path().join("jobs"), 7);
        job.create(rustix::process::getuid().as_raw(), &state("one")).expect("made");
        assert!(!job.watcher_is_gone(), "a prolog of an earlier version started it without a lock");
        let lock = job.watcher_lock().expect("locked");
        assert!(!job.watcher_is_gone());
        drop(lock);
        assert!(job.watcher_is_gone() && job.watcher_is_gone());
        drop(job.watcher_lock().expect("that of a job that runs again"));
    }

    #[test]
    fn state_that_its_user_replaced_by_a_directory_is_replaced_and_removed() {
        let home = tempfile::tempdir().expect("a directory");
        let job = SlurmJobDirectory::new(&home.path().join("jobs"), 7);
        let uid = rustix::process::getuid().as_raw();
        job.create(uid, &state("one")).expect("made");
        let [kept, elsewhere] = ["elsewhere/kept", "elsewhere"].map(|name| home.path().join(name));
        fs::create_dir(&elsewhere).expect("made");
        fs::write(&kept, "").expect("written");
        let replace = || {
            let state = job.target(STATE_FILE);
            remove_any(&state).expect("removed");
            fs::create_dir(&state).expect("made");
            std::os::unix::fs::symlink(&elsewhere, state.join("link")).expect("a link");
        };
        replace();
        assert!(job.update(&state("two")).expect("written"));
        assert_eq!(job.state().expect("read").expect("there").message, "two");
        replace();
        fs::set_permissions(home.path().join("jobs/7"), fs::Permissions::from_mode(0o777)).expect("opened");
        job.create(uid, &state("three")).expect("that of a job that runs again");
        assert_eq!(job.state().expect("read").expect("there").message, "three");
        let mode = fs::metadata(home.path().join("jobs/7")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o500, "closed again");
        replace();
        assert!(job.end().expect("ended") && !job.end().expect("none") && kept.exists());
    }

    #[test]
    fn update_of_an_ended_job_writes_no_state() {
        let home = tempfile::tempdir().expect("a directory");
        let job = SlurmJobDirectory::new(&home.path().join("jobs"), 7);
        assert!(job.state().expect("none").is_none() && !job.end().expect("none"));
        job.create(rustix::process::getuid().as_raw(), &state("one")).expect("made");
        let mode =
            |path: &str| fs::metadata(home.path().join(path)).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode("jobs"), mode("jobs/7"), mode("jobs/7/state")), (0o755, 0o500, 0o644));
        assert!(job.update(&state("two")).expect("written"));
        assert_eq!(job.state().expect("read").expect("there").message, "two");
        assert!(job.end().expect("ended"));
        assert!(!job.update(&state("three")).expect("not written"));
        assert!(job.state().expect("none").is_none());
        job.remove().expect("removed");
        assert!(!job.update(&state("four")).expect("not written"));
    }
}
