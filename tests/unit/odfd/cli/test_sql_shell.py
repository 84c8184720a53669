"""The shell of ``odfctl sql``: what it proposes, what it does with lines, and that no mistake ends it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain.errors import Invalid
from engines.query.frames import COLUMNS, END, HEAD, LINES, PLAIN
from odfd.cli.session import Session
from odfd.cli.sql.shell import COMMANDS, Shell, completions, history_file, prompting
from odfd.control import wire

KNOWN = {"weather": ["city", "celsius"], "nyc.flights": ["carrier"]}
PIN = wire.Pin(name="weather", id="did:odf:x", block="f1620" + "ab" * 32, sequence_number=3)


def words(before: str) -> list[str]:
    return [word for word, _ in completions(before, list(KNOWN), KNOWN, ("count", "coalesce"))]


@pytest.mark.parametrize(
    ("before", "proposed"),
    [
        ("select * from w", ["weather"]),
        ("select * from nyc.f", ["nyc.flights"]),
        ("select * from current.w", ["current.weather"]),
        ("\\d nyc", ["nyc.flights"]),
        ("\\pl", ["\\plan"]),
        ("select * from weather where c", ["city", "celsius", "coalesce(", "count(", "CASE"]),
        ("select * from current.weather w where w.ci", ["city"]),
        ("select * from weather ord", ["ORDER BY"]),
    ],
)
def test_what_a_word_may_go_on_as(before: str, proposed: list[str]) -> None:
    assert words(before) == proposed


class Node:
    """A daemon that has one answer; statements are kept."""

    def __init__(self) -> None:
        self.asked: list[wire.QueryRequest] = []

    def do(self, call: Any) -> Any:
        if call.path == "/dataset/v1alpha1/datasets":
            state = {"kind": "root", "blocks": 4, "records": 2}
            status = {"conditions": {"x/State": {"value": state}}}
            told = wire.ResourceManifest(schema="Dataset", headers={"name": "weather"}, status=status)
            return Namespace(value=wire.ResourceList(resource_version="", items=(told,)), sent={"items": [None]})
        return Namespace(value=wire.Schema(ref="weather", fields=(wire.Column(name="city", type="String"),)))

    @contextmanager
    def frames(self, call: Any, _meanwhile: object = None) -> Iterator[Iterator[tuple[bytes, bytes]]]:
        assert call.path == "/node/v1alpha1/query"
        request = call.request
        self.asked.append(request)
        if request.sql == "wrong":
            raise Invalid("it is wrong", rule="query")
        if request.sql == "long":
            raise KeyboardInterrupt
        assert request.plain or request.lines == "csv"
        column = "explain_value" if request.explain else "city"
        head = wire.QueryHead(pins=(PIN,), standing="data", standings=())
        yield iter(
            [
                (HEAD, msgspec.json.encode(head)),
                (COLUMNS, msgspec.json.encode([(column, "string")])),
                (PLAIN, msgspec.json.encode([["Graz"]])) if request.plain else (LINES, b"\x00\x00\x00\x01city\nGraz\n"),
                (END, msgspec.json.encode(wire.QueryEnd(rows=1))),
            ]
        )


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def shell(node: Node) -> Shell:
    session = Session(Namespace(output="table", quiet=False, verbose=False, socket=None))
    session._client = node  # type: ignore[assignment]
    return Shell(session, wire.QueryRequest(sql=""), "table")


def lines(*said: Any) -> Callable[[], str]:
    left = iter(said)

    def read() -> str:
        found = next(left, EOFError())
        if isinstance(found, BaseException):
            raise found
        return str(found)

    return read


def test_a_session(shell: Shell, node: Node, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    pins = tmp_path / "pins.json"
    said = (
        "select city from weather;",
        "\\o csv",
        "select 1 ;\n",
        f"\\pin {pins}",
        "\\plan select 2;",
        "\\d",
        "\\d weather",
    )
    shell.run(lines(*said))
    assert [(each.sql, each.explain) for each in node.asked] == [
        ("select city from weather", False), ("select 1", False), ("select 2", True),
    ]  # fmt: skip
    written = capsys.readouterr()
    assert "city\nGraz\n" in written.out
    assert [each.lines for each in node.asked] == ["", "csv", ""]
    assert "weather  root        2" in written.out
    assert "city    String" in written.out
    assert "1 row, data" in written.err
    assert f"{pins} has the pins of the last answer: 1" in written.err
    assert msgspec.json.decode(pins.read_bytes())["pins"][0]["sequenceNumber"] == 3


def test_no_mistake_ends_it(shell: Shell, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run(lines("wrong;", KeyboardInterrupt(), "long;", "\\nope", "\\o pdf", "", "select 1;", "\\q", "select 2;"))
    assert [each.sql for each in node.asked] == ["wrong", "long", "select 1"]
    told = capsys.readouterr().err
    for said in ("error: it is wrong", "cancelled", "there is no command \\nope", "there is no form 'pdf'"):
        assert said in told


def test_commands_are_listed(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run(lines("\\?"))
    listed = capsys.readouterr().out
    assert all(command in listed for command in COMMANDS)


@pytest.mark.slow
def test_enter_ends_a_query_only_behind_its_semicolon(shell: Shell, node: Node) -> None:
    prompt_toolkit = pytest.importorskip("prompt_toolkit")
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    with create_pipe_input() as typed:
        typed.send_text("select city\nfrom weather;\n")
        typed.send_text("\\q\n")
        session = prompt_toolkit.PromptSession(input=typed, output=DummyOutput())
        shell.run(prompting(shell, session))
    assert [each.sql for each in node.asked] == ["select city\nfrom weather"]


def test_the_history_is_for_its_owner(tmp_path: Path) -> None:
    place = history_file({"XDG_STATE_HOME": str(tmp_path)})
    assert place is not None
    assert place.stat().st_mode & 0o777 == 0o600
    assert history_file({}) is None
    (tmp_path / "odfd" / "sql-history").unlink()
    (tmp_path / "file").write_text("")
    assert history_file({"XDG_STATE_HOME": str(tmp_path / "file")}) is None
