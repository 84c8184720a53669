"""Tokens of invitations: who is admitted, what a crash leaves, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Environment, Invalid, NotFound, Refused
from chain.instant import SECOND, Instant
from chain.statements.keys import SigningKey
from chain.store.database import Database, open_database
from odfd.network.invitation import Invitation, read_invitation, write_invitation
from odfd.store import invitation_tokens
from odfd.store.invitation_tokens import (
    KEPT_SECONDS,
    MAX_INVITATIONS,
    MAX_USES,
    InvitationTokens,
    IssuedInvitation,
    digest_of_token,
    redeem,
)
from p2p.identity import peer_of_did
from p2p.ports import PeerId
from p2p.wire.invite import Redemption, decode_redeem, decode_redemption, encode_redeem, encode_redemption
from worlds.statements import NOW, key

TOKEN = bytes(range(32))


def issued(uses: int = 1, seconds: int = 3600, token: bytes = TOKEN) -> IssuedInvitation:
    expires = Instant(NOW + seconds * SECOND)
    return IssuedInvitation(digest=digest_of_token(token), network="village", uses=uses, made=NOW, expires=expires)


def peer(number: int) -> PeerId:
    return peer_of_did(key(number).did)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path / "odfd.sqlite")) as opened:
        opened.migrate(invitation_tokens.ROOM, invitation_tokens.STEPS)
        yield opened


def redeem_in(database: Database, who: int, at: Instant = NOW, token: bytes = TOKEN, joined: Any = ("village",)) -> Any:
    with database.write() as connection:
        return InvitationTokens(connection).redeem(token, peer(who), joined, at)


def test_a_token_that_another_node_redeemed_is_refused(database: Database) -> None:
    with database.write() as connection:
        InvitationTokens(connection).issue(issued())
    assert redeem_in(database, 1) is Redemption.ADMITTED
    assert redeem_in(database, 2) is Redemption.USED, "a replay"
    assert redeem_in(database, 1) is Redemption.ADMITTED, "the same node may ask again"
    late = Instant(NOW + 7200 * SECOND)
    assert redeem_in(database, 1, late) is Redemption.ADMITTED, "it was admitted in time"
    assert redeem_in(database, 1, joined=("other",)) is Redemption.UNKNOWN, "the network was left"
    assert redeem_in(database, 1, token=bytes(32)) is Redemption.UNKNOWN
    with database.write() as connection:
        InvitationTokens(connection).revoke(issued().id[:3].upper())
    assert redeem_in(database, 1) is Redemption.REVOKED
    with database.read() as connection:
        assert InvitationTokens(connection).list_admitted(["village"]) == frozenset()


def test_after_its_end_a_token_admits_nobody_new_though_it_has_seats(database: Database) -> None:
    """The node that invited decides by its own clock; what the joiner's file says, or its clock, is no matter."""
    with database.write() as connection:
        InvitationTokens(connection).issue(issued(uses=3))
    end = Instant(NOW + 3600 * SECOND)
    assert redeem_in(database, 1, Instant(end - 1)) is Redemption.ADMITTED
    assert redeem_in(database, 2, end) is Redemption.EXPIRED
    assert redeem_in(database, 1, end) is Redemption.ADMITTED, "it was admitted in time"
    with database.read() as connection:
        (kept,) = InvitationTokens(connection).all()
    assert kept.nodes == (key(1).did,)


def test_what_is_kept_redeems_nothing(database: Database, tmp_path: Path) -> None:
    with database.write() as connection:
        InvitationTokens(connection).issue(issued())
    with database.read() as connection:
        rows = connection.execute("SELECT * FROM invitations").fetchall()
    assert TOKEN not in b"".join(each for each in rows[0] if isinstance(each, bytes))
    assert TOKEN.hex() not in repr(rows)


