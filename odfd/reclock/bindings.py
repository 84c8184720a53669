"""Says what the blocks of a reclocking chain mean: which bytes of a source became available at which time.

A reclocking chain is a root dataset. Its description names the shards that follow it; each transaction is one binding,
a row for each captured file, and has the state that the source reported for these bytes. Spec:
docs/spec/collections.md#reclocking.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from chain.data.arrow_schema import to_arrow
from chain.data.parquet import open_slice, write_slice
from chain.data.partition import shard_of_part
from chain.errors import Invalid, Remote
from chain.ids import DatasetId
from chain.instant import Instant, from_millis, to_millis
from chain.libraries import pa
from chain.model import schema as odf
from chain.model.block import Block
from chain.model.events import AddData, SetInfo
from chain.model.schema import DataField, DataSchema, Option, TimeUnit
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ObjectStore
from chain.store.files import check_file
from chain.wording import plural
from odfd.datasets.captures import Capture, CapturedFile
from odfd.ingest.slices import keep_slice

_TIME: Final = odf.Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
SCHEMA: Final = DataSchema(
    fields=(
        DataField(name="offset", type=odf.Int64()),
        DataField(name="op", type=odf.Int32()),
        DataField(name="system_time", type=_TIME),
        DataField(name="event_time", type=_TIME),
        DataField(name="address", type=odf.Int64()),
        DataField(name="name", type=odf.String()),
        DataField(name="object", type=odf.String()),
        DataField(name="size", type=odf.Int64()),
        DataField(name="source_time", type=Option(inner=_TIME)),
        DataField(name="fills_time", type=odf.Bool()),
        DataField(name="decoded", type=odf.Bool()),
    )
)
"""``address``: number of the binding in its chain, from 1. The last three: what the source said of the bytes."""
MAX_FILES: Final = 4096
"""Most files of one binding that are read from a chain."""
_SHARD: Final = re.compile(r"odfd/shard:(?P<did>did:odf:[0-9a-z]{1,128})\Z")
_BY: Final = "odfd/by:"
_BY_PART: Final = "odfd/by-part"


class Division(NamedTuple):
    """The shards that follow a reclocking chain, and the columns whose hash decides the shard of a row."""

    shards: tuple[DatasetId, ...]
    by: tuple[str, ...] = ()
    by_part: bool = False
    """Whether the name of the part of the source, which is a file, decides instead."""

    def place_of(self, capture: Capture) -> Sequence[str] | int:
        """Returns the columns that decide the shard of the captured rows, or the shard of all of them."""
        return shard_of_part(capture.files[0].name, len(self.shards)) if self.by_part else self.by


def described(layout: Division) -> SetInfo:
    """Returns the description of a reclocking chain, which names its shards for machines."""
    by = [_BY_PART] if layout.by_part else [f"{_BY}{each}" for each in layout.by]
    words = [*(f"odfd/shard:{each}" for each in layout.shards), *by]
    return SetInfo(description="Binds the bytes of a source to times (odfd reclocking chain)", keywords=tuple(words))


def layout_of(info: SetInfo | None, name: str) -> Division:
    """Returns the shards that a chain's description names. Raises Invalid if it is no reclocking chain."""
    words = info.keywords or () if info is not None else ()
    shards = tuple(DatasetId.parse(found["did"]) for word in words if (found := _SHARD.match(word)))
    by = tuple(word.removeprefix(_BY) for word in words if word.startswith(_BY))
    by_part = _BY_PART in words
    if not shards or len(set(shards)) != len(shards) or (len(shards) > 1) != (bool(by) or by_part):
        raise Invalid(
            f"{name} is no reclocking chain", rule="reclock-chain", hint="odfctl reclock begin says the id of one"
        )
    return Division(shards, by, by_part)


def bound(objects: ObjectStore, state: ChainState, capture: Capture, time: Instant) -> AddData:
    """Builds the event that binds captured files to ``time``, as the next of the chain in ``state``."""
    count, start = len(capture.files), state.next_offset
    said = None if capture.event_time is None else to_millis(capture.event_time)
    columns = {
        "offset": range(start, start + count),
        "op": [0] * count,
        "system_time": [to_millis(time)] * count,
        "event_time": [to_millis(time)] * count,
        "address": [address_after(state)] * count,
        "name": [each.name for each in capture.files],
        "object": [str(each.object) for each in capture.files],
        "size": [each.size for each in capture.files],
        "source_time": [said] * count,
        "fills_time": [capture.fills_event_time] * count,
        "decoded": [capture.decoded] * count,
    }
    schema = to_arrow(SCHEMA).remove_metadata()
    rows = pa.table([pa.array(columns[field.name], _stored(field.type)).cast(field.type) for field in schema], schema)
    path = objects.stage()
    write_slice(rows, path)
    return AddData(
        prev_offset=state.last_offset,
        new_data=keep_slice(objects, path, SCHEMA, "offset"),
        new_watermark=time,
        new_source_state=capture.label,
    )


def address_after(state: ChainState) -> int:
    """Returns the next address: blocks of a reclocking chain are its Seed, description, schema, and bindings."""
    return state.size - FOUNDING + 1


FOUNDING: Final = 3
"""Blocks of a reclocking chain before its first binding."""


def capture_of(objects: ObjectStore, blocks: Sequence[Block]) -> Capture:
    """Reads the binding of one transaction. Raises Remote if it is none, ObjectDamaged."""
    if len(blocks) != 1 or not isinstance(event := blocks[0].event, AddData) or event.new_data is None:
        raise Remote("a transaction of the reclocking chain binds no files", rule="reclock-chain", hint="report it")
    check_file(objects.path(event.new_data.physical_hash), event.new_data.physical_hash)
    with open_slice(objects.content(event.new_data.physical_hash)) as file:
        if not 0 < file.rows <= MAX_FILES:
            raise Remote(f"a binding of {plural(file.rows, 'file')}", rule="reclock-chain", hint=f"1 to {MAX_FILES:,}")
        rows = file.read([field.name for field in SCHEMA.fields]).to_pylist()
    try:
        files = tuple(CapturedFile(row["name"], Multihash.parse(row["object"]), row["size"]) for row in rows)
    except Invalid as error:
        raise Remote("a binding names no object", rule="reclock-chain") from error
    time = rows[0]["source_time"]
    return Capture(
        files=files,
        label=event.new_source_state,
        event_time=None if time is None else from_millis(round(time.timestamp() * 1000)),
        fills_event_time=rows[0]["fills_time"],
        decoded=rows[0]["decoded"],
    )


def _stored(kind: pa.DataType) -> pa.DataType:
    """Returns the type of Python values that are cast to ``kind``: times are given as milliseconds."""
    return pa.int64() if pa.types.is_timestamp(kind) else kind
