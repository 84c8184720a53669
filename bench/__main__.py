"""``python -m bench [ROW ...] [--quick] [--no-million] [--object-mib N] [--out FILE] [--guard] [--keep]``: prints a
table, and writes it as JSON.

Never ends badly because something was slow: what is fast enough is for people to say. Only ``--guard`` ends with 1, if
a row got worse by a fifth since the last release.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from bench import guard, machine, report
from bench.measure import Measurement, Row, Size

ROWS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hash": "bench.hashing",
        "object": "bench.network",
        "sync": "bench.network",
        "rtt": "bench.network",
        "mirror": "bench.mirrors",
        "gossip": "bench.peers",
        "crowd": "bench.peers",
        "verify": "bench.history",
        "import": "bench.intake",
        "stream": "bench.intake",
        "state": "bench.store",
        "many": "bench.store",
        "append": "bench.store",
        "readers": "bench.store",
        "collection": "bench.many_datasets",
        "shards": "bench.shards",
        "repository": "bench.shards",
        "parsing": "bench.parsing",
        "quarantine": "bench.parsing",
        "hearing": "bench.trust",
        "reach": "bench.trust",
        "fork": "bench.trust",
        "rumour": "bench.trust",
        "statements": "bench.statements",
        "cli": "bench.node",
        "reading": "bench.reading",
        "flight": "bench.flight",
        "queries": "bench.queries",
        "client": "bench.python_client",
        "source": "bench.python_client",
        "memory": "bench.node",
        "datasets": "bench.many_datasets",
        "pull": "bench.pulls",
        "parts": "bench.pulls",
        "pushes": "bench.pushes",
        "bucket": "bench.buckets",
        "live": "bench.live_collections",
        "transform": "bench.engine",
        "ingest": "bench.engine",
        "again": "bench.again",
        "snapshot": "bench.snapshots",
        "exact": "bench.aggregates",
        "resources": "bench.resources",
        "declared": "bench.declared",
        "watchers": "bench.watchers",
        "idle": "bench.transactions",
        "streaming": "bench.transactions",
        "history": "bench.transactions",
        "large": "bench.transactions",
        "table": "bench.transactions",
        "nexmark": "bench.nexmark",
        "cluster": "bench.cluster",
    }
)
"""Measurements by name; each is the function ``measure_<name>`` of its module. Cheap ones first."""


def measurement(name: str) -> Measurement:
    """Loads a measurement; imports only what is measured."""
    found: Measurement = getattr(importlib.import_module(ROWS[name]), f"measure_{name}")
    return found


def measure(name: str, size: Size) -> list[Row]:
    """Runs a measurement in a temporary folder. Each row has the machine's load meanwhile."""
    with tempfile.TemporaryDirectory(prefix="odfd-bench-") as folder:
        rows = measurement(name)(size, Path(folder))
    busy = {"load average": machine.load()}
    return [msgspec.structs.replace(row, facts=row.facts | busy) for row in rows]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--quick", action="store_true", help="small sizes: that it runs, not how fast")
    parser.add_argument("--no-million", action="store_true", help="leave out chains of a million blocks")
    parser.add_argument("--object-mib", type=int, default=128, metavar="N", help="of the large object: 4096 for 4 GiB")
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--guard", action="store_true", help="name the rows that got worse since the last release")
    parser.add_argument("--keep", action="store_true", help=f"write the ratios to {guard.FIGURES.name}: for a release")
    args = parser.parse_args()
    # With it, each program that is measured would compile all that it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    unknown = [name for name in args.rows if name not in ROWS]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}; there are {', '.join(ROWS)}")
    facts = machine.facts()
    measured: dict[str, list[Row]] = {}
    worse: list[str] = []
    figures = guard.read() if args.guard else guard.Figures()
    print(report.heading(facts), flush=True)
    size = Size(quick=args.quick, million=not args.no_million, object_mib=args.object_mib)
    for name in args.rows or ROWS:
        found = measured[name] = measure(name, size)
        print(report.lines(found), flush=True)
        report.write_json([row for rows in measured.values() for row in rows], facts, args.out)
        worse += guard.compare(found, figures, partial(measure, name, size))
    print(f"\nall rounds: {args.out}")
    if args.keep:
        guard.keep(measured, facts)
    if args.guard:
        new = [row.name for rows in measured.values() for row in rows if row.name not in figures.rows]
        print(*(["\nno figure of the last release:", *new] if new else []), sep="\n  ")
        print(*(["worse than the last release:", *worse] if worse else ["nothing got worse"]), sep="\n  ")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
