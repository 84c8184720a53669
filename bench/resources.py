"""Measures resources: an apply against reading its manifests, and questions of many against the bare database."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from bench.measure import Row, Side, Size, in_turns
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.obs.events import EventLog
from odfd.resources.reader import DECLARATIONS
from odfd.resources.store import ResourceStore
from odfd.runtime.clock import SystemClock
from odfd.runtime.tasks import TaskBoard
from odfd.services.resources.planning import PartsKeeper, Planning
from odfd.services.resources.reading import read_drafts
from odfd.store.directory import StateDirectory, open_state_directory

_MANIFEST: Final = """$schema: Repository
headers:
  name: r{number:05}
  labels: {{group: g{group}, turn: t{turn}}}
spec:
  url: file:///srv/{number}
"""
_LABELLED: Final = 500
"""Resources of one label: a page."""


def measure_resources(size: Size, folder: Path) -> list[Row]:
    """Applies manifests for the first time and again; gets one and a page of many."""
    count, many, rounds = size.pick(20, 1_000), size.pick(60, 10_000), size.pick(1, 5)
    with open_state_directory(folder / "state") as home:
        service = Planning(*alone(home))
        turns = itertools.count()
        first = _text(range(count), next(turns))
        reading = lambda: read_drafts(first)  # noqa: E731  it is timed
        applied = in_turns(lambda: _apply(home, service, _text(range(count), next(turns))), reading, rounds, warm=0)
        last = _text(range(count), next(turns))
        _apply(home, service, last)
        unchanged = in_turns(lambda: _apply(home, service, last), reading, rounds, warm=size.pick(0, 1))
        rows = [
            _against_reading("apply", "every manifest differs from what stands", applied, count, "<= 3"),
            _against_reading("apply again", "nothing differs", unchanged, count, "<= 2"),
        ]
        _fill(home, service, many)
        with open_state_directory(folder / "few") as other:
            _fill(other, Planning(*alone(other)), many // 10)
            pages = in_turns(_labelled(home), _labelled(other), rounds)
        return [*rows, _one(home, many, rounds), _page(pages, many)]


def alone(home: StateDirectory, events: EventLog | None = None) -> tuple[StateDirectory, Context, PartsKeeper]:
    """The parts of a node that does nothing else than to keep resources."""
    clock, logger = SystemClock(), structlog.get_logger()
    ids = (f"{number:08x}-0000-4000-8000-000000000000" for number in itertools.count())
    context = Context(clock, logger, events or EventLog(clock), TaskBoard(clock, lambda: "task", logger), "bench")
    return home, context, PartsKeeper(home, clock, lambda: next(ids))


def _text(numbers: Sequence[int] | range, turn: int) -> list[wire.ManifestText]:
    texts = [_MANIFEST.format(number=each, group=each // _LABELLED, turn=turn) for each in numbers]
    return [wire.ManifestText(source="bench.yaml", text="---\n".join(texts), base="")]


def _apply(home: StateDirectory, service: Planning, texts: Sequence[wire.ManifestText]) -> None:
    planned = service.plan(read_drafts(texts))
    with home.database.write() as connection:
        service.commit(connection, [each for each in planned if each.action != "unchanged"])


def _against_reading(
    name: str, what: str, costs: tuple[Sequence[float], Sequence[float]], count: int, goal: str
) -> Row:
    sides = [
        Side(name=side, costs=tuple(each), amount=count, unit=" manifests")
        for side, each in zip(("apply", "reading them"), costs, strict=True)
    ]
    return Row(name=name, measures=what, ours=sides[0], peer=sides[1], goal=goal, facts={"manifests": count})


def _fill(home: StateDirectory, service: Planning, many: int) -> None:
    for first in range(0, many, 1_000):
        _apply(home, service, _text(range(first, min(many, first + 1_000)), 0))


def _one(home: StateDirectory, many: int, rounds: int) -> Row:
    """One of many by name, against a bare read of its row."""
    names = [f"r{number:05}" for number in range(0, many, max(1, many // 200))]

    def get() -> None:
        with home.database.read() as connection:
            store = ResourceStore(connection)
            for name in names:
                assert store.find_named("Repository", name, None) is not None

    def bare() -> None:
        with home.database.read() as connection:
            for name in names:
                assert next(DECLARATIONS.rows(connection, "type = ? AND key = ?", ("Repository", name)))

    ours, peer = in_turns(get, bare, rounds)
    return Row(
        name="get", measures=f"one of {many:,} by name", goal="<= 2",
        ours=Side(name="a resource", costs=ours, amount=len(names), unit=" reads"),
        peer=Side(name="its row in SQLite", costs=peer, amount=len(names), unit=" reads"),
    )  # fmt: skip


def _labelled(home: StateDirectory) -> Callable[[], None]:
    def page() -> None:
        with home.database.read() as connection:
            assert ResourceStore(connection).all("Repository", ("group", "g0"))

    return page


def _page(costs: tuple[tuple[float, ...], tuple[float, ...]], many: int) -> Row:
    return Row(
        name="page by label", measures=f"{_LABELLED} resources that have a label", goal="= 1",
        ours=Side(name=f"among {many:,}", costs=costs[0], amount=_LABELLED, unit=" resources"),
        peer=Side(name=f"among {many // 10:,}", costs=costs[1], amount=_LABELLED, unit=" resources"),
    )  # fmt: skip
