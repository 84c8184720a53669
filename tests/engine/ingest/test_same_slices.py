"""From the same rows we make the slices that the reference made: same logical hash, offsets, watermark, schema.

Inputs are made again from what the reference wrote: the rows of a slice are what its source must have said.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from chain import instant
from chain.codec.blocks import decode_block
from chain.data.arrow_schema import to_arrow
from chain.data.logical_hash import logical_hash_file
from chain.model.block import Block
from chain.model.events import AddData, AddPushSource, SetDataSchema, SetPollingSource
from chain.model.source import (
    MergeChangelogStream,
    MergeSnapshot,
    MergeUpsertStream,
    ReadCsv,
    ReadGeoJson,
    ReadJson,
    ReadNdJson,
    ReadParquet,
)
from engines.contract import Success, Vocab

pytestmark = pytest.mark.engine

KAMU = Path(__file__).parents[2] / "golden" / "kamu"
CASES = {"flights": 3, "airlines": 4, "changes": 3, "orders": 4, "nested": 1, "places": 1, "typed": 1}
"""Dataset and how many of its first slices are made again."""
TIMES = {"flights": "time_hour", "nested": "when"}


class Slice(NamedTuple):
    block: Block
    event: AddData
    path: Path


def blocks_of(name: str) -> list[Block]:
    blocks = (decode_block(path.read_bytes()) for path in (KAMU / name / "blocks").iterdir())
    return sorted(blocks, key=lambda block: block.sequence_number)


def slices_of(name: str) -> Iterator[Slice]:
    for block in blocks_of(name):
        if isinstance(block.event, AddData) and block.event.new_data is not None:
            yield Slice(block, block.event, KAMU / name / "data" / str(block.event.new_data.physical_hash))


def source_rows(merge: Any, earlier: pa.Table | None, here: pa.Table, time: str, timed: bool) -> pa.Table:
    """What the source said, so that merging it into ``earlier`` gives ``here``."""
    drop = ["offset", "system_time", *([] if timed else [time])]
    if isinstance(merge, MergeSnapshot):
        state: dict[Any, dict[str, Any]] = {}
        for row in pa.concat_tables([table for table in (earlier, here) if table is not None]).to_pylist():
            key = tuple(row[name] for name in merge.primary_key)
            state.pop(key, None)
            if row["op"] in (0, 3):
                state[key] = row
        return pa.Table.from_pylist(list(state.values()), here.schema).drop_columns([*drop, "op"])
    if isinstance(merge, MergeUpsertStream):
        here = here.filter(pc.not_equal(here.column("op"), 2))
    keeps_op = isinstance(merge, MergeUpsertStream | MergeChangelogStream)
    return here.drop_columns(drop if keeps_op else [*drop, "op"])


def source_text(read: Any, rows: pa.Table, folder: Path) -> bytes:
    match read:
        case ReadCsv():
            columns = [column.split()[0] for column in read.ddl_schema or ()]
            path = folder / "made.csv"
            pa_csv.write_csv(rows.select(columns), path)
            return path.read_bytes()
        case ReadParquet():
            path = folder / "made.parquet"
            pq.write_table(rows, path)
            return path.read_bytes()
        case ReadNdJson():
            return "\n".join(json.dumps(row, default=text_of) for row in rows.to_pylist()).encode()
        case ReadJson():
            return json.dumps({"data": {"rows": rows.to_pylist()}}, default=text_of).encode()
        case ReadGeoJson():
            features = []
            for row in rows.to_pylist():
                geometry = json.loads(row.pop("geometry"))
                features.append({"type": "Feature", "geometry": geometry, "properties": row})
            return json.dumps({"type": "FeatureCollection", "features": features}).encode()
    raise AssertionError(read)


def text_of(value: Any) -> str:
    assert isinstance(value, dt.date)
    return value.isoformat()


@pytest.mark.parametrize("name", CASES)
def test_same_slices(name: str, dataset: Callable[..., Any], tmp_path: Path) -> None:
    events = [block.event for block in blocks_of(name)]
    source = next(event for event in events if isinstance(event, SetPollingSource | AddPushSource))
    schema = next(event.schema for event in events if isinstance(event, SetDataSchema))
    time = TIMES.get(name, "event_time")
    timed = name not in ("airlines", "places")
    made = dataset(source.merge, vocab=Vocab(event_time=time))
    earlier: pa.Table | None = None
    for count, (block, event, path) in enumerate(slices_of(name)):
        if count == CASES[name]:
            break
        here = pq.read_table(path)
        here = here.cast(to_arrow(schema).remove_metadata())
        fresh = here.filter(pc.is_in(here.column("op"), pa.array([0, 3], pa.int32())))
        stamps = [value for value in fresh.column(time).to_pylist() if isinstance(value, dt.datetime)]
        stamp = instant.render(block.system_time) if not stamps else stamps[0].isoformat()
        text = source_text(source.read, source_rows(source.merge, earlier, here, time, timed), tmp_path)
        made.slices = [str(one.path) for one in slices_of(name)][:count]
        answer = made.ingest(
            text,
            source.read,
            system_time=instant.render(block.system_time),
            source_time=stamp,
            remember=False,
            null_keys=True,
        )
        assert isinstance(answer, Success), answer
        if name != "changes":  # the reference calls the operation of a changelog optional
            assert answer.schema == schema
        made.schema, made.watermark = schema, answer.new_watermark
        assert answer.new_watermark == event.new_watermark
        assert answer.new_offset_interval == event.new_data.offset_interval
        assert logical_hash_file(made.folder / f"slice-{made.rounds}") == event.new_data.logical_hash
        made.next_offset = answer.new_offset_interval.end + 1
        earlier = here if earlier is None else pa.concat_tables([earlier, here])
