"""Takes one push into a reclocked collection, exactly once, and answers by what the shards have of it.

The id is looked for in the reclocking chain, and the binding proposed to the chain as it was then: whoever comes second
finds the id there. So a push may be repeated to any instance at any time, and gets the same receipt. It is answered
after its transaction is in all shards. Spec: docs/spec/collections.md#reclocked-pushes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import MILLISECOND, Instant, from_millis, render
from chain.model.events import AddData, SourceState
from chain.model.source import traits
from chain.multihash import Multihash
from chain.store.shards import Reading
from odfd.ingest.capture_bindings import Binding
from odfd.ingest.plan import Batch, pushed
from odfd.ingest.push import MAX_ID
from odfd.reclock.instance import Instance
from odfd.reclock.pushes import UPLOAD

_OF_CONTENT: Final = "content:"


class PushedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """One push, as a client made it."""

    files: tuple[Path, ...]
    id: str | None = None
    """Its idempotency key; ``None``: a hash of what decides its rows."""
    source: str | None = None
    """Name of the push source; ``None``: the only one."""
    event_time: Instant | None = None


class ShardReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """A push's block of one shard."""

    shard: DatasetId
    block: Multihash
    number: int
    first: int | None = None
    """First offset of its rows; ``None``: none of them is in this shard."""
    last: int | None = None


class BoundReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """Says what became of a push; the same each time that it is repeated."""

    id: str
    time: int
    """Its time in the collection, in milliseconds."""
    shards: tuple[ShardReceipt, ...]
    is_repeated: bool
    """Whether it was bound before this call."""

    @property
    def records(self) -> int:
        return sum(
            each.last - each.first + 1 for each in self.shards if each.first is not None and each.last is not None
        )


async def push(instance: Instance, wanted: PushedFiles) -> BoundReceipt:
    """Binds a push unless it is bound, writes what is bound up to it, and returns its receipt.

    Raises Refused for an id that was used for another push, and what decoding raises; Conflict.
    """
    own: Binding | None = None
    is_repeated = True
    while True:
        reading = await instance.look()
        if own is None:
            own = await trio.to_thread.run_sync(_binding, instance, wanted)
        state = own.capture.label
        assert state is not None
        if (found := await trio.to_thread.run_sync(instance.bound_push, state.value)) is None:
            is_repeated = False
            await (instance.step() if instance.lacks(reading) else instance.bind(own))
            continue
        time, there = found
        if there.capture != own.capture:
            raise _other(state.value, time)
        if instance.least_upper(reading) > time:
            return await trio.to_thread.run_sync(_receipt, instance, reading, state.value, time, is_repeated)
        await instance.step()


def _binding(instance: Instance, wanted: PushedFiles) -> Binding:
    """Stores the bytes of a push here, and returns what would bind them. Raises Refused, Invalid."""
    if wanted.id is not None and not 0 < len(wanted.id) <= MAX_ID:
        raise Refused(f"an id of {len(wanted.id)} characters", rule="push-id", hint=f"1 to {MAX_ID} characters")
    source, _ = pushed(instance.state(), wanted.source, None)
    how = traits(source.merge)
    if how.whole_state and len(wanted.files) != 1:
        raise Refused("each file of a snapshot source is a push of its own", rule="push-files", hint="push one file")
    if wanted.id is None and not how.only_adds:
        raise Refused(
            "the same files may mean something else later, so their hash is no id of the push",
            rule="push-id",
            hint="give each push an id of its own: --id",
        )
    moment = None if wanted.event_time is None else Instant(wanted.event_time // MILLISECOND * MILLISECOND)
    batch = Batch(
        paths=wanted.files, names=tuple(each.name for each in wanted.files), identity="", event_time=moment,
        fills_event_time=moment is not None,
    )  # fmt: skip
    capture = instance.captured(batch, source.name)
    content = hashlib.sha3_256(msgspec.json.encode(capture, enc_hook=str)).hexdigest()
    label = SourceState(source_name=source.name, kind=UPLOAD, value=wanted.id or _OF_CONTENT + content)
    return Binding(capture=msgspec.structs.replace(capture, label=label))


def _receipt(instance: Instance, reading: Reading, push_id: str, time: int, is_repeated: bool) -> BoundReceipt:
    """Reads the blocks of a push, by its time."""
    shards = []
    for shard in instance.layout.shards:
        for block in reading.views[shard].transaction(time)[-1:]:
            rows = block.event.new_data if isinstance(block.event, AddData) else None
            places = (None, None) if rows is None else (rows.offset_interval.start, rows.offset_interval.end)
            shards.append(
                ShardReceipt(
                    shard=shard, block=block.hash, number=block.sequence_number, first=places[0], last=places[1]
                )
            )
    return BoundReceipt(id=push_id, time=time, shards=tuple(shards), is_repeated=is_repeated)


def _other(push_id: str, time: int) -> Refused:
    return Refused(
        f"the id {push_id!r} was used at {render(from_millis(time))} for a push of other files, or through another"
        " source",
        rule="push-id",
        hint="give each push its own id",
    )
