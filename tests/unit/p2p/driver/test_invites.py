"""The desk of invitations: a token is redeemed by the peer that the connection proves, within bounds, to its end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from chain.errors import Environment
from p2p.driver.invites import OF_ALL, OF_ONE, PATIENCE, InvitationDesk
from p2p.errors import Misbehaviour, StreamBroken, TooSlow
from p2p.ports import PeerId
from p2p.wire.frames import frame
from p2p.wire.invite import INVITE_PROTOCOL, Redemption, encode_redeem

TOKEN = bytes(range(32))


class Two:
    """Who invites, and joiners that are connected with it."""

    def __init__(self, town: Any, joiners: int = 1) -> None:
        fabric = town.fabric
        self.asked: list[tuple[PeerId, bytes]] = []
        self.answer: Any = Redemption.ADMITTED
        self.inviter = fabric.host("alice")
        InvitationDesk(self.inviter, self._redeem).join()
        self.joiners = [fabric.host(f"joiner{number}") for number in range(joiners)]
        self.desks = [InvitationDesk(each, self._redeem) for each in self.joiners]
        for each in self.joiners:
            fabric.join(each, self.inviter)

    def _redeem(self, peer: PeerId, token: bytes) -> Redemption:
        self.asked.append((peer, token))
        if isinstance(self.answer, Exception):
            raise self.answer
        return Redemption(self.answer)

    async def ask(self, number: int = 0) -> Redemption:
        return await self.desks[number].ask(self.inviter.peer_id, TOKEN)


@pytest.mark.parametrize("outcome", Redemption)
async def test_each_outcome_is_told(outcome: Redemption, town: Any, autojump_clock: Any) -> None:
    two = Two(town)
    two.answer = outcome
    assert await two.ask() is outcome
    assert two.asked == [(two.joiners[0].peer_id, TOKEN)], "who asks is who is connected"


async def test_a_disk_that_fails_is_told_as_busy(town: Any, autojump_clock: Any) -> None:
    two = Two(town)
    two.answer = Environment("no space", rule="disk")
    assert await two.ask() is Redemption.BUSY


@pytest.mark.slow
async def test_tokens_are_not_guessed_at_any_speed(town: Any, autojump_clock: Any) -> None:
    """One peer has a budget, and so have all together: what is beyond it is not looked up."""
    two = Two(town, joiners=20)
    said = [await two.ask() for _ in range(30)]
    assert said.count(Redemption.ADMITTED) == len(two.asked) == OF_ONE.burst
    assert await two.ask(1) is Redemption.ADMITTED, "others have their own"
    for number in range(20):
        for _ in range(8):
            await two.ask(number)
    assert len(two.asked) <= OF_ALL.burst + OF_ALL.per_second * (trio.current_time() + 1)


async def ended(stream: Any) -> None:
    with suppress(StreamBroken):
        while await stream.receive_some(1):
            pass


async def test_who_says_nothing_or_too_much_is_let_go(town: Any, autojump_clock: Any) -> None:
    two = Two(town)
    for sent in (b"", frame(b"\x01" + bytes(31)), frame(b"\x02" + bytes(32)), b"\xff\xff\xff\xff" + bytes(64)):
        stream = await two.joiners[0].open_stream(two.inviter.peer_id, INVITE_PROTOCOL)
        if sent:
            await stream.send_all(sent)
        with trio.fail_after(PATIENCE + 1):
            await ended(stream)
    assert two.asked == []


async def test_an_answer_that_is_none_is_a_violation_and_silence_ends(town: Any, autojump_clock: Any) -> None:
    two = Two(town)
    answers: list[bytes] = [frame(b"\x81\x09"), frame(b"\x01\x00"), frame(encode_redeem(TOKEN))]

    async def lie(stream: Any, _peer: PeerId) -> None:
        if not answers:
            await trio.sleep_forever()
        await stream.send_all(answers.pop(0))

    two.inviter.set_handler(INVITE_PROTOCOL, lie)
    for _ in range(3):
        with pytest.raises(Misbehaviour):
            await two.ask()
    with pytest.raises(TooSlow):
        await two.ask()
