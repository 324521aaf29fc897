"""Logs what a library closes below the checkpoint directory: the hash of each file when it is closed, and of all files of a
checkpoint when the library closes the last one, or says that it is saved. Arguments of each writer: the log, and a file that ends
it."""

import builtins
import hashlib
import io
import json
import os
import random
import sys
import time

ROOT = os.environ["BT_CHECKPOINT_DIR"]
LOG, STOP = sys.argv[1:3]
# Seconds without a change after which a checkpoint without a hint settles, and some more.
SETTLED = 13
# What libraries write last into a checkpoint, and its name in the end.
LAST = {".metadata.tmp": ".metadata", "trainer_state.json": "trainer_state.json"}

_open = builtins.open
_pauses = 0


def _log(entry):
    # One write a line: several processes write it.
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(log, (json.dumps(entry) + "\n").encode())
    os.close(log)


def _hash(path):
    with _open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def closed(path):
    """Logs a file that is whole."""
    path = os.path.abspath(path)
    if path.startswith(ROOT) and os.path.isfile(path):
        _log({"closed": _hash(path)})


def whole(unit):
    """Logs all files of a checkpoint that was saved; of "." the loose ones."""
    top = os.path.join(ROOT, unit)
    walk = os.walk(top) if unit != "." else [(ROOT, [], [name for name in os.listdir(ROOT) if os.path.isfile(os.path.join(ROOT, name))])]
    paths = [os.path.join(directory, name) for directory, _, names in walk for name in names]
    # The new one of two comes last.
    paths.sort(key=lambda path: os.path.basename(path) in LAST)
    _log({"unit": unit, "files": {_last_name(os.path.relpath(path, top)): _hash(path) for path in paths}})


def _last_name(path):
    directory, name = os.path.split(path)
    return os.path.join(directory, LAST.get(name, name))


def _closing(path):
    # Before it is closed: a process that is killed right after that has logged it.
    closed(path)
    directory, name = os.path.split(os.path.abspath(path))
    if name in LAST and directory.startswith(ROOT + os.sep):
        whole(os.path.relpath(directory, ROOT))


def after(module, name, argument):
    """Logs the file that is the argument `argument` of a function which closes it by other means than Python's."""
    original = getattr(module, name)

    def wrapped(*arguments, **named):
        result = original(*arguments, **named)
        closed(arguments[argument])
        return result

    setattr(module, name, wrapped)


def _logging_open(path, mode="r", *arguments, **named):
    file = _open(path, mode, *arguments, **named)
    if "w" in mode and not isinstance(path, int):
        close = file.close

        def logging_close():
            if not file.closed:
                file.flush()
                _closing(path)
            close()

        file.close = logging_close
    return file


builtins.open = io.open = _logging_open


def stopped():
    """Whether the test wants the writer to end."""
    return os.path.exists(STOP)


def pause():
    """Trains for a while; each third time until all settles."""
    global _pauses
    _pauses += 1
    end = time.time() + (SETTLED if _pauses % 3 == 0 else random.uniform(0.5, 4))
    while time.time() < end and not stopped():
        time.sleep(0.1)


def loaded(name):
    """What to resume from: the file or directory `name` (a prefix) of the checkpoint that was loaded; None where there is none."""
    for directory, directories, files in sorted(os.walk(os.environ["BT_LOAD_CHECKPOINT_DIR"])):
        for found in sorted(directories + files):
            if found.startswith(name):
                return os.path.join(directory, found)
    return None


def resumed(step):
    """Says which step it resumes from."""
    print("resumed from step", step, flush=True)
