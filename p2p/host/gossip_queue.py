"""Bounds in bytes what gossip keeps for others: frames for a slow peer, and messages that are asked for again."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from libp2p.pubsub.mcache import MessageCache
from libp2p.pubsub.rpc_queue import RpcQueue

MAX_FRAMES: Final = 256
"""Frames waiting for one slow peer. py-libp2p holds 32 and drops the next without a word."""
MAX_QUEUE: Final = 1 << 20
"""Bytes of them: a thousand heads. Counted in frames alone, a peer that reads nothing held 256 MiB."""
MAX_RECENT: Final = 16 << 20
"""Bytes of messages kept to be asked for again, of all topics."""
MAX_AGAIN: Final = 3
"""Times that one peer is given one message that it asks for, as in Go."""


class BoundedQueue(RpcQueue):  # type: ignore[misc]
    """Frames for one peer; what does not fit is refused, and the router drops it."""

    def __init__(self) -> None:
        super().__init__(MAX_FRAMES)
        self._held = 0

    def push(self, rpc: Any, priority: bool = False) -> bool:
        size = rpc.ByteSize()
        if self._held + size > MAX_QUEUE or not super().push(rpc, priority):
            return False
        self._held += size
        return True

    async def pop(self) -> Any:
        rpc = await super().pop()
        if rpc is not None:
            self._held -= rpc.ByteSize()
        return rpc


class RecentMessages(MessageCache):  # type: ignore[misc]
    """The messages of the last heartbeats, to be given to whoever asks for one by name."""

    def __init__(self, window: int, history: int) -> None:
        super().__init__(window, history)
        self._held = 0
        self._given: dict[bytes, Counter[Any]] = {}

    def put(self, msg: Any) -> None:
        """A message for which there is no room is not given again."""
        count, size = len(self.msgs), msg.ByteSize()
        if self._held + size <= MAX_RECENT:
            super().put(msg)
            self._held += size * (len(self.msgs) - count)

    def give(self, name: bytes, peer: Any) -> Any | None:
        """The message, unless it is gone, or the peer was given it often enough."""
        found = self.msgs.get(name)
        given = self._given.setdefault(name, Counter()) if found is not None else Counter()
        given[peer] += 1
        return found if given[peer] <= MAX_AGAIN else None

    def shift(self) -> None:
        super().shift()
        self._held = sum(msg.ByteSize() for msg in self.msgs.values())
        self._given = {name: given for name, given in self._given.items() if name in self.msgs}
