"""Gives accounts positions in the log of resources that reveal nothing about changes made by others.

A log number counts the changes of all accounts. An account therefore gets the number of the last change that it can
read, encrypted: it does not move when others change something, and only the node knows its order and its distance to
others. The key belongs to the node, so positions survive a restart. Each position carries a second encrypted number:
when the account's rights last changed, by which the log shows what the account could read then.
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

from odfd.resources.store import ResourceStore
from odfd.state.access_state import AccessState
from odfd.state.directory import StateDirectory

KEY_BYTES: Final = 64
MOST: Final = 1_000
"""Accounts whose readable resources are cached; an account that drops out lists anew."""


class Sight(NamedTuple):
    """The resources that one account can read, at one state of access."""

    state: AccessState
    published: int
    readable: Collection[str]
    """Ids of the resources."""
    position: int
    """The log number of the last change that the account can read; the newest at first. Never below the log's floor."""
    rights_at: int
    """The log number of the first look, or of the last change of the account's rights on existing resources."""


class SealedPositions:
    """Caches what accounts can read, and encrypts their positions. Used from worker threads."""

    def __init__(self, home: StateDirectory, key: bytes) -> None:
        """``key``: ``KEY_BYTES`` bytes, for the log that the node has now."""
        self._home = home
        self._cipher = AESSIV(key)
        self._lock = threading.Lock()
        self._sights: LRUCache[str, Sight] = LRUCache(MOST)

    def look(
        self, account: str | None, state: AccessState, published: int, handles: Callable[[AccessState], Collection[str]]
    ) -> Sight:
        """Returns what an account can read now. ``handles`` returns the ids that it can read at a state."""
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
            store = ResourceStore(connection)
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
        """Returns a text that differs once the account's rights have changed."""
        number = sight.rights_at.to_bytes(8, "big")
        return self._cipher.encrypt(number, [b"rights", (account or "").encode()]).hex()

    def opened_rights(self, account: str | None, text: str) -> int | None:
        """Decrypts the log number in a text of ``rights``; ``None`` if the text is not one of this account."""
        try:
            return int.from_bytes(
                self._cipher.decrypt(bytes.fromhex(text), [b"rights", (account or "").encode()]), "big"
            )
        except (InvalidTag, ValueError):
            return None

    def sealed(self, account: str | None, number: int) -> str:
        """Encrypts a log number for an account; the same number always gives the same text."""
        return self._cipher.encrypt(number.to_bytes(8, "big"), [(account or "").encode()]).hex()

    def opened(self, account: str | None, text: str) -> int | None:
        """Decrypts a position; ``None`` if the text is not one of this account."""
        try:
            return int.from_bytes(self._cipher.decrypt(bytes.fromhex(text), [(account or "").encode()]), "big")
        except (InvalidTag, ValueError):
            return None

    def sealed_text(self, account: str | None, text: str) -> str:
        """Encrypts a text for an account, such as the token of a list's next page."""
        sealed = self._cipher.encrypt(text.encode(), [b"text", (account or "").encode()])
        return base64.urlsafe_b64encode(sealed).decode().rstrip("=")

    def opened_text(self, account: str | None, text: str) -> str | None:
        """Decrypts a text of ``sealed_text``; ``None`` if it is not one of this account."""
        try:
            sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
            return self._cipher.decrypt(sealed, [b"text", (account or "").encode()]).decode()
        except (InvalidTag, ValueError, binascii.Error):
            return None
