"""How far a mirror has come, for people; changes while a pass runs."""

from __future__ import annotations

import msgspec


class MirrorProgress(msgspec.Struct):
    """See the module."""

    blocks: int = 0
    blocks_wanted: int = 0
    slices: int = 0
    slices_wanted: int = 0
    bytes: int = 0
    bytes_wanted: int = 0

    def progress(self) -> tuple[int, int, int]:
        return self.blocks, self.slices, self.bytes
