"""Random training jobs and configurations that the installed truss takes, with every key of its models, printed as JSON.

The arguments are a seed, and how many jobs and configurations. A job is the body that the REST client posts, made from the models themselves; a
configuration is a config.yaml that `truss push` takes. Each comes with what is asked for in it that is not here, and once more with
one of its keys misspelt."""

import collections.abc
import contextlib
import copy
import enum
import json
import random
import string
import sys
import types
import typing
import warnings

import pydantic
import yaml
from truss.base import truss_config
from truss_train import definitions, deployment

# Beside this file.
import truss_push

TEXTS = ["x", "two words", "naïve ☃", "a'b\"c\\d", "$HOME `id`", "line\nbreak", "tab\t", "0", "yes", "null", "~", " padded ", "{x}", "#no", "a: b"]
LEAVE_OUT = object()


class Generator:
    """Random values of the types of truss's models; the same ones for the same seed."""

    def __init__(self, seed, choices):
        self.random = random.Random(seed)
        # The values of fields, by model and name, that not any value of their type can be.
        self.choices = choices

    def value(self, annotation):
        origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            return self.value(self.random.choice(inner))
        if origin is typing.Annotated:
            return self.value(inner[0])
        if origin is typing.Literal:
            return self.random.choice(inner)
        if origin is list:
            return [self.value(inner[0]) for _ in range(self.random.randint(1, 3))]
        if origin in (dict, collections.abc.Mapping, collections.abc.MutableMapping):
            return {self.name(): self.value(inner[1]) for _ in range(self.random.randint(0, 3))}
        if annotation in (type(None), typing.Any):
            return None
        if issubclass(annotation, enum.Enum):
            return self.random.choice(list(annotation))
        if issubclass(annotation, pydantic.BaseModel):
            return self.model(annotation)
        return {
            bool: lambda: self.random.random() < 0.5,
            int: lambda: self.random.choice([1, 2, 7, 10**9]),
            float: lambda: self.random.choice([0.5, 1.0, 30.25]),
            str: lambda: self.random.choice(TEXTS),
            list: list,
            dict: dict,
        }[annotation]()

    def name(self):
        return "V_" + "".join(self.random.choices(string.ascii_letters + string.digits, k=8))

    def fields(self, model):
        hints, values = truss_push.annotations(model), {}
        for name, field in model.model_fields.items():
            if not field.is_required() and self.random.random() < 0.4:
                continue
            choice = self.choices.get((model.__name__, name))
            value = choice(self) if choice else self.value(hints[name])
            if value is not LEAVE_OUT:
                values[name] = value
        return values

    def model(self, model):
        """One that truss takes: the models have rules about fields that go together."""
        for _ in range(200):
            try:
                if issubclass(model, pydantic.RootModel):
                    return model.model_validate(plain(self.value(truss_push.annotations(model)["root"])))
                # The strict models take objects, the others what a file says.
                values = self.fields(model)
                return model(**values) if model.model_config.get("strict") else model.model_validate(plain(values))
            except (pydantic.ValidationError, ValueError, TypeError):
                pass
        raise ValueError(f"no {model.__name__} is accepted")


def places(value, place=""):
    """The places of all keys that have a value, as truss_push.fields names them."""
    if isinstance(value, list):
        for item in value:
            yield from places(item, place)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield place + key
            yield from places(inner, f"{place}{key}.")


def mappings(value, place, known):
    """The mappings in a value whose keys have names of truss."""
    if isinstance(value, list):
        for item in value:
            yield from mappings(item, place, known)
    elif isinstance(value, dict):
        if any(name.startswith(place) for name in known):
            yield value
        for key, inner in value.items():
            yield from mappings(inner, f"{place}{key}.", known)


def misspell(document, known, chosen):
    """The document with one key misspelt."""
    document = copy.deepcopy(document)
    mapping = chosen.choice([mapping for mapping in mappings(document, "", known) if mapping])
    key = chosen.choice(sorted(mapping))
    at = chosen.randrange(len(key))
    mapping[key[:at] + key[at:at + 1] * 2 + key[at + 1:]] = mapping.pop(key)
    return document


# Training jobs.

def auth(generator):
    """Half of the sources have none, so that there are jobs that can be run."""
    return LEAVE_OUT if generator.random.random() < 0.7 else generator.model(truss_config.WeightsAuth)


def secret(generator):
    return "hf_access_token" if generator.random.random() < 0.2 else LEAVE_OUT


