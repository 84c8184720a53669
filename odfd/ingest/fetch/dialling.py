"""Names the headers by which a server knows who asks: they are for the origin that they were meant for alone."""

from __future__ import annotations

from typing import Final

CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})
"""In lower case."""
