"""What connections keep of the file in memory is bounded together: each fills up as the file grows."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from chain.store.database import Database

MOST = 40 << 20
"""Bytes, of the connections that a node keeps open."""


def test_all_caches_together_are_bounded(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.sqlite")
    with ExitStack() as stack:
        readers = [stack.enter_context(database.read()) for _ in range(20)]
        writer = stack.enter_context(database.write())
        kept = {each: -each.execute("PRAGMA cache_size").fetchone()[0] for each in [writer, *readers]}
        assert all(size > 0 for size in kept.values()), "in KiB, whatever the size of a page"
    idle = list(database._idle)
    assert len(idle) == 8
    assert (kept[writer] + sum(kept[reader] for reader in idle)) << 10 <= MOST
    database.close()


def test_a_large_transaction_may_take_more_while_it_lasts(tmp_path: Path) -> None:
    database = Database(tmp_path / "x.sqlite")

    def kept() -> int:
        with database.write() as connection:
            return -int(connection.execute("PRAGMA cache_size").fetchone()[0])

    def large(fault: Exception | None) -> None:
        with database.write(is_large=True) as connection:
            assert small < -connection.execute("PRAGMA cache_size").fetchone()[0] <= 65_536
            if fault:
                raise fault

    small = kept()
    large(None)
    assert kept() == small
    with pytest.raises(ZeroDivisionError):
        large(ZeroDivisionError())
    assert kept() == small
    database.close()
