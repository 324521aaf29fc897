//! The keys of Truss 0.18 (`TrainingJob` as `truss train push` sends it, `TrainingProject`, `TrussConfig`) and what a job
//! does with each of them. `docs/jobs.md` has the same as tables, which a test holds against these and against Truss.

use serde_json::Value;

use super::loading::cannot_load;
use super::schema::{JobKey, REFERENCE, Shape, is_cache_base};
use Shape::{Any, Flag, Keys, Label, List, Name, Scalars, Text, TextOr, Texts, Variables, Whole, Word};

const MACHINE_REASON: &str = "the commands run on this machine as it is";
const WORKDIR_REASON: &str =
    "the commands run in the working directory of the job, with the files that are there";
const LOADING_REASON: &str = "each checkpoint must be a baseten_latest_checkpoint, with job_id and project_name at most, or a \
                              baseten_named_checkpoint, with checkpoint_name and job_id; no loops_checkpoint can be loaded";
const KEEP_REASON: &str = "must be at least 1: the latest checkpoint is always kept";
const CACHE_BASE_REASON: &str = "must be an absolute path without '..'";
const SERVING_REASON: &str = "they are for the service that builds and serves the model";
const UNMOUNTED_REASON: &str = "names data that is not mounted here; name it in weights";

/// The keys of a request that posts a job.
pub(super) const PUSH_REQUEST_KEYS: &[JobKey] = &[JobKey::required("training_job", Any).done()];
/// A project with its job.
pub(super) static PROJECT: &[JobKey] = &[
    JobKey::required("name", Name).done(),
    JobKey::required("job", Any).done(),
    JobKey::nullable("team_name", Name).done(),
];
/// A training job.
pub(super) const JOB: &[JobKey] = &[
    JobKey::required("image", Keys(IMAGE)).ignored(MACHINE_REASON),
    JobKey::optional("compute", Keys(COMPUTE)).ignored(MACHINE_REASON),
    JobKey::optional("runtime", Keys(RUNTIME)).done(),
    JobKey::nullable("interactive_session", Keys(SESSION)).ignored("no session is opened"),
    JobKey::nullable("name", Label).done(),
    JobKey::nullable("priority", Whole).ignored("jobs are admitted in the order in which they come"),
    JobKey::nullable("workspace", Keys(WORKSPACE)).ignored(WORKDIR_REASON),
    JobKey::optional("weights", Any).done(),
    JobKey::optional("enable_baseten_workdir", Flag).ignored(WORKDIR_REASON),
    JobKey::nullable("truss_user_env", Keys(USER_ENV))
        .ignored("it describes the machine that pushed the job"),
];
/// A training job in a file of bdnfs itself: the keys that need no platform.
pub(super) static BDNFS_JOB_KEYS: &[JobKey] = &[
    JobKey::nullable("name", Label).done(),
    JobKey::nullable("project", Name).done(),
    JobKey::nullable("team", Name).done(),
    JobKey::nullable("keep", Whole).refused(|keep| keep.as_i64().is_some_and(|keep| keep < 1), KEEP_REASON),
    JobKey::optional("runtime", Keys(RUNTIME)).done(),
    JobKey::optional("weights", Any).done(),
];
const IMAGE: &[JobKey] =
    &[JobKey::required("base_image", Text), JobKey::nullable("docker_auth", Keys(DOCKER_AUTH))];
