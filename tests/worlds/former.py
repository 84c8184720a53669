"""Datasets of ODF 0.18 in folders, written as kamu and its engine did in 2021."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from chain.codec.former_blocks import encode

ZERO = "00" * 32
ROOT = {
    "kind": "root",
    "fetch": {"kind": "url", "url": "https://data.example/readings.csv"},
    "read": {"kind": "csv", "header": True, "schema": ["at TIMESTAMP", "station STRING", "celsius INT"]},
    "merge": {"kind": "append"},
}
COLUMNS = ("system_time", "event_time", "station", "celsius")


def sealed(content: Mapping[str, Any]) -> tuple[str, str]:
    """The hash and the text of a block."""
    found = hashlib.sha3_256(encode({"blockHash": ZERO, **content})[:-32]).hexdigest()
    whole = {"apiVersion": 1, "kind": "MetadataBlock", "content": {"blockHash": found, **content}}
    return found, "---\n" + yaml.safe_dump(whole, sort_keys=False)


def digest(rows: Sequence[Sequence[str]]) -> str:
    """Of lines of CSV, whose columns are in the order of their names."""
    return hashlib.sha256("".join(sorted(f"{','.join(row)}\n" for row in rows)).encode()).hexdigest()


class FormerDataset:
    """A folder in the layout of a repository."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.head, self.time = folder, "", 0
        for part in ("meta/blocks", "meta/refs", "data"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def add(self, **content: Any) -> str:
        """Another block, a second later than the last one."""
        self.time += 1
        before = {"prevBlockHash": self.head} if self.head else {}
        found, text = sealed({**before, "systemTime": f"2021-09-01T12:00:{self.time:02}.123456789Z", **content})
        (self.folder / "meta" / "blocks" / found).write_text(text)
        (self.folder / "meta" / "refs" / "head").write_text(found)
        self.head = found
        return found

    def add_rows(self, table: pa.Table, former: str, **content: Any) -> str:
        """A block with rows whose digest is ``former``."""
        at = f"2021-09-01T12:00:{self.time + 1:02}.123456789Z"
        slice_ = {"hash": former, "interval": f"[{at}, {at}]", "numRecords": table.num_rows}
        found = self.add(outputSlice=slice_, **content)
        pq.write_table(table, self.folder / "data" / found, use_deprecated_int96_timestamps=True)
        return found


def readings(second: int, *values: tuple[int, str, int]) -> tuple[pa.Table, str]:
    """Rows of seconds, stations and degrees, and their digest."""
    columns = list(zip(*values, strict=True))
    table = pa.table(
        {
            "system_time": pa.array([1_630_497_600_123_456 + second * 1_000_000] * len(values), pa.timestamp("us")),
            "event_time": pa.array([each * 1_000_000 for each in columns[0]], pa.timestamp("us")),
            "station": pa.array(columns[1]),
            "celsius": pa.array(columns[2], pa.int32()),
        }
    )
    lines = [[str(c), f"1970-01-01T00:{at // 60:02}:{at % 60:02}.000Z", name] for at, name, c in values]
    return table, digest(lines)


def small(folder: Path) -> FormerDataset:
    """A root with two slices, one of which has a watermark, and a block with a watermark alone."""
    made = FormerDataset(folder)
    made.add(source=ROOT)
    table, former = readings(2, (1, "graz", 9), (2, "wien", 19))
    made.add_rows(table, former, outputWatermark="1970-01-01T00:00:02Z")
    table, former = readings(3, (3, "graz", 11), (4, "linz", -2), (5, "wien", 0))
    made.add_rows(table, former)
    made.add(outputWatermark="1970-01-01T00:10:00Z")
    return made
