"""Tables on a terminal: they fit it, hide nothing, obey NO_COLOR, and let no stranger command it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfd import output
from odfd.cli.table import Stack, TableColumn, TextTable, fields, render, width

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
