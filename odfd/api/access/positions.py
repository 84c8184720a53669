"""Gives accounts positions in the log of resources that tell nothing of what others change.

A number of the log counts the changes of all. So an account gets the number of the last change that it may read of,
encrypted: it stays as it is whatever else happens, and its order and distance to others are known to the node alone.
The key is the node's, so positions are good after a restart, too. A number of when rights of the account were last seen
to change goes with each position, encrypted as well: the log tells what the account read then.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from cachetools import LRUCache
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from odfd.api.access.state import AccessState
from odfd.resources.declared import DeclaredStore
from odfd.state.directory import StateDirectory

KEY_BYTES: Final = 64
MOST: Final = 1_000
"""Accounts of which it is known what they read; one that is forgotten lists anew."""


class Sight(NamedTuple):
    """The resources that one account reads, at one state of access."""

    state: AccessState
    published: int
    readable: Collection[str]
    """Ids."""
    position: int
    """The number of the last change that it may read of; at first, of the log. Never one that the log has no more."""
    rights_at: int
    """The number of the log when it was looked at first, or when rights on what stood and stands had changed."""


class SealedPositions:
    """The positions of all accounts. Used from worker threads."""

    def __init__(self, home: StateDirectory, key: bytes) -> None:
        """``key``: of ``KEY_BYTES``, for the log that the node has now."""
        self._home = home
        self._cipher = AESSIV(key)
        self._lock = threading.Lock()
        self._sights: LRUCache[str, Sight] = LRUCache(MOST)

    def look(
        self, account: str | None, state: AccessState, published: int, handles: Callable[[AccessState], Collection[str]]
    ) -> Sight:
        """Returns what an account reads now. ``handles``: the ids that it may read at a state."""
        name = account or ""
        with self._lock:
            held = self._sights.get(name)
            if held is None or held.state.version[0] != state.version[0]:
                made = Sight(state, published, handles(state), state.version[1], state.version[1])
            elif held.state.version[1] >= state.version[1] and held.published == published:
                return held
            else:
                made = self._later(held, state, published, handles)
            self._sights[name] = made
            return made

    def _later(
        self, held: Sight, state: AccessState, published: int, handles: Callable[[AccessState], Collection[str]]
    ) -> Sight:
        is_same = held.state.relations is state.relations and held.published == published
        readable = held.readable if is_same else handles(state)
        both = () if is_same else held.state.accounts.keys() & state.accounts.keys()
        is_changed = any((each in held.readable) != (each in readable) for each in both)
        with self._home.database.read() as connection:
            store = DeclaredStore(connection)
            moves, floor = store.moves(held.state.version[1], state.version[1]), store.floor()
        known = [number for number, id_, op in moves if id_ in readable or (op == "Deleted" and id_ in held.readable)]
        return Sight(
            state,
            published,
            readable,
            max(known, default=max(held.position, floor)),
            state.version[1] if is_changed else held.rights_at,
        )

    def rights(self, account: str | None, sight: Sight) -> str:
        """Returns another text when the rights of an account have changed."""
        number = sight.rights_at.to_bytes(8, "big")
        return self._cipher.encrypt(number, [b"rights", (account or "").encode()]).hex()

    def opened_rights(self, account: str | None, text: str) -> int | None:
        """Returns the number at which the rights of an account were as a text says; ``None`` for what is none."""
        try:
            return int.from_bytes(
                self._cipher.decrypt(bytes.fromhex(text), [b"rights", (account or "").encode()]), "big"
            )
        except (InvalidTag, ValueError):
            return None

    def sealed(self, account: str | None, number: int) -> str:
        """Returns a position in the log for an account: the same for the same number."""
        return self._cipher.encrypt(number.to_bytes(8, "big"), [(account or "").encode()]).hex()

    def opened(self, account: str | None, text: str) -> int | None:
        """Returns the number of a position; ``None`` for what is none of this account's."""
        try:
            return int.from_bytes(self._cipher.decrypt(bytes.fromhex(text), [(account or "").encode()]), "big")
        except (InvalidTag, ValueError):
            return None

    def sealed_text(self, account: str | None, text: str) -> str:
        """Encrypts a text for an account, such as what asks for the next page of a list."""
        sealed = self._cipher.encrypt(text.encode(), [b"text", (account or "").encode()])
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def opened_text(self, account: str | None, text: str) -> str | None:
        """Returns what was encrypted; ``None`` for what is none of this account's."""
        try:
            sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            return self._cipher.decrypt(sealed, [b"text", (account or "").encode()]).decode()
        except (InvalidTag, ValueError, binascii.Error):
            return None
