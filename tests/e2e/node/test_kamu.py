"""A real kamu-cli and a node speak kamu's smart transfer protocol with each other, in both roles of it.

``ODF_KAMU`` names the program of kamu-cli. It is in no registry of packages, so most machines do not have it.
"""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from worlds.eventually import PATIENCE
from worlds.ports import free_port

PROGRAM: Final = os.environ.get("ODF_KAMU", "")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(not PROGRAM, reason="no kamu-cli is here: ODF_KAMU names its program"),
]
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
ACCOUNT: Final = "$schema: Account\nheaders: {name: kim}\nspec: {email: kim@example.com}\n"
SECRETS: Final = "$schema: SecretSet\nheaders: {{name: token}}\nspec:\n  secrets:\n    token: {token}\n"


@dataclass
class Workspace:
    """A workspace of kamu, with a home of its own."""

    folder: Path

    def __post_init__(self) -> None:
        if not self.folder.exists():
            self.folder.mkdir()
            self.did("init")

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *words], cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=PATIENCE,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "HOME": str(self.folder)}

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

    @contextmanager
    def serving(self) -> Iterator[tuple[str, str]]:
        """Serves the workspace. Yields the URL and a token, which kamu shows to a terminal alone."""
        port = free_port()
        ours, theirs = pty.openpty()
        command = [PROGRAM, "system", "api-server", "--address", "127.0.0.1", "--http-port", str(port), "--get-token"]
        with subprocess.Popen(
            command, cwd=self.folder, env=self.environ, stdin=theirs, stdout=theirs, stderr=theirs
        ) as server:
            os.close(theirs)
            try:
                shown = b""
                while (token := re.search(rb"eyJ[\w.-]+(?=\W)", shown)) is None:
                    shown += os.read(ours, 4096)
                yield f"odf+http://127.0.0.1:{port}", token[0].decode()
            finally:
                server.kill()
                with suppress(OSError):
                    os.close(ours)


def rows(day: int, city: str) -> str:
    return json.dumps({"event_time": f"2024-01-{day:02}T00:00:00Z", "city": city, "people": day}) + "\n"


@dataclass
class Node:
    """A daemon that gives and takes at ``url``."""

    daemon: Any
    url: str

    def begin(self, name: str) -> None:
        self.apply("manifest.yaml", MANIFEST.format(name=name))

    def apply(self, name: str, text: str) -> None:
        (self.daemon.folder / name).write_text(text)
        self.daemon.ask("apply", "-f", str(self.daemon.folder / name))

    def add(self, name: str, day: int, city: str) -> None:
        (self.daemon.folder / "rows.ndjson").write_text(rows(day, city))
        self.daemon.ask("ingest", name, str(self.daemon.folder / "rows.ndjson"))

    def head(self, name: str) -> str:
        head: str = self.daemon.ask("log", name, "--limit", "1")[0]["hash"]
        return head

    def holds(self, name: str, level: str = "data") -> bool:
        return self.daemon.said("verify", name, "--level", level).code == 0

    @contextmanager
    def repository(self, kamu: Workspace, name: str = "kamu") -> Iterator[str]:
        """Knows the workspace as a repository while it is served. Yields its name."""
        with kamu.serving() as (url, token):
            self.apply("secrets.yaml", SECRETS.format(token=token))
            self.daemon.ask("repo", "add", name, url, "--credentials", "token")
            yield name

    def push(self, name: str, repository: str) -> None:
        self.daemon.ask("push", name, "--to", f"{repository}/{name}", "--private")

    def token(self) -> str:
        self.apply("account.yaml", ACCOUNT)
        made = self.daemon.said("--account", "kim", "token", "create", "--role", "maintainer", "-q")
        assert made.code == 0, made.err
        return str(made.out.strip().splitlines()[-1])


@pytest.fixture
def node(make_daemon: Callable[..., Any]) -> Node:
    port = free_port()
    daemon = make_daemon(ODFD_HTTP_LISTEN=f"127.0.0.1:{port}", ODFD_HTTP_PUSH="true")
    daemon.start()
    return Node(daemon, f"odf+http://127.0.0.1:{port}")


@pytest.fixture
def kamu(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "kamu")


def test_kamu_pulls_from_a_node_and_goes_on(node: Node, kamu: Workspace) -> None:
    node.begin("cities")
    node.add("cities", 1, "Graz")
    kamu.did("pull", f"{node.url}/cities", "--as", "cities")
    assert kamu.head("cities") == node.head("cities")
    node.add("cities", 2, "Linz")
    kamu.did("pull", "cities")
    assert kamu.head("cities") == node.head("cities")
    kamu.did("verify", "cities")
    found = json.loads(kamu.did("sql", "-c", "select city from cities order by offset", "-o", "json"))
    assert found == [{"city": "Graz"}, {"city": "Linz"}]


def test_kamu_pushes_to_a_node_and_who_comes_second_is_told(node: Node, kamu: Workspace, tmp_path: Path) -> None:
    place = f"{node.url}/cities"
    kamu.begin("cities")
    kamu.add("cities", 1, "Graz")
    assert "nauthorized" in kamu.refused("push", "cities", "--to", place)
    kamu.did("login", "--access-token", node.token(), node.url.removeprefix("odf+"))
    kamu.did("push", "cities", "--to", place)
    assert kamu.head("cities") == node.head("cities")
    other = Workspace(Path(shutil.copytree(kamu.folder, tmp_path / "other")))
    kamu.add("cities", 2, "Linz")
    other.add("cities", 2, "Wels")
    kamu.did("push", "cities", "--to", place)
    assert kamu.head("cities") == node.head("cities")
    assert "Failed to push cities" in other.refused("push", "cities", "--to", place)
    assert "smart-force: no history is overwritten here" in other.refused("push", "cities", "--to", place, "--force")
    assert kamu.head("cities") == node.head("cities")
    assert node.holds("cities")
    kamu.did("verify", "cities")


def test_what_kamu_pulled_from_a_node_is_pushed_to_it_further(node: Node, kamu: Workspace) -> None:
    node.begin("towns")
    node.add("towns", 1, "Enns")
    kamu.did("pull", f"{node.url}/towns", "--as", "towns")
    node.add("towns", 2, "Melk")
    with node.repository(kamu) as repository:
        node.push("towns", repository)
    assert node.head("towns") == kamu.head("towns")


def test_a_node_pulls_from_kamu_and_pushes_to_it(node: Node, kamu: Workspace) -> None:
    kamu.begin("cities")
    node.begin("towns")
    for day, name in enumerate(("first", "second"), 1):
        kamu.add("cities", day, "Graz")
        node.add("towns", day, "Enns")
        with node.repository(kamu, name) as repository:
            node.daemon.ask("pull", f"{repository}/cities")
            node.push("towns", repository)
        assert node.head("cities") == kamu.head("cities")
        assert node.head("towns") == kamu.head("towns")
    assert node.holds("cities")
    kamu.did("verify", "towns")
