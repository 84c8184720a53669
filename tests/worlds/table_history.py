"""The history of a table that changes for ever, worked out statement by statement: the oracle of engine tests.

Shares nothing with the engine. Spec: docs/spec/engine-semantics.md#table-mode, #readings, #effective-time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

FAR = 2**62


def standing(lab: Any, stream: Any) -> list[list[Any]]:
    """(row, from, until) by the rules of 5.1 and 5.2, statement by statement."""
    said = [each for each in lab.statements(stream) if each[0] is not None]
    found: list[list[Any]] = []
    open_rows: dict[tuple[Any, ...], list[list[Any]]] = {}
    for position, (time, key, value, op, before, after) in enumerate(said):
        row = (time, key, value)
        if op in (0, 3):
            found.append([row, max(time, before), FAR])
            open_rows.setdefault(row, []).append(found[-1])
        elif open_rows.get(row):
            gone = open_rows[row].pop(0)
            tau = max(said[position + 1][0], before) if op == 2 else max(time, before, after)
            gone[2] = max(gone[1], tau)
    return found


def history(
    lab: Any,
    streams: Mapping[str, Any],
    query: Callable[[Any], Mapping[tuple[Any, ...], Sequence[Any]]],
    single: bool = True,
    following: Callable[[int], int] | None = None,
) -> list[tuple[Any, ...]]:
    """(op, *row) in order. ``following``: the first place of a grid after a time; without it watermarks are ticks.

    ``query`` sees the rows that count, by input if there are several and it says ``by_input``.
    """
    rows = [(alias, *each) for alias, stream in streams.items() for each in standing(lab, stream)]
    marks = {b.watermark_after // 10**6 for s in streams.values() for b in s.blocks if b.watermark_after is not None}
    reached = min(stream.blocks[-1].watermark_after // 10**6 for stream in streams.values())
    known: Mapping[tuple[Any, ...], Sequence[Any]] = {}
    out: list[tuple[Any, ...]] = []
    if following is not None:
        marks = {following(time) for row in rows for time in row[2:] if time != FAR}
    for tick in sorted(mark for mark in marks if mark <= reached):
        alive = [(alias, row) for alias, row, since, until in rows if since < tick <= until]
        if getattr(query, "by_input", False):
            now = query({alias: [row for name, row in alive if name == alias] for alias in streams})
        else:
            now = query([row for _, row in alive])
        for key in sorted(set(known) | set(now), key=lambda key: tuple((part is not None, part or "") for part in key)):
            old, new = list(known.get(key, [])), list(now.get(key, []))
            for row in list(old):
                if row in new:
                    old.remove(row)
                    new.remove(row)
            paired = single and old and new
            out += [(2 if paired else 1, *row) for row in old] + [(3 if paired else 0, *row) for row in new]
        known = now
    return out


def seen(got: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """(op, milliseconds, *columns) of all rows, in order."""
    got.data()
    return [(row["op"], int(row["event_time"].timestamp() * 1000), *(row[name] for name in names)) for row in got.rows]
