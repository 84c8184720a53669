"""The line of a record is found by reading up to it: inference asks for as many as it looks at, in any file."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from engines.spark.ingest.records import line_of_row


@given(st.lists(st.sampled_from([b"{}", b"", b"  ", b"\r", b'{"a": 1}'])), st.booleans())
def test_a_record_is_on_the_line_that_holds_it(lines: list[bytes], ends: bool) -> None:
    data = b"\n".join(lines) + (b"\n" if ends else b"")
    places = [number for number, line in enumerate(lines, 1) if line.strip()]
    assert [line_of_row(data, row) for row in range(len(places))] == places


class Watched(bytes):
    """Counts the lines that are looked at."""

    looked = 0

    def find(self, *args: Any) -> int:
        type(self).looked += 1
        return super().find(*args)

    def split(self, *_: Any) -> Any:
        raise AssertionError("all of the file is cut into lines for one of them")


def test_what_lies_behind_a_record_is_not_read() -> None:
    data = Watched(b"{}\n" * 10_000)
    assert [line_of_row(data, row) for row in (0, 10, 99)] == [1, 11, 100]
    assert Watched.looked <= 1 + 11 + 100
