"""One run: a random history, schedule and troubles, against the oracle and against other routes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from conformance.case import Case
from conformance.coordinator import Bed, Coordinator, Laid, Outcome, Troubles, lay_out
from conformance.duck import Duck
from conformance.histories import Histories, Take, paced, schedule
from worlds.depth import share

USUAL: Final = 3
"""Runs of a shape of which ``make test`` does a third. Of the mutants in ``mutants``, by each shape that has to notice
them, 95 of 108 are caught by the first run and 104 by the first three; ``TELLING`` has the runs that catch the other
four. More runs look for what nobody thought of: they belong to ``make nightly`` and ``make soak``."""
AMONG: Final = 12
"""Runs of which the briefest is also done on Spark."""
TELLING: Final = {"group-changes": (5,), "map": (3,), "month-of-sessions": (47,), "sessions": (3,), "versions": (3,)}
"""Later runs that catch a mutant that none before them does; of ``map``, the first in which an engine is killed."""
RUNS: Final = int(os.environ.get("ODF_ENGINE_RUNS") or share(USUAL))
"""Of each shape."""
FIRST: Final = int(os.environ.get("ODF_ENGINE_FIRST_RUN", "0"))
"""Number of the first: a run that failed is had again by its number."""


BY_BLOCK: Final = 10
"""Of so many runs one is also done block by block."""
FEW: Final = 3
SOME: Final = 8
"""Transactions of a run on Spark, and rows, at least. Runs on DuckDB have what may happen between more of them."""


def numbers(name: str, first: int = 0, count: int = USUAL) -> tuple[int, ...]:
    """Of the runs of a shape."""
    later = [each for each in TELLING.get(name, ()) if not first and each >= count]
    return (*range(first, first + count), *later)


def brief(case: Case, duck: Duck) -> int:
    """Number of the run of a shape with the fewest transactions, each of which takes Spark a tenth of a second, but
    ``FEW`` and with ``SOME`` rows. Where none has as many rows, of the run that has most."""

    takes = {
        number: len(_takes(_events(case, number), _histories(case, number)))
        for number in range(AMONG)
        if number % BY_BLOCK
    }
    rows: dict[int, int] = {}
    for number in sorted([each for each in takes if takes[each] >= FEW] or takes, key=lambda each: takes[each]):
        rows[number] = len(case.expected(duck, _histories(case, number))[0])
        if rows[number] >= SOME:
            return number
    return min(rows, key=lambda number: (-rows[number], takes[number]))


def _histories(case: Case, number: int) -> Histories:
    return case.histories(random.Random(f"{case.name} {number}"))


def _events(case: Case, number: int) -> random.Random:
    return random.Random(f"{case.name} {number} events")


def _takes(rng: random.Random, histories: Histories) -> list[Take]:
    return paced(rng, schedule(rng, {alias: len(blocks) for alias, blocks in histories.items()}), histories)


@dataclass(frozen=True)
class World:
    """One run's."""

    case: Case
    number: int
    histories: Histories
    inputs: Mapping[str, Laid]
    bed: Bed
    folder: Path

    @property
    def rng(self) -> random.Random:
        return _events(self.case, self.number)

    def coordinator(self, name: str) -> Coordinator:
        return Coordinator(self.folder / name, self.bed, self.case.sql, self.inputs, self.case.changelogs)

    @property
    def sizes(self) -> dict[str, int]:
        return {alias: len(laid.blocks) for alias, laid in self.inputs.items()}

    def at_once(self) -> Outcome:
        return self.coordinator("at-once").run([(self.sizes, None)], self.rng, None)

    def block_by_block(self, ahead: str) -> Outcome:
        """All blocks of one input, before those of the others one input after another."""
        sizes = {ahead: self.sizes[ahead], **self.sizes}
        steps = [{**dict.fromkeys(self.sizes, 0), alias: 1} for alias, size in sizes.items() for _ in range(size)]
        return self.coordinator(f"{ahead}-ahead").run([(step, None) for step in steps], self.rng, None)


def world(case: Case, number: int, bed: Bed, folder: Path, histories: Histories | None = None) -> World:
    made = _histories(case, number) if histories is None else histories
    place = folder / f"{case.name}-{number}"
    place.mkdir()
    return World(case, number, made, lay_out(place, made), bed, place)


def run(case: Case, number: int, bed: Bed, duck: Duck, folder: Path, troubles: Troubles | None = None) -> Coordinator:
    """Raises AssertionError when the law is broken. Returns the coordinator of the pieces."""
    here = world(case, number, bed, folder)
    rows, late = case.expected(duck, here.histories)
    whole = here.at_once()
    assert whole.rows == rows, _differing("at once", whole.rows, rows)
    assert late in (None, whole.late), (whole.late, late)
    rng, pieces = here.rng, here.coordinator("pieces")
    routes = [pieces.run(_takes(rng, here.histories), rng, troubles)]
    if number % BY_BLOCK == 0:
        routes += [here.block_by_block(alias) for alias in here.inputs]
    for got in routes:
        assert got.rows == rows, _differing("in pieces", got.rows, rows)
        assert got.state == whole.state, "state must be a function of the cut"
        assert (got.late, got.watermark) == (whole.late, whole.watermark)
    shutil.rmtree(here.folder)
    return pieces


def _differing(how: str, got: list[tuple[object, ...]], wanted: list[tuple[object, ...]]) -> str:
    at = next((at for at, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), None)
    if at is None:
        return f"{how}: {len(got)} rows and not {len(wanted)}"
    return f"{how}, row {at}: {got[at]} and not {wanted[at]}"
