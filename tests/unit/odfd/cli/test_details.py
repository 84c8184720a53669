"""The page of a dataset: what it says of columns, and files of strangers laid out as text."""

from __future__ import annotations

import msgspec
import pytest

from odfd.cli.details import attachment_text, dataset
from odfd.control import wire

README = """# Weather of *Styria*

Measured by [the university](https://example.org/u), **hourly**.

* in Graz
* in Leoben

```
select * from weather
```
"""
VIEW = wire.DatasetView(name="weather", id="did:odf:f", kind="root", blocks=3, records=4_000)
COLUMN = wire.ColumnProfile(
    name="city", type="String", nulls=2, minimum="Graz", maximum="Wien",
    distinct=wire.CountRange(at_least=3, at_most=9),
)  # fmt: skip
PROFILE = wire.DataProfile(columns=(COLUMN,), slices=2, records=1_000, bytes=5_000)


def test_a_readme_is_laid_out() -> None:
    said = attachment_text(wire.Attachment(path="README.md", content=README))
    for shown in ("README.md:", "Weather of Styria", "the university (https://example.org/u), hourly.", " • in Graz"):
        assert shown in said
    assert not {"**", "```", "[the"} & {mark for mark in ("**", "```", "[the") if mark in said}
    plain = attachment_text(wire.Attachment(path="notes.txt", content="**as it is**\r\n  here"))
    assert plain == "notes.txt:\n  **as it is**\n    here"


@pytest.mark.parametrize("text", ["\x1b]0;owned\x07", "&#27;[31m", "`\x1b[2J`", "\u202egpj"])
@pytest.mark.parametrize("path", ["README.md", "a.txt"])
def test_no_file_of_a_stranger_commands_the_terminal(path: str, text: str) -> None:
    said = attachment_text(wire.Attachment(path=path, content=f"# Hi\n\n{text}"))
    assert not {"\x1b", "\x07", "\u202e"} & set(said)


def test_of_a_long_file_the_beginning_is_shown() -> None:
    said = attachment_text(wire.Attachment(path="README.md", content="one\n\n" * 210)).splitlines()
    assert len(said) == 202
    assert said[-1] == "  … this is its beginning: -o json has all of 1,050 characters"


def test_only_what_is_our_own_is_suggested_to_be_published() -> None:
    """A copy may be shared with this node alone, and is then refused."""
    ours = dataset(wire.DatasetDetail(dataset=msgspec.structs.replace(VIEW, owner=True)))
    assert "no: odfctl publish weather lets others have it" in ours
    assert "odfctl publish" not in dataset(wire.DatasetDetail(dataset=VIEW))


def test_what_is_known_of_columns_is_told_with_its_limits() -> None:
    detail = wire.DatasetDetail(dataset=VIEW, profile=PROFILE)
    said = dataset(detail)
    assert "city    String      2  Graz     Wien       3 to 9" in said
    assert "license    not said" in said
    assert "5.0 kB in 2 slices" in said
    assert "growth     not known" in said
    assert "alone" not in said
    growth = wire.Growth(
        since="2024-01-01T00:00:00Z", until="2024-01-03T00:00:00Z", records_per_day=250, bytes_per_day=2_000
    )
    part = msgspec.structs.replace(PROFILE, is_whole=False, unread=1, growth=growth)
    said = dataset(msgspec.structs.replace(detail, profile=part))
    assert "about 20.0 kB, by the newest 2 slices" in said
    assert "250 records, 2.0 kB a day, from 2024-01-01 to 2024-01-03" in said
    assert "of the newest 2 slices alone" in said
    assert "without 1 slice whose files cannot be read here" in said


def test_comments_of_columns_are_shown_where_there_are_any() -> None:
    commented = msgspec.structs.replace(
        PROFILE, columns=(msgspec.structs.replace(COLUMN, comment="where it was measured"),)
    )
    assert "COMMENT" not in dataset(wire.DatasetDetail(dataset=VIEW, profile=PROFILE))
    assert "3 to 9  where it was measured" in dataset(wire.DatasetDetail(dataset=VIEW, profile=commented))
