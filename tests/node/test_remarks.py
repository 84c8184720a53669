"""Where a table's history says when its inputs were pulled, whoever applies it is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import parse
from chain.model.block import MetadataBlock
from chain.model.events import DatasetKind, Seed, SetDataSchema, SetTransform, TransformInput
from chain.model.schema import DataSchema
from chain.model.source import SqlQueryStep, TransformSql
from chain.store.base import Append, Head
from engines.contract import ValidateInput, ValidateResponse, Vocab
from odfd.services.execution.transforms import TransformCheck
from worlds.memory_store import MemoryChains, MemoryObjects

ROOT, DERIVED = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))
QUERY = "select k, max(event_time) as event_time, count(*) as c from a group by k"


def transform(sql: str, dataset: DatasetId) -> SetTransform:
    queries = (SqlQueryStep(query=sql),)
    inputs = (TransformInput(dataset_ref=str(dataset), alias="a"),)
    return SetTransform(inputs=inputs, transform=TransformSql(engine="spark", queries=queries))


class Check(TransformCheck):
    """Over chains of which the schemas are given."""

    changelog = False

    async def inputs(self, event: SetTransform) -> Any:
        dataset = DatasetId.parse(event.inputs[0].dataset_ref)
        return (
            ValidateInput(
                query_alias="a", dataset_id=dataset, schema=DataSchema(fields=()), vocab=Vocab(),
                changelog=self.changelog,
            ),
        )  # fmt: skip


@pytest.fixture
def check(tmp_path: Any) -> Check:
    chains = MemoryChains(MemoryObjects(tmp_path))
    for dataset, kind in ((ROOT, DatasetKind.ROOT), (DERIVED, DatasetKind.DERIVATIVE)):
        events = [Seed(dataset_id=dataset, dataset_kind=kind), SetDataSchema(schema=DataSchema(fields=()))]
        if dataset is DERIVED:
            events.insert(1, transform("select * from a", ROOT))
        blocks: list[Any] = []
        for number, event in enumerate(events):
            before = blocks[-1].hash if blocks else None
            content = MetadataBlock(
                system_time=parse("2024-01-01T00:00:00Z"), prev_block_hash=before, sequence_number=number, event=event
            )
            blocks.append(encode_block(content))
        chains.commit([Append(dataset=dataset, expected=None, blocks=blocks, objects=())])
        assert chains.chain(dataset).head() == Head(blocks[-1].hash, len(events) - 1)
    home: Any = SimpleNamespace(chains=chains)
    engine: Any = None
    return Check(home, engine)


TABLE = ValidateResponse(ok=True, mode="table")


async def test_a_table_of_what_is_derived_says_so(check: Check) -> None:
    (told,) = await check.remarks(transform(QUERY, DERIVED), TABLE)
    assert "after each block of a" in told
    assert "SET odf.tick" in told


async def test_a_calendar_helps_where_rows_only_come(check: Check) -> None:
    head = "set odf.tick = '1 day';\n"
    assert await check.remarks(transform(head + QUERY, DERIVED), TABLE) == ()
    check.changelog = True
    (told,) = await check.remarks(transform(head + QUERY, DERIVED), TABLE)
    assert "SET odf.tick" not in told


async def test_tables_of_roots_and_windows_need_no_remark(check: Check) -> None:
    assert await check.remarks(transform(QUERY, ROOT), TABLE) == ()
    assert await check.remarks(transform(QUERY, DERIVED), ValidateResponse(ok=True, mode="final")) == ()
