"""Runs real nodes as processes: started, called through ``odfctl``, killed, and always removed at the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from odfd.cli.kinds import with_state

BIN = Path(sys.executable).parent
T = TypeVar("T")


class Broken(Exception):
    """An expected result did not occur; the demo ends here with an error."""


@dataclass
class Answer:
    """The output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.out)
        except ValueError as error:
            raise Broken(f"no JSON came, but {self.out[:200]!r} {self.err[:400]!r}") from error


@dataclass
class Node:
    """One node: a folder with its settings and state, and a daemon."""

    letter: str
    name: str
    folder: Path
    settings: str
    program: tuple[str, ...] = (str(BIN / "odfd"),)
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def socket(self) -> Path:
        return self.folder / "control.sock"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def start(self) -> None:
        """Returns once it answers. Raises Broken with the end of its log."""
        self.launch()
        until(f"node {self.letter} answers", self._is_up, 180)

    def launch(self) -> None:
        """Returns at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.folder / "odfd.toml"
        config.write_text(self.settings)
        log = (self.folder / "odfd.log").open("ab")
        self.process = subprocess.Popen(
            [*self.program, "run", "--config", str(config), "--state", str(self.state), "--socket", str(self.socket)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self.environment},
            start_new_session=True,
        )
        log.close()

    def _is_up(self) -> bool:
        if self.process is not None and self.process.poll() is not None:
            raise Broken(f"node {self.letter} ended with {self.process.returncode}:\n{self.last_words()}")
        return self.answers()

    def last_words(self) -> str:
        return (self.folder / "odfd.log").read_text(errors="replace")[-2000:]

    def answers(self) -> bool:
        return self.socket.exists() and self.ask("status").code == 0

    def ask(self, *words: str, timeout: float = 170) -> Answer:
        """Runs ``odfctl`` with these arguments, for JSON."""
        command = [str(BIN / "odfctl"), "--socket", str(self.socket), "-o", "json", "-q", *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
        except subprocess.TimeoutExpired as late:
            raise Broken(f"node {self.letter}: odfctl {' '.join(words)} took more than {timeout:.0f} s") from late
        return Answer(done.returncode, done.stdout, done.stderr)

    def do(self, *words: str) -> Any:
        """Runs ``odfctl``, which must succeed. Raises Broken."""
        answer = self.ask(*words)
        if answer.code:
            raise Broken(f"node {self.letter}: odfctl {' '.join(words)} ended with {answer.code}: {answer.err.strip()}")
        return answer.json

    def mirrors(self) -> dict[str, Any]:
        """What the node knows of its mirrors, by their names; nothing while it does not answer."""
        answer = self.ask("mirror", "list")
        return {each["headers"]["name"]: with_state(each) for each in answer.json} if answer.code == 0 else {}

    def datasets(self) -> dict[str, Any]:
        """What the node knows of its datasets, by their names. Raises Broken."""
        return {each["headers"]["name"]: with_state(each) for each in self.do("get", "datasets")}

    def begin(self, *words: str) -> subprocess.Popen[bytes]:
        """Starts a command without waiting for it."""
        return subprocess.Popen(
            [str(BIN / "odfctl"), "--socket", str(self.socket), "-q", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )

    def reload(self, settings: str) -> None:
        """Changes settings while the node runs. Returns once it has reported the result."""
        assert self.process is not None
        seen = self._reloads()
        self.settings = settings
        (self.folder / "odfd.toml").write_text(settings)
        self.process.send_signal(signal.SIGHUP)
        until(f"node {self.letter} has new settings", lambda: self._reloads() > seen, 180)

    def _reloads(self) -> int:
        return (self.folder / "odfd.log").read_text(errors="replace").count("reloaded")

    def kill(self) -> None:
        """Kills the process, as the kernel would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def until(what: str, look: Callable[[], T | None], seconds: float) -> T:
    """Polls ``look`` until it returns a value. Raises Broken at the time limit."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise Broken(f"it did not happen in {seconds:.0f} s: {what}")
