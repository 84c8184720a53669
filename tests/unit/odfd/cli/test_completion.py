"""What is proposed at the cursor of a command line, by the parsers themselves and a node that is told here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import pytest

from chain.model.events import MetadataEvent
from odfd.cli import registry
from odfd.cli.commands.completions import EVENTS, FILES, Candidate, candidates, words_of
from odfd.cli.main import command_parser


def known(source: str, plain: Sequence[str]) -> Iterable[Candidate]:
    names = {"dataset": ("flights", "fleet"), "column": ("carrier",), "column=": ("carrier=",), "name": plain}
    return [Candidate(each, "told") for each in names.get(source, ())]


def proposed(line: str) -> list[str]:
    *before, current = words_of(line)
    entry = registry.entries()[before[0]]
    return [each.word for each in candidates(command_parser(entry), before, current, known)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("odfctl tail fl", ["flights", "fleet"]),
        ("odfctl tail --records 5 fli", ["flights"]),
        ("odfctl tail flights f", []),
        ("odfctl pull flights f", ["fleet"]),
        ("odfctl mirror ", ["add", "list", "remove", "pause", "resume"]),
        ("odfctl mirror add f", []),
        ("odfctl mirror nothing f", []),
        ("odfctl verify flights --level d", ["data"]),
        ("odfctl verify flights --level=d", ["--level=data"]),
        ("odfctl verify flights --leve", ["--level"]),
        ("odfctl lineage flights --column ", ["carrier"]),
        ("odfctl correct flights --set c", ["carrier="]),
        ("odfctl completions --wor", []),
        ("odfctl ingest flights ", [FILES]),
        ("odfctl status ", []),
        ("odfctl schema f", ["flights", "fleet"]),
        ("odfctl schema alter fl", ["flights", "fleet"]),
        ("odfctl schema alter flights --comp", ["--computed"]),
        ("odfctl schema flights --comp", []),
    ],
)
def test_each_place_proposes_what_fits(line: str, words: list[str]) -> None:
    assert proposed(line) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("odfctl", [""]),
        ("odfctl ", [""]),
        ("odfctl ta", ["ta"]),
        ("odfctl tail 'my da", ["tail", "my da"]),
        ('odfctl sql "select 1" --o', ["sql", "select 1", "--o"]),
        ("odfctl tail a\\ ", ["tail", "a "]),
    ],
)
def test_a_line_is_split_as_a_shell_splits_it(line: str, words: list[str]) -> None:
    assert words_of(line) == words


@pytest.mark.slow
def test_every_command_can_be_completed() -> None:
    for name, entry in registry.entries().items():
        assert candidates(command_parser(entry), [name], "--", known)


def test_events_are_those_of_the_format() -> None:
    assert set(EVENTS) == {each.__struct_config__.tag for each in get_args(MetadataEvent)}
