"""The files that DeepSpeed's save_checkpoint writes with ZeRO 1 to 3, in its order: the states of the model and of the parts of the
optimizer in global_stepN, its script beside them, and then the tracker."""

import closed

import os
import shutil
import stat

import torch

# Parts of the optimizer, and how many checkpoints the job keeps.
PARTS = 2
KEPT = 3

closed.after(torch, "save", 1)
step = 0
if tracker := closed.loaded("mp_rank_00_model_states.pt"):
    step = torch.load(tracker, weights_only=False)["global_steps"]
    closed.resumed(step)
# What it copies is its own zero_to_fp32.py, which is the same each time.
script = os.path.join(os.environ["TMPDIR"], "zero_to_fp32.py")
with open(script, "w") as out:
    out.write("#!/usr/bin/env python\n")
while not closed.stopped():
    step += 1
    tag = f"global_step{step}"
    directory = os.path.join(closed.ROOT, tag)
    os.makedirs(directory, exist_ok=True)
    torch.save({"module": torch.rand(1024, 1024), "global_steps": step}, os.path.join(directory, "mp_rank_00_model_states.pt"))
    for part in range(PARTS):
        path = os.path.join(directory, f"zero_pp_rank_{part}_mp_rank_00_optim_states.pt")
        # More than 16 MiB: uploaded while the others are written.
        torch.save({"optimizer_state_dict": torch.rand(5, 1024, 1024)}, path)
    recovery = os.path.join(closed.ROOT, "zero_to_fp32.py")
    shutil.copyfile(script, recovery)
    os.chmod(recovery, os.stat(recovery).st_mode | stat.S_IEXEC)
    # Before the tracker says so.
    closed.whole(tag)
    with open(os.path.join(closed.ROOT, "latest"), "w") as out:
        out.write(tag)
    closed.whole(".")
    if step > KEPT:
        shutil.rmtree(os.path.join(closed.ROOT, f"global_step{step - KEPT}"), ignore_errors=True)
    closed.pause()
