"""Keeps modules out of a daemon's memory that libraries load if they are installed, and that it never uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from chain.libraries import import_flatbuffers, kept_out

UNUSED: Final = (
    "httpx._main",  # the command line of httpx, with click, rich and pygments
    "rich",  # structlog would print traces of exceptions with it: our log's are one line
    "greenlet",  # structlog would keep contexts by its threads, and ours are of trio
)
"""The libraries named here import these within ``try``, and work without them."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Prevents imports within the block from loading the unused modules, and NumPy for flatbuffers."""
    with kept_out(UNUSED):
        import_flatbuffers()
        yield
