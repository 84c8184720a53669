"""Keeps modules out of a daemon's memory that libraries load if they are installed, and that it never uses."""

from __future__ import annotations

import sys
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


def refuse_pandas() -> None:
    """Makes each later import of pandas in this process fail, as if it were not installed.

    Arrow looks for types of pandas in the first argument of ``pa.array``, hours after the start, and 37 MiB stay.
    ``None`` in ``sys.modules``, by which ``kept_out`` works, is to Arrow's compiled import a module without a version.
    """
    sys.meta_path.insert(0, _NoPandas())


class _NoPandas:
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a daemon uses no pandas", name=fullname)
