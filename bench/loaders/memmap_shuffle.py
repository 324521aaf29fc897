"""Reads sequences of tokens from all over a mapped file, as training a language model does; prints the seconds and bytes."""

import sys
import time

import numpy

LENGTH = 4096
tokens = numpy.memmap(sys.argv[1], dtype=numpy.uint16, mode="r")
starts = numpy.random.default_rng(1).integers(0, len(tokens) - LENGTH, int(sys.argv[2]))
begin = time.perf_counter()
read = total = 0
for start in starts:
    batch = numpy.array(tokens[start : start + LENGTH])
    read += batch.nbytes
    total += int(batch[0])
print(time.perf_counter() - begin, read)
