"""Sends proposals to the commit point of their shards at another node, and answers proposals made to this node.

One stream carries one proposal. The node that has the commit point asks for objects that it lacks on the same stream,
and the proposer gives only objects that its proposal names. A lost answer does no harm: the proposer asks again, and is
told that the same is stored already. Spec: docs/spec/collections.md#propose.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import trio

from chain.errors import Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.model.block import objects_of
from chain.multihash import Multihash
from chain.store.shards import Outcome, Proposal, Shard
from p2p.budget.work import STATEMENT
from p2p.driver.containment import contained
from p2p.driver.framing import FramedStream
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import PeerFault, StreamBroken, TooSlow, Violation
from p2p.ports import PeerId
from p2p.wire.propose import (
    MAX_PIECE,
    MAX_PROPOSE,
    PROPOSE_PROTOCOL,
    Answer,
    Kind,
    RefusedProposal,
    Wanted,
    decode_answer,
    decode_ask,
    decode_data,
    decode_propose,
    encode_ask,
    encode_data,
    encode_outcomes,
    encode_propose,
    encode_refused,
    encode_shards,
    encode_want,
)

PATIENCE: Final = 60.0
"""Seconds for each message of the other side, and for the commit."""
TOGETHER: Final = 4
"""Proposals that are handled at a time."""
Pieces = AsyncGenerator[bytes, None]
Fetch = Callable[[Multihash, int], Pieces]
"""Fetches the bytes of an object of a given size from the proposer."""
ReadPiece = Callable[[Multihash, int, int], bytes]
"""Reads bytes of an object from an offset on, at most so many, in a worker thread. Raises NotFound."""


class CommitPointPort(Protocol):
    """The commit point of a node, as used by other nodes."""

    async def shards(self, peer: PeerId, datasets: Sequence[DatasetId]) -> Sequence[Shard]:
        """Returns heads and uppers of shards. Raises Refused for shards that the peer may not append to."""

    async def append(self, peer: PeerId, proposals: Sequence[Proposal], fetch: Fetch) -> Sequence[Outcome]:
        """Compares and appends. Raises Refused as ``shards``,
        Invalid for what no shard could take, Conflict, Environment."""


class ProposalDesk:
    """Sends and answers proposals for one node. ``point`` decides here; ``None``: this node takes no proposals."""

    def __init__(self, host: HostPort, point: CommitPointPort | None = None) -> None:
        self._host, self.point = host, point
        self._turns = trio.CapacityLimiter(TOGETHER)

    def join(self) -> None:
        self._host.set_handler(PROPOSE_PROTOCOL, self._accept)

    async def shards(self, peer: PeerId, datasets: Sequence[DatasetId]) -> Sequence[Shard]:
        """Asks a connected peer for heads and uppers of shards.
        Raises PeerFault, and the refusal of the commit point."""
        found = await self._asked(peer, encode_ask(datasets), {}, _nothing)
        if len(found) != len(datasets) or not all(isinstance(each, Shard) for each in found):
            raise Violation(peer, "its answer is not about the shards that were asked for", rule="propose-answer")
        return [each for each in found if isinstance(each, Shard)]

    async def append(self, peer: PeerId, proposals: Sequence[Proposal], read: ReadPiece) -> Sequence[Outcome]:
        """Proposes blocks to a connected peer. ``read`` reads objects that proposals name. Raises as ``shards``."""
        named = {name: size for each in proposals for block in each.blocks for name, size in objects_of(block)}
        found = await self._asked(peer, encode_propose(proposals), named, read)
        outcomes = [each for each in found if not isinstance(each, Shard)]
        if len(outcomes) != len(proposals):
            raise Violation(peer, "its answer is not about the proposals that were made", rule="propose-answer")
        return outcomes

    async def _asked(
        self, peer: PeerId, body: bytes, named: dict[Multihash, int], read: ReadPiece
    ) -> tuple[Outcome, ...] | tuple[Shard, ...]:
        stream = await self._host.open_stream(peer, PROPOSE_PROTOCOL)
        try:
            framed = FramedStream(stream, peer, MAX_PROPOSE)
            await framed.write(body)
            for _ in range(1 + len(named)):
                answer = await _answer(framed)
                if isinstance(answer, RefusedProposal):
                    raise answer.fault
                if not isinstance(answer, Wanted):
                    return answer
                if named.get(answer.name) != answer.size:
                    raise Violation(peer, "it wants an object that was not named", rule="propose-answer")
                await _give(framed, answer, read)
            raise Violation(peer, "it wants more objects than were named", rule="propose-answer")
        finally:
            await _let_go(stream)

    async def _accept(self, stream: StreamPort, peer: PeerId) -> None:
        try:
            await contained(self._serve, stream, peer)
        finally:
            await _let_go(stream)

    async def _serve(self, stream: StreamPort, peer: PeerId) -> None:
        framed = FramedStream(stream, peer, MAX_PROPOSE)
        body = await _read(framed)
        if body is None:
            return
        await trio.sleep(self._host.charge(peer, STATEMENT))
        async with self._turns:
            try:
                answer = await self._answered(peer, body, framed)
            except PeerFault:
                raise
            except Fault as fault:
                answer = encode_refused(fault)
            await framed.write(answer)
            await stream.send_eof()
        with trio.move_on_after(PATIENCE):
            await stream.receive_some(1)  # until it has read the answer

    async def _answered(self, peer: PeerId, body: bytes, framed: FramedStream) -> bytes:
        if self.point is None:
            raise Refused("this node takes no proposals", rule="propose", hint="ask the node that writes the dataset")
        try:
            asked = body[:1] == bytes([Kind.ASK])
            datasets, proposals = (decode_ask(body), []) if asked else ([], decode_propose(body))
        except Invalid as error:
            raise Violation(peer, error.message, rule=error.rule, hint=error.hint) from error
        if asked:
            return encode_shards(await self.point.shards(peer, datasets))
        outcomes = await self.point.append(peer, proposals, lambda name, size: _fetched(framed, name, size))
        return encode_outcomes(outcomes)


async def _fetched(framed: FramedStream, name: Multihash, size: int) -> Pieces:
    """Asks for an object and yields its pieces. Raises Violation if it has another size, StreamBroken, TooSlow."""
    await framed.write(encode_want(Wanted(name, size)))
    left = size
    while True:
        body = await _read(framed)
        if body is None:
            raise StreamBroken(framed.peer, "it ended the stream within an object", rule="propose-object")
        try:
            piece = decode_data(body)
        except Invalid as error:
            raise Violation(framed.peer, error.message, rule=error.rule) from error
        left -= len(piece)
        if left < 0 or (not piece and left):
            raise Violation(framed.peer, f"it gave an object of another size than {size}", rule="propose-object")
        if not piece:
            return
        yield piece


async def _give(framed: FramedStream, wanted: Wanted, read: ReadPiece) -> None:
    offset = 0
    while offset < wanted.size:
        try:
            piece = await trio.to_thread.run_sync(read, wanted.name, offset, MAX_PIECE)
        except NotFound as error:
            raise Invalid(
                f"object {wanted.name.short} is not here",
                rule="object-missing",
                hint="objects come before the blocks that name them",
            ) from error
        if not piece:
            raise Invalid(f"object {wanted.name.short} has fewer bytes than its block says", rule="object-size")
        await framed.write(encode_data(piece))
        offset += len(piece)
    await framed.write(encode_data(b""))


async def _answer(framed: FramedStream) -> Answer:
    body = await _read(framed)
    if body is None:
        raise StreamBroken(framed.peer, "it ended the stream without an answer", rule="propose-answer")
    try:
        return decode_answer(body)
    except Invalid as error:
        raise Violation(framed.peer, error.message, rule=error.rule, hint=error.hint) from error


async def _read(framed: FramedStream) -> bytes | None:
    with trio.move_on_after(PATIENCE):
        return await framed.read()
    raise TooSlow(framed.peer, f"no message within {PATIENCE:g} s", rule="propose-patience")


async def _let_go(stream: StreamPort) -> None:
    with trio.CancelScope(shield=True), trio.move_on_after(1.0), suppress(PeerFault, trio.ClosedResourceError):
        await stream.reset()


def _nothing(name: Multihash, offset: int, most: int) -> bytes:  # noqa: ARG001
    raise Invalid("no object was named", rule="propose-answer")
