"""Starts a sandboxed command: sets its limits, ties its life to the starter's, and becomes it.

Run by path with the system's ``-I -S`` Python, standard library only, because a function between fork and exec
(``preexec_fn``) is not safe in a process with threads. Arguments: parent's pid, bytes of private memory or ``-``, the
entrances of control groups, ``--``, and the command.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Executes the command. Does not return."""
    parent, memory, *rest = arguments
    groups, command = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
    # The signal comes when the *thread* that forked us ends: callers must fork from a thread that does not end.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have ended before the signal was asked for, and then none ever comes.
    if os.getppid() != int(parent):
        sys.exit("the starter is gone")
    for entrance in groups:
        Path(entrance).write_text("0")
    # A core dump would be written outside of all limits, with data in it.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory != "-":
        resource.setrlimit(resource.RLIMIT_DATA, (int(memory), int(memory)))
    os.execvp(command[0], command)  # noqa: S606  # an argument list of ours, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
