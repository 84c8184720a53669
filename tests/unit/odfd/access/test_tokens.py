"""Tokens of accounts: their text, what is kept of them, when they end, and how far they reach."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import NotFound, Refused
from chain.instant import SECOND, Instant
from odfd.access.relations import OWNER, Principal, Relations, Role, Statement, Thing
from odfd.access.tokens import digest_of, id_in, token_of
from odfd.store import access_tokens
from odfd.store.access_tokens import TokenStore
from worlds.node_world import opened

TIMES = st.binary(min_size=8, max_size=8), st.binary(min_size=32, max_size=32)


@given(*TIMES)
def test_a_token_says_its_id_and_no_other_text_does(id_: bytes, secret: bytes) -> None:
    token = token_of(id_, secret)
    assert id_in(token) == id_.hex()
    assert len(digest_of(token)) == 32


@given(*TIMES, st.data())
def test_a_text_with_another_letter_is_no_token(id_: bytes, secret: bytes, data: st.DataObject) -> None:
    token = token_of(id_, secret)
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(min_codepoint=33, max_codepoint=126).filter(lambda sign: sign != token[at]))
    assert id_in(token[:at] + other + token[at + 1 :]) is None
    assert id_in(token[:at]) is None


@pytest.mark.slow
@given(st.text(max_size=200))
def test_any_text_is_a_token_or_none(text: str) -> None:
    assert id_in(text) is None


def test_a_token_is_good_until_it_expires_or_is_revoked_and_the_database_has_none(tmp_path: Path) -> None:
    now = [1_700_000_000 * SECOND]
    with opened(tmp_path / "home") as home:

        def store() -> TokenStore:
            return TokenStore(home.database, lambda: Instant(now[0]), os.urandom)

        tokens = store()
        one, grant = tokens.make("a", Role.READER, "laptop", Instant(now[0] + 60 * SECOND))
        now[0] += 1
        other, _ = tokens.make("b", Role.OWNER, "", Instant(now[0] + 90 * SECOND))
        for each in (tokens, store()):
            assert (each.admit(one).account, each.admit(one).most) == ("a", Role.READER)
            assert [found.account for found in each.list()] == ["a", "b"]
            assert [found.account for found in each.list("b")] == ["b"]
        with pytest.raises(NotFound):
            tokens.revoke(grant.id, "b")
        now[0] += 60 * SECOND - 1
        assert not tokens.is_good(grant.id)
        told = []
        for wrong in (one, token_of(bytes.fromhex(grant.id), bytes(32)), token_of(bytes(8), bytes(32))):
            with pytest.raises(Refused) as refused:
                tokens.admit(wrong)
            told.append(str(refused.value))
        assert len(set(told)) == 1
        tokens.revoke(tokens.admit(other).id, "b")
        with pytest.raises(Refused, match="no longer good"):
            tokens.admit(other)
        with pytest.raises(Refused, match="no longer good"):
            store().admit(other)
    for path in (tmp_path / "home").iterdir():
        if path.is_file():
            assert not {each for each in (one, other) if each.split("_")[2].encode() in path.read_bytes()}


def test_an_account_has_so_many_tokens_and_those_that_expired_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "MOST", 2)
    now = [0]
    with opened(tmp_path / "home") as home:
        tokens = TokenStore(home.database, lambda: Instant(now[0]), os.urandom)
        for seconds in (1, 9):
            tokens.make("a", Role.OWNER, "", Instant(seconds * SECOND))
        with pytest.raises(Refused, match="2 tokens"):
            tokens.make("a", Role.OWNER, "", Instant(9 * SECOND))
        tokens.make("b", Role.OWNER, "", Instant(9 * SECOND))
        now[0] = SECOND
        tokens.make("a", Role.OWNER, "", Instant(9 * SECOND))
        assert len(tokens.list("a")) == 2


@given(has=st.sampled_from(Role), most=st.sampled_from(Role), admin=st.booleans())
def test_a_token_reaches_no_further_than_its_account_nor_than_it_says(has: Role, most: Role, *, admin: bool) -> None:
    said = [Statement("thing", "role", "a", has.word)]
    if admin:
        said.append(Statement("a", "admin"))
    relations = Relations(said, {"thing": None, "a": None})
    whole, limited = (relations.role(Principal("a", most=each), Thing("thing")) for each in (None, most))
    assert whole is not None
    assert limited == min(whole, most)
    assert relations.role(Principal("a", most=most), Thing("other")) == (most if admin else None)
    assert relations.role(OWNER, Thing("thing")) is Role.OWNER
