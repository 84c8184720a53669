"""Runs first inside a sandbox: limits the number of processes, and on request ends all when its input closes.

Passed to Python as text (``-I -S -c``), standard library only, so that no code of ours has to be visible inside.
Arguments: a number of processes or ``-``, ``hold`` or ``-``, and the command. With ``hold`` it stays, as process 1 of a
container, and ends when its standard input closes; the kernel then ends everything inside, however the holder ended.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading


def main(arguments: list[str]) -> None:
    """Runs the command under the tether. Does not return."""
    processes, hold, *command = arguments
    if processes != "-":
        # Counted by user namespace since Linux 5.14: only what is in this sandbox.
        resource.setrlimit(resource.RLIMIT_NPROC, (int(processes), int(processes)))
    if hold == "-":
        os.execvp(command[0], command)  # noqa: S606  # an argument list of ours, no shell
    child = os.fork()
    if not child:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execvp(command[0], command)  # noqa: S606
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    threading.Thread(target=_follow_input, daemon=True).start()
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _follow_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(137)


if __name__ == "__main__":
    main(sys.argv[1:])