@pytest.mark.slow
def test_what_cannot_be_issued(database: Database) -> None:
    with database.write() as connection:
        store = InvitationTokens(connection)
        for uses in (0, -1, MAX_USES + 1):
            with pytest.raises(Invalid, match="an invitation for"):
                store.issue(issued(uses))
        for number in range(MAX_INVITATIONS):
            store.issue(issued(token=number.to_bytes(32)))
        with pytest.raises(Refused, match="256 invitations"):
            store.issue(issued(token=b"x" * 32))
        first = store.all()[0]
        store.revoke(first.id)
        store.issue(issued(token=b"x" * 32))
        assert len(store.all()) == MAX_INVITATIONS
        with pytest.raises(NotFound):
            store.revoke(first.id)
        with pytest.raises(Invalid, match="more than one"):
            store.revoke("")
        later = msgspec.structs.replace(issued(token=b"y" * 32), made=Instant(NOW + (KEPT_SECONDS + 3601) * SECOND))
        store.issue(later)
        assert store.all() == [later], "what nobody redeemed is deleted long after"


def test_a_damaged_invitation_admits_nobody(database: Database) -> None:
    with database.write() as connection:
        InvitationTokens(connection).issue(issued())
        connection.execute("UPDATE invitations SET uses = 100")
    with pytest.raises(Environment):
        redeem_in(database, 1)
    with database.read() as connection:
        assert InvitationTokens(connection).all() == []


WHO = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5000), st.booleans()), max_size=25)


@given(asked=WHO, uses=st.integers(1, 3))
def test_no_more_nodes_than_it_is_for_are_ever_admitted(asked: list[tuple[int, int, bool]], uses: int) -> None:
    """In whatever order nodes ask, and whenever it is revoked; whoever was admitted stays so until then."""
    kept, admitted, now = issued(uses), set[int](), NOW
    for who, seconds, is_revoked in asked:
        now = Instant(now + seconds * SECOND)
        kept = msgspec.structs.replace(kept, revoked=kept.revoked or (is_revoked and seconds > 4000))
        outcome, changed = redeem(kept, key(who).did, ["village"], now)
        kept = changed or kept
        if outcome is Redemption.ADMITTED:
            admitted.add(who)
        assert kept.revoked or (who in admitted) == (outcome is Redemption.ADMITTED)
        assert len(admitted) <= uses
        assert {key(each).did for each in admitted} == set(kept.nodes)


@given(st.binary(min_size=32, max_size=32), st.sampled_from(Redemption), st.binary(max_size=40))
def test_messages_survive_the_codec_and_all_else_is_refused(token: bytes, outcome: Redemption, other: bytes) -> None:
    assert decode_redeem(encode_redeem(token)) == token
    assert decode_redemption(encode_redemption(outcome)) is outcome
    for decode, encode in ((decode_redeem, encode_redeem), (decode_redemption, encode_redemption)):
        try:
            said: Any = decode(other)
        except Invalid:
            continue
        assert encode(said) == other


def line(**more: Any) -> str:
    inviter = SigningKey(b"i" * 32)
    said = Invitation(
        network="village", by=inviter.did, expires_at="2036-01-01T00:00:00Z",
        **{"bootstrap": (f"/ip4/203.0.113.7/tcp/4150/p2p/{peer_of_did(inviter.did)}",), **more},
    )  # fmt: skip
    return write_invitation(said, inviter)


def test_a_line_with_a_token_says_how_many_and_where() -> None:
    read = read_invitation(line(token=TOKEN.hex(), uses=1), NOW)
    assert (read.token, read.uses, len(read.inviters())) == (TOKEN.hex(), 1, 1)
    assert read_invitation(line(), NOW).token is None
    for wrong in ({"token": TOKEN.hex()}, {"uses": 1}):
        with pytest.raises(Invalid, match="a token has a number of uses"):
            line(**wrong)
    with pytest.raises(Invalid, match="none of its addresses"):
        line(token=TOKEN.hex(), uses=1, bootstrap=(f"/ip4/203.0.113.7/tcp/1/p2p/{peer(1)}",))
