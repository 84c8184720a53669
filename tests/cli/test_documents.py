"""Every document runs as written, and together they show every command."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odfd.cli import main, registry
from worlds import documents

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
BESIDE = [
    next(path for path in DOCS.rglob(f"{name}.md") if path.parent.name != "spec")
    for name in (
        "access",
        "api",
        "ingest-web",
        "projections",
        "receive-records",
        "resources",
        "schedule",
        "secrets",
        "trust-policies",
        "volumes",
        "webhooks",
        "backup",
        "join",
        "portals",
        "repositories",
        "standards",
        "troubleshoot",
    )
] + sorted((HERE / "long").glob("*.md"))
"""Documents that run with a daemon and without an engine."""
APART = [DOCS.parent / "README.md", *sorted((DOCS / "tutorials").glob("*.md"))]
"""Documents that start their own daemons (``test_tutorials.py``)."""
WITHOUT_DAEMON = [*sorted(HERE.glob("*.md")), DOCS / "how-to" / "traces.md"]


@pytest.mark.slow
@pytest.mark.parametrize("document", WITHOUT_DAEMON, ids=lambda path: path.stem)
def test_the_document_runs_as_written(document: Path, play: Callable[[Path], int]) -> None:
    assert play(document) > 0


@pytest.mark.parametrize("document", ["mistakes.md", "daemon/mistakes.md"])
def test_mistakes_are_answered_with_a_next_step(document: str) -> None:
    steps = [step for step in documents.parse((HERE / document).read_text()) if isinstance(step, documents.Step)]
    assert steps
    for step in steps:
        message, *more = step.expected
        assert step.exit_code in (2, 3, 4, 5, 6, 7), step.command
        assert message.startswith("error: "), step.command
        assert more, f"{step.command}: nothing is said of what to do next"


def test_every_command_is_in_some_document() -> None:
    text = "\n".join(path.read_text() for path in [*sorted(HERE.rglob("*.md")), *APART, *BESIDE])
    shown = set(re.findall(r"(?m)^\$ .*?odfctl(?: -\S+(?: \S+)?)* ([a-z]+)", text))
    missing = set(registry.entries()) - shown
    assert not missing, f"show these in a document: {sorted(missing)}"


def leaves(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Commands without commands below."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield words
    for action in below:
        for name, child in action.choices.items():
            yield from leaves(child, (*words, name))


@pytest.mark.slow
def test_every_command_to_its_last_word_is_in_some_document() -> None:
    parser = main.Parser(prog="odfctl")
    subparsers = parser.add_subparsers(parser_class=main.Parser)
    for entry in registry.entries().values():
        registry.load(entry, subparsers)
    text = "\n".join(path.read_text() for path in [*sorted(HERE.rglob("*.md")), *APART, *BESIDE])
    shown = re.findall(r"(?m)^\$ .*?odfctl (.*)$", text)
    missing = [
        " ".join(words)
        for words in leaves(parser)
        if not any(re.match(rf"(?:-\S+(?: \S+)? )*{' '.join(words)}\b", line) for line in shown)
    ]
    assert not missing, f"show these in a document: {missing}"


def test_wildcards() -> None:
    fits = documents.fits
    assert fits(["a [..] c", "...", "z"], ["a b c", "1", "2", "z"])
    assert fits(["..."], [])
    assert fits(["a.c"], ["a.c  "])
    assert not fits(["a.c"], ["abc"])
    assert not fits(["a [..]"], ["a b", "more"])
    assert not fits(["a", "..."], ["b"])


def test_a_document_that_lies_fails(tmp_path: Path) -> None:
    document = tmp_path / "lie.md"
    for text, why in (
        ("```console\n$ echo one\ntwo\n```\n", r"lie.md:2: \$ echo one\nexpected\ntwo\nbut it said\none"),
        ("```console\n$ false\n```\n", "ended with 1"),
        ("```console\n$ echo a\n$ echo b\n```\n```console\n$ echo c\n```\n", r"(?s)said\na\n\nlie.md:3.*said\nb\Z"),
        ("```console\n$ true\n[exit 1]\n```\n", "ended with 0"),
    ):
        document.write_text(text)
        with pytest.raises(AssertionError, match=why):
            documents.run(document, tmp_path, {"PATH": "/usr/bin:/bin"})


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
def test_the_examples_of_queries_run(play: Callable[..., int], daemon: Path) -> None:
    assert play(DOCS / "reference" / "queries.md", ODFD_SOCKET=str(daemon)) > 10


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("document", BESIDE, ids=lambda path: path.stem)
def test_the_examples_of_a_page_run(document: Path, play: Callable[..., int], daemon: Path) -> None:
    assert play(document, ODFD_SOCKET=str(daemon)) >= 3


@pytest.mark.e2e
@pytest.mark.parametrize("document", sorted((HERE / "daemon").glob("*.md")), ids=lambda path: path.stem)
def test_the_document_runs_with_a_daemon(document: Path, play: Callable[..., int], daemon: Path) -> None:
    assert play(document, ODFD_SOCKET=str(daemon)) > 0


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("document", sorted((HERE / "spark").glob("*.md")), ids=lambda path: path.stem)
def test_the_document_runs_with_an_engine(document: Path, play: Callable[..., int], daemon: Path) -> None:
    assert play(document, ODFD_SOCKET=str(daemon)) > 0
