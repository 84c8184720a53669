"""Picks the steps that a node re-runs when it does not re-run all: a share, chosen by a secret.

A pick depends on the secret and the block alone, so that restarts pick alike and waiting changes nothing. The publisher
does not know the secret, and cannot predict which nodes will re-run a block. Spec: docs/spec/trust.md#policy.
"""

from __future__ import annotations

import hashlib
import hmac

import msgspec

from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.keys import SigningKey
from chain.store.base import ChainReader
from chain.walk import newest_first
from odfd.trust.transform_steps import STEP

MARK = b"odfd-spot-check\n"
"""What the secret is made of; no statement, checkpoint or record begins so, and the signature never leaves."""
_ALL = 1 << 64


class _Memo(msgspec.Struct, frozen=True):
    size: int
    last: Multihash
    """The block before ``size``."""
    share: float
    picked: int | None


class Sample:
    """The picks of one node; remembers how far it looked."""

    def __init__(self, key: SigningKey) -> None:
        self._secret = hashlib.sha3_256(key.sign(MARK)).digest()
        self._memos: dict[DatasetId, _Memo] = {}

    def is_picked(self, block: Multihash, share: float) -> bool:
        drawn = hmac.digest(self._secret, bytes(block), "sha3_256")
        return int.from_bytes(drawn[:8]) < share * _ALL

    def last(self, chain: ChainReader, dataset: DatasetId, size: int, share: float) -> int | None:
        """The last picked step of the first ``size`` blocks; costs the steps that came since it was asked before."""
        if size < 1:
            return None
        memo = self._memos.get(dataset)
        if memo is None or memo.share != share or memo.size > size or chain.block_at(memo.size - 1).hash != memo.last:
            memo = None
        start, picked = (0, None) if memo is None else (memo.size, memo.picked)
        for block in newest_first(chain, STEP, size):
            if block.sequence_number < start:
                break
            if self.is_picked(block.hash, share):
                picked = block.sequence_number
                break
        self._memos[dataset] = _Memo(size, chain.block_at(size - 1).hash, share, picked)
        return picked
