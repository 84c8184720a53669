"""What a message tells people to run or to read is there where odfd is installed: no targets of make, no files."""

from __future__ import annotations

import re
from typing import Final

import pytest

from odfd.cli.offline.docs import list_pages
from worlds.messages import Text, messages

IN_A_CHECKOUT: Final = {"engines/image/build.py", "odfd/obs/metric_document.py"}
"""Modules that nobody runs but who builds releases."""
TARGET: Final = re.compile(
    r"`make [a-z][a-z-]*|\bmake (?:engine|engine-image|install|demo|deb|lock|docs|image|wheel|ui)\b"
)
FILE: Final = re.compile(r"\bdocs/[\w./-]*|\b(?:README|CONTRIBUTING|ARCHITECTURE|THREATS)\b|\btests/|\bADR \d")
PAGE: Final = re.compile(r"\bodfctl docs ((?:spec/)?[a-z][a-z-]*)")


def wrong(text: Text) -> list[str]:
    if text.place.rpartition(":")[0] in IN_A_CHECKOUT:
        return []
    found = [*FILE.findall(text.text)]
    if "in a checkout" not in text.text:
        found += TARGET.findall(text.text)
    found += [page for page in PAGE.findall(text.text) if page not in list_pages()]
    return [f"{text.place}: {each}: an installed node has no such thing" for each in found]


def test_hints_can_be_followed_where_odfd_is_installed() -> None:
    found = [each for text in messages() for each in wrong(text)]
    assert not found, "\n".join(found)
    assert sum(bool(PAGE.search(text.text)) for text in messages()) > 30, "hints name pages"


@pytest.mark.parametrize(
    "text",
    ["run `make engine-image`", "see docs/sources.md", "make install first", "odfctl docs nothing", "as ADR 46 says"],
)
def test_what_nobody_can_follow_is_found(text: str) -> None:
    assert wrong(Text("odfd/cli/here.py:1", text))


@pytest.mark.parametrize("text", ["make it again", "in a checkout, make demo KEEP=1", "odfctl docs spec/trust"])
def test_what_can_be_followed_is_not(text: str) -> None:
    assert wrong(Text("odfd/cli/here.py:1", text)) == []
