"""Computes what a portal's chain says of its private input: hashes with a secret salt, which an auditor is given.

Without the salt of 256 bits a hash tells nothing, not even whether two portals have one input. With it anyone who has
the input can tell that it is that dataset, and how much of it each block was made of. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.model.block import Block
from chain.model.events import AddData, ExecuteTransform, SourceState
from chain.model.portal import PORTAL
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.store.base import ChainReader
from chain.walk import newest_first

MARK: Final = b"odfd-portal\n"
"""Begins the text that the node's key signs to derive salts; nothing else that it signs begins so; the signature never
leaves."""
DATA: Final = ("AddData", "ExecuteTransform")
OPENING: Final = "https://w3id.org/odfd/portal-opening/v1"
_SALT: Final = 32
MAX_OPENING: Final = 4096


class Opening(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All that an auditor needs beside the input. Whoever has it and the input can tell what rows were made of."""

    type: str
    portal: str
    input: str
    salt: str


def salt_of(node: SigningKey, portal: DatasetId) -> bytes:
    """Derives the salt of a portal from the key of its node, so that it needs no storage and is in each backup."""
    return hashlib.sha3_256(node.sign(MARK + bytes(portal))).digest()


def input_hash(salt: bytes, dataset: DatasetId) -> str:
    """Returns what the rule says of the private dataset."""
    return str(Multihash.sha3_256(b"odfd portal input\n" + salt + bytes(dataset)))


def cut_hash(salt: bytes, dataset: DatasetId, block: Block) -> str:
    """Returns what a block says of the private dataset: that it was read up to this block of it."""
    number = block.sequence_number.to_bytes(8)
    return str(Multihash.sha3_256(b"odfd portal cut\n" + salt + bytes(dataset) + number + bytes(block.hash)))


def state_at(salt: bytes, dataset: DatasetId, block: Block) -> SourceState:
    return SourceState(source_name="portal", kind=PORTAL, value=cut_hash(salt, dataset, block))


def cut_of(event: object) -> str | None:
    """The hash that a block of a portal has; ``None``: it has none."""
    state = event.new_source_state if isinstance(event, AddData) else None
    return state.value if state is not None and state.kind == PORTAL else None


def blocks_since(salt: bytes, dataset: DatasetId, chain: ChainReader, cut: str | None) -> Iterator[Block]:
    """Yields blocks of data after the cut, newest first: as many reads as there are. Raises Invalid without the cut."""
    for block in newest_first(chain, DATA):
        if cut is not None and cut_hash(salt, dataset, block) == cut:
            return
        yield block
    if cut is not None:
        raise Invalid(
            "the private dataset has no block any more that the last one of the portal was made of",
            rule="portal-history",
            hint="its history was rewritten, or the portal was begun by another node: begin another portal",
        )


def rows_of(block: Block) -> AddData | ExecuteTransform | None:
    """The event of a block, if it brings rows."""
    event = block.event
    return event if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None else None


def opening_text(portal: DatasetId, dataset: DatasetId, salt: bytes) -> bytes:
    found = Opening(type=OPENING, portal=str(portal), input=str(dataset), salt=salt.hex())
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def read_opening(text: bytes, portal: DatasetId) -> tuple[DatasetId, bytes]:
    """Returns the private dataset and the salt. Raises Invalid."""
    try:
        found = msgspec.json.decode(text[: MAX_OPENING + 1], type=Opening)
        salt = bytes.fromhex(found.salt)
    except (msgspec.MsgspecError, ValueError):
        raise _bad("it cannot be read") from None
    if len(text) > MAX_OPENING or found.type != OPENING or len(salt) != _SALT:
        raise _bad("it is none, or of another version")
    if DatasetId.parse(found.portal) != portal:
        raise _bad("it is of another portal")
    return DatasetId.parse(found.input), salt


def _bad(why: str) -> Invalid:
    return Invalid(f"the opening: {why}", rule="portal-opening", hint="its owner writes it: odfctl portal open NAME")
