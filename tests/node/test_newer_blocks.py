"""A block with an event of a newer schema: the daemon shows of it what the tool without a daemon shows."""

from __future__ import annotations

from typing import Any, Union, get_args

import msgspec

from chain.codec import blocks, flat
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import UnknownEvent
from chain.model.events import MetadataEvent
from chain.model.wire import I32, I64, U64, Time
from chain.multihash import Multihash
from chain.store.base import Append
from odfd.cli.offline.block import describe
from worlds.manifests import ROOT
from worlds.node_world import World


class Newer(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="Newer"):
    said: str


def newer_block(after: Multihash, number: int, at: Instant) -> bytes:
    event: Any = Union[(*get_args(MetadataEvent), Newer)]
    names = ("system_time", Time), ("prev_block_hash", Multihash | None), ("sequence_number", U64), ("event", event)
    content = msgspec.defstruct("Content", names, frozen=True)
    manifest = msgspec.defstruct("Manifest", [("kind", I64), ("version", I32), ("content", bytes)])
    inner = flat.encode(content(at, after, number, Newer(said="what we do not know")))
    return flat.encode(manifest(blocks.KIND, blocks.CURRENT_VERSION, inner))


async def test_an_unknown_event_is_shown_by_its_number(world: World) -> None:
    async with world.running("alice") as alice:
        await alice.apply(ROOT)
        dataset: DatasetId = alice.dataset("cities")
        head = alice.home.chains.chain(dataset).head()
        block = blocks.decode_block(newer_block(head.hash, head.size, alice.clock.now()))
        assert block.event == UnknownEvent(variant=14)
        alice.home.chains.commit([Append(dataset=dataset, expected=head, blocks=[block])])
        told = await alice.api.datasets.block("cities", f"#{head.size}")
        offline = describe(block)
        assert told.manifest == offline["content"]
        assert told.manifest["event"] == {"kind": "UnknownEvent", "variant": 14}
        assert (told.hash, told.size, told.unknown_fields) == (offline["hash"], offline["size"], ())
        [logged] = await alice.api.datasets.log("cities", (), 1, None)
        assert logged.event == "Unknown(14)"
