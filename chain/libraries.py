"""Gives Arrow and NumPy to code that works with rows, and imports each when its first attribute is read.

Without both an idle node takes a third less memory and starts in a third less time; signing, gossip and answers about
heads need neither. ``load`` imports all of them; call it in a thread if an event loop must not stop.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

__all__ = ["are_loaded", "import_flatbuffers", "kept_out", "load", "np", "pa", "pc", "pq"]

_SHORT: Final = {"np": "numpy", "pa": "pyarrow", "pc": "pyarrow.compute", "pq": "pyarrow.parquet"}
_UNUSED: Final = ("pyarrow._azurefs", "pyarrow._gcsfs", "pyarrow._hdfs", "pyarrow._s3fs")
"""Modules that Arrow imports within ``try``, and nothing here uses: obstore reads buckets, and nothing is in HDFS."""
_hiding: Final = threading.RLock()  # what one hides, another may hide more of on the way


class _OnFirstUse(ModuleType):
    """Stands for a library. An attribute that was read is kept, and then costs as much as one of the library itself."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # introspection reads such names of every module
            raise AttributeError(name)
        found = getattr(_imported(self.__name__), name)
        setattr(self, name, found)
        return found


def load() -> None:
    """Imports all of them. Takes half a second, once; safe in any thread."""
    for name in _SHORT.values():
        _imported(name)


def are_loaded() -> bool:
    """Whether ``load`` has nothing left to do."""
    return all(name in sys.modules for name in _SHORT.values())


def import_flatbuffers() -> None:
    """Imports flatbuffers with a stand-in for NumPy, which it would import although our codecs use no arrays of it.

    To be called when a process starts, before it has threads.
    """
    if "numpy" in sys.modules:
        return
    sys.modules["numpy"] = np
    try:
        import flatbuffers  # noqa: F401
    finally:
        del sys.modules["numpy"]


@contextmanager
def kept_out(names: Iterable[str]) -> Iterator[None]:
    """Prevents, within the context, the import of those modules of ``names`` that are not loaded yet.

    One thread at a time: another that entered meanwhile would find them hidden already, and import them once this one
    has admitted them again.
    """
    modules = cast(dict[str, Any], sys.modules)
    with _hiding:
        hidden = [name for name in names if name not in modules]
        modules.update(dict.fromkeys(hidden))
        try:
            yield
        finally:
            for name in hidden:
                if modules.get(name, modules) is None:
                    del modules[name]


def _imported(name: str) -> ModuleType:
    """Imports a library by a literal statement, so that readers and tools find the dependency without running it."""
    with kept_out(_UNUSED):
        match name:
            case "numpy":
                import numpy  # noqa: F401
            case "pyarrow":
                import pyarrow
            case "pyarrow.compute":
                import pyarrow.compute
            case _:
                import pyarrow.parquet  # noqa: F401
    return sys.modules[name]


if not TYPE_CHECKING:
    globals().update({short: _OnFirstUse(name) for short, name in _SHORT.items()})
