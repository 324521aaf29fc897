"""Loads every tensor of every shard below a directory, as a server of a model does; prints the seconds and the bytes."""

import pathlib
import sys
import time

from safetensors import safe_open

begin = time.perf_counter()
loaded = 0
for shard in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors")):
    with safe_open(shard, framework="numpy") as tensors:
        for name in tensors.keys():
            loaded += tensors.get_tensor(name).nbytes
print(time.perf_counter() - begin, loaded)
