"""Redeems invitation tokens: asks the node that made one, and answers nodes that show a token of this node.

Made with the host (``node_reach``), because a joining node may not be in any network yet that this node knows of.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeAlias

import trio

from chain.errors import Fault, Invalid
from p2p.budget.buckets import Budget, Rate
from p2p.budget.work import STATEMENT
from p2p.driver.framing import FramedStream
from p2p.driver.inbound import contain
from p2p.driver.ports import HostPort, StreamPort
from p2p.errors import Misbehaviour, PeerFault, StreamBroken, TooSlow
from p2p.ports import PeerId
from p2p.wire.invite import (
    INVITE_PROTOCOL,
    MAX_INVITE_MESSAGE,
    Redemption,
    decode_redeem,
    decode_redemption,
    encode_redeem,
    encode_redemption,
)

PATIENCE: Final = 10.0
"""Seconds for one question and its answer."""
OF_ONE: Final = Rate(per_second=1 / 10, burst=8.0)
"""Questions of one peer that are looked up."""
OF_ALL: Final = Rate(per_second=10.0, burst=100.0)
"""Questions of all peers together; each costs a database query."""
Redeem: TypeAlias = Callable[[PeerId, bytes], Redemption]
"""Decides about a token in a worker thread; has stored the decision when it returns."""


class InvitationDesk:
    """Redeems and serves invitation tokens for one node."""

    def __init__(self, host: HostPort, redeem: Redeem) -> None:
        self._host, self._redeem = host, redeem
        self._of_one, self._of_all = Budget[PeerId](OF_ONE), Budget[None](OF_ALL)

    def join(self) -> None:
        self._host.set_handler(INVITE_PROTOCOL, self._accept)

    async def ask(self, peer: PeerId, token: bytes) -> Redemption:
        """Redeems a token at the connected peer that made it. Raises PeerFault."""
        with trio.move_on_after(PATIENCE):
            stream = await self._host.open_stream(peer, INVITE_PROTOCOL)
            try:
                framed = FramedStream(stream, peer, MAX_INVITE_MESSAGE)
                await framed.write(encode_redeem(token))
                body = await framed.read()
                if body is None:
                    raise StreamBroken(peer, "it ended the stream without an answer", rule="invite-answer")
                return decode_redemption(body)
            except Invalid as error:
                raise Misbehaviour(peer, error.message, rule=error.rule, hint=error.hint) from error
            finally:
                await _let_go(stream)
        raise TooSlow(peer, f"no answer within {PATIENCE:g} s", rule="invite-patience")

    async def _accept(self, stream: StreamPort, peer: PeerId) -> None:
        try:
            await contain(self._serve, stream, peer)
        finally:
            await _let_go(stream)

    async def _serve(self, stream: StreamPort, peer: PeerId) -> None:
        with trio.move_on_after(PATIENCE):
            framed = FramedStream(stream, peer, MAX_INVITE_MESSAGE)
            body = await framed.read()
            if body is None:
                return
            try:
                token = decode_redeem(body)
            except Invalid as error:
                raise Misbehaviour(peer, error.message, rule=error.rule, hint=error.hint) from error
            await trio.sleep(self._host.charge(peer, STATEMENT))
            await framed.write(encode_redemption(await self._outcome(peer, token)))
            await stream.send_eof()
            await stream.receive_some(1)  # until it has read the answer

    async def _outcome(self, peer: PeerId, token: bytes) -> Redemption:
        now = trio.current_time()
        if not self._of_one.spend(peer, now) or not self._of_all.spend(None, now):
            return Redemption.BUSY
        try:
            return await trio.to_thread.run_sync(self._redeem, peer, token)
        except Fault:
            # A fault of this node is no verdict on the token: the joiner asks again.
            return Redemption.BUSY


async def _let_go(stream: StreamPort) -> None:
    with trio.CancelScope(shield=True), trio.move_on_after(1.0), suppress(PeerFault, trio.ClosedResourceError):
        await stream.reset()
