"""Reads all files below a directory in random order by worker processes, as a data loader does; prints the seconds and files."""

import multiprocessing
import os
import random
import sys
import time


def work(paths, ready, counts):
    ready.wait()
    read = 0
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            read += bool(file.read())
    counts.put(read)


def main():
    root, workers = sys.argv[1], int(sys.argv[2])
    paths = sorted(os.path.join(top, name) for top, _, names in os.walk(root) for name in names)
    random.Random(1).shuffle(paths)
    fork = multiprocessing.get_context("fork")
    ready, counts = fork.Barrier(workers + 1), fork.Queue()
    processes = [fork.Process(target=work, args=(paths[i::workers], ready, counts)) for i in range(workers)]
    for process in processes:
        process.start()
    ready.wait()
    begin = time.perf_counter()
    read = sum(counts.get() for _ in processes)
    seconds = time.perf_counter() - begin
    for process in processes:
        process.join()
    print(seconds, read)


main()
