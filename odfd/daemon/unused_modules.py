"""Keeps modules that libraries load where they are installed, and a daemon never uses, out of its memory."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final, cast

UNUSED: Final = (
    "httpx._main",  # the command line of httpx, with click, rich and pygments
    "rich",  # structlog would print traces of exceptions with it: our log's are one line
    "pyarrow._azurefs",  # buckets are read by obstore, and nothing of ours is in HDFS
    "pyarrow._gcsfs",
    "pyarrow._hdfs",
    "pyarrow._s3fs",
    "greenlet",  # structlog would keep contexts by its threads, and ours are of trio
)
"""Each is imported within ``try`` by the library named here, which does without it."""


@contextmanager
def kept_out(names: Collection[str] = UNUSED) -> Iterator[None]:
    """Modules of ``names`` that are not loaded yet cannot be imported within; they can afterwards."""
    modules = cast(dict[str, Any], sys.modules)
    hidden = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]
