"""Small messages skip an idle writer: whole and in order whatever the socket takes of them, and told when it breaks."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from p2p.errors import StreamBroken
from p2p.host import noise


def every_other() -> Callable[[int, bytes], int]:
    """A socket that takes nothing, and then what it is offered again."""
    answers = itertools.cycle([False, True])

    def write(fd: int, data: bytes) -> int:
        if next(answers):
            return os.write(fd, data)
        raise BlockingIOError

    return write


def seven(fd: int, data: bytes) -> int:
    return os.write(fd, bytes(data)[:7])


def gone(fd: int, data: bytes) -> int:
    raise BrokenPipeError("the other side is gone")


@pytest.fixture
def socket_takes(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[int]]:
    """``socket_takes(write)``: sizes of what was offered to it from then on."""

    def take(write: Any) -> list[int]:
        offered: list[int] = []

        def watched(fd: int, data: bytes) -> int:
            offered.append(len(data))
            taken: int = write(fd, data)
            return taken

        monkeypatch.setattr(noise, "os", SimpleNamespace(write=watched, readv=os.readv))
        return offered

    return take


@pytest.mark.slow
@pytest.mark.parametrize("write", [os.write, seven, every_other()])
async def test_messages_arrive_whole_and_in_order(
    write: Any, pair: Any, reading: Any, socket_takes: Callable[[Any], list[int]]
) -> None:
    streams = [await pair.stream() for _ in range(4)]
    offered = socket_takes(write)

    async def talk(stream: Any, mark: int) -> None:
        for number in range(50):
            message = bytes([mark]) * (1 + number * 41 % 3000) + number.to_bytes(4, "big")
            await stream.send_all(message)
            assert await reading(stream, len(message)) == message

    async with trio.open_nursery() as nursery:
        for mark, stream in enumerate(streams):
            nursery.start_soon(talk, stream, mark)
    assert offered, "no message was small enough"
    for stream in streams:
        await stream.aclose()


async def test_a_message_beyond_the_credit_waits_for_it(pair: Any, reading: Any) -> None:
    stream, message = await pair.stream(), b"m" * 3_000
    count = 2 + 2 * (256 << 10) // len(message)
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            for _ in range(count):
                await stream.send_all(message)

        nursery.start_soon(send)
        assert await reading(stream, count * len(message)) == message * count
    await stream.aclose()


async def test_a_socket_that_broke_is_told_to_the_writer(pair: Any, socket_takes: Callable[[Any], list[int]]) -> None:
    stream = await pair.stream()
    socket_takes(gone)
    with pytest.raises(StreamBroken, match="gone"):
        await stream.send_all(b"anybody?")
    with pytest.raises(StreamBroken):
        await stream.receive_some(1)
    await stream.aclose()
