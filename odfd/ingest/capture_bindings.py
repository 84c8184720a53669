"""Says what the blocks of a reclocking chain mean: which bytes of a source became available at which time.

A reclocking chain is a root dataset. Its description names the shards that follow it; each transaction is one binding,
a row for each file or range of positions, and has the state that the source reported for these bytes. Spec:
docs/spec/collections.md#reclocking.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

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
from odfd.ingest.fetch.kafka_ranges import AddressRange
from odfd.ingest.gaps import EXTRA, SourceGap, stated_in
from odfd.ingest.slices import keep_slice

_TIME: Final = odf.Timestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
SCHEMA: Final = DataSchema(
    fields=(
        DataField(name="offset", type=odf.Int64()),
        DataField(name="op", type=odf.Int32()),
        DataField(name="system_time", type=_TIME),
        DataField(name="event_time", type=_TIME),
        DataField(name="address", type=odf.Int64()),
        DataField(name="source", type=odf.String()),
        DataField(name="name", type=odf.String()),
        DataField(name="part", type=Option(inner=odf.String())),
        DataField(name="start", type=Option(inner=odf.Int64())),
        DataField(name="end", type=Option(inner=odf.Int64())),
        DataField(name="object", type=odf.String()),
        DataField(name="size", type=odf.Int64()),
        DataField(name="kept", type=odf.Bool()),
        DataField(name="source_time", type=Option(inner=_TIME)),
        DataField(name="fills_time", type=odf.Bool()),
        DataField(name="decoded", type=odf.Bool()),
    )
)
"""``address``: number of the binding in its chain, from 1. ``source``: name of the push source, or empty. ``part``,
``start``, ``end``: the range of positions whose bytes have the hash ``object``. ``kept``: they lie beside the chain.
The last three: what the source said of the bytes."""
MAX_FILES: Final = 4096
"""Most files of one binding that are read from a chain."""
_SHARD: Final = re.compile(r"odfd/shard:(?P<did>did:odf:[0-9a-z]{1,128})\Z")
_BY: Final = "odfd/by:"
_BY_PART: Final = "odfd/by-part"
_KEEP_RAW: Final = "odfd/keep-raw"


class Binding(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes that became available at one time."""

    capture: Capture
    """Files, with the hashes of their bytes."""
    ranges: tuple[AddressRange, ...] = ()
    """The positions that each file has; none: the source has no positions."""
    kept: bool = True
    """Whether the bytes lie beside the chain; otherwise they are read from the source again."""
    cancels: int | None = None
    """Of a gap: the time of the binding before it, whose bytes are gone, and which nobody wrote."""

    @property
    def is_gap(self) -> bool:
        """Whether the source goes on without the messages of the ranges, which it let go of."""
        return not self.capture.files

    @property
    def part(self) -> str:
        """The part of the source that decides the shard of the rows, where parts do."""
        return self.ranges[0].part if self.ranges else self.capture.files[0].name


class Division(NamedTuple):
    """The shards that follow a reclocking chain, and the columns whose hash decides the shard of a row."""

    shards: tuple[DatasetId, ...]
    by: tuple[str, ...] = ()
    by_part: bool = False
    """Whether the part of the source, a file or a partition, decides instead."""
    keep_raw: bool = False
    """Whether bytes are kept that the source would give again, too."""

    def place_of(self, binding: Binding) -> Sequence[str] | int:
        """Returns the columns that decide the shard of the bound rows, or the shard of all of them."""
        return shard_of_part(binding.part, len(self.shards)) if self.by_part else self.by


def described(layout: Division) -> SetInfo:
    """Returns the description of a reclocking chain, which names its shards for machines."""
    by = [_BY_PART] if layout.by_part else [f"{_BY}{each}" for each in layout.by]
    words = [*(f"odfd/shard:{each}" for each in layout.shards), *by, *[_KEEP_RAW] * layout.keep_raw]
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
    return Division(shards, by, by_part, _KEEP_RAW in words)


