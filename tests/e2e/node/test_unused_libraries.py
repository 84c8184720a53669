"""A real daemon has in its memory only the libraries that its work needs: none of pandas, and Arrow not before rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from worlds.daemons import INSTALLED

pytestmark = pytest.mark.e2e
PUSHED = """
kind: DatasetSnapshot
version: 1
content:
  name: cities
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read:
        kind: NdJson
        schema:
          fields:
            - {name: city, type: String}
            - {name: founded, type: {kind: Timestamp, timezone: Europe/Vienna}}
      merge: {kind: Append}
"""


def mapped(daemon: Any, library: str) -> bool:
    """Whether a file of the library's folder is in the memory of the daemon's process."""
    return f"/site-packages/{library}/" in Path(f"/proc/{daemon.process.pid}/maps").read_text()


def test_a_source_is_declared_without_arrow_and_rows_are_read_without_pandas(
    make_daemon: Callable[..., Any], golden: Path, tmp_path: Path
) -> None:
    daemon = make_daemon(small=True)
    daemon.start()
    (tmp_path / "cities.yaml").write_text(PUSHED)
    (tmp_path / "cities.json").write_text('{"city": "Graz", "founded": "1128-01-01T00:00:00Z"}\n')
    daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
    daemon.ask("apply", "-f", str(tmp_path / "cities.yaml"))
    daemon.ask("ingest", "cities", str(tmp_path / "cities.json"))
    for words in (["describe", "ds", "airlines"], ["sql", "select carrier from airlines"], ["tail", "cities"]):
        assert daemon.said(*words).code == 0, words
    assert mapped(daemon, "pyarrow")
    assert not mapped(daemon, "pandas")


def test_arrow_is_loaded_with_the_first_rows(make_daemon: Callable[..., Any], golden: Path, tmp_path: Path) -> None:
    daemon = make_daemon()
    daemon.program = INSTALLED  # what is forked has all libraries from the beginning
    daemon.start()
    (tmp_path / "cities.yaml").write_text(PUSHED)
    daemon.ask("apply", "-f", str(tmp_path / "cities.yaml"))
    assert daemon.said("describe", "ds", "cities").code == 0
    assert not mapped(daemon, "pyarrow")
    assert not mapped(daemon, "numpy")
    daemon.ask("import", str(golden / "airlines"), "--as", "airlines")
    assert daemon.said("describe", "ds", "airlines").code == 0
    assert mapped(daemon, "pyarrow")
    assert not mapped(daemon, "pandas")
