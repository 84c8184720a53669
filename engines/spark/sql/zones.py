"""Reads rules of time zones from the JVM's database, so that bounds of local calendars are those of its functions."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable
from typing import Final

from pyspark.sql import SparkSession

from engines.spark.analysis.monotone import SECOND
from engines.spark.analysis.zones import Zone

LAST_YEAR: Final = 2099
"""Of which changes of clocks are known one by one; later ones are only enclosed."""
MAX_ZONES: Final = 32
"""That are remembered; more are only enclosed."""
_NAMES: Final = re.compile(r"'([A-Za-z]+(?:/[A-Za-z0-9_+-]+){1,2}|UTC)'|\"([A-Za-z]+(?:/[A-Za-z0-9_+-]+){1,2})\"")
_UNTIL: Final = 4_102_444_800 * SECOND
"""The start of the year 2100."""
_CHANGE: Final = re.compile(r"\[(?:Gap|Overlap) at ([0-9T:-]{16,19})(Z|[+-][0-9:]+) to (Z|[+-][0-9:]+)\]")
_EPOCH: Final = dt.datetime(1970, 1, 1)


def zones_in(session: SparkSession, texts: Iterable[str], known: dict[str, Zone]) -> dict[str, Zone]:
    """Zones that are named in queries, by name. ``known`` is a memory for as long as the JVM lives: rules stay."""
    names = {one or other for text in texts if "utc_timestamp" in text.lower() for one, other in _NAMES.findall(text)}
    for name in sorted(names - known.keys()):
        if len(known) < MAX_ZONES and session._jvm.java.time.ZoneId.getAvailableZoneIds().contains(name):
            known[name] = _zone(session, name)
    return {name: known[name] for name in names if name in known}


def _zone(session: SparkSession, name: str) -> Zone:
    """Read as texts, many changes of clocks at once: each call into the JVM takes long, and there are hundreds."""
    time = session._jvm.java.time
    rules = time.ZoneId.of(name).getRules()
    changes = [_change(*found) for found in _CHANGE.findall(rules.getTransitions().toString())]
    if not changes:
        return Zone(name, (), (rules.getOffset(time.Instant.EPOCH).getTotalSeconds() * SECOND,), _UNTIL)
    last = changes[-1][0]
    recurring = list(rules.getTransitionRules())
    first = time.Instant.ofEpochSecond(last // SECOND).toString()
    for year in range(int(first[:4]), LAST_YEAR + 1):
        yearly = [_CHANGE.findall(rule.createTransition(year).toString())[0] for rule in recurring]
        changes += sorted(change for found in yearly if (change := _change(*found))[0] > last)
    return Zone(
        name, tuple(moment for moment, *_ in changes), (changes[0][1], *(after for *_, after in changes)), _UNTIL
    )


def _change(local: str, before: str, after: str) -> tuple[int, int, int]:
    """When, and the offsets before and after, microseconds."""
    shown = (dt.datetime.fromisoformat(local) - _EPOCH) // dt.timedelta(microseconds=1)
    return shown - _offset(before), _offset(before), _offset(after)


def _offset(text: str) -> int:
    if text == "Z":
        return 0
    parts = [int(part) for part in text[1:].split(":")]
    seconds = sum(part * size for part, size in zip(parts, (3600, 60, 1), strict=False))
    return seconds * SECOND if text[0] == "+" else -seconds * SECOND
