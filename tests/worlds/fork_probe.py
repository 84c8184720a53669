"""Programs for the server of forks that say what they find around them."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path


def tell(words: Sequence[str]) -> int:
    """Says all that a program can see of its start, and ends with the code that is the first word."""
    umask = os.umask(0)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    seen = {
        "words": [*words],
        "argv": sys.argv,
        "environ": dict(os.environ),
        "folder": str(Path.cwd()),
        "umask": umask,
        "pid": os.getpid(),
        "session": os.getsid(0),
        "threads": len([*Path("/proc/self/task").iterdir()]),
        "open": sorted(int(each.name) for each in Path("/proc/self/fd").iterdir() if each.exists()),
        "handled": sorted(number for number, handler in handlers.items() if callable(handler)),
        "ignored": sorted(number for number, handler in handlers.items() if handler is signal.SIG_IGN),
        "random": random.random(),
        "stdin": sys.stdin.read(),
    }
    sys.stdout.write(json.dumps(seen))
    sys.stderr.write("told\n")
    return int(words[0])


def wait(_words: Sequence[str]) -> int:
    """Says its number, and ends when a signal comes, with that of the signal."""
    caught: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: caught.append(number))
    sys.stdout.write(f"{os.getpid()}\n")
    sys.stdout.flush()
    while not caught:
        signal.pause()
    return caught[0]
