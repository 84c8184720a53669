"""Defines the values about engines that chains pin and that are not here."""

from __future__ import annotations

from typing import Final

from odfd.control.wire.value import Value

ENGINE_NOT_HERE: Final = "engine-not-here"
"""Rule of failures that say only that a block's engine is not here; what the block says may be true."""
_SHOWN: Final = 19


class UnheldPin(Value, frozen=True, kw_only=True):
    """Blocks of transforms that no listed validator ran again on the engine that they pin, as it is not here."""

    first: int
    last: int
    digest: str | None = None
    """The pinned digest; ``None``: they pin none."""

    @property
    def text(self) -> str:
        blocks = f"#{self.first}" if self.first == self.last else f"#{self.first}-#{self.last}"
        if self.digest is None:
            return f"{blocks} pinned to no engine: no verdict is possible"
        return f"{blocks} pinned to {_short(self.digest)}: this engine is not available"


def _short(digest: str) -> str:
    return digest if len(digest) <= _SHOWN else f"{digest[:_SHOWN]}…"
