"""Every document runs as written, and together they show every command."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from odfd.cli import registry

HERE = Path(__file__).parent
WITHOUT_DAEMON = sorted(HERE.glob("*.md"))


@pytest.mark.parametrize("document", WITHOUT_DAEMON, ids=lambda path: path.stem)
def test_the_document_runs_as_written(document: Path, play: Callable[[Path], int]) -> None:
    assert play(document) > 0


def test_every_command_is_in_some_document() -> None:
    text = "\n".join(path.read_text() for path in sorted(HERE.rglob("*.md")))
    shown = set(re.findall(r"(?m)^\$ .*?odfctl(?: -\S+(?: \S+)?)* ([a-z]+)", text))
    missing = set(registry.entries()) - shown
    assert not missing, f"show these in a document: {sorted(missing)}"


def test_wildcards(documents: ModuleType) -> None:
    fits = documents.fits
    assert fits(["a [..] c", "...", "z"], ["a b c", "1", "2", "z"])
    assert fits(["..."], [])
    assert fits(["a.c"], ["a.c  "])
    assert not fits(["a.c"], ["abc"])
    assert not fits(["a [..]"], ["a b", "more"])
    assert not fits(["a", "..."], ["b"])


def test_a_document_that_lies_fails(documents: ModuleType, tmp_path: Path) -> None:
    document = tmp_path / "lie.md"
    for text, why in (
        ("```console\n$ echo one\ntwo\n```\n", r"lie.md:2: \$ echo one\nexpected\ntwo\nbut it said\none"),
        ("```console\n$ false\n```\n", "ended with 1"),
        ("```console\n$ true\n[exit 1]\n```\n", "ended with 0"),
    ):
        document.write_text(text)
        with pytest.raises(AssertionError, match=why):
            documents.run(document, tmp_path, {"PATH": "/usr/bin:/bin"})


@pytest.mark.e2e
@pytest.mark.parametrize("document", sorted((HERE / "daemon").glob("*.md")), ids=lambda path: path.stem)
def test_the_document_runs_with_a_daemon(document: Path, play: Callable[..., int], daemon: Path) -> None:
    assert play(document, ODFD_SOCKET=str(daemon)) > 0
