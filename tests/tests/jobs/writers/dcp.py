"""torch.distributed.checkpoint of two processes: a checkpoint that is saved before the training goes on, one that is saved
meanwhile, and one that is written again and again in place."""

import closed

import os
import shutil
import subprocess
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

RANKS = 2
# How many checkpoints the job keeps.
KEPT = 4

if "RANK" not in os.environ:
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "RANK": str(rank)}) for rank in range(RANKS)]
    sys.exit(max(rank.wait() for rank in ranks))

rank = int(os.environ["RANK"])
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo", init_method=f"file://{os.environ['TMPDIR']}/ranks", rank=rank, world_size=RANKS)
# Saving has messages of its own while the training goes on.
group = dist.new_group(backend="gloo")
state = {"step": 0, "common": torch.rand(256, 1024), **{f"shard.{rank}.{layer}": torch.rand(128, 1024) for layer in range(4)}}


def train():
    state["step"] += 1
    for tensor in state.values():
        if isinstance(tensor, torch.Tensor):
            tensor.add_(1)


def saved(name):
    dist.barrier()
    if rank == 0:
        closed.whole(name)


def path(name):
    return os.path.join(closed.ROOT, name)


def going_on():
    # All of them end at the same step.
    stopped = [rank == 0 and closed.stopped()]
    dist.broadcast_object_list(stopped)
    return not stopped[0]


if loaded := closed.loaded(".metadata"):
    dcp.load(state, checkpoint_id=os.path.dirname(loaded))
    closed.resumed(state["step"])
while going_on():
    train()
    dcp.save(state, checkpoint_id=path(f"step-{state['step']}"))
    saved(f"step-{state['step']}")
    train()
    name = f"step-{state['step']}"
    saving = dcp.async_save(state, checkpoint_id=path(name), process_group=group)
    for _ in range(3):
        train()
    saving.result()
    saved(name)
    dcp.save(state, checkpoint_id=path("last"))
    saved("last")
    if rank == 0:
        steps = sorted((name for name in os.listdir(closed.ROOT) if name.startswith("step-")), key=lambda name: int(name[5:]))
        for name in steps[:-KEPT]:
            shutil.rmtree(path(name))
        closed.pause()
