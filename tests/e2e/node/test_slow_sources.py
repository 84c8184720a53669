"""A real daemon whose source drips: asked to stop, it ends, whatever time it would give to work of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from worlds.dripping import Dripping, Manner
from worlds.eventually import PATIENCE

pytestmark = pytest.mark.e2e
DRAIN = "3600"
"""Seconds for what computes: who waited for the source through them would not end in this test."""
ROOT = """kind: DatasetSnapshot
version: 1
content:
  name: slow
  kind: Root
  metadata:
    - kind: SetPollingSource
      fetch: {{kind: Url, url: '{url}/rows.csv'}}
      read: {{kind: Csv, header: true, ddlSchema: ['event_time TIMESTAMP, city STRING, population BIGINT']}}
      merge: {{kind: Ledger, primaryKey: [event_time, city]}}
"""


@pytest.mark.parametrize("manner", [Manner.DRIPS_BODY, Manner.DRIPS_HEAD, Manner.SILENT], ids=lambda each: each.name)
def test_a_daemon_ends_though_a_source_drips(make_daemon: Callable[..., Any], manner: Manner) -> None:
    daemon = make_daemon(ODFD_NODE_DRAIN_SECONDS=DRAIN, small=True)
    daemon.start()
    with Dripping(manner).open() as server:
        file = daemon.folder / "m.yaml"
        file.write_text(ROOT.format(url=server.url))
        daemon.ask("apply", "-f", str(file))
        pull = daemon.begin("pull", "slow", "-q")
        assert server.taken.wait(PATIENCE)
        assert daemon.datasets()[0]["blocks"] == 2, "others are answered meanwhile"
        assert daemon.stop() == 0
        pull.wait(PATIENCE)
    daemon.start()
    assert daemon.datasets()[0]["blocks"] == 2
