//! The scope of training caches, as requests and commands name it.

use bdnfs::checkpoint::check_text;
use bdnfs::error::Result;

/// The scope of a cache: a project or a team.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheScope {
    /// The cache of all jobs of a project.
    Project,
    /// The cache of all jobs of a team.
    Team,
}

impl CacheScope {
    /// The word for it, which is also the name of a directory.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Project => "project",
            Self::Team => "team",
        }
    }

    /// Refuses a name that no project or team can have.
    ///
    /// # Errors
    /// [`Kind::Invalid`](bdnfs::error::Kind::Invalid).
    pub fn check_name(self, name: &str) -> Result<()> {
        check_text(&format!("the name of a {}", self.as_str()), name)
    }

    /// The settings that limit its caches.
    pub fn limit_keys(self) -> &'static str {
        match self {
            Self::Project => "cache_limit or project_limits in [volumes]",
            Self::Team => "cache_limit or team_limits in [volumes]",
        }
    }

    /// The option of `bdnfs project` that selects the scope.
    pub fn option(self) -> &'static str {
        match self {
            Self::Project => "",
            Self::Team => "--team ",
        }
    }
}
