"""Computes what a portal's chain says about its private input: hashes with a secret salt, which only auditors get.

Without the salt of 256 bits a hash tells nothing, not even whether two portals have the same input. Anybody who has the
salt and the input can tell that it is that dataset, and how much of it each block was made from. Pure.
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
"""Prefix of the text that the node's key signs to derive salts. It signs nothing else with this prefix.

The signature never leaves the node.
"""
DATA: Final = ("AddData", "ExecuteTransform")
OPENING: Final = "https://w3id.org/odfd/portal-opening/v1"
_SALT: Final = 32
MAX_OPENING: Final = 4096


class Opening(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All that an auditor needs beside the input.

    Its holder, with the input, can tell which rows were made from which.
    """

    type: str
    portal: str
    input: str
    salt: str


def salt_of(node: SigningKey, portal: DatasetId) -> bytes:
    """Derives the salt of a portal from its node's key, so that it needs no storage and every backup has it."""
    return hashlib.sha3_256(node.sign(MARK + bytes(portal))).digest()


def input_hash(salt: bytes, dataset: DatasetId) -> str:
    """Returns the hash that stands for the private dataset in the rule."""
    return str(Multihash.sha3_256(b"odfd portal input\n" + salt + bytes(dataset)))


def cut_hash(salt: bytes, dataset: DatasetId, block: Block) -> str:
    """Returns the hash that a block of the portal has of the private dataset, which was read up to this block."""
    number = block.sequence_number.to_bytes(8)
    return str(Multihash.sha3_256(b"odfd portal cut\n" + salt + bytes(dataset) + number + bytes(block.hash)))


def state_at(salt: bytes, dataset: DatasetId, block: Block) -> SourceState:
    return SourceState(source_name="portal", kind=PORTAL, value=cut_hash(salt, dataset, block))


def cut_of(event: object) -> str | None:
    """Returns the hash in a portal's block of how far the private dataset was read; ``None`` if it has none."""
    state = event.new_source_state if isinstance(event, AddData) else None
    return state.value if state is not None and state.kind == PORTAL else None


def blocks_since(salt: bytes, dataset: DatasetId, chain: ChainReader, cut: str | None) -> Iterator[Block]:
    """Yields the blocks of data after the cut, newest first, reading only these.

    Raises Invalid if the cut is missing.
    """
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
    """Returns the event of a block if it brings rows, else ``None``."""
    event = block.event
    return event if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None else None


def opening_text(portal: DatasetId, dataset: DatasetId, salt: bytes) -> bytes:
    found = Opening(type=OPENING, portal=str(portal), input=str(dataset), salt=salt.hex())
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def read_opening(text: bytes, portal: DatasetId) -> tuple[DatasetId, bytes]:
    """Decodes an opening: returns the private dataset and the salt. Raises Invalid."""
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
