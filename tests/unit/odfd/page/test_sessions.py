"""Tokens and sessions of the page: good once, for so long, so many."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfd.page.sessions import SESSION_SECONDS, SESSIONS, TOKEN_SECONDS, TOKENS, PageSecrets, PageSessions


@pytest.fixture
def sessions() -> PageSessions:
    numbers = itertools.count()
    return PageSessions(lambda: f"secret-{next(numbers)}")


def opened(sessions: PageSessions, now: float = 0.0) -> PageSecrets:
    found = sessions.begin(sessions.invite(now), now)
    assert found is not None
    return found


def test_a_token_opens_one_session(sessions: PageSessions) -> None:
    token = sessions.invite(0)
    assert sessions.begin(token, 1) is not None
    assert sessions.begin(token, 1) is None
    assert sessions.begin("secret", 1) is None


def test_a_token_is_good_for_a_while(sessions: PageSessions) -> None:
    early, late = sessions.invite(0), sessions.invite(0)
    assert sessions.begin(early, TOKEN_SECONDS - 1) is not None
    assert sessions.begin(late, TOKEN_SECONDS) is None


def test_neither_half_of_a_session_opens_anything(sessions: PageSessions) -> None:
    """A cookie goes to every port of this machine, and a key is read by whoever reads the browser's disk."""
    mine, other = opened(sessions), opened(sessions)
    assert sessions.admits(mine.cookie, mine.key, 0)
    for cookie, key in (
        (mine.cookie, ""),
        ("", mine.key),
        (mine.cookie, other.key),
        (other.cookie, mine.key),
        ("", ""),
    ):
        assert not sessions.admits(cookie, key, 0)


def test_a_session_ends_when_it_rests_too_long_or_is_left(sessions: PageSessions) -> None:
    used, left = opened(sessions), opened(sessions)
    assert sessions.admits(used.cookie, used.key, SESSION_SECONDS - 1)
    assert sessions.admits(used.cookie, used.key, 2 * SESSION_SECONDS - 2)
    assert not sessions.admits(used.cookie, used.key, 4 * SESSION_SECONDS)
    sessions.end(left.cookie)
    assert not sessions.admits(left.cookie, left.key, 0)


def test_there_are_so_many_and_the_oldest_makes_room(sessions: PageSessions) -> None:
    first, *tokens = (sessions.invite(0) for _ in range(TOKENS + 1))
    assert sessions.begin(first, 0) is None
    assert all(sessions.begin(token, 0) for token in tokens)
    some = [opened(sessions, at) for at in range(SESSIONS)]
    assert sessions.admits(some[0].cookie, some[0].key, SESSIONS)
    opened(sessions, SESSIONS)
    assert sessions.admits(some[0].cookie, some[0].key, SESSIONS)
    assert not sessions.admits(some[1].cookie, some[1].key, SESSIONS)


@given(st.text(), st.text())
def test_no_words_of_others_open_a_session(cookie: str, key: str) -> None:
    numbers = itertools.count()
    sessions = PageSessions(lambda: f"\x00{next(numbers)}")
    opened(sessions)
    assert not sessions.admits(cookie, key, 0) or cookie.startswith("\x00")
    assert sessions.begin(cookie, 0) is None
