"""A real kamu-cli in a workspace of its own, and a daemon that speaks with it.

``ODF_KAMU`` names the program. It is in no registry of packages, so most machines do not have it.
"""

from __future__ import annotations

import json
import os
import pty
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from worlds.between import Between, between
from worlds.eventually import PATIENCE
from worlds.ports import free_port

PROGRAM: Final = os.environ.get("ODF_KAMU", "")
NEEDS_KAMU: Final = pytest.mark.skipif(not PROGRAM, reason="no kamu-cli is here: ODF_KAMU names its program")
LOOPBACK: Final = "127.0.0.1"
BESIDE: Final = "127.0.0.2"
"""Where a proxy in front of kamu listens: its server can be told to name another host, but no other port."""
MANIFEST: Final = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson
        ddlSchema: [event_time TIMESTAMP, city STRING, people BIGINT]
      merge: {{kind: Append}}
"""
FILES: Final = """
kind: DatasetSnapshot
version: 1
content:
  name: {name}
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: FilesGlob, path: '{folder}/*.csv', order: ByName}}
      read: {{kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, city STRING, people BIGINT']}}
      merge: {{kind: Append}}
"""
ACCOUNT: Final = "$schema: Account\nheaders: {name: kim}\nspec: {email: kim@example.com}\n"
SECRETS: Final = "$schema: SecretSet\nheaders: {{name: token}}\nspec:\n  secrets:\n    token: {token}\n"


class Served(NamedTuple):
    """A workspace that is served. ``lines``: the proxy in front of it, if there is one; ``kill`` ends the server."""

    url: str
    token: str
    lines: Between | None
    kill: Callable[[], None]


@dataclass
class Workspace:
    """A workspace of kamu, with a home of its own."""

    folder: Path
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        if not self.folder.exists():
            self.folder.mkdir()
            self.did("init")

    def copy(self, folder: Path) -> Workspace:
        return Workspace(Path(shutil.copytree(self.folder, folder)))

    def begun(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PROGRAM, *words], cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *words], cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=self.patience,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    @property
    def environ(self) -> dict[str, str]:
        keys = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.folder), **keys}

    def did(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    def refused(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode != 0, (words, done.stdout, done.stderr)
        return done.stderr

    def begin(self, name: str) -> None:
        (self.folder / "manifest.yaml").write_text(MANIFEST.format(name=name))
        self.did("add", "manifest.yaml")

    def add(self, name: str, day: int, city: str) -> None:
        (self.folder / "rows").write_text(rows(day, city))
        self.did("ingest", name, "rows", "--input-format", "ndjson")

    def head(self, name: str) -> str:
        found = re.search(r"^Block #\d+: (\w+)", self.did("log", name), re.MULTILINE)
        assert found is not None
        return found[1]

    def log_in(self, node: Node, url: str | None = None) -> str:
        """Lets this workspace push to a node. Returns the token."""
        token = node.token()
        self.did("login", "--access-token", token, (url or node.url).removeprefix("odf+"))
        return token

    @contextmanager
    def serving(self, *, through_proxy: bool = False) -> Iterator[Served]:
        """Serves the workspace. Yields the URL and a token, which kamu shows to a terminal alone."""
        port = free_port()
        ours, theirs = pty.openpty()
        command = [PROGRAM, "system", "api-server", "--address", LOOPBACK, "--http-port", str(port), "--get-token"]
        command += ["--external-address", BESIDE] if through_proxy else []
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdin=theirs, stdout=theirs, stderr=theirs
        ) as server:
            os.close(theirs)
            try:
                shown = b""
                while (token := re.search(rb"eyJ[\w.-]+(?=[^\w.-])", shown)) is None:
                    shown += os.read(ours, 4096)
                if not through_proxy:
                    yield Served(f"odf+http://{LOOPBACK}:{port}", token[0].decode(), None, server.kill)
                    return
                with between((LOOPBACK, port), (BESIDE, port)) as lines:
                    yield Served(f"odf+http://{BESIDE}:{port}", token[0].decode(), lines, server.kill)
            finally:
                server.kill()
                with suppress(OSError):
                    os.close(ours)


def rows(day: int, city: str) -> str:
    return json.dumps({"event_time": f"2024-01-{day:02}T00:00:00Z", "city": city, "people": day}) + "\n"


def file_of(number: int, size: int) -> str:
    """A file with one row, whose time grows with its number, and whose slice has at least ``size`` bytes."""
    city = f"c{number}{random.Random(number).randbytes(size).hex()}"
    time = f"2024-01-{number // 1440 + 1:02}T{number // 60 % 24:02}:{number % 60:02}:00Z"
    return f"event_time,city,people\n{time},{city},{number}\n"


@dataclass
class Node:
    """A daemon that gives and takes at ``url``."""

    daemon: Any
    port: int

    @property
    def url(self) -> str:
        return f"odf+http://{LOOPBACK}:{self.port}"

    @contextmanager
    def behind_proxy(self) -> Iterator[tuple[str, Between]]:
        """Yields its URL through a proxy, and the proxy."""
        with between((LOOPBACK, self.port)) as lines:
            yield f"odf+http://{LOOPBACK}:{lines.address[1]}", lines

    def begin(self, name: str) -> None:
        self.apply("manifest.yaml", MANIFEST.format(name=name))

    def apply(self, name: str, text: str) -> None:
        (self.daemon.folder / name).write_text(text)
        self.daemon.ask("apply", "-f", str(self.daemon.folder / name))

    def begin_files(self, name: str) -> None:
        """A dataset with a slice for each file; ``add_files`` writes them."""
        folder = self.daemon.folder / name
        folder.mkdir()
        self.apply("files.yaml", FILES.format(name=name, folder=folder))

    def add_files(self, name: str, numbers: range, size: int = 0) -> None:
        for number in numbers:
            (self.daemon.folder / name / f"{number:05}.csv").write_text(file_of(number, size))
        self.daemon.ask("pull", name)

    def add(self, name: str, day: int, city: str) -> None:
        (self.daemon.folder / "rows.ndjson").write_text(rows(day, city))
        self.daemon.ask("ingest", name, str(self.daemon.folder / "rows.ndjson"))

    def import_(self, folder: Path, name: str) -> None:
        self.daemon.ask("import", str(folder), "--as", name)

    def head(self, name: str) -> str:
        head: str = self.daemon.ask("log", name, "--limit", "1")[0]["hash"]
        return head

    def has(self, name: str) -> bool:
        return bool(self.daemon.said("describe", "dataset", name).code == 0)

    def holds(self, name: str, level: str = "data") -> bool:
        return bool(self.daemon.said("verify", name, "--level", level).code == 0)

    @contextmanager
    def repository(self, kamu: Workspace, name: str = "kamu", *, through_proxy: bool = False) -> Iterator[Served]:
        """Knows the workspace as a repository ``name`` while it is served."""
        with kamu.serving(through_proxy=through_proxy) as served:
            self.apply("secrets.yaml", SECRETS.format(token=served.token))
            self.daemon.ask("repo", "add", name, served.url, "--credentials", "token")
            yield served

    def push(self, name: str, repository: str) -> None:
        self.daemon.ask("push", name, "--to", f"{repository}/{name}", "--private")

    def token(self) -> str:
        self.apply("account.yaml", ACCOUNT)
        made = self.daemon.said("--account", "kim", "token", "create", "--role", "maintainer", "-q")
        assert made.code == 0, made.err
        return str(made.out.strip().splitlines()[-1])


def started(make_daemon: Any, name: str = "a") -> Node:
    """A daemon that gives what is published and takes pushes."""
    port = free_port()
    daemon = make_daemon(name, ODFD_HTTP_LISTEN=f"{LOOPBACK}:{port}", ODFD_HTTP_PUSH="true")
    daemon.start()
    return Node(daemon, port)
