"""Lets msgspec learn all classes of values before there are threads.

It learns a class when one is first decoded, and calls Python meanwhile: another thread that decodes one of them then
sees it half learnt, and the process ends by signal 11 (msgspec 0.22).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import msgspec


def learn_struct_types() -> None:
    """Registers all loaded classes; 700 take 50 ms. Those that are never decoded may be beyond msgspec."""
    for kind in set(_below(msgspec.Struct)):
        with suppress(TypeError, NameError):
            msgspec.json.Decoder(kind)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)
