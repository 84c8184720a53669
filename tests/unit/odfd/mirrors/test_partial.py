"""Objects on their way: what came stays over a restart, and what is another object goes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chain.errors import Invalid
from chain.multihash import Multihash
from odfd.mirrors.sinks import PartialObject
from odfd.store.directory import open_state_directory

WHOLE = os.urandom(300_000)
NAME = Multihash.sha3_256(WHOLE)
PART = 10_000


def fill(sink: PartialObject, until: int) -> None:
    while sink.received < until:
        sink.write(memoryview(WHOLE)[sink.received : sink.received + PART])


def test_what_came_stays_and_is_gone_on_with(tmp_path: Path) -> None:
    with open_state_directory(tmp_path) as home:
        first = PartialObject(tmp_path, home.objects, NAME)
        fill(first, 170_000)
        first.close()
        second = PartialObject(tmp_path, home.objects, NAME)
        assert second.received == 170_000
        fill(second, len(WHOLE))
        second.finish()
        assert home.objects.read(NAME) == WHOLE
        assert not (tmp_path / str(NAME)).exists()


def test_bytes_that_are_another_object_are_gone(tmp_path: Path) -> None:
    other = Multihash.sha3_256(b"another")
    with open_state_directory(tmp_path) as home:
        sink = PartialObject(tmp_path, home.objects, other)
        fill(sink, len(WHOLE))
        with pytest.raises(Invalid, match="the bytes hash to"):
            sink.finish()
        assert sink.received == 0
        sink.write(b"another")
        sink.finish()
        assert home.objects.read(other) == b"another"
