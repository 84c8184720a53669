"""Tries patterns and zones of times with what Spark reads them with, before any row is read."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from engines.spark.analysis.determinism import Finding
from engines.spark.analysis.patterns import CODE, REPLACE, REPLACE_ZONE, ZONE_CODE, patterns, zones
from engines.spark.analysis.tree import Node
from engines.spark.catalyst.jvm_objects import jvm_object

_SHOWN: Final = 60
"""Characters of a pattern in a message."""


def unreadable(session: SparkSession, plan: Node) -> list[Finding]:
    """A finding for each constant pattern and zone in an analysed plan that Spark refuses whatever the rows are."""
    tried: dict[tuple[str, bool], bool] = {}
    found = []
    for node, pattern, reads in patterns(plan):
        if (pattern, reads) not in tried:
            tried[pattern, reads] = _is_taken(session, pattern, reads)
        if not tried[pattern, reads]:
            verb = "read" if reads else "written"
            message = f"times are not {verb} by the pattern '{pattern[:_SHOWN]}': Spark refuses it with the first row"
            found.append(Finding(CODE, message, REPLACE, node))
    for node, zone in zones(plan):
        if not _is_zone(session, zone):
            message = f"the time zone '{zone[:_SHOWN]}' is not known: Spark refuses it with the first row"
            found.append(Finding(ZONE_CODE, message, REPLACE_ZONE, node))
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
