"""Lists every setting that an answer could depend on, with its reason. Part of the engine's digest.

A default that is not pinned may change with a release and change the answers, so even defaults are pinned where a
value, its type or its text depends on them. Settings that only affect speed are listed separately.

Also checks addresses of a cluster's master, without importing Spark, so that a daemon can check a setting. Spark itself
would try an unreachable address for a minute, and then say that all masters are unresponsive.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from chain.errors import Invalid
from engines.errors import EngineLost
from engines.spark.runtime.java import COLLECTOR, base_of

MEANING: Final[tuple[tuple[str, str, str], ...]] = (
    ("spark.sql.session.timeZone", "UTC", "instants become days and hours by this zone"),
    ("spark.sql.ansi.enabled", "true", "overflow and bad casts fail instead of becoming null or wrapping"),
    ("spark.sql.caseSensitive", "true", "column names of ODF are case sensitive"),
    ("spark.sql.timestampType", "TIMESTAMP_LTZ", "TIMESTAMP in SQL is an instant, as in ODF"),
    ("spark.sql.legacy.timeParserPolicy", "CORRECTED", "one parser of time patterns, whatever the value"),
    ("spark.sql.decimalOperations.allowPrecisionLoss", "true", "decides scale and rounding of decimal products"),
    ("spark.sql.storeAssignmentPolicy", "ANSI", "which casts are silent"),
    ("spark.sql.mapKeyDedupPolicy", "EXCEPTION", "else which of two equal keys wins would matter"),
    ("spark.sql.icu.caseMappings.enabled", "true", "upper and lower by ICU's tables, not by the JVM's"),
    ("spark.sql.session.collation.enabled", "false", "strings compare by bytes"),
    ("spark.sql.ansi.enforceReservedKeywords", "false", "the grammar accepts the same texts everywhere"),
    ("spark.sql.ansi.doubleQuotedIdentifiers", "false", "double quotes enclose strings, as Spark has it"),
    ("spark.sql.parser.escapedStringLiterals", "false", "how backslashes in literals are read"),
    ("spark.sql.groupByOrdinal", "true", "what GROUP BY 1 means"),
    ("spark.sql.orderByOrdinal", "true", "what ORDER BY 1 means"),
    ("spark.sql.groupByAliases", "true", "what a name in GROUP BY means"),
    ("spark.sql.crossJoin.enabled", "true", "same plans are accepted everywhere; our own analysis refuses them"),
    ("spark.sql.join.asofJoin.enabled", "true", "ASOF JOIN is part of the language"),
    ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS", "the unit of ODF"),
    ("spark.sql.parquet.int96RebaseModeInRead", "CORRECTED", "old dates are read as written"),
    ("spark.sql.parquet.datetimeRebaseModeInRead", "CORRECTED", "old dates are read as written"),
    ("spark.sql.parquet.inferTimestampNTZ.enabled", "true", "local timestamps stay local"),
    (
        "spark.sql.parquet.filterPushdown",
        "false",
        "statistics are unverified claims of the writer, and no part of the logical hash",
    ),
    ("spark.sql.parquet.mergeSchema", "false", "views state their schema"),
    ("spark.sql.cbo.enabled", "false", "plans do not depend on statistics"),
)
"""(name, value, reason): settings that decide the meaning of a query or its rows."""

SPREAD: Final[tuple[tuple[str, str, str], ...]] = (
    ("spark.sql.shuffle.partitions", "1", "fast on small slices; a cluster has its own number"),
    ("spark.sql.adaptive.enabled", "false", "plans do not depend on what ran before"),
)
"""(name, value, reason): distribution without effect on results (engine-semantics.md#clusters); see ``test_layout``."""

CONFINEMENT: Final[tuple[tuple[str, str, str], ...]] = (
    ("spark.sql.runSQLOnFiles", "false", "no parquet.`/path` in a query: inputs are the views alone"),
    ("spark.sql.parser.eagerEvalOfUnresolvedInlineTable", "false", "else VALUES is computed while a text is parsed"),
    ("spark.sql.scripting.enabled", "false", "a query is one statement"),
    ("spark.sql.catalogImplementation", "in-memory", "no metastore, no state beyond the process"),
    ("spark.sql.variable.substitute", "false", "no ${env:…} in a query"),
    ("spark.ui.enabled", "false", "no web server"),
    ("spark.sql.ui.explainMode", "simple", "the plan that each query describes to listeners; it is not read"),
    ("spark.ui.showConsoleProgress", "false", "standard output belongs to the ready line"),
    ("spark.driver.host", "127.0.0.1", "nothing listens beyond this machine"),
    ("spark.driver.bindAddress", "127.0.0.1", "nothing listens beyond this machine"),
    ("spark.eventLog.enabled", "false", "no files but those asked for"),
    ("spark.sql.execution.pythonUDF.arrow.enabled", "true", "workers exchange Arrow"),
    ("spark.sql.execution.arrow.pyspark.enabled", "true", "results leave as Arrow"),
    ("spark.sql.execution.arrow.maxRecordsPerBatch", "65536", "few large batches"),
    (
        "spark.sql.optimizer.excludedRules",
        "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation",
        "rows in memory are worked on in tasks too, which can be watched and stopped; a plan that is made cannot",
    ),
    ("spark.driver.maxResultSize", "0", "the heap is the bound; a second one only fails later transactions"),
    ("spark.executor.heartbeatInterval", "2s", "rows that tasks at work have read are reported as often"),
    ("spark.python.worker.reuse", "true", "ingest keeps its warm workers"),
)
"""(name, value, reason): settings that confine queries, and keep the process quiet and quick."""

JVM: Final[tuple[tuple[str, str], ...]] = (
    ("-Duser.timezone=UTC", "some functions ask the JVM, not the session"),
    ("-Duser.language=en", "a Turkish locale changed upper() and lower()"),
    ("-Duser.country=US", "formats of numbers and dates"),
    ("-Dfile.encoding=UTF-8", "bytes of strings"),
    (COLLECTOR, "two cores and a small heap: least memory, fastest start"),
    ("-XX:-UsePerfData", "no files in /tmp/hsperfdata"),
    ("-XX:+ExitOnOutOfMemoryError", "a JVM that ran out of memory answers wrongly or never; a dead one is replaced"),
    ("-XX:+DisplayVMOutputToStderr", "that a JVM ran out of memory is not for standard output"),
    ("-Xlog:disable", "warnings about archives are not for standard output"),
    ("-Xlog:all=error:stderr", "errors are"),
)
"""(option, reason): options of the JVM."""

QUICK: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""Options for the first compiler alone: a start and a first query take 5 s of CPU, against 10 with both compilers. By
default Java has room for 48 MB of code, which Spark fills within a hundred queries; then a tenth of all CPU goes into
discarding code and compiling it again. So the room is made as large as with both compilers."""

PATIENT: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
"""Options by which the second compiler waits for ten times as many runs as usual. Small transactions are mostly
planning: a great deal of code, each piece run only a few times, and compiling it cost more than running it. Loops over
rows still reach the second compiler within the first hundred thousand."""

MEMORY_BEYOND_HEAP: Final = 3 << 29
"""Bytes of private memory beside the Java heap: code cache, metaspace, threads, Arrow buffers. 1.2 GB was enough for a
heap of 512 MB in trials; this is a third more."""
_UNITS: Final = {"m": 1 << 20, "g": 1 << 30}
_HEAP: Final = re.compile(r"[1-9]\d{0,5}[mg]\Z")


def spark_settings(scratch: Path, heap: str) -> dict[str, str]:
    """Returns all settings of a session, including those of this machine. Raises EngineLost for a heap like ``2gb``."""
    heap_bytes(heap)
    settings = {name: value for name, value, _ in (*MEANING, *SPREAD, *CONFINEMENT)}
    return settings | {"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.driver.memory": heap}


def heap_bytes(heap: str) -> int:
    """Parses ``512m`` or ``2g``. Raises EngineLost for a heap like ``2gb``."""
    if _HEAP.match(heap) is None:
        raise EngineLost(f"not a heap size: {heap!r}", rule="heap", hint="write it like 512m or 2g")
    return int(heap[:-1]) * _UNITS[heap[-1]]


def manifest_settings() -> dict[str, str]:
    """Returns the settings that answers could depend on, for the engine's digest; none is specific to a machine."""
    return {name: value for name, value, _ in MEANING} | {option: "" for option, _ in JVM}


def jvm_options(scratch: Path, archive: Path | None = None, record: bool = False, quick: bool = False) -> str:
    """Returns the options of the JVM as one string.

    ``archive``: a class data archive, which saves a third of the start; used if it is there and fits. ``record``: write
    it when the JVM exits, which takes ten seconds. ``quick``: use the first compiler alone, which saves another half.
    """
    options = [option for option, _ in JVM]
    options.append(QUICK if quick else PATIENT)
    options.append(f"-Djava.io.tmpdir={scratch / 'tmp'}")
    options.append(f"-Dderby.system.home={scratch / 'tmp'}")
    if archive is not None and (record or archive.is_file()):
        layers = [base_of(archive)] if record else [base_of(archive), archive]
        there = [str(layer) for layer in layers if layer.is_file()]
        options += [f"-XX:SharedArchiveFile={':'.join(there)}"] if there else []
    if archive is not None and record:
        options.append(f"-XX:ArchiveClassesAtExit={archive}")
    return " ".join(options)


REACH_SECONDS: Final = 5.0
"""Seconds for one address to accept a connection."""
EXECUTOR_SECONDS: Final = 300.0
"""Seconds for the first executors to come and report what they run."""
_FORMS: Final = "write spark://HOST:PORT, yarn or k8s://https://HOST:PORT"
_WEB_PORTS: Final = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Master:
    """The address of a cluster's master."""

    url: str
    """The address as Spark takes it."""
    places: tuple[tuple[str, int], ...]
    """Hosts and ports, one of which must accept connections; empty for YARN, whose address is among its settings."""


def parse_master(text: str) -> Master:
    """Parses the address of a cluster. Raises Invalid. Pure."""
    kind, _, rest = text.partition("://")
    if text == "yarn":
        return Master(text, ())
    if kind == "spark":
        return Master(text, tuple(_place(text, each) for each in rest.split(",")))
    if kind == "k8s":
        scheme, parted, place = rest.partition("://")
        return Master(text, (_place(text, place if parted else rest, _WEB_PORTS.get(scheme if parted else "https")),))
    raise Invalid(f"not the master of a Spark cluster: {text!r}", rule="cluster-master", hint=_FORMS)


def _place(text: str, place: str, usual: int | None = None) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port or usual
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise Invalid(
            f"the master of a Spark cluster needs a host and a port: {text!r}", rule="cluster-master", hint=_FORMS
        )
    return host, port


def check_reachable(master: Master, seconds: float = REACH_SECONDS) -> None:
    """Raises EngineLost when no address of the master accepts a connection."""
    reasons = []
    for host, port in master.places:
        try:
            with socket.create_connection((host, port), timeout=seconds):
                return
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
    if reasons:
        raise EngineLost(
            f"no master of the Spark cluster {master.url} can be reached: {'; '.join(reasons)}",
            rule="cluster-master",
            hint="is it running, and does this machine reach it? engine.master, or --master, names it",
        )
