"""Completion in the real shells, against a running node: what Tab puts into the line that is typed."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfd.cli.commands.completions import SCRIPTS
from worlds.eventually import PATIENCE

pytestmark = pytest.mark.e2e

AIRLINES = """kind: DatasetSnapshot
version: 1
content:
  name: airlines
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {kind: Csv, header: true, ddlSchema: [carrier STRING, seats INT]}
      merge: {kind: Append}
"""
VALIDATOR = "did:key:z6Mkqi1cNkNci6HXwDxeeS1aP1neHbnW4CDve788zZwKPkR9"
STARTS = {
    "bash": (["--norc", "--noprofile", "-i"], "PS1='RE''ADY> '; bind 'set enable-bracketed-paste off'; source {}\r"),
    "zsh": (["-f", "-i"], "PS1='RE''ADY> '; bindkey -e; autoload -Uz compinit; compinit -u -D; source {}\r"),
}
LINES = {
    "odfctl stat": "odfctl status",
    "odfctl mirror add --wa": "odfctl mirror add --want",
    "odfctl tail air": "odfctl tail airlines",
    "odfctl describe datas": "odfctl describe dataset",
    "odfctl describe dataset air": "odfctl describe dataset airlines",
    "odfctl -o ndj": "odfctl -o ndjson",
    "odfctl lineage airlines --column carr": "odfctl lineage airlines --column carrier",
    "odfctl correct airlines --set carr": "odfctl correct airlines --set carrier=",
    "odfctl verify airlines --level=repr": "odfctl verify airlines --level=reproduced",
    "odfctl wait dataset airlines --for water": "odfctl wait dataset airlines --for watermark=",
    "odfctl ingest airlines some": "odfctl ingest airlines some-file.csv",
    "odfctl trust validator remove did:k": f"odfctl trust validator remove {VALIDATOR}",
}
"""What is typed, and what stands there after Tab, but for a space that some shells add."""


class Terminal:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, command: list[str], environ: dict[str, str], folder: Path) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # pragma: no cover  # the shell
            os.chdir(folder)
            os.execvpe(command[0], command, environ)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        self.seen = ""

    def until(self, wanted: Callable[[str], bool]) -> str:
        while not wanted(self.seen):
            assert select.select([self._fd], [], [], PATIENCE)[0], self.seen
            self.seen += os.read(self._fd, 65536).decode(errors="replace")
        return self.seen

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self._fd, text.encode())

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def node(tmp_path: Path, make_daemon: Callable[..., Any]) -> Any:
    daemon = make_daemon(small=True).start()
    (tmp_path / "airlines.yaml").write_text(AIRLINES)
    (tmp_path / "some-file.csv").write_text("carrier,seats\nUA,100\n")
    assert daemon.said("apply", "-f", str(tmp_path / "airlines.yaml")).code == 0
    assert daemon.said("ingest", "airlines", str(tmp_path / "some-file.csv")).code == 0
    assert daemon.said("trust", "validator", "add", VALIDATOR, "--group", "others").code == 0
    return daemon


def around(node: Any) -> dict[str, str]:
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "HOME": str(node.folder),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "ODFD_SOCKET": str(node.socket),
    }


def needed(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell} on this machine")
    return found


@pytest.mark.parametrize("shell", list(STARTS))
def test_tab_completes_what_the_node_has(node: Any, shell: str) -> None:
    program = needed(shell)
    words, begin = STARTS[shell]
    script = node.folder / f"words.{shell}"
    script.write_text(SCRIPTS[shell] + "\n")
    terminal = Terminal([program, *words], around(node), node.folder.parent)
    found = {}
    try:
        terminal.type(begin.format(script))
        terminal.until(lambda seen: "READY>" in seen)
        for typed in LINES:
            # To the front of the line: what stands there is an argument of echo now.
            terminal.type(f"{typed}\t\x05'\x01echo 'GO''T:\r")
            seen = terminal.until(lambda seen: "GOT:" in seen and "READY>" in seen.rpartition("GOT:")[2])
            found[typed] = seen.rpartition("GOT:")[2].splitlines()[0].rstrip()
    finally:
        terminal.close()
    assert found == LINES


def test_fish_completes_what_the_node_has(node: Any) -> None:
    program = needed("fish")
    script = node.folder / "words.fish"
    script.write_text(SCRIPTS["fish"] + "\n")
    options = "odfctl tail airlines --"
    asked = "; ".join(f"echo 'line {typed}'; complete -C '{typed}'" for typed in (*LINES, options))
    done = subprocess.run(
        [program, "--no-config", "-c", f"source {script}; {asked}"],
        env=around(node), cwd=node.folder.parent, capture_output=True, text=True, timeout=PATIENCE, check=True,
    )  # fmt: skip
    found = {}
    for part in done.stdout.split("line ")[1:]:
        typed, *proposed = part.splitlines()
        found[typed] = [each.partition("\t")[0] for each in proposed]
    assert {"--as-of", "--records"} <= set(found.pop(options))
    assert found == {typed: [line.split()[-1]] for typed, line in LINES.items()}
