"""Measures what a second instance costs that ingests the same into the same chain: its own work, and waiting for locks.

Both make each transaction, a function of its time and the rows; whoever proposes it first commits it, and the other one
is told that it is the same (docs/spec/collections.md#compare-and-append).
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench import chains
from bench.measure import CPU, Row, Side, Size
from bench.node import TREE
from chain.codec.blocks import encode_block
from chain.data.arrow_schema import from_arrow
from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import write_slice
from chain.instant import SECOND, Instant, to_millis
from chain.model.block import MetadataBlock
from chain.model.events import AddData, DatasetKind, DataSlice, MetadataEvent, OffsetInterval, Seed, SetDataSchema
from chain.multihash import Multihash
from chain.store.base import Head
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.shards import CommitPoint, Committed, Proposal, Same
from chain.store.sqlite import SqliteChains
from chain.store.sqlite_shards import SqliteShards

_TWO: Final = 2


class _Instance:
    """One of several writers of one chain, with a connection of its own to the store that commits."""

    def __init__(self, store: Path, staging: Path, rows: int) -> None:
        staging.mkdir(parents=True)
        self._database = open_database(store / "odfd.sqlite")
        self._objects = DiskObjects(store / "objects", self._database)
        self._point = CommitPoint(SqliteShards(self._database, SqliteChains(self._database, self._objects)))
        self._staging, self._rows = staging, rows
        self._head: Head | None = None
        self._count = self._offset = 0
        self.outcomes: Counter[type[object]] = Counter()

    def step(self) -> None:
        """Makes the next transaction, and proposes it. Another instance may have done so before."""
        event = self._event()
        self._count += 1
        at = Instant(chains.START + self._count * SECOND)
        block = MetadataBlock(
            system_time=at,
            prev_block_hash=None if self._head is None else self._head.hash,
            sequence_number=0 if self._head is None else self._head.sequence_number + 1,
            event=event,
        )
        made = encode_block(block)
        names = [event.new_data.physical_hash] if isinstance(event, AddData) and event.new_data is not None else []
        proposal = Proposal(
            dataset=chains.DATASET, blocks=[made], new_upper=to_millis(at) + 1, objects=names
        )  # fmt: skip
        (outcome,) = self._point.append([proposal])
        assert isinstance(outcome, Committed | Same), outcome
        self.outcomes[type(outcome)] += 1
        self._head = Head(made.hash, made.sequence_number)

    def close(self) -> None:
        self._database.close()

    def _event(self) -> MetadataEvent:
        if self._count == 0:
            return Seed(dataset_id=chains.DATASET, dataset_kind=DatasetKind.ROOT)
        if self._count == 1:
            return SetDataSchema(schema=from_arrow(chains.SCHEMA))
        first, rows, staged = self._offset, self._rows, self._staging / "slice"
        zeros, numbers = np.zeros(rows, np.int64), np.arange(rows)
        values = zip((numbers + first, zeros, zeros, zeros, numbers), chains.SCHEMA, strict=True)
        columns = [pa.array(each).cast(field.type) for each, field in values]
        write_slice(pa.table(columns, schema=chains.SCHEMA), staged)
        said = DataSlice(
            logical_hash=logical_hash_file(staged),
            physical_hash=Multihash.sha3_256(staged.read_bytes()),
            offset_interval=OffsetInterval(start=first, end=first + rows - 1),
            size=staged.stat().st_size,
        )
        self._objects.adopt(staged, said.physical_hash)
        self._offset += rows
        return AddData(prev_offset=first - 1 if first else None, new_data=said)


def measure_second(size: Size, folder: Path) -> list[Row]:
    """Measures two instances against one: the CPU of both, and the time until the chain has everything."""
    steps, rows, rounds = size.pick(4, 200), size.pick(10, 5_000), size.pick(1, 9)
    warm = size.pick(0, 1)
    found: dict[int, list[tuple[float, float]]] = {1: [], _TWO: []}
    with ExitStack() as opened:
        both = [opened.enter_context(_process()) for _ in range(_TWO)]
        for number in range(warm + rounds):
            for count, costs in found.items():
                costs.append(_run(folder / f"{number}-{count}", both[:count], steps, rows))
        for each in both:
            assert each.stdin is not None
            each.stdin.close()
    facts: dict[str, float | str] = {"transactions": steps, "rows of each": rows}
    return [
        Row(
            name=f"second, {name}",
            measures=measures,
            ours=Side(name="two instances", costs=tuple(each[place] for each in found[_TWO][warm:])),
            peer=Side(name="one", costs=tuple(each[place] for each in found[1][warm:])),
            goal=goal,
            facts=facts,
        )
        for place, name, measures, goal in (
            (0, "time", "until one of two processes that ingest the same has committed all", "≤ 1.05"),
            (1, "CPU", "CPU of two processes that ingest the same", "≤ 2"),
        )
    ]


def _process() -> subprocess.Popen[str]:
    command = (sys.executable, "-c", "from bench.instances import serve; serve()")
    environment = {**os.environ, "PYTHONPATH": str(TREE)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _run(folder: Path, processes: Sequence[subprocess.Popen[str]], steps: int, rows: int) -> tuple[float, float]:
    """Runs instances at once. Returns the time until the first one is through, and the CPU of all."""

    def say(each: subprocess.Popen[str], line: str) -> None:
        assert each.stdin is not None
        each.stdin.write(line + "\n")
        each.stdin.flush()

    def heard(each: subprocess.Popen[str]) -> dict[str, float]:
        assert each.stdout is not None
        answer: dict[str, float] = json.loads(each.stdout.readline())
        return answer

    for number, each in enumerate(processes):
        say(each, json.dumps([str(folder), str(folder / f"staging-{number}"), steps, rows]))
        heard(each)
    began = time.monotonic()
    for each in processes:
        say(each, "")
    told = [heard(each) for each in processes]
    assert sum(each["committed"] for each in told) == steps, told
    return min(each["through"] for each in told) - began, sum(each["cpu"] for each in told)


def serve() -> None:
    """Runs an instance for each line of standard input, which begins at the next line."""
    for line in sys.stdin:
        store, staging, steps, rows = json.loads(line)
        instance = _Instance(Path(store), Path(staging), rows)
        gc.collect()
        print("{}", flush=True)
        sys.stdin.readline()
        spent = CPU()
        for _ in range(steps):
            instance.step()
        said = {"through": time.monotonic(), "cpu": CPU() - spent, "committed": instance.outcomes[Committed]}
        instance.close()
        print(json.dumps(said), flush=True)
