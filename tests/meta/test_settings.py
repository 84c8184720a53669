"""Every setting that a message, a hint or a document names is one that there is, with a value that it takes.

Named means ``table.key``, ``[table] key`` or ``ODFD_TABLE_KEY`` in a text for people: one with a space in it. What is
no setting and looks like one, such as kinds of events, stands alone in its text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from config import schema
from config.load import RESERVED
from worlds.messages import Text, messages

TREE: Final = Path(__file__).parents[2]
DOCUMENTS: Final = ("README.md", "ARCHITECTURE.md", "THREATS.md", "docs/**/*.md", "systemd/**/*.*")
KEYS: Final = {key.name: key for key in schema.every()}
TABLES: Final = {key.table for key in KEYS.values()} | {key.table.partition(".")[0] for key in KEYS.values()}
TOP: Final = "|".join(sorted(table for table in TABLES if "." not in table))
VALUE: Final = r"true|false|\d[\d.]*|\"[^\"]*\"|'[^']*'|\[.*\]"
DOTTED: Final = re.compile(
    rf"(?<![\w./@:-])(?P<name>(?:{TOP})(?:\.[a-z][a-z0-9_-]*)+)(?![\w(@/:-])"
    rf"(?:\s*=\s*(?P<value>{VALUE}))?"
)
IN_TABLE: Final = re.compile(
    rf"\[(?P<table>(?:{TOP})(?:\.[a-z-]+)?)\](?:\s+(?P<key>[a-z][a-z0-9-]*)(?:\s*=\s*(?P<value>{VALUE}))?)?"
)
VARIABLE: Final = re.compile(r"\bODFD_[A-Z][A-Z_]*[A-Z]\b")
VAGUE: Final = re.compile(r"\b(?:daemon|node)'s \w+ settings\b|\bingest settings\b")
WORDS: Final = {"of", "in", "and", "or", "below", "as", "say", "says"}
"""What may follow a table that is named as a whole."""
TESTS_ALONE: Final = {
    "ODFD_SIM_FIRST",
    "ODFD_SIM_SEEDS",
    "ODFD_FAULT_RUNS",
    "ODFD_FLIPS",
    "ODFD_FUZZ",
    "ODFD_ENGINE_RUNS",
}


@cache
def documents() -> list[Text]:
    return list(_documents())


def _documents() -> Iterator[Text]:
    """Each piece of code in a line of prose, and the lines of settings that are shown."""
    for pattern in DOCUMENTS:
        for path in sorted(TREE.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                place = f"{path.relative_to(TREE)}:{number}"
                yield from (Text(place, found) for found in re.findall(r"`([^`]+)`", line))
                if path.suffix != ".md":
                    yield Text(place, line)


def is_code(name: str) -> bool:
    """A module, or something in it: one of our roots has the name of a table."""
    root, first, *_ = name.split(".")
    return first == "py" or (TREE / root / first).is_dir() or (TREE / root / f"{first}.py").is_file()


def wrong(text: Text) -> Iterator[str]:
    for found in DOTTED.finditer(text.text):
        name = found["name"].replace("_", "-")
        if name not in KEYS and name not in TABLES and not is_code(found["name"]):
            yield f"{text.place}: there is no setting {found['name']}"
        elif found["value"] is not None and name in KEYS:
            yield from _unfit(text, name, found["value"])
    for found in IN_TABLE.finditer(text.text):
        name = f"{found['table']}.{found['key']}"
        if found["table"] not in TABLES:
            yield f"{text.place}: there is no table [{found['table']}]"
        elif found["key"] is not None and found["key"] not in WORDS and name not in KEYS:
            yield f"{text.place}: there is no setting {name}"
        elif found["value"] is not None and name in KEYS:
            yield from _unfit(text, name, found["value"].strip())
    for variable in VARIABLE.findall(text.text):
        if variable not in RESERVED | TESTS_ALONE | {key.variable for key in KEYS.values()}:
            yield f"{text.place}: there is no variable {variable}"
    if VAGUE.search(text.text):
        yield f"{text.place}: it says settings, and not which"


def _unfit(text: Text, name: str, value: str) -> Iterator[str]:
    """What is proposed has to be taken."""
    try:
        proposed = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        yield f"{text.place}: {name} = {value} is not TOML"
        return
    _, problem = schema.accept(KEYS[name], proposed, text.place)
    if problem is not None:
        yield str(problem)


def test_every_setting_that_is_named_is_one() -> None:
    found = [each for text in (*messages(), *documents()) for each in wrong(text)]
    assert not found, "\n".join(found)


def test_there_is_something_to_look_at() -> None:
    """Both ways of naming a setting are met, in code and in documents."""
    for texts in (messages(), documents()):
        assert any(DOTTED.search(each.text) for each in texts)
        assert any(IN_TABLE.search(each.text) for each in texts)


@pytest.mark.parametrize(
    "text",
    [
        "raise the limit in the daemon's ingest settings", "set ingest.max-bytes of the settings",
        "name it in [ingest] vars = [1]", "set ingest.pipes = 1 then", "write [ingest.more] of the settings",
        "set ODFD_INGEST_PIPES to 1",
    ],
)  # fmt: skip
def test_what_is_none_is_found(text: str) -> None:
    assert list(wrong(Text("here", text)))
