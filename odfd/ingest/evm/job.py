"""Declares blocks and logs as a node sends them, the request to the decoding process, and a position. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Final, NamedTuple

import msgspec

from chain.errors import Invalid
from odfd.ingest.source_process import SourceJob, SourceResult

RULE: Final = "source-evm"
POSITION_RULE: Final = "evm-position"
_POSITION: Final = re.compile(r"(\d{1,18})@(?:0x)?([0-9a-f]{64})\Z")

Quantity = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{1,16}$")]
Hash = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{64}$")]
Address = Annotated[str, msgspec.Meta(pattern=r"^0x[0-9a-fA-F]{40}$")]
Data = Annotated[str, msgspec.Meta(pattern=r"^0x(?:[0-9a-fA-F]{2})*$")]


class EvmBlock(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a block that are used."""

    number: Quantity
    hash: Hash
    timestamp: Quantity


class EvmLog(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A log, as ``eth_getLogs`` returns it."""

    block_number: Quantity
    block_hash: Hash
    transaction_index: Quantity
    transaction_hash: Hash
    log_index: Quantity
    address: Address
    topics: Annotated[tuple[Hash, ...], msgspec.Meta(max_length=4)]
    data: Data
    removed: bool = False


class LogRow(msgspec.Struct, frozen=True, kw_only=True):
    """A log with the time of its block, in seconds since 1970."""

    log: EvmLog
    time: int


class DecodeJob(SourceJob, frozen=True, kw_only=True):
    """The request to write a Parquet file of the rows in the file ``rows``, a JSON list of ``LogRow``."""

    rows: str
    signature: str | None


class DecodeResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the decoding process."""

    rule: str = RULE


class BlockPosition(NamedTuple):
    """The last block whose logs were taken."""

    number: int
    hash: str

    def encode(self) -> str:
        return f"{self.number}@{self.hash}"


def decode_position(text: str) -> BlockPosition:
    """Decodes the position in a source state. Raises Invalid."""
    found = _POSITION.match(text)
    if found is None:
        raise Invalid("the chain's position in the blocks cannot be read", rule=POSITION_RULE)
    return BlockPosition(int(found[1]), f"0x{found[2]}")
