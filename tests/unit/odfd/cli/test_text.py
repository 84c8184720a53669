"""What is shown on a terminal: it fits, hides nothing, and obeys no stranger."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from odfd import output
from odfd.cli.commands.ingest_pull import outcome
from odfd.cli.commands.node import doctor_text, status_text
from odfd.cli.commands.reading import doubt_of, remarks_on
from odfd.cli.dataset_text import rows_text
from odfd.cli.details import attachment_text, dataset
from odfd.cli.session import indent
from odfd.cli.table import Stack, TableColumn, TextTable, fields, render, width
from odfd.control import wire

# What became of rows, in words.

FIELDS = (
    "read", "shaped", "appended", "corrected", "retracted", "unchanged", "conflicting", "superseded", "late", "untimed",
    "quarantined",
)  # fmt: skip


def rows(*files: str, remarks: tuple[str, ...] = (), **counts: int | None) -> wire.RowCounts:
    skipped = tuple(wire.SkippedFile(name=name, reason="it is empty") for name in files)
    return wire.RowCounts(**{**dict.fromkeys(FIELDS, 0), **counts}, skipped=skipped, remarks=remarks)


@pytest.mark.parametrize(
    "given,said",
    [
        (None, ""),
        (rows(), ""),
        (rows(read=3, shaped=3, appended=3), ""),
        (
            rows(read=1005, shaped=1005, appended=1000, unchanged=3, conflicting=2),
            "1,005 read: 1,000 appended, 3 unchanged, 2 conflicting",
        ),
        (rows(read=5, shaped=2, appended=2), "5 read: 2 appended, 3 left out by preprocess"),
        (rows(read=5, shaped=4, appended=4, quarantined=1), "5 read: 4 appended, 1 quarantined"),
        (rows(read=2, shaped=2, untimed=2), "2 read: 2 without event time"),
        (rows(remarks=("one thing", "another")), "one thing; another"),
        (rows("a.csv"), "skipped a.csv (it is empty)"),
        (
            msgspec.structs.replace(
                rows(), skipped=tuple(wire.SkippedFile(name=f"{n}.csv", reason=f"it changed at {n}") for n in range(6))
            ),
            "skipped 0.csv (it changed at 0), 1.csv (it changed at 1), 2.csv (it changed at 2),"
            " 3.csv (it changed at 3) and 2 more",
        ),
        (
            rows("a", "b", "c", "d", read=1, shaped=1, appended=1, late=1),
            "1 read: 1 appended, 1 late; skipped a, b, c and 1 more (it is empty)",
        ),
        (rows(read=None, shaped=None, unchanged=None, corrected=2), "2 corrected"),
    ],
)
def test_what_is_not_zero_is_told(given: wire.RowCounts | None, said: str) -> None:
    assert rows_text(given) == said


def test_a_description_tells_the_sum_or_that_nobody_counted() -> None:
    view = wire.DatasetView(name="x", id="y", kind="root", blocks=3)
    counted = wire.RowTotals(
        since_block=2,
        transactions=2,
        rows=rows(read=4, shaped=4, appended=3, unchanged=1),
        last=rows(read=1, shaped=1, unchanged=1),
    )
    text = dataset(wire.DatasetDetail(dataset=view, rows=counted))
    assert "4 read: 3 appended, 1 unchanged, in 2 transactions since block #2" in text
    assert "1 read: 1 unchanged" in text
    assert "not counted here" in dataset(wire.DatasetDetail(dataset=view))


def test_rows_that_a_ledger_did_not_take_come_with_what_to_do() -> None:
    told: list[str] = []
    session: Any = SimpleNamespace(show=lambda *_: None, remark=told.append)
    one, none = {"ref": "a.b", "outcome": "updated", "rows": {"conflicting": 1}}, {"ref": "c", "rows": None}
    assert outcome(session, {"items": [one, none, {"ref": "d", "rows": {"conflicting": None}}]}) == 0
    assert told == [
        "a.b: 1 conflicting row not taken, as the ledger strategy keeps the first values of a key\n"
        "  odfctl correct a.b changes them by hand"
    ]


# What is said beside rows that are shown.


def cities(rely_on: wire.Reliance | None = None) -> wire.DatasetView:
    return wire.DatasetView(name="cities", id="did:odf:fed01", kind="root", blocks=8, rely_on=rely_on)


def test_rows_that_may_be_relied_on_need_no_word() -> None:
    assert doubt_of(cities()) is None
    assert doubt_of(cities(wire.Reliance(blocks=8, fact="data"))) is None


def test_a_reader_is_told_how_far_rows_may_be_relied_on() -> None:
    refuted = cities(wire.Reliance(blocks=7, fact="refuted at #7"))
    assert doubt_of(refuted) == "Reach for use: the first 7 of 8 blocks (refuted at #7): odfctl trust show cities"
    assert doubt_of(cities(wire.Reliance(blocks=0))) == ("Reach for use: none of 8 blocks: odfctl trust show cities")


def test_that_there_are_no_rows_is_said() -> None:
    doubted = cities(wire.Reliance(blocks=0))
    assert list(remarks_on(wire.Records(columns=(), rows=(), dataset=cities()))) == ["no records yet"]
    assert list(remarks_on(wire.Records(columns=(), rows=((1,),), dataset=cities()))) == []
    assert list(remarks_on(wire.Records(columns=(), rows=((1,),), dataset=doubted))) == [doubt_of(doubted)]


# What a session prints as JSON.

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | st.just("\ud800"), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12
)


@pytest.mark.slow
@given(VALUES)
@example({"a": [], "b": {}, "c": [{"d": 1e-07, "e": '\u2028"\\'}]})
def test_json_of_several_lines_is_that_of_the_standard_library(value: Any) -> None:
    assert msgspec.json
    expected = json.dumps(value, indent=2, ensure_ascii=False)
    assert indent(value) == expected
    with patch.dict(sys.modules):
        sys.modules.pop("msgspec", None)
        assert indent(value) == expected


# The page of a dataset: what it says of columns, and files of strangers laid out as text.

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
    """Attack T-CARD-03: a readme with terminal commands, or without end.

    Defence: it is rendered from text whose control characters are replaced, before and after; 32 Ki characters and 200
    lines are shown.
    """
    said = attachment_text(wire.Attachment(path=path, content=f"# Hi\n\n{text}"))
    assert not {"\x1b", "\x07", "\u202e"} & set(said)


def test_of_a_long_file_the_beginning_is_shown() -> None:
    said = attachment_text(wire.Attachment(path="README.md", content="one\n\n" * 210)).splitlines()
    assert len(said) == 202
    assert said[-1] == "  … this is its beginning: -o json has all of 1,050 characters"


def test_only_what_is_our_own_is_suggested_to_be_published() -> None:
    """A copy may be shared with this node alone, and is then refused."""
    ours = dataset(wire.DatasetDetail(dataset=msgspec.structs.replace(VIEW, owner=True)))
    assert "no: odfctl publish weather lets other nodes copy it" in ours
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


# What the doctor and the status say on a terminal: nothing that is to be done is cut off.


def test_what_is_to_be_done_is_told_whole() -> None:
    hint = "; ".join(f"odfctl step {number}" for number in range(40))
    found = ", ".join(f"dataset-{number}" for number in range(30))
    told = doctor_text(
        [
            wire.Probe(name="disk", result="ok", message="much"),
            wire.Probe(name="clock", result="failed", message=found, hint=hint),
        ]
    )
    assert told.splitlines() == [
        "PROBE  RESULT  FOUND",
        "disk   ok      much",
        f"clock  FAILED  {found}",
        "",
        "to do:",
        f"  clock  {hint}",
    ]


def test_where_all_is_well_nothing_is_to_be_done() -> None:
    assert "to do" not in doctor_text([wire.Probe(name="disk", result="ok", message="much")])


def test_an_engine_that_is_not_there_is_told_with_the_reason() -> None:
    absent = wire.EngineView(name="spark", state="not-installed", message="without it: read how\x1b[2J")
    told = status_text(wire.Status(node_id="did:key:z6", version="1", engine=absent))
    (line,) = [line for line in told.splitlines() if line.startswith("engine")]
    assert line.split(maxsplit=1)[1].startswith("spark  not installed: without it: read how")
    assert "\x1b" not in line
    failed = wire.EngineView(name="spark", state="failed", message="no Java")
    assert "spark  failed: no Java" in status_text(wire.Status(node_id="did:key:z6", version="1", engine=failed))


# Tables on a terminal: they fit it, hide nothing, obey NO_COLOR, and let no stranger command it.

NARROW = st.integers(20, 140)
WORDS = st.lists(st.text("abcdefghij", min_size=1, max_size=30), max_size=8).map(" ".join)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn(text: output.TerminalText, columns: int) -> str:
    stream = Terminal()
    text.draw(stream, columns)
    return stream.getvalue()


def table(rows: list[tuple[str, str]]) -> TextTable:
    columns: list[TableColumn[tuple[str, str]]] = [
        TableColumn("NAME", lambda row: row[0], most=400),
        TableColumn("STATE", lambda row: row[1], most=400),
    ]
    return render(columns, rows)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)


@settings(max_examples=50)
@given(rows=st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=5), columns=NARROW)
def test_a_table_fits_and_hides_nothing(rows: list[tuple[str, str]], columns: int) -> None:
    text = drawn(table(rows), columns)
    assert all(width(line) <= columns for line in text.splitlines())
    for letter in "abcdefghij":
        assert text.count(letter) == sum(cell.count(letter) for row in rows for cell in row)


@given(value=WORDS, columns=NARROW)
def test_fields_fit_and_hide_nothing(value: str, columns: int) -> None:
    text = drawn(fields([("name", "x"), ("path", value or "y")]), columns)
    assert all(width(line) <= columns for line in text.splitlines())
    assert "".join(text.split()) == "".join(f"namexpath{value or 'y'}".split())


def test_states_are_coloured_and_other_columns_are_not() -> None:
    text = drawn(table([("failed", "failed"), ("b", "fresh, published")]), 100)
    assert text.count("\x1b[31m") == 1
    assert "\x1b[32mfresh" in text


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_may_ask_for_no_colours(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert "\x1b" not in drawn(table([("a", "failed")]), 100)
    assert max(map(len, drawn(table([("long " * 10, "failed")]), 40).splitlines())) <= 40
    assert "\x1b" not in drawn(output.FaultText("error: it is wrong"), 100)


def test_the_first_word_of_a_message_is_coloured() -> None:
    assert drawn(output.FaultText("error: no [bold]dataset[/] :smile: a:b"), 100).endswith(
        ": no [bold]dataset[/] :smile: a:b\n"
    )
    assert "\x1b[31merror" in drawn(output.FaultText("error: wrong"), 100)


def test_no_command_of_a_stranger_reaches_the_terminal() -> None:
    evil = "\x1b]0;title\x07\x9b31m\u202e"
    for text in (table([(evil, evil)]), fields([("name", evil)]), Stack([evil]), output.FaultText(f"error: {evil}")):
        for columns in (12, 100):
            shown = drawn(text, columns).replace("\x1b[31m", "").replace("\x1b[0m", "")
            assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)


def test_pipes_and_pagers_get_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    text = table([("a", "failed")])
    output.say(text)
    pager = io.StringIO()
    with output.redirected(pager):
        output.say(text)
    assert capsys.readouterr().out == pager.getvalue() == "NAME  STATE\na     failed\n"


def test_parts_are_drawn_each_by_itself() -> None:
    text = Stack(["a heading that is longer than the terminal", "", table([("a", "failed")]).indent_by(2)])
    assert [line.rstrip() for line in drawn(text, 20).splitlines()][:3] == [
        "a heading that is longer than the terminal",
        "",
        "  NAME  STATE",
    ]
    assert str(text).endswith("  NAME  STATE\n  a     failed")