const DOCKER_AUTH: &[JobKey] = &[
    JobKey::required("auth_method", Word(DOCKER_AUTH_METHODS)),
    JobKey::required("registry", Text),
    JobKey::nullable(
        "aws_iam_docker_auth",
        Keys(&[
            JobKey::required("access_key_secret_ref", Keys(REFERENCE)),
            JobKey::required("secret_access_key_secret_ref", Keys(REFERENCE)),
        ]),
    ),
    JobKey::nullable("aws_oidc_docker_auth", Keys(ROLE)),
    JobKey::nullable("aws_assume_role_docker_auth", Keys(ROLE)),
    JobKey::nullable(
        "gcp_oidc_docker_auth",
        Keys(&[
            JobKey::required("service_account", Text),
            JobKey::required("workload_identity_provider", Text),
        ]),
    ),
    JobKey::nullable(
        "gcp_service_account_json_docker_auth",
        Keys(&[JobKey::required("service_account_json_secret_ref", Keys(REFERENCE))]),
    ),
    JobKey::nullable("registry_secret_docker_auth", Keys(&[JobKey::required("secret_ref", Keys(REFERENCE))])),
];
const DOCKER_AUTH_METHODS: &[&str] =
    &["GCP_SERVICE_ACCOUNT_JSON", "AWS_IAM", "AWS_OIDC", "GCP_OIDC", "REGISTRY_SECRET", "AWS_ASSUME_ROLE"];
const ROLE: &[JobKey] = &[JobKey::required("role_arn", Text), JobKey::required("region", Text)];
const COMPUTE: &[JobKey] = &[
    JobKey::optional("node_count", Whole)
        .refused(|count| *count != 1, "must be 1: a job runs on one node; submit one job on each"),
    JobKey::optional("cpu_count", Whole),
    JobKey::optional("memory", Text),
    JobKey::nullable(
        "accelerator",
        TextOr(&[JobKey::nullable("accelerator", Text), JobKey::optional("count", Whole)]),
    ),
    JobKey::optional("availability_model", Word(&["dedicated", "spot"])),
];
const RUNTIME: &[JobKey] = &[
    JobKey::optional("start_commands", Texts).done(),
    JobKey::optional("environment_variables", Variables).done(),
    JobKey::nullable("enable_cache", Flag).done(),
    JobKey::optional("checkpointing_config", Keys(CHECKPOINTING)).done(),
    JobKey::nullable("load_checkpoint_config", Keys(LOADING)).refused(cannot_load, LOADING_REASON),
    JobKey::nullable("cache_config", Keys(CACHE)).done(),
    JobKey::optional(
        "artifacts",
        List(&[JobKey::required("s3_bucket", Text), JobKey::required("s3_key", Text)]),
    )
    .ignored(WORKDIR_REASON),
];
const CHECKPOINTING: &[JobKey] = &[
    JobKey::optional("enabled", Flag),
    JobKey::nullable("checkpoint_path", Text),
    JobKey::nullable("volume_size_gib", Whole)
        .refused(|size| size.as_i64().is_some_and(|size| size < 1), "must be at least 1"),
];
const LOADING: &[JobKey] = &[
    JobKey::optional("enabled", Flag),
    JobKey::optional("checkpoints", List(CHECKPOINT)),
    JobKey::optional("download_folder", Text),
];
/// A checkpoint of any type: each has some of these.
const CHECKPOINT: &[JobKey] = &[
    JobKey::optional(
        "typ",
        Word(&["baseten_latest_checkpoint", "baseten_named_checkpoint", "loops_checkpoint"]),
    ),
    JobKey::nullable("job_id", Text),
    JobKey::nullable("project_name", Text),
    JobKey::optional("checkpoint_name", Text),
    JobKey::optional("run_id", Text),
    JobKey::optional("target", Word(&["trainer", "sampler"])),
];
const CACHE: &[JobKey] = &[
    JobKey::optional("enabled", Flag),
    JobKey::optional("enable_legacy_hf_mount", Flag),
    JobKey::optional("require_cache_affinity", Flag),
    JobKey::optional("mount_base_path", Text).refused(is_no_cache_base, CACHE_BASE_REASON),
];
const SESSION: &[JobKey] = &[
    JobKey::optional("trigger", Word(&["on_startup", "on_failure", "on_demand"])),
    JobKey::optional("timeout_minutes", Whole),
    JobKey::optional("session_provider", Word(&["vs_code", "cursor", "ssh"])),
    JobKey::optional("auth_provider", Word(&["github", "microsoft"])),
];
const WORKSPACE: &[JobKey] = &[
    JobKey::nullable("workspace_root", Text),
    JobKey::optional("external_dirs", Texts),
    JobKey::optional("exclude_dirs", Texts),
];
const USER_ENV: &[JobKey] = &[
    JobKey::required("truss_client_version", Text),
    JobKey::required("python_version", Text),
    JobKey::required("pydantic_version", Text),
    JobKey::nullable("mypy_version", Text),
    JobKey::nullable(
        "git_info",
        Keys(&[
            JobKey::required("latest_commit_sha", Text),
            JobKey::nullable("latest_tag", Text),
            JobKey::nullable("commits_since_tag", Whole),
            JobKey::required("has_uncommitted_changes", Flag),
        ]),
    ),
];

