"""Measures reading of datasets from a running node: how soon a person has the rows of a command."""

from __future__ import annotations

import time
from pathlib import Path

from bench.measure import Row, Side, Size, in_turns
from bench.node import TREE, daemon, odfctl

_READY = 1.5
"""Seconds after a query in which the process for the next one starts."""


def measure_reading(size: Size, folder: Path) -> list[Row]:
    """Measures ``odfctl sql`` and ``odfctl tail`` against ``odfctl status``."""
    rounds = size.pick(1, 15)
    with daemon(folder) as node:
        odfctl(node, "import", str(TREE / "tests/golden/kamu/airlines"), "--as", "airlines")()
        status = odfctl(node, "status")
        ask = odfctl(node, "sql", "-q", "select * from airlines limit 1")
        assert "Endeavor" in ask()
        ready = 0.0 if size.quick else _READY

        def rested() -> str:
            time.sleep(ready)
            return status()

        sql, alone = in_turns(ask, rested, rounds)
        alone = tuple(each - ready for each in alone)
        tail, again = in_turns(odfctl(node, "tail", "airlines"), status, rounds)
    return [
        Row(
            name="sql",
            measures="wall time of a command, the process of the query waiting",
            ours=Side(name="odfctl sql, one row", costs=sql),
            peer=Side(name="odfctl status", costs=alone),
            goal="< 110 ms idle, < 3",
        ),
        Row(
            name="tail",
            measures="wall time of a command",
            ours=Side(name="odfctl tail", costs=tail),
            peer=Side(name="odfctl status", costs=again),
            goal="< 75 ms idle",
        ),
    ]
