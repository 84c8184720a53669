"""A real daemon that is asked to stop while its engine starts: at no moment of that does it wait for the engine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.sandbox.container import TOOLS
from worlds.eventually import PATIENCE, until

pytestmark = pytest.mark.e2e
HANGS = "#!/bin/sh\necho $$ >> {told}\nexec sleep 3600\n"
DERIVED = """kind: DatasetSnapshot
version: 1
content:
  name: derived
  kind: Derivative
  metadata:
    - kind: SetTransform
      inputs: [{datasetRef: events, alias: a}]
      transform: {kind: Sql, engine: spark, query: select * from a}
---
kind: DatasetSnapshot
version: 1
content:
  name: events
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: gate
      read: {kind: Csv, ddlSchema: ['event_time TIMESTAMP, k BIGINT']}
      merge: {kind: Append}
"""


SANDBOXES = (*TOOLS, "bwrap")
"""What any level above none is made with: which of them is tried first is the machine's."""


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def awaited(file: Path) -> None:
    """Until the program that hangs was started."""
    until(file.exists)


def check_ends(daemon: Any) -> None:
    """Nothing of it had to be cancelled when its time was up, and none of what it started stays."""
    told = daemon.told()
    assert daemon.stop() == 0
    ended = daemon.told()[len(told) :]
    assert '"event": "ended"' in ended
    assert '"event": "cancelled"' not in ended


def test_while_a_java_is_asked_for_its_version(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    told = tmp_path / "told"
    program(tmp_path / "java" / "bin" / "java", HANGS.format(told=told))
    daemon = make_daemon(JAVA_HOME=str(tmp_path / "java")).start()
    awaited(told)
    check_ends(daemon)


def test_while_a_level_of_the_sandbox_is_tried(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    told = tmp_path / "told"
    for name in SANDBOXES:
        program(tmp_path / "bin" / name, HANGS.format(told=told))
    daemon = make_daemon(PATH=f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin").start()
    awaited(told)
    check_ends(daemon)
    assert not any(Path("/proc", pid).exists() for pid in told.read_text().split())


def test_while_its_jvm_starts(make_daemon: Callable[..., Any], tmp_path: Path) -> None:
    """Somebody waits for the answer of an engine whose Java says nothing."""
    told, home = tmp_path / "told", tmp_path / "java"
    program(home / "bin" / "java", HANGS.format(told=told))
    (home / "release").write_text('JAVA_VERSION="17.0.1"\nMODULES="java.base jdk.incubator.vector"\n')
    for name in SANDBOXES:  # a process in a sandbox could not tell
        program(tmp_path / "bin" / name, "#!/bin/sh\nexit 1\n")
    path = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin"
    daemon = make_daemon(JAVA_HOME=str(home), ODFD_ENGINE_SANDBOX="none", PATH=path).start()
    file = tmp_path / "m.yaml"
    file.write_text(DERIVED)
    apply = daemon.begin("apply", "-f", str(file), "-q")
    awaited(told)
    check_ends(daemon)
    apply.wait(PATIENCE)
