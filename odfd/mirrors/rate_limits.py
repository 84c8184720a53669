"""Limits how fast single mirrors download, below the node's own limit."""

from __future__ import annotations

from chain.ids import DatasetId
from odfd.mirrors.mirror_spec import MirrorSpec
from odfd.mirrors.retention import parse_rate
from p2p.pace import Pace


class RateLimits:
    """One for each dataset with a cap; it outlives passes, so that many small ones keep it too."""

    def __init__(self) -> None:
        self._by_dataset: dict[DatasetId, Pace] = {}

    def of(self, spec: MirrorSpec | None) -> Pace | None:
        """``None``: no cap of its own. A cap that was changed holds for what is under way too."""
        if spec is None:
            return None
        if spec.rate is None:
            freed = self._by_dataset.pop(spec.id, None)
            if freed is not None:
                freed.rate = 0
            return None
        pace = self._by_dataset.setdefault(spec.id, Pace())
        pace.rate = parse_rate(spec.rate)
        return pace