/// A `config.yaml`.
pub(super) static CONFIG: &[JobKey] = &[
    JobKey::optional("weights", Any).done(),
    JobKey::nullable("model_name", Label).done(),
    JobKey::optional("environment_variables", Scalars).done(),
    JobKey::optional("model_cache", Any).refused(is_filled, UNMOUNTED_REASON),
    JobKey::optional("hf_cache", Any).refused(is_filled, UNMOUNTED_REASON),
    JobKey::optional("cache_internal", Any).refused(is_filled, UNMOUNTED_REASON),
    JobKey::optional("external_data", Any).refused(is_filled, UNMOUNTED_REASON),
    JobKey::optional("training_checkpoints", Any).refused(is_filled, UNMOUNTED_REASON),
    JobKey::optional("bdn", Any).refused(|bdn| bdn.get("mounts").is_some_and(is_filled), UNMOUNTED_REASON),
    JobKey::optional("secrets", Any).ignored("the command gets no secret"),
    JobKey::optional("resources", Any).ignored(MACHINE_REASON),
    JobKey::optional("base_image", Any).ignored(MACHINE_REASON),
    JobKey::optional("python_version", Any).ignored(MACHINE_REASON),
    JobKey::optional("requirements", Any).ignored(MACHINE_REASON),
    JobKey::optional("requirements_file", Any).ignored(MACHINE_REASON),
    JobKey::optional("system_packages", Any).ignored(MACHINE_REASON),
    JobKey::optional("model_metadata", Any).ignored(SERVING_REASON),
    JobKey::optional("description", Any).ignored(SERVING_REASON),
    JobKey::optional("examples_filename", Any).ignored(SERVING_REASON),
    JobKey::optional("data_dir", Any).ignored(SERVING_REASON),
    JobKey::optional("external_package_dirs", Any).ignored(SERVING_REASON),
    JobKey::optional("runtime", Any).ignored(SERVING_REASON),
    JobKey::optional("build", Any).ignored(SERVING_REASON),
    JobKey::optional("build_commands", Any).ignored(SERVING_REASON),
    JobKey::optional("docker_server", Any).ignored(SERVING_REASON),
    JobKey::optional("trt_llm", Any).ignored(SERVING_REASON),
    JobKey::optional("bis_llm", Any).ignored(SERVING_REASON),
    JobKey::optional("input_type", Any).ignored(SERVING_REASON),
    JobKey::optional("model_framework", Any).ignored(SERVING_REASON),
    JobKey::optional("model_type", Any).ignored(SERVING_REASON),
    JobKey::optional("model_module_dir", Any).ignored(SERVING_REASON),
    JobKey::optional("model_class_filename", Any).ignored(SERVING_REASON),
    JobKey::optional("model_class_name", Any).ignored(SERVING_REASON),
    JobKey::optional("bundled_packages_dir", Any).ignored(SERVING_REASON),
    JobKey::optional("use_local_src", Any).ignored(SERVING_REASON),
    JobKey::optional("live_reload", Any).ignored(SERVING_REASON),
    JobKey::optional("apply_library_patches", Any).ignored(SERVING_REASON),
    JobKey::optional("spec_version", Any).ignored(SERVING_REASON),
];

fn is_no_cache_base(path: &Value) -> bool {
    path.as_str().is_some_and(|path| !is_cache_base(path.as_ref()))
}

/// Whether a list or mapping has anything in it.
pub(super) fn is_filled(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => false,
    }
}
