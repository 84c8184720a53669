"""Markdown documents that run: each ``$ odfctl …`` of a block is typed, and what follows it is what must come.

In a block marked ```` ```console ````: a line ``$ command`` runs (in a shell, in the document's own folder; variables
and files live from block to block), lines below are its output, standard error after standard output. ``[..]`` stands
for anything within a line, a line ``...`` for any lines. A line ``[exit 5]`` at the end is the exit code; none means 0.
A block marked ```` ```file NAME ```` is written to that file.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from worlds.eventually import until

SECONDS = 150
_KEEPING = """set -a
test -f .variables && . ./.variables
{command}
code=$?
export -p > .variables
exit $code"""
"""A shell a step, and what it set is set for the next."""
_LOOK = "odfctl get "
"""Shows what a reconciler may be about to change: it is typed again until it shows what must come."""
_BLOCK = re.compile(r"(?ms)^```(console|file (\S+))\n(.*?)^```$")
_EXIT = re.compile(r"\[exit (\d+)\]\Z")


@dataclass(frozen=True)
class File:
    name: str
    text: str


@dataclass(frozen=True)
class Step:
    command: str
    expected: list[str]
    exit_code: int
    line: int
    """Of the command, in the document."""
    block: int
    """The line at which its block begins."""


def parse(text: str) -> Iterator[File | Step]:
    for block in _BLOCK.finditer(text):
        if block[2]:
            yield File(block[2], block[3])
            continue
        first = text[: block.start(3)].count("\n") + 1
        lines = block[3].splitlines()
        starts = [place for place, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            expected = lines[start + 1 : end]
            code = 0
            if expected and (match := _EXIT.match(expected[-1])):
                code, expected = int(match[1]), expected[:-1]
            yield Step(lines[start][2:], expected, code, first + start, first)


def fits(expected: list[str], actual: list[str]) -> bool:
    """Whether the pattern covers the lines from end to end."""
    pattern = "".join(
        r"(?:[^\n]*\n)*?" if line == "..." else ".*?".join(map(re.escape, line.rstrip().split("[..]"))) + r"[ ]*\n"
        for line in expected
    )
    return re.fullmatch(pattern, "".join(line.rstrip() + "\n" for line in actual)) is not None


def run(document: Path, folder: Path, environ: Mapping[str, str], seconds: float = SECONDS) -> int:
    """Play the document; the number of commands, each of at most ``seconds``. Raises AssertionError that names file and
    line of each mistake of the first block that has any: what a new page must show is seen in one run."""
    count, block = 0, 0
    mistakes: list[str] = []
    for part in parse(document.read_text()):
        if mistakes and (isinstance(part, File) or part.block != block):
            break
        if isinstance(part, File):
            target = folder / part.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(part.text)
            continue
        type_it = partial(_type, part, folder, environ, seconds)
        wrong = type_it()
        if wrong and not mistakes and part.command.startswith(_LOOK):
            with suppress(AssertionError):
                until(lambda again=type_it: not again(), seconds)  # type: ignore[misc]
            wrong = type_it()
        if wrong:
            mistakes.append(f"{document.name}:{part.line}: $ {part.command}\n{wrong}")
            block = part.block
        count += 1
    assert not mistakes, "\n\n".join(mistakes)
    return count


def _type(step: Step, folder: Path, environ: Mapping[str, str], seconds: float) -> str:
    """Runs the command; tells what differs from what must come."""
    try:
        done = subprocess.run(
            ["/bin/bash", "-c", _KEEPING.format(command=step.command)], cwd=folder, env=dict(environ),
            capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"did not end in {seconds:g} s"
    said = (done.stdout + done.stderr).splitlines()
    if done.returncode != step.exit_code:
        return f"ended with {done.returncode}\n" + "\n".join(said)
    if not fits(step.expected, said):
        return "expected\n" + "\n".join(step.expected) + "\nbut it said\n" + "\n".join(said)
    return ""
