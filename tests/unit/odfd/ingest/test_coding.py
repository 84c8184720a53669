"""Content codings are undone in proportion to what came, whatever a server packed into it."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Refused
from odfd.ingest.fetch.url import ContentDecoder

EMPTY = gzip.compress(b"")
RATIO = 250


class Stop(Exception):
    pass


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


@given(st.lists(st.binary(max_size=300), max_size=8), st.integers(1, 70_000), st.sampled_from(["gzip", "gzip, gzip"]))
def test_how_it_comes_changes_nothing(parts: list[bytes], size: int, header: str) -> None:
    packed = b"".join(map(gzip.compress, parts))
    if header != "gzip":
        packed = gzip.compress(packed)
    undoing = ContentDecoder(header, "u", RATIO)
    assert b"".join(part for piece in pieces(packed, size) for part in undoing.feed(piece)) == b"".join(parts)
    undoing.finish()


@pytest.mark.slow
def test_members_that_hold_nothing_cost_what_they_weigh(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that lay behind a member was copied for the next one: a mebibyte held a core for seconds."""
    looked_at, real = 0, zlib.decompressobj

    class Counted:
        def __init__(self, window: int) -> None:
            self._real = real(window)

        def decompress(self, data: bytes, most: int) -> bytes:
            nonlocal looked_at
            looked_at += len(data)
            return self._real.decompress(data, most)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

    monkeypatch.setattr(zlib, "decompressobj", Counted)

    def cost(members: int) -> int:
        nonlocal looked_at
        looked_at = 0
        assert list(ContentDecoder("gzip", "u", RATIO).feed(EMPTY * members)) == []
        return looked_at

    assert cost(20_000) < 2.5 * cost(10_000)


@pytest.mark.slow
@pytest.mark.parametrize("last", [EMPTY * 1000, gzip.compress(bytes(1 << 20))])
def test_packings_in_one_another_keep_to_what_came(last: bytes) -> None:
    """Some kilobytes that would unpack to gigabytes on the way, also where nothing comes out behind the last coding."""
    bomb = gzip.compress(gzip.compress(last * 2000))
    with pytest.raises(Refused, match="unpacks to more than 250 times") as told:
        for _ in ContentDecoder("gzip, gzip, gzip", "u", RATIO).feed(bomb):
            pass
    assert told.value.rule == "unpack-ratio"


def test_a_check_stops_it_also_where_nothing_comes_out() -> None:
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks > 3:
            raise Stop

    with pytest.raises(Stop):
        list(ContentDecoder("gzip", "u", RATIO, check).feed(EMPTY * 10_000))
