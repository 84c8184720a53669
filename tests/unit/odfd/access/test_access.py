"""Relations and tokens: who may what, and how far it reaches."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import NotFound, Refused
from chain.instant import SECOND, Instant
from odfd.access.callers import AccountCallers, UnixCaller, subject_of
from odfd.access.relations import (
    ADMIN,
    ANONYMOUS,
    MEMBER,
    OWNER,
    PUBLIC,
    ROLE,
    Action,
    Deny,
    Principal,
    Relations,
    Role,
    Statement,
    Thing,
    authorize,
)
from odfd.access.tokens import digest_of, id_in, token_of
from odfd.store import access_tokens
from odfd.store.access_tokens import TokenStore
from worlds.node_world import opened

# Relations decide alike in whatever order they were said, and nobody grants what is not theirs.

ACCOUNTS = ("alice", "bob", "carol", "org")
THINGS = {"a1": "alice", "b1": "bob", "n1": None, "o1": "org"}
OWNERS: dict[str, str | None] = dict(THINGS) | dict.fromkeys(ACCOUNTS)
NODE: Any = st.none()
SAID = st.builds(
    Statement,
    object=st.sampled_from([*THINGS, *ACCOUNTS]),
    name=st.sampled_from([ROLE, ROLE, MEMBER, PUBLIC, ANONYMOUS, ADMIN]),
    subject=st.sampled_from(ACCOUNTS),
    value=st.sampled_from([each.word for each in Role]),
    author=st.one_of(NODE, st.sampled_from(ACCOUNTS)),
)


def thing(id_: str, *, is_published: bool = False) -> Thing:
    return Thing(id_, OWNERS[id_], is_published)


def everything(relations: Relations) -> list[Role | None]:
    subjects = [Principal(), OWNER, *map(Principal, ACCOUNTS)]
    return [relations.role(who, thing(what)) for who, what in itertools.product(subjects, OWNERS)]


@pytest.mark.slow
@given(st.lists(SAID, max_size=12).flatmap(lambda said: st.tuples(st.just(said), st.permutations(said))))
def test_the_order_of_statements_does_not_matter(said: tuple[list[Statement], list[Statement]]) -> None:
    assert everything(Relations(said[0], OWNERS)) == everything(Relations(said[1], OWNERS))


@given(st.lists(SAID, max_size=12), SAID)
def test_more_statements_never_take_a_right_away(said: list[Statement], more: Statement) -> None:
    before, after = everything(Relations(said, OWNERS)), everything(Relations([*said, more], OWNERS))
    assert all((one or 0) <= (two or 0) for one, two in zip(before, after, strict=True))


@given(st.lists(SAID, max_size=12))
def test_nobody_comes_to_anything_by_their_own_word(said: list[Statement]) -> None:
    """Attack T-ACCOUNT-02: granting oneself a role on resources of others, or the attribute admin, by own Relations.

    Defence: a statement counts only while its author owns the object; only the node's owner makes administrators.

    Statements of carol, who owns nothing, change nothing but who may act as her.
    """
    theirs = [each for each in said if each.author != "carol"]
    without, with_ = Relations(theirs, OWNERS), Relations(said, OWNERS)
    for who, what in itertools.product((Principal("carol"), Principal("bob")), ("a1", "n1", "o1", "alice", "org")):
        if without.role(Principal("carol"), thing(what)) is Role.OWNER or who == Principal("bob"):
            continue
        assert with_.role(who, thing(what)) == without.role(who, thing(what))


@pytest.mark.slow
@given(st.lists(SAID, max_size=12), st.sampled_from(list(Action)), st.sampled_from(list(OWNERS)))
def test_who_has_a_role_has_those_before_it_and_the_owner_has_all(
    said: list[Statement], action: Action, what: str
) -> None:
    relations = Relations(said, OWNERS)
    assert authorize(OWNER, action, thing(what), relations) is None
    for who in (Principal(), *map(Principal, ACCOUNTS)):
        role = relations.role(who, thing(what))
        decision = authorize(who, action, thing(what), relations)
        assert decision == (None if (role or 0) >= action.value else Deny(role, action.value))


def test_what_is_published_is_read_by_anybody_and_no_more() -> None:
    nothing = Relations([], OWNERS)
    for who in (Principal(), Principal("bob")):
        assert nothing.role(who, thing("n1", is_published=True)) is Role.READER
        assert nothing.role(who, thing("n1")) is None


def test_members_have_what_their_organisation_has_and_not_the_organisation() -> None:
    relations = Relations([Statement("org", MEMBER, "alice"), Statement("n1", ROLE, "org", "editor")], OWNERS)
    assert relations.role(Principal("alice"), thing("o1")) is Role.OWNER
    assert relations.role(Principal("alice"), thing("n1")) is Role.EDITOR
    assert relations.role(Principal("alice"), thing("org")) is None
    assert relations.role(Principal("bob"), thing("o1")) is None


def test_memberships_are_followed_five_deep_and_in_circles() -> None:
    chain = [Statement(f"{at + 1}", MEMBER, f"{at}") for at in range(9)] + [Statement("0", MEMBER, "9")]
    relations = Relations(chain, {})
    assert relations.identities("0") == {"0", "1", "2", "3", "4", "5"}


def test_accounts_make_no_administrators() -> None:
    by_bob = Relations([Statement("bob", ADMIN, author="bob")], OWNERS)
    assert by_bob.role(Principal("bob"), thing("n1")) is None
    assert Relations([Statement("bob", ADMIN)], OWNERS).role(Principal("bob"), thing("n1")) is Role.OWNER


ALICE = AccountCallers("1", "alice", users=("alice", "4711"))
TEAM = AccountCallers("2", "team", groups=("lab",))
OTHERS = AccountCallers("3", "others", groups=("100",))


def caller(uid: int, *users: str, groups: tuple[str, ...] = ()) -> UnixCaller:
    return UnixCaller(uid, (str(uid), *users), groups)


def test_root_and_the_nodes_user_have_every_right() -> None:
    for uid in (0, 1000):
        assert subject_of(caller(uid), 1000, [ALICE]) == OWNER
        assert subject_of(caller(uid), 1000, [ALICE], "ALICE") == Principal("1", name="alice")


def test_a_user_comes_before_a_group_and_a_group_before_nobody() -> None:
    every = [ALICE, TEAM, OTHERS]
    assert subject_of(caller(4711, groups=("lab",)), 1000, every) == Principal("1", name="alice")
    assert subject_of(caller(5, groups=("lab",)), 1000, every) == Principal("2", name="team")
    assert subject_of(caller(5), 1000, every) == Principal()
    assert subject_of(caller(5), 1000, [AccountCallers("1", "alice")]) == OWNER


def test_who_is_of_several_accounts_says_which() -> None:
    both = caller(5, groups=("lab", "100"))
    with pytest.raises(Refused, match="others, team"):
        subject_of(both, 1000, [TEAM, OTHERS])
    assert subject_of(both, 1000, [TEAM, OTHERS], "team") == Principal("2", name="team")


def test_nobody_acts_as_another() -> None:
    """Attack T-ACCOUNT-02: naming another account in `--account`, to act as it.

    Defence: only users that an account names act as it; the answer does not say whether the account exists.
    """
    for wanted in ("alice", "nobody"):
        with pytest.raises(Refused, match=f"you may not act as the account '{wanted}'"):
            subject_of(caller(5, groups=("lab",)), 1000, [ALICE, TEAM], wanted)
    with pytest.raises(NotFound):
        subject_of(caller(1000), 1000, [ALICE], "nobody")


# Tokens of accounts: their text, what is kept of them, when they end, and how far they reach.

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


def refusal(tokens: TokenStore, wrong: str) -> str:
    with pytest.raises(Refused) as refused:
        tokens.admit(wrong)
    return str(refused.value)


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
        told = [refusal(tokens, token_of(id_, bytes(32))) for id_ in (bytes.fromhex(grant.id), bytes(8))]
        now[0] += 60 * SECOND - 1
        assert not tokens.is_good(grant.id)
        assert {refusal(tokens, one)} == set(told)
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