def bound(objects: ObjectStore, state: ChainState, binding: Binding, time: Instant) -> AddData:
    """Builds the event that binds bytes to ``time``, as the next of the chain in ``state``."""
    capture, ranges = binding.capture, binding.ranges
    if binding.is_gap:
        capture = msgspec.structs.replace(capture, files=(_NO_BYTES,) * len(ranges))
    count, start = len(capture.files), state.next_offset
    said = None if capture.event_time is None else to_millis(capture.event_time)
    nothing: list[Any] = [None] * count
    columns: dict[str, Any] = {
        "offset": range(start, start + count),
        "op": [0] * count,
        "system_time": [to_millis(time)] * count,
        "event_time": [to_millis(time)] * count,
        "address": [address_after(state)] * count,
        "source": [capture.source] * count,
        "name": [each.name for each in capture.files],
        "part": [each.part for each in ranges] or nothing,
        "start": [each.start for each in ranges] or nothing,
        "end": [each.end for each in ranges] or nothing,
        "object": [str(each.object) for each in capture.files],
        "size": [each.size for each in capture.files],
        "kept": [binding.kept] * count,
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
        extra={EXTRA: _stated(binding)} if binding.is_gap else None,
    )


_NO_BYTES: Final = CapturedFile("gap", Multihash.sha3_256(b""), 0)
"""The file of a range of a gap."""
_CANCELS: Final = "cancels"


def _stated(binding: Binding) -> dict[str, object]:
    said: dict[str, object] = dict(SourceGap(ranges=binding.ranges).stated())
    return said if binding.cancels is None else {**said, _CANCELS: binding.cancels}


def address_after(state: ChainState) -> int:
    """Returns the next address: blocks of a reclocking chain are its Seed, description, schema, and bindings."""
    return state.size - FOUNDING + 1


FOUNDING: Final = 3
"""Blocks of a reclocking chain before its first binding."""


def binding_of(objects: ObjectStore, blocks: Sequence[Block]) -> Binding:
    """Reads the binding of one transaction. Raises Remote if it is none, ObjectDamaged."""
    if len(blocks) != 1 or not isinstance(event := blocks[0].event, AddData) or event.new_data is None:
        raise Remote("a transaction of the reclocking chain binds no files", rule="reclock-chain", hint="report it")
    check_file(objects.path(event.new_data.physical_hash), event.new_data.physical_hash)
    with open_slice(objects.content(event.new_data.physical_hash)) as file:
        if not 0 < file.rows <= MAX_FILES:
            raise Remote(f"a binding of {plural(file.rows, 'file')}", rule="reclock-chain", hint=f"1 to {MAX_FILES:,}")
        if file.schema.names != [field.name for field in SCHEMA.fields]:
            raise Remote(
                "the reclocking chain was begun by an earlier version",
                rule="reclock-chain",
                hint="begin another collection",
            )
        rows = file.read([field.name for field in SCHEMA.fields]).to_pylist()
    try:
        files = tuple(CapturedFile(row["name"], Multihash.parse(row["object"]), row["size"]) for row in rows)
    except Invalid as error:
        raise Remote("a binding names no object", rule="reclock-chain") from error
    time = rows[0]["source_time"]
    capture = Capture(
        files=files,
        source=rows[0]["source"],
        label=event.new_source_state,
        event_time=None if time is None else from_millis(round(time.timestamp() * 1000)),
        fills_event_time=rows[0]["fills_time"],
        decoded=rows[0]["decoded"],
    )
    ranges, kept = _ranges(rows), all(row["kept"] for row in rows)
    if (gap := stated_in(event)) is None:
        return Binding(capture=capture, ranges=ranges, kept=kept)
    cancels, nothing = gap.get(_CANCELS), msgspec.structs.replace(capture, files=())
    if not ranges or not (cancels is None or isinstance(cancels, int)):
        raise Remote("a gap that names no ranges", rule="reclock-chain", hint="report it")
    return Binding(capture=nothing, ranges=ranges, kept=kept, cancels=cancels)


def _ranges(rows: Sequence[Mapping[str, Any]]) -> tuple[AddressRange, ...]:
    """Returns the positions of a binding. Raises Remote unless all rows have one, or none has."""
    found = [(row["part"], row["start"], row["end"]) for row in rows]
    if all(each == (None, None, None) for each in found):
        return ()
    if any(None in each or not 0 <= each[1] < each[2] for each in found) or len({each[0] for each in found}) < len(
        found
    ):
        raise Remote("a binding has ranges that cannot be", rule="reclock-chain", hint="report it")
    return tuple(AddressRange(*each) for each in found)


def _stored(kind: pa.DataType) -> pa.DataType:
    """Returns the type of Python values that are cast to ``kind``: times are given as milliseconds."""
    return pa.int64() if pa.types.is_timestamp(kind) else kind