def docker_auth(generator):
    methods = {
        "AWS_IAM": "aws_iam_docker_auth", "AWS_OIDC": "aws_oidc_docker_auth", "GCP_OIDC": "gcp_oidc_docker_auth",
        "AWS_ASSUME_ROLE": "aws_assume_role_docker_auth", "REGISTRY_SECRET": "registry_secret_docker_auth",
        "GCP_SERVICE_ACCOUNT_JSON": "gcp_service_account_json_docker_auth",
    }
    method, field = generator.random.choice(list(methods.items()))
    model = typing.get_args(typing.get_type_hints(definitions.DockerAuth)[field])[0]
    return definitions.DockerAuth(auth_method=truss_config.DockerAuthType[method], registry="r.example", **{field: generator.model(model)})


def jobs_weights(generator):
    made = [generator.model(truss_config.WeightsSource) for _ in range(generator.random.randint(0, 3))]
    for number, weights in enumerate(made):
        weights.mount_location = f"/models/m{number}"
    return made


JOB = {
    ("WeightsSource", "source"): lambda _: "s3://bucket/model",
    ("WeightsSource", "mount_location"): lambda _: "/models/m",
    ("WeightsSource", "auth"): auth,
    ("WeightsSource", "auth_secret_name"): secret,
    ("WeightsSource", "allow_patterns"): lambda g: g.random.choice([LEAVE_OUT, None, ["*.json"], ["a/", "config.*"]]),
    ("WeightsSource", "ignore_patterns"): lambda g: g.random.choice([LEAVE_OUT, None, [], ["none/", "*.bin"]]),
    ("PreparedTrainingJob", "weights"): jobs_weights,
    ("SecretReference", "name"): lambda _: "hf_access_token",
    ("Image", "docker_auth"): docker_auth,
    ("Compute", "node_count"): lambda g: 2 if g.random.random() < 0.05 else 1,
    ("Runtime", "start_commands"): lambda g: ["env -0 > env.out"] + g.random.choices(["true", "test -n '☃'", "echo \"$HOME\" \\\n  more", ":"], k=2),
    # What sets it never sends it.
    ("Runtime", "enable_cache"): lambda g: LEAVE_OUT,
    # Half of those that could be on are not, so that there are jobs that can be run.
    ("CheckpointingConfig", "enabled"): lambda g: g.random.random() < 0.1,
    ("LoadCheckpointConfig", "enabled"): lambda g: g.random.random() < 0.1,
    ("CacheConfig", "enabled"): lambda g: g.random.random() < 0.1,
    ("CacheConfig", "mount_base_path"): lambda g: g.random.choice([LEAVE_OUT, "/root/.cache", "/mnt/bt-cache"]),
}


def is_enabled(job, key):
    return (job["runtime"].get(key) or {}).get("enabled") is True


def cannot_load(job):
    """Whether it is to resume from what is of no kind that can be loaded, or of no name."""
    loaded = job["runtime"]["load_checkpoint_config"]["checkpoints"] if is_enabled(job, "load_checkpoint_config") else []
    named = [one for one in loaded if one["typ"] == "baseten_named_checkpoint"]
    unnamed = any(one[key] is None for one in named for key in ("checkpoint_name", "job_id"))
    return unnamed or any(one["typ"] == "loops_checkpoint" for one in loaded)


def refused(job):
    """What the job asks for that is not here."""
    asked = ["runtime.load_checkpoint_config"] * cannot_load(job)
    for section, key in [("checkpointing_config", "checkpoint_path"), ("load_checkpoint_config", "download_folder")]:
        path = is_enabled(job, section) and job["runtime"][section][key]
        asked += [f"runtime.{section}.{key}"] * bool(path and not path.startswith("/"))
    asked += ["runtime.start_commands"] * (job["runtime"]["start_commands"] == [])
    return asked + ["compute.node_count"] * (job["compute"]["node_count"] != 1)


def job(generator, known):
    client = truss_push.Client()
    api = truss_push.BasetenApi.__new__(truss_push.BasetenApi)
    api._rest_api_client = client
    prepared = generator.model(deployment.PreparedTrainingJob)
    # As a push has it, which sets it after the other fields were checked.
    prepared.runtime.enable_cache = None
    api.create_training_job("project", prepared)
    body = client.posted[0]
    inner = body["training_job"]
    credentials = any(weights["auth"] or weights["auth_secret_name"] for weights in inner["weights"])
    wrong = misspell(inner, known, generator.random)
    asked = refused(inner)
    # Checkpoints are saved into a mirror, and read from it; these jobs run without one.
    saves = is_enabled(inner, "checkpointing_config") or is_enabled(inner, "load_checkpoint_config")
    can_run = not asked and not credentials and not saves and inner["runtime"]["start_commands"] != []
    return {"body": body, "refused": asked, "can_run": can_run, "misspelt": wrong}


# Configurations.

