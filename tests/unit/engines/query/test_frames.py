"""Frames come out as they went in, however the bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid
from engines.query.frames import END, FAULT, HEAD, ROWS, AnswerFrameReader, frame

FRAMES = st.lists(st.tuples(st.sampled_from((HEAD, ROWS, END, FAULT)), st.binary(max_size=40)), max_size=8)


@given(FRAMES, st.integers(1, 17))
def test_frames_survive_any_cutting(frames: list[tuple[bytes, bytes]], step: int) -> None:
    data = b"".join(frame(kind, content) for kind, content in frames)
    reader = AnswerFrameReader()
    found = [each for start in range(0, len(data), step) for each in reader.feed(data[start : start + step])]
    assert found == frames


@pytest.mark.parametrize("data", [b"X\0\0\0\1a", b"A\xff\xff\xff\xff"])
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid):
        list(AnswerFrameReader().feed(data))
