"""Checks the time patterns and time zones in a query with Spark's own readers, before any row is read.

Rules of zones come from the JVM's database, so that bounds of local calendars are those of its functions.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Iterator
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from engines.spark.analysis.determinism import QueryFinding, arguments
from engines.spark.analysis.monotone import SECOND, Zone
from engines.spark.analysis.tree import PlanNode
from engines.spark.catalyst.plans import jvm_object

_SHOWN: Final = 60
"""Most characters of a pattern in a message."""
READS: Final = frozenset({"GetTimestamp", "ParseToDate", "ParseToTimestamp", "UnixTimestamp", "ToUnixTimestamp"})
WRITES: Final = frozenset({"DateFormatClass", "FromUnixTime"})
ZONES: Final = frozenset({"FromUTCTimestamp", "ToUTCTimestamp"})
"""Functions that convert a time to or from the local time of a zone."""
ZONE_CODE: Final = "time-zone"
REPLACE_ZONE: Final = "UTC, a name like Europe/Vienna, or an offset like +01:00"
_TIMES: Final = frozenset({"date", "timestamp", "timestamp_ntz"})
"""Types that are converted without the pattern, though one is given."""
CODE: Final = "time-pattern"
REPLACE: Final = "letters like yyyy-MM-dd HH:mm:ss, and other text in single quotes: to_timestamp(k, 'yyyy-MM-dd')"
LAST_YEAR: Final = 2099
"""The last year whose clock changes are known one by one; later changes are only bounded."""
MAX_ZONES: Final = 32
"""Most zones whose rules are remembered; for more the changes are only bounded."""
_NAMES: Final = re.compile(r"'([A-Za-z]+(?:/[A-Za-z0-9_+-]+){1,2}|UTC)'|\"([A-Za-z]+(?:/[A-Za-z0-9_+-]+){1,2})\"")
_UNTIL: Final = 4_102_444_800 * SECOND
"""The start of the year 2100."""
_CHANGE: Final = re.compile(r"\[(?:Gap|Overlap) at ([0-9T:-]{16,19})(Z|[+-][0-9:]+) to (Z|[+-][0-9:]+)\]")
_EPOCH: Final = dt.datetime(1970, 1, 1)


def unreadable(session: SparkSession, plan: PlanNode) -> list[QueryFinding]:
    """Returns a finding for each constant pattern and zone in an analysed plan that Spark refuses whatever the rows."""
    tried: dict[tuple[str, bool], bool] = {}
    found = []
    for node, pattern, reads in patterns(plan):
        if (pattern, reads) not in tried:
            tried[pattern, reads] = _is_taken(session, pattern, reads)
        if not tried[pattern, reads]:
            verb = "read" if reads else "written"
            message = f"times are not {verb} by the pattern '{pattern[:_SHOWN]}': Spark refuses it with the first row"
            found.append(QueryFinding(CODE, message, REPLACE, node))
    for node, zone in zones(plan):
        if not _is_zone(session, zone):
            message = f"the time zone '{zone[:_SHOWN]}' is not known: Spark refuses it with the first row"
            found.append(QueryFinding(ZONE_CODE, message, REPLACE_ZONE, node))
    return found


def _is_zone(session: SparkSession, zone: str) -> bool:
    read = jvm_object(session, "org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId")
    try:
        read(zone)
    except (PySparkException, Py4JJavaError):
        return False
    return True


def _is_taken(session: SparkSession, pattern: str, reads: bool) -> bool:
    formatter = jvm_object(session, "org.apache.spark.sql.catalyst.util.TimestampFormatter.apply")
    try:
        formatter(pattern, jvm_object(session, "java.time.ZoneId.of", lambda of: of("UTC")), reads)
    except (PySparkException, Py4JJavaError):
        return False
    return True


def zones(plan: PlanNode) -> Iterator[tuple[PlanNode, str]]:
    """Yields (expression, zone) for each constant zone of a conversion, anywhere in an analysed plan."""
    for node in _all_nodes(plan):
        if node.kind in ZONES and node.children[-1].kind == "Literal":
            name = node.children[-1].fields.get("value")
            if isinstance(name, str):
                yield node, name


def patterns(plan: PlanNode) -> Iterator[tuple[PlanNode, str, bool]]:
    """Yields (expression, pattern, whether it reads texts) for each constant pattern, anywhere in an analysed plan."""
    for node in _all_nodes(plan):
        if node.kind in READS | WRITES and len(node.children) > 1 and node.children[1].kind == "Literal":
            pattern = node.children[1].fields.get("value")
            unused = node.kind in READS and node.only.type_name in _TIMES
            if isinstance(pattern, str) and not unused:
                yield node, pattern, node.kind in READS


def _all_nodes(plan: PlanNode) -> Iterator[PlanNode]:
    """Yields all operators, and the expressions in their fields."""
    stack = [plan]
    while stack:
        node = stack.pop()
        yield node
        stack += [*node.children, *arguments(node)]


def zones_in(session: SparkSession, texts: Iterable[str], known: dict[str, Zone]) -> dict[str, Zone]:
    """Returns the zones named in queries, by name. ``known``: a cache for the lifetime of the JVM,
    whose rules never change."""
    names = {one or other for text in texts if "utc_timestamp" in text.lower() for one, other in _NAMES.findall(text)}
    for name in sorted(names - known.keys()):
        if len(known) < MAX_ZONES and session._jvm.java.time.ZoneId.getAvailableZoneIds().contains(name):
            known[name] = _zone(session, name)
    return {name: known[name] for name in names if name in known}


def _zone(session: SparkSession, name: str) -> Zone:
    """Reads a zone's rules as texts, many clock changes in one call: each call into the JVM takes
    long, and there are hundreds."""
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
    """Returns when a clock change happens, and the offsets before and after it, microseconds."""
    shown = (dt.datetime.fromisoformat(local) - _EPOCH) // dt.timedelta(microseconds=1)
    return shown - _offset(before), _offset(before), _offset(after)


def _offset(text: str) -> int:
    if text == "Z":
        return 0
    parts = [int(part) for part in text[1:].split(":")]
    seconds = sum(part * size for part, size in zip(parts, (3600, 60, 1), strict=False))
    return seconds * SECOND if text[0] == "+" else -seconds * SECOND
