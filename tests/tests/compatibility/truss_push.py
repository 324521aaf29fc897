"""What the installed truss says, printed as JSON: the fields of its models, and the bodies that `truss train push` sends.

Nothing is left out of the way of a push but the network: the REST client notes what it would post, and the archive of the
directory is not uploaded. scripts/vectors records what this prints, and the suite of the emulators asks again."""

import contextlib
import json
import pathlib
import sys
import tempfile
import typing
import warnings

import pydantic
import truss
from truss.base import truss_config
from truss.remote.baseten.api import BasetenApi
from truss.remote.baseten.remote import BasetenRemote
from truss_train import definitions, deployment


class Client:
    """A REST client that notes the bodies and answers as the service does."""

    def __init__(self):
        self.posted = []

    def post(self, path, body):
        self.posted.append(json.loads(json.dumps(body)))
        (name, value), = body.items()
        return {name: value | {"id": "abc123"}}


def push(project, **overrides):
    """The body that a push of the project sends to create its job."""
    client = Client()
    api = BasetenApi.__new__(BasetenApi)
    api._rest_api_client = client
    api.get_blob_credentials = lambda kind: {"s3_bucket": "code", "s3_key": "archive.tgz", "creds": {}}
    remote = BasetenRemote.__new__(BasetenRemote)
    remote._api = api
    deployment.transfer.multipart_upload_boto3 = lambda *args, **kwargs: None
    with tempfile.TemporaryDirectory() as directory:
        config = pathlib.Path(directory) / "config.py"
        config.write_text("")
        deployment.create_training_job(remote, config, project, **overrides)
    return client.posted[1]


def models(annotation):
    """The models that a value of this type may be."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in models(inner)]


def annotations(model):
    """The types of a model's fields, resolved; that of a root that is not declared is the model's parameter."""
    hints = typing.get_type_hints(model)
    return {name: field.annotation if isinstance(hints[name], typing.TypeVar) else hints[name]
            for name, field in model.model_fields.items()}


def fields(model, place="", above=()):
    """The places of all fields of a model, those of the models in it among them."""
    hints = annotations(model)
    for name, field in model.model_fields.items():
        if issubclass(model, pydantic.RootModel):
            places = [place.removesuffix(".")]
        else:
            # Where a push sends it, and other names that are read.
            names = {"runtime_artifacts": "runtime.artifacts"}.get(name, name), *getattr(field.validation_alias, "choices", ())
            places = [place + name for name in names]
            yield from places
        # What a mapping holds has names of its own; a model in itself would have no end.
        if typing.get_origin(field.annotation) is not dict:
            for inner in set(models(hints[name])) - {model, *above}:
                yield from fields(inner, f"{places[0]}.", (model, *above))


def config_fields():
    """The places of a config.yaml that are read, with those of older versions."""
    places = set(fields(truss_config.TrussConfig)) | {"resources.use_gpu"}
    return places | {place.replace("model_cache", "hf_cache") for place in places}


def job(image=None, compute=None, runtime=None, **kwargs):
    weights = [truss_config.WeightsSource(source="s3://bucket/model", mount_location="/models/m")]
    image = definitions.Image(base_image="pytorch/pytorch:2.7.0-cuda12.8-cudnn9-runtime", **(image or {}))
    compute = definitions.Compute(**(compute or {}))
    runtime = definitions.Runtime(**({"start_commands": ["test -s /models/m/config.json"]} | (runtime or {})))
    return definitions.TrainingJob(image=image, compute=compute, runtime=runtime, **({"weights": weights} | kwargs))


def project(**kwargs):
    return definitions.TrainingProject(name="project", job=job(**kwargs))


def enabled(model, **kwargs):
    return getattr(definitions, model)(enabled=True, **kwargs)


H100 = truss_config.AcceleratorSpec(accelerator=truss_config.Accelerator.H100, count=8)
SECRET = definitions.SecretReference(name="registry")
DOCKER = definitions.DockerAuth(auth_method=truss_config.DockerAuthType.REGISTRY_SECRET, registry="r.example",
                                registry_secret_docker_auth=definitions.RegistrySecretDockerAuth(secret_ref=SECRET))
VARIABLES = {"WANDB_PROJECT": "x", "HF_TOKEN": definitions.SecretReference(name="hf_access_token")}
FILTERED = truss_config.WeightsSource(source="s3://bucket/model", mount_location="/models/m",
                                      allow_patterns=["*.json"], ignore_patterns=["none/"])

# Jobs that this machine can do, each with something that the others leave out.
RUN = {
    "plain": project(),
    "named": project(name="job-1", priority=3),
    "variables": project(runtime={"environment_variables": VARIABLES}),
    "filtered": project(weights=[FILTERED]),
    "accelerator": project(compute={"cpu_count": 8, "memory": "64Gi", "accelerator": H100}),
    "spot": project(compute={"availability_model": definitions.AvailabilityModel.SPOT}),
    "docker_auth": project(image={"docker_auth": DOCKER}),
    "interactive": project(interactive_session=definitions.InteractiveSession()),
    "workspace": project(workspace=definitions.Workspace(exclude_dirs=["data"])),
    "no_workdir": project(enable_baseten_workdir=False),
    "disabled": project(runtime={"checkpointing_config": definitions.CheckpointingConfig(checkpoint_path="/c", volume_size_gib=9),
                                 "load_checkpoint_config": definitions.LoadCheckpointConfig(),
                                 "cache_config": definitions.CacheConfig()}),
    "enable_cache_false": project(runtime={"enable_cache": False}),
    "cache": project(runtime={"cache_config": enabled("CacheConfig")}),
    "enable_cache": project(runtime={"enable_cache": True}),
}
# Jobs that ask for what is not there.
REFUSE = {
    "node_count": project(compute={"node_count": 2}),
    "checkpointing": project(runtime={"checkpointing_config": enabled("CheckpointingConfig")}),
    "load_checkpoint": project(runtime={"load_checkpoint_config": enabled("LoadCheckpointConfig")}),
}


def main():
    warnings.simplefilter("ignore")
    run = {name: push(made) for name, made in RUN.items()}
    run["overrides"] = push(project(), interactive_trigger="on_failure", interactive_timeout_minutes=5, accelerator="H100:2",
                            node_count=1, entrypoint="test -s /models/m/config.json", priority=1)
    return {
        "produced_by": f"truss {truss.__version__} truss_train, pydantic {pydantic.VERSION}",
        "fields": {
            "job": sorted(set(fields(deployment.PreparedTrainingJob))),
            "project": sorted(definitions.TrainingProject.model_fields),
            "config": sorted(config_fields()),
        },
        "run": run,
        "refuse": {name: push(made) for name, made in REFUSE.items()},
    }


if __name__ == "__main__":
    # What truss tells its user on the way.
    with contextlib.redirect_stdout(sys.stderr):
        found = main()
    print(json.dumps(found, indent=1))
