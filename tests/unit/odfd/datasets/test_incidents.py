"""What was found wrong with a dataset is known after a restart, bounded, and only of datasets that are here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from chain.ids import DatasetId
from chain.instant import Instant
from odfd.obs.events import EventLog
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Life
from odfd.services.maintenance.incident_keeper import IncidentKeeper
from odfd.store import incidents, unmanaged
from odfd.store.directory import StateDirectory, open_state_directory
from odfd.store.incidents import MOST, Incident
from worlds.clock import FixedClock

HERE, AWAY = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[StateDirectory]:
    with open_state_directory(tmp_path / "state") as opened:
        with opened.database.write() as connection:
            row = (HERE, 0, b"")
            connection.execute("INSERT INTO datasets (id, head_sequence, head_hash) VALUES (?, ?, ?)", row)
        yield opened


def kept(home: StateDirectory, dataset: DatasetId = HERE) -> list[Incident]:
    with home.database.read() as connection:
        return incidents.of(connection, dataset)


async def test_events_of_what_was_found_are_kept_once(home: StateDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(FixedClock(Instant(7)))
    keeper = IncidentKeeper(home.database, log)
    stored, keep = trio.Event(), keeper._keep

    def told(found: list[Incident]) -> None:
        keep(found)
        if found[0].message == "last":
            trio.from_thread.run_sync(stored.set)

    monkeypatch.setattr(keeper, "_keep", told)
    log.emit("damage.found", "cities", "block #1: other bytes", about=about(HERE, "a-resource"))
    log.emit("mirror.synced", "cities", "5 blocks", about=about(HERE))
    log.emit("dataset.forked", "strange", "two histories", about=about(AWAY))
    life = Life()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.run, life)
        await life.wait_ready()
        log.emit("verdict.mismatch", "cities", "last", about=about(HERE))
        await stored.wait()
        log.emit("dataset.resolved", "cities", "before the stop", about=about(HERE))
        life.stopping.set()
    expected = [Incident(HERE, Instant(7), "damage.found", "block #1: other bytes"),
                Incident(HERE, Instant(7), "dataset.resolved", "before the stop"),
                Incident(HERE, Instant(7), "verdict.mismatch", "last")]  # fmt: skip
    assert kept(home) == expected
    assert kept(home, AWAY) == [], "strangers accuse any dataset"
    keeper._keep(expected)
    assert kept(home) == expected


def test_of_many_the_newest_stay(home: StateDirectory) -> None:
    many = [Incident(HERE, Instant(time), "head.refused", "x" * 2000) for time in range(MOST + 20)]
    with home.database.write() as connection:
        incidents.keep(connection, many)
    assert [each.at for each in kept(home)] == list(range(MOST + 19, 19, -1))
    assert {len(each.message) for each in kept(home)} == {incidents.LONGEST}


def test_they_go_with_the_data_and_damaged_ones_are_left_out(home: StateDirectory) -> None:
    two: Any = [Incident(HERE, Instant(1), "damage.found", "one"), Incident(HERE, Instant(2), "damage.found", "two")]
    with home.database.write() as connection:
        incidents.keep(connection, two)
        connection.execute("UPDATE incidents SET message = 'three' WHERE at = 2")
    assert [each.message for each in kept(home)] == ["one"]
    with home.database.write() as connection:
        unmanaged.forget_data(connection, HERE, Instant(3))
    assert kept(home) == []


def test_each_kind_is_of_an_event() -> None:
    from odfd.obs.events import EVENT_KINDS

    assert set(EVENT_KINDS) >= incidents.KINDS
