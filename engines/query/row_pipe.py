"""Makes the named pipe through which the rows of one query go from its process to their reader.

The pipe is in a folder that the process can write and that is not trusted: a file that replaced the pipe is not opened.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

from chain.errors import Environment
from engines.errors import EngineLost

_SIZE: Final = 1 << 20


def row_pipe(path: Path) -> int:
    """Makes a pipe. Returns the end to read, which the caller closes. Raises Environment, and
    EngineLost if it was replaced."""
    try:
        os.mkfifo(path, mode=0o600)
    except FileExistsError as error:
        raise _replacement_fault() from error
    except OSError as error:
        raise Environment(f"no pipe for the rows of a query: {error.strerror}", rule="query-pipe") from error
    return reading_end(path)


def reading_end(path: Path) -> int:
    """Opens a pipe without waiting for a writer. Raises EngineLost if it is anything else."""
    try:
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _replacement_fault() from error
    if not stat.S_ISFIFO(os.fstat(end).st_mode):
        os.close(end)
        raise _replacement_fault()
    os.set_blocking(end, True)
    with suppress(OSError):  # a larger pipe saves switches, and is not needed
        fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, _SIZE)
    return end


def _replacement_fault() -> EngineLost:
    return EngineLost("the process of the query has its pipe replaced", rule="query-process", hint="ask again")
