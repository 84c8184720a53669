"""Remembers signed heads that broke a rule, so that their blocks are not fetched again and again. In memory.

The same tree would break the same rule: it is not looked at again. What is signed after it, in the same epoch, goes on
from the block that was wrong, or so it is likely: the first such head is looked at, and then others after pauses that
double, however fast the publisher signs. Another epoch, and other terms of the mirror, are looked at at once.
"""

from __future__ import annotations

from typing import Final

import msgspec
from cachetools import FIFOCache

from chain.backoff import Backoff
from chain.errors import Fault
from chain.ids import DatasetId
from chain.statements.statement import HeadStatement
from odfd.mirrors.mirror_spec import MirrorSpec

PAUSES: Final = Backoff(first=60.0, most=86400.0)
"""Seconds before another head of an epoch is looked at, from the second refusal on."""
MOST: Final = 4096


class _Refusal(msgspec.Struct, frozen=True):
    spec: MirrorSpec
    epoch: int
    root: bytes
    fault: Fault
    until: float
    times: int


class DeclinedHeads:
    """The declined heads of one node. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._of: FIFOCache[DatasetId, _Refusal] = FIFOCache(MOST)

    def note(self, spec: MirrorSpec, head: HeadStatement, fault: Fault, now: float) -> None:
        """What was signed breaks a rule, or a limit of this mirror."""
        before = self._known(spec, head)
        times = 1 if before is None else before.times + 1
        until = now + (PAUSES.whole(times - 1) if times > 1 else 0.0)
        self._of[spec.id] = _Refusal(spec, head.epoch, head.root_hash, fault, until, times)

    def why(self, spec: MirrorSpec, head: HeadStatement, now: float) -> Fault | None:
        """Why a head is not to be looked at now; ``None`` when it is."""
        known = self._known(spec, head)
        rests = known is not None and (head.root_hash == known.root or now < known.until)
        return known.fault if known is not None and rests else None

    def forget(self, dataset: DatasetId) -> None:
        """What was signed is here, and broke no rule."""
        self._of.pop(dataset, None)

    def _known(self, spec: MirrorSpec, head: HeadStatement) -> _Refusal | None:
        known = self._of.get(spec.id)
        return known if known is not None and (known.spec, known.epoch) == (spec, head.epoch) else None