SOURCES = ["hf://o/r", "hf://o/r@feature/x", "hf://datasets/o/r@v1/sub", "s3://b", "s3://b/p/", "gs://b/p", "r2://a.b/p", "azure://a/c/p",
           "azure://a/$web", "cw://b/p", "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/p/x", "https://h.example/x y"]
REVISION = "a123456789012345678901234567890123456789"


CHECKPOINT = {"source": "HF", "repo": "o/r", "revision": REVISION}


def candidates(*values):
    return lambda generator: generator.random.choice(values)


CONFIG = JOB | {
    ("WeightsSource", "source"): candidates(*SOURCES),
    ("TrussConfig", "weights"): jobs_weights,
    ("TrussConfig", "python_version"): candidates("py310", "py311", "py312"),
    ("TrussConfig", "requirements_file"): candidates("requirements.txt"),
    ("Resources", "cpu"): candidates("1", "500m", "3.5"),
    ("Resources", "memory"): candidates("2Gi", "512Mi", "1G"),
    ("Runtime", "truss_server_version_override"): candidates("0.9.1", None),
    ("BaseImage", "python_executable_path"): candidates("/usr/bin/python3", ""),
    ("ModelRepo", "revision"): candidates(REVISION),
    ("ModelRepoCacheInternal", "revision"): candidates(REVISION),
    ("ModelRepo", "repo_id"): candidates("o/r"),
    ("ModelRepoCacheInternal", "repo_id"): candidates("o/r"),
    ("BDNVolumeMount", "source"): candidates("bdn:ns/v", "bdn:ns/v:tag"),
    ("BDNVolumeMount", "path"): candidates("/volumes/a"),
    ("BDNVolumeMount", "include"): candidates(["*.bin"], []),
    ("BDNVolumeMount", "exclude"): candidates(["x/"], []),
    ("BDNConfig", "mounts"): lambda g: [g.model(truss_config.BDNVolumeMount)],
    ("BDNAccess", "namespace"): candidates("ns"),
    ("BDNAccess", "grants"): candidates([truss_config.BDNAccessGrant.PULL, truss_config.BDNAccessGrant.TAG]),
    ("BDNConfig", "access"): lambda g: [g.model(truss_config.BDNAccess)],
    ("Build", "no_cache"): lambda g: LEAVE_OUT,
    # What goes together in it is a science of its own.
    ("TrussConfig", "trt_llm"): candidates(
        {"build": {"base_model": "decoder", "checkpoint_repository": CHECKPOINT, "plugin_configuration": {"paged_kv_cache": True}}},
        {"inference_stack": "v2", "build": {"checkpoint_repository": CHECKPOINT}, "runtime": {"max_seq_len": 2048, "gated_features": {}}},
    ),
}


def plain(value):
    """A value as it is written in a file."""
    return json.loads(json.dumps(value, default=lambda model: model.model_dump(mode="json", exclude_unset=True)))


def truss_takes(document):
    """Whether `truss push` takes a configuration."""
    try:
        truss_config.TrussConfig.from_dict(copy.deepcopy(document)).validate_forbid_extra()
    except Exception:
        return False
    return True


def section(generator, name, hint):
    """A value for a key at the top that truss takes."""
    choice = generator.choices.get(("TrussConfig", name))
    for _ in range(300):
        with contextlib.suppress(ValueError, TypeError):
            value = plain(choice(generator) if choice else generator.value(hint))
            if truss_takes({name: value}):
                return value
    raise ValueError(f"no {name} is accepted")


def config(generator, known):
    hints, document = typing.get_type_hints(truss_config.TrussConfig), {"model_name": "m"}
    names = generator.random.sample(sorted(hints.keys() & truss_config.TrussConfig.model_fields.keys()), 8)
    for name in names:
        value = section(generator, name, hints[name])
        if truss_takes(document | {name: value}):
            document[name] = value
    while True:
        wrong = misspell(document, known, generator.random)
        if not truss_takes(wrong):
            return {"yaml": yaml.safe_dump(document), "misspelt": wrong}


def main(seed, jobs, configs):
    warnings.simplefilter("ignore")
    known = set(truss_push.fields(deployment.PreparedTrainingJob))
    jobs = [job(Generator(f"{seed} {number}", JOB), known) for number in range(jobs)]
    seen = {place for made in jobs for place in places(made["body"]["training_job"])}
    known_in_configs = truss_push.config_fields()
    configs = [config(Generator(f"{seed} {number}", CONFIG), known_in_configs) for number in range(configs)]
    return {"jobs": jobs, "unseen": sorted(known - seen), "configs": configs}


if __name__ == "__main__":
    # What truss tells its user on the way.
    with contextlib.redirect_stdout(sys.stderr):
        made = main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps(made))
