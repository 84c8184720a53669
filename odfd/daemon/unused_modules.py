"""Keeps modules that libraries load where they are installed, and a daemon never uses, out of its memory."""

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
"""Each is imported within ``try`` by the library named here, which does without it."""


@contextmanager
def lean_imports() -> Iterator[None]:
    """Keeps imports within the block from loading any of them, and NumPy for flatbuffers."""
    with kept_out(UNUSED):
        import_flatbuffers()
        yield
