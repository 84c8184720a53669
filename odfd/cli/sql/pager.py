"""Shows rows through the user's pager, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from odfd import output

if TYPE_CHECKING:
    import subprocess

PAGED: Final = ("table", "vertical", "markdown")
"""Formats for people."""
_LESS: Final = "FRSX"
"""Options of ``less``: it ends by itself if all fits on one page, and cuts long lines, which arrow keys show."""


def pager_of(environ: Mapping[str, str]) -> Sequence[str] | None:
    """Returns ``$PAGER``, or ``less``; ``None`` if disabled (``PAGER=cat``, or empty) or not installed."""
    import shlex
    import shutil

    command = environ.get("PAGER", "less")
    if environ.get("TERM", "dumb") == "dumb":
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    return words if words and words != ["cat"] and shutil.which(words[0]) else None


@contextmanager
def page_output(form: str, environ: Mapping[str, str]) -> Iterator[None]:
    """Sends the output of the block through the pager; the block ends when the user quits the pager."""
    words = pager_of(environ) if form in PAGED and output.is_terminal() else None
    if words is None:
        yield
        return
    import subprocess

    with subprocess.Popen(
        words, stdin=subprocess.PIPE, env={**environ, "LESS": environ.get("LESS", _LESS)}, encoding="utf-8",
        errors="replace",
    ) as process:  # fmt: skip
        assert process.stdin is not None
        try:
            with output.redirected(process.stdin):
                yield
        except BrokenPipeError:
            output.remark("the pager was left: rows behind what it had were not read")
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
            _wait(process)


def _wait(process: subprocess.Popen[str]) -> None:
    """Waits until the pager ends; ``^C`` is meant for the pager as long as it runs."""
    while True:
        try:
            process.wait()
        except KeyboardInterrupt:
            continue
        return
