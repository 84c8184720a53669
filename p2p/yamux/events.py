"""Defines the events that a session reports to its driver: a closed union of frozen values."""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias

import msgspec


class ResetReason(enum.Enum):
    """Why a stream ended before its time; the value is for people."""

    BY_PEER = "reset by the peer"
    BY_US = "reset by this node"
    STALLED = "the peer took no data for too long"
    OVERLOAD = "too many unread bytes on this connection"


class StreamOpened(msgspec.Struct, frozen=True):
    """The peer opened a stream: it waits in ``Session.accept``."""

    stream: int


class Readable(msgspec.Struct, frozen=True):
    """Bytes, or the end of them, are there to be read."""

    stream: int


class WasReset(msgspec.Struct, frozen=True):
    """The stream is gone in both directions; unread and unsent bytes are dropped."""

    stream: int
    reason: ResetReason


class Pong(msgspec.Struct, frozen=True):
    """The peer answered our ping after ``rtt`` seconds."""

    rtt: float


class GoneAway(msgspec.Struct, frozen=True):
    """The peer takes no new streams; those that are open go on."""

    code: int


Event: TypeAlias = StreamOpened | Readable | WasReset | Pong | GoneAway


class Outgoing(msgspec.Struct, frozen=True):
    """What to send now, and whose buffers that emptied."""

    messages: list[bytes | memoryview]
    """Whole frames, in messages of at most ``Limits.max_message`` bytes, to be sent in this order.

    Large bodies are still in their writers' buffers: seal them before anybody else may run.
    """
    drained: list[int]
    """Streams all of whose handed-over bytes are now in ``messages``."""


class Received(NamedTuple):
    """What came of some bytes, how many of them were taken, and of how many frames."""

    events: list[Event]
    taken: int
    frames: int
