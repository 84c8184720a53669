"""How blocks of two inputs interleave cannot be seen either: the slower watermark holds the output back."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from chain.ids import DatasetId
from chain.instant import from_millis
from chain.model.source import TransformSql
from engines.contract import Success, TransformRequest, TransformRequestInput, Vocab
from engines.request_control import RequestControl
from engines.spark.execution.transform import SharedCaches, run_transform
from engines.spark.planning.slice_facts import SliceReader
from engines.spark.sql.queries import Analyst
from engines.spark.state.checkpoint import open_blocks

pytestmark = pytest.mark.engine
DAY = 86_400_000
IDS = {alias: DatasetId.from_public_key(alias.encode() * 32) for alias in "ab"}
SQL = """select time_bucket(interval '1' day, event_time) as event_time, source, sum(v) as s
from (select event_time, 'a' as source, v from a union all select event_time, 'b', v from b) group by 1, 2"""


def expected(streams):
    """By hand: sums of the rows that were in time on their own chain, before the slower of the last watermarks."""
    total, late, ends = Counter(), 0, []
    for alias, stream in streams.items():
        for block, table in zip(stream.blocks, stream.tables, strict=True):
            limit = None if block.watermark_before is None else block.watermark_before // 10**6 // DAY
            for row in table.to_pylist() if table is not None else ():
                if row["event_time"] is None:
                    continue
                day = int(row["event_time"].timestamp() * 1000) // DAY
                in_time = limit is None or day >= limit
                late += not in_time
                if in_time:
                    total[day, alias] += row["v"]
        ends.append(stream.blocks[-1].watermark_after // 10**6 // DAY)
    return [(day, alias, total[day, alias]) for day, alias in sorted(total) if day < min(ends)], late


def replay(lab, streams, schedule):
    caches = SharedCaches(Analyst(), SliceReader())
    previous, rows, late = None, [], 0
    done = dict.fromkeys(streams, 0)
    for number, takes in enumerate(schedule):
        inputs = []
        for alias, stream in streams.items():
            again = reopened(stream.blocks, IDS[alias], previous)
            fresh = stream.blocks[done[alias] : done[alias] + takes[alias]]
            done[alias] += takes[alias]
            schema = next(block.data_path for block in stream.blocks if block.data_path)
            inputs.append(
                TransformRequestInput(
                    dataset_id=IDS[alias], dataset_alias=alias, query_alias=alias, vocab=Vocab(),
                    blocks=(*again, *fresh), schema_file=schema,
                )
            )  # fmt: skip
        checkpoint, data = lab.folder / f"c{number}", lab.folder / f"d{number}"
        request = TransformRequest(
            dataset_id=DatasetId.from_public_key(b"o" * 32),
            dataset_alias="out",
            system_time=from_millis(0),
            vocab=Vocab(),
            transform=TransformSql(engine="spark", query=SQL),
            query_inputs=tuple(inputs),
            next_offset=len(rows),
            prev_checkpoint_path=previous,
            new_checkpoint_path=str(checkpoint),
            new_data_path=str(data),
        )
        answer = run_transform(lab.spark.newSession(), request, RequestControl(), caches)
        assert isinstance(answer, Success), answer
        rows += pq.read_table(data).to_pylist() if answer.new_offset_interval is not None else []
        late += answer.late
        previous = str(checkpoint)
    assert done == {alias: len(stream.blocks) for alias, stream in streams.items()}
    seen = [(int(row["event_time"].timestamp() * 1000) // DAY, row["source"], row["s"]) for row in rows]
    return seen, late, Path(previous).read_bytes()


def reopened(blocks, dataset, checkpoint):
    hashes = [block.block_hash for block in blocks]
    runs = open_blocks(Path(checkpoint).read_bytes()).get(dataset, []) if checkpoint else []
    wanted = sorted({at for first, last in runs for at in range(hashes.index(first), hashes.index(last) + 1)})
    return [msgspec.structs.replace(blocks[at], reopened=True) for at in wanted if blocks[at].data_path]


def interleaving(seed, blocks):
    rng, left, schedule = random.Random(seed), dict.fromkeys("ab", blocks), []
    while any(left.values()):
        takes = {alias: min(count, rng.choice([0, 1, 3, 6])) for alias, count in left.items()}
        left = {alias: count - takes[alias] for alias, count in left.items()}
        schedule.append(takes)
    return schedule


def test_interleaving_does_not_show(lab):
    blocks = 14
    streams = {alias: lab.stream(seed, days=60, blocks=blocks) for seed, alias in ((21, "a"), (22, "b"))}
    rows, late = expected(streams)
    assert rows
    whole = replay(lab, streams, [dict.fromkeys("ab", blocks)])
    assert whole[:2] == (rows, late)
    for seed in range(2):
        assert replay(lab, streams, interleaving(seed, blocks)) == whole
