"""Random histories of input chains: blocks of rows with the watermarks before and after them, as plain values.

A history is a function of its seed. Streams grow with jitter, equal times, late rows, missing times, missing and
repeated watermarks, blocks without data and heartbeats; changelogs are legal (all ops, moves in time, retractions with
the old time and with one of their own) or careless (what is taken back was never said, the same is said twice).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

HOUR: Final = 3_600_000
DAY: Final = 24 * HOUR
START: Final = 1_704_067_200_000
"""2024-01-01: walks go over 29 February."""
NO_MARK: Final = -(2**62)
ADDED, RETRACTED, CORRECT_FROM, CORRECT_TO = 0, 1, 2, 3


class Row(NamedTuple):
    time: int | None
    """Milliseconds."""
    k: str | None
    v: int
    op: int = ADDED


class Said(NamedTuple):
    """A row with the watermarks before and after its block; ``NO_MARK``: there was none."""

    time: int | None
    k: str | None
    v: int
    op: int
    before: int
    after: int
    offset: int


@dataclass(frozen=True)
class Block:
    rows: tuple[Row, ...]
    before: int | None
    after: int | None


History: TypeAlias = tuple[Block, ...]
Histories: TypeAlias = Mapping[str, History]
"""By alias."""


def history(parts: Sequence[tuple[Sequence[Sequence[object]], int | None]]) -> History:
    """Of (rows, watermark stated after them or ``None``); watermarks never fall."""
    made, before = [], None
    for rows, stated in parts:
        after = before if stated is None else stated if before is None else max(before, stated)
        made.append(Block(tuple(Row(*row) for row in rows), before, after))
        before = after
    return tuple(made)


def said(blocks: History) -> Iterator[Said]:
    """All rows in chain order."""
    offset = 0
    for block in blocks:
        marks = (NO_MARK if mark is None else mark for mark in (block.before, block.after))
        before, after = marks
        for row in block.rows:
            yield Said(*row, before, after, offset)
            offset += 1


def final_mark(blocks: History) -> int | None:
    return blocks[-1].after


def grows(rng: random.Random, blocks: int = 12, days: int = 40, late: float = 0.08, untimed: float = 0.03) -> History:
    parts, clock, number = [], START, 0
    for _ in range(blocks):
        clock += rng.randrange(2 * days * DAY // blocks)
        rows = []
        for _ in range(rng.randrange(1, 10) if rng.random() < 0.85 else 0):
            time: int | None = clock // DAY * DAY if rng.random() < 0.3 else clock + rng.randrange(-DAY, DAY)
            if rng.random() < late:
                time -= rng.randrange(1, 30) * DAY
            if rng.random() < untimed:
                time = None
            key = None if rng.random() < 0.05 else f"k{rng.randrange(4)}"
            rows.append((time, key, number * 7 % 1000 + rng.randrange(3)))
            number += 1
        parts.append((rows, _stated(rng, clock)))
    return history([*parts, ((), clock)]) if rng.random() < 0.5 else history(parts)


def _stated(rng: random.Random, clock: int) -> int | None:
    if rng.random() < 0.3:
        return None
    return clock - rng.randrange(DAY) if rng.random() < 0.8 else clock // DAY * DAY


def changes(rng: random.Random, blocks: int = 12, keys: int = 3) -> History:
    """A legal changelog with primary key k."""
    parts, clock, number = [], START, 0
    current: dict[str, tuple[int, str, int]] = {}
    for _ in range(blocks):
        clock += rng.randrange(5 * DAY)
        rows: list[tuple[object, ...]] = []
        for _ in range(rng.randrange(5)):
            key, number = f"k{rng.randrange(keys)}", number + 1
            time = clock + rng.randrange(-4 * DAY, 2 * DAY)
            row = (time, key, number)
            if key not in current:
                rows.append((*row, ADDED))
            elif rng.random() < 0.6:
                rows += [(*current[key], CORRECT_FROM), (*row, CORRECT_TO)]
            else:
                old = current.pop(key)
                rows.append((old[0] if rng.random() < 0.5 else time, *old[1:], RETRACTED))
                continue
            current[key] = row
        parts.append((rows, clock - rng.randrange(DAY) if rng.random() < 0.8 else None))
    return history(parts)


def moves(rng: random.Random, blocks: int = 12) -> History:
    """A legal changelog whose rows move between groups: k is no primary key, and retractions repeat the row."""
    parts, clock, number = [], START, 0
    standing: list[tuple[int, str, int]] = []
    for _ in range(blocks):
        clock += rng.randrange(3 * DAY)
        rows: list[tuple[object, ...]] = []
        for _ in range(rng.randrange(5)):
            number += 1
            row = (clock + rng.randrange(-3 * DAY, DAY), f"k{rng.randrange(3)}", rng.randrange(5) + 10 * (number % 4))
            if not standing or rng.random() < 0.5:
                rows.append((*row, ADDED))
                standing.append(row)
                continue
            old = standing.pop(rng.randrange(len(standing)))
            if rng.random() < 0.5:
                rows += [(*old, CORRECT_FROM), (*row, CORRECT_TO)]
                standing.append(row)
            else:
                rows.append((*old, RETRACTED))
        parts.append((rows, clock - rng.randrange(DAY) if rng.random() < 0.8 else None))
    return history(parts)


def careless(rng: random.Random, blocks: int = 12) -> History:
    """Not legal: retractions of what was never said or is gone, and the same said twice."""
    made = []
    for block in moves(rng, blocks):
        rows = []
        for row in block.rows:
            rows.append(row)
            whole = row.op in (ADDED, RETRACTED)
            if whole and rng.random() < 0.25:
                rows.append(row)
            elif whole and row.time is not None and rng.random() < 0.15:
                rows.append(Row(row.time, row.k, 900 + rng.randrange(3), RETRACTED))
        made.append(Block(tuple(rows), block.before, block.after))
    return tuple(made)


Maker: TypeAlias = Callable[[random.Random], History]


def schedule(
    rng: random.Random, sizes: Mapping[str, int], lots: Sequence[int] = (0, 1, 1, 2, 5, 10)
) -> list[dict[str, int]]:
    """How many blocks of each input each transaction takes: one of ``lots``, sometimes none of any."""
    left, takes = dict(sizes), []
    while any(left.values()):
        step = {alias: min(count, rng.choice(lots)) for alias, count in left.items()}
        left = {alias: count - step[alias] for alias, count in left.items()}
        takes.append(step)
    return takes


def few_at_a_time(blocks: int, seed: int, aliases: Iterable[str]) -> list[dict[str, int]]:
    """A schedule for inputs of as many ``blocks`` each."""
    return schedule(random.Random(seed), dict.fromkeys(aliases, blocks), (0, 1, 2, 5))


Take: TypeAlias = tuple[Mapping[str, int], "int | None"]
"""How many blocks of each input, and an emission limit (milliseconds): what is settled from there on waits."""


def paced(rng: random.Random, steps: Sequence[Mapping[str, int]], histories: Histories) -> list[Take]:
    """The same blocks; some of the steps first leave in part, up to limits near a watermark, then whole."""
    marks = [block.after for blocks in histories.values() for block in blocks if block.after is not None]
    found: list[Take] = []
    for step in steps:
        takes = step
        for _ in range(rng.choice([0, 0, 0, 0, 1, 2]) if marks else 0):
            found.append((takes, rng.choice(marks) + rng.randrange(-2 * DAY, 2 * DAY)))
            takes = dict.fromkeys(step, 0)
        found.append((takes, None))
    return found
