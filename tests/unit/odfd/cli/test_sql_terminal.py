"""``odfctl sql`` on a real terminal, against a node that answers when it is told to."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from engines.query.frames import COLUMNS, END, HEAD, PLAIN, frame
from odfd.cli.sql.formats import page_output, pager_of
from odfd.control import wire
from worlds.eventually import PATIENCE

START = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from odfd.cli.main import main
sys.exit(main(sys.argv[1:]))
"""

STATUS = wire.Status(node_id="did:key:z6MkfakeNode", version="0.1.0")


class Node:
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
            for start in range(0, rows, 1000):
                some = [[n] for n in range(start, min(start + 1000, rows))]
                connection.sendall(frame(PLAIN, msgspec.json.encode(some)))
            if b"endless" in asked:
                self.begun.set()
                with suppress(ConnectionResetError):  # who leaves may not have read all
                    assert connection.recv(1) == b""
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
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path / "s")
    yield made
    made.close()


@pytest.mark.slow
def test_c_cancels_the_query_and_not_the_shell(tmp_path: Path, node: Node) -> None:
    terminal = Terminal("--socket", str(tmp_path / "s"), "sql", PAGER="cat", XDG_STATE_HOME=str(tmp_path))
    try:
        terminal.until(b"odfd>")
        terminal.type(b"select endless;\r")
        assert node.begun.wait(PATIENCE)
        terminal.interrupt_until(node.left)
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
def test_rows_go_through_the_pager(tmp_path: Path, node: Node) -> None:
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
        assert node.begun.wait(PATIENCE)
        with suppress(OSError):  # it has ended
            left.type(b"\x03")
        # Python puts the signal's default back as it ends: a shell calls that 130 too.
        assert left.process.wait(PATIENCE) in (0, 130, -signal.SIGINT)
        assert node.left.wait(PATIENCE)
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
