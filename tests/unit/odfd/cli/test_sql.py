"""``odfctl sql``: its shell, a real terminal, and answers as they are written."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from chain.data.json_values import plain_rows
from chain.errors import Invalid
from engines.query.frames import COLUMNS, END, HEAD, LINES, PLAIN, frame
from odfd import output
from odfd.cli.session import Session
from odfd.cli.sql.formats import FILES, check_form, page_output, pager_of, show, write
from odfd.cli.sql.shell import COMMANDS, Shell, completions, history_file, prompting
from odfd.control import wire
from odfd.errors import Usage
from worlds.eventually import PATIENCE

# The shell of ``odfctl sql``: what it proposes, what it does with lines, and that no mistake ends it.

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


# ``odfctl sql`` on a real terminal, against a node that answers when it is told to.

START = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from odfd.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
STATUS = wire.Status(node_id="did:key:z6MkfakeNode", version="0.1.0")


class Listener:
    """Listens at a control socket. A query that says ``endless`` has a row and no end."""

    def __init__(self, path: Path) -> None:
        self.begun, self.left = threading.Event(), threading.Event()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(path))
        self._server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            asked = self._request(connection)
            if asked.startswith(b"GET"):
                body = b"[]" if b"/status" not in asked else msgspec.json.encode(STATUS)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                return
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n")
            head = wire.QueryHead(pins=(), standing="data", standings=())
            connection.sendall(frame(HEAD, msgspec.json.encode(head)) + frame(COLUMNS, b'[["n","int64"]]'))
            rows = 5_000 if b"many" in asked else 1
            try:
                for start in range(0, rows, 1000):
                    some = [[n] for n in range(start, min(start + 1000, rows))]
                    connection.sendall(frame(PLAIN, msgspec.json.encode(some)))
                if b"endless" in asked:
                    self.begun.set()
                    assert connection.recv(1) == b""
                    self.left.set()
                    return
            except ConnectionError:  # who leaves may not have read all
                self.begun.set()
                self.left.set()
                return
            connection.sendall(frame(END, msgspec.json.encode(wire.QueryEnd(rows=rows))))

    def _request(self, connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        length = int(lengths[0].partition(b":")[2]) if lengths else 0
        while len(body) < length:
            body += connection.recv(65536)
        return head + body


class Terminal:
    """A command on a terminal of its own."""

    def __init__(self, *words: str, **environ: str) -> None:
        self._master, slave = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "LESS": "", **environ}
        command = [sys.executable, "-c", START, *words]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def interrupt_until(self, happened: threading.Event) -> None:
        """Presses ^C, again where Python looked for signals just before this one and then began to wait for bytes."""
        for _ in range(int(PATIENCE)):
            self.type(b"\x03")
            if happened.wait(1):
                return
        raise AssertionError("^C ends nothing")

    def until(self, text: bytes) -> None:
        """Waits until it is shown, behind what was waited for before."""
        while text not in self.seen:
            ready, _, _ = select.select([self._master], [], [], PATIENCE)
            assert ready, f"{text!r} was not shown, but {self.seen!r}"
            try:
                self.seen += os.read(self._master, 65536)
            except OSError:  # it ended
                raise AssertionError(f"{text!r} was not shown, but {self.seen!r}") from None
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    made = Listener(tmp_path / "s")
    yield made
    made.close()


@pytest.mark.slow
def test_c_cancels_the_query_and_not_the_shell(tmp_path: Path, listener: Listener) -> None:
    terminal = Terminal("--socket", str(tmp_path / "s"), "sql", PAGER="cat", XDG_STATE_HOME=str(tmp_path))
    try:
        terminal.until(b"odfd>")
        terminal.type(b"select endless;\r")
        assert listener.begun.wait(PATIENCE)
        terminal.interrupt_until(listener.left)
        terminal.until(b"cancelled")
        terminal.until(b"odfd>")
        terminal.type(b"select 1;\r")
        terminal.until(b"1 row, data")
        terminal.until(b"odfd>")
        terminal.type(b"\x04")
        assert terminal.process.wait(PATIENCE) == 0
    finally:
        terminal.close()


@pytest.mark.slow
def test_rows_go_through_the_pager(tmp_path: Path, listener: Listener) -> None:
    """One that reads all, and one that is left at once."""
    script = tmp_path / "pager"
    script.write_text("#!/bin/sh\necho paged $(wc -l)\n")
    script.chmod(0o700)
    whole = Terminal("--socket", str(tmp_path / "s"), "sql", "select many", PAGER=str(script))
    left = Terminal("--socket", str(tmp_path / "s"), "sql", "select endless many", PAGER="head -n 2")
    try:
        whole.until(b"paged 5005")
        whole.until(b"5,000 rows, data")
        assert whole.process.wait(PATIENCE) == 0
        assert listener.begun.wait(PATIENCE)
        with suppress(OSError):  # it has ended
            left.type(b"\x03")
        # Python puts the signal's default back as it ends: a shell calls that 130 too.
        assert left.process.wait(PATIENCE) in (0, 130, -signal.SIGINT)
        assert listener.left.wait(PATIENCE)
    finally:
        whole.close()
        left.close()


def test_which_pager() -> None:
    assert pager_of({"TERM": "xterm", "PAGER": "head -n 3"}) == ["head", "-n", "3"]
    for none in ({"PAGER": ""}, {"PAGER": "cat"}, {"PAGER": "no-such-pager"}, {"PAGER": "'"}, {"TERM": "dumb"}):
        assert pager_of({"TERM": "xterm", **none}) is None


def test_no_pager_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from odfd import output

    with page_output("table", {"TERM": "xterm", "PAGER": "false"}):
        output.say("a row")
    assert capsys.readouterr().out == "a row\n"


# Answers as they are written: values that are told apart, and nothing that a terminal obeys.

TABLE = pa.table(
    {
        "text": ["a", "", None, 'say "x", y', "two\nlines", "\x1b[31mred"],
        "number": [1, None, 2**60, 0, -1, 7],
        "said": [True, False, None, True, True, True],
        "list": [[1, 2], [], None, [3], [4], [5]],
    }
)


class Answer:
    """As ``Shown`` and as ``Answered``, of a table."""

    def __init__(self, table: pa.Table) -> None:
        self.schema = table.schema
        self.columns = [(field.name, str(field.type)) for field in table.schema]
        self.head = wire.QueryHead(pins=(), standing="data", standings=())
        self._table = table

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches(max_chunksize=4)

    def pages(self) -> Iterator[Sequence[Sequence[Any]]]:
        yield from map(plain_rows, self.batches())


def written(form: str, capfdbinary: Any, table: pa.Table = TABLE) -> bytes:
    (write if form in FILES else show)(Answer(table), form)  # type: ignore[arg-type]
    output.flush()
    return bytes(capfdbinary.readouterr().out)


def test_csv_tells_no_value_from_an_empty_text(capfdbinary: Any) -> None:
    text = written("csv", capfdbinary).decode()
    assert text.splitlines()[:4] == [
        "text,number,said,list",
        'a,1,true,"[1,2]"',
        '"",,false,[]',
        ",1152921504606846976,,",
    ]
    found = list(csv.reader(io.StringIO(text)))
    assert [row[0] for row in found[4:]] == ['say "x", y', "two\nlines", "\x1b[31mred"]


def test_csv_on_a_terminal_moves_no_cursor(capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    assert b"\x1b" not in written("csv", capfdbinary)
    for form in ("parquet", "arrow"):
        with pytest.raises(Usage):
            check_form(form)


@pytest.mark.parametrize("form", ["table", "vertical", "markdown", "json", "ndjson"])
def test_nothing_is_written_that_a_terminal_obeys(form: str, capfdbinary: Any) -> None:
    assert b"\x1b" not in written(form, capfdbinary)


def test_json_is_one_document_and_ndjson_a_line_a_row(capfdbinary: Any) -> None:
    found = json.loads(written("json", capfdbinary))
    assert found["standing"] == "data"
    assert [row[0] for row in found["rows"]] == TABLE["text"].to_pylist()
    lines = [json.loads(line) for line in written("ndjson", capfdbinary).splitlines()]
    assert lines[2] == {"text": None, "number": str(2**60), "said": None, "list": None}
    empty = json.loads(written("json", capfdbinary, TABLE.slice(0, 0)))
    assert empty["rows"] == []


def test_no_column_is_lost_to_another_of_its_name(capfdbinary: Any) -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(Invalid):
        written("ndjson", capfdbinary, twice)
    assert json.loads(written("json", capfdbinary, twice))["rows"] == [[1, 2]]


def test_arrow_and_parquet_give_the_same_rows(capfdbinary: Any) -> None:
    import pyarrow.parquet as pq

    assert pa.ipc.open_stream(written("arrow", capfdbinary)).read_all().equals(TABLE)
    assert pq.read_table(pa.BufferReader(written("parquet", capfdbinary))).equals(TABLE)
