"""Keeps the page's sessions, and the tokens that open one each. Pure: time and randomness are given.

A session is identified by two secrets. The cookie is hidden from scripts, but browsers send it to every port of a host;
the key is known only to scripts of the page's own origin, including its port. Neither is worth anything alone.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

TOKEN_SECONDS: Final = 120.0
"""Seconds in which a token can be used, once."""
SESSION_SECONDS: Final = 12 * 3600.0
"""Seconds without a request after which a session ends."""
TOKENS: Final = 16
"""Unused tokens at once; the oldest makes room."""
SESSIONS: Final = 32
"""Sessions at once; the least recently used makes room."""


class PageSecrets(NamedTuple):
    """The two secrets of a session."""

    cookie: str
    key: str


@dataclass(slots=True)
class _Session:
    key: bytes
    used: float


class PageSessions:
    """Keeps sessions and tokens as digests only: a memory dump opens no session. ``secret()`` makes a secret."""

    def __init__(self, secret: Callable[[], str]) -> None:
        self._secret = secret
        self._tokens: dict[bytes, float] = {}
        self._sessions: dict[bytes, _Session] = {}

    def invite(self, now: float) -> str:
        """Makes a token that opens one session."""
        self._forget(now)
        token = self._secret()
        while len(self._tokens) >= TOKENS:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[_digest(token)] = now
        return token

    def begin(self, token: str, now: float) -> PageSecrets | None:
        """Begins a session; ``None``: the token was used, expired or invalid."""
        self._forget(now)
        return None if self._tokens.pop(_digest(token), None) is None else self.open(now)

    def open(self, now: float) -> PageSecrets:
        """Opens a session for a user who was authenticated otherwise."""
        self._forget(now)
        while len(self._sessions) >= SESSIONS:
            del self._sessions[min(self._sessions, key=lambda one: self._sessions[one].used)]
        made = PageSecrets(self._secret(), self._secret())
        self._sessions[_digest(made.cookie)] = _Session(_digest(made.key), now)
        return made

    def admits(self, cookie: str, key: str, now: float) -> bool:
        self._forget(now)
        session = self._sessions.get(_digest(cookie))
        if session is None or not hmac.compare_digest(session.key, _digest(key)):
            return False
        session.used = now
        return True

    def end(self, cookie: str) -> None:
        self._sessions.pop(_digest(cookie), None)

    def _forget(self, now: float) -> None:
        self._tokens = {one: at for one, at in self._tokens.items() if now - at < TOKEN_SECONDS}
        self._sessions = {one: each for one, each in self._sessions.items() if now - each.used < SESSION_SECONDS}


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
