"""Records how far a mirror has come, to be shown to people while a pass runs."""

from __future__ import annotations

import msgspec


class MirrorProgress(msgspec.Struct):
    """The progress of one mirror's pass."""

    blocks: int = 0
    blocks_wanted: int = 0
    slices: int = 0
    slices_wanted: int = 0
    slices_uncounted: int = 0
    """Those of ``slices`` that are not yet counted among the held ones."""
    bytes: int = 0
    bytes_wanted: int = 0
    ahead: int = 0
    """Bytes that came out of order, from mirrors that fetch the same, and are not yet counted."""

    @property
    def bytes_here(self) -> int:
        return max(self.bytes, self.ahead)

    def progress(self) -> tuple[int, int, int]:
        return self.blocks, self.slices, self.bytes_here
