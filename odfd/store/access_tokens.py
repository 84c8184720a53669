"""Keeps the tokens of accounts, by their digests. Synchronous; its calls are atomic.

All are in memory too: a flood of wrong tokens costs a hash each, and no look into the database.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from chain.errors import NotFound, Refused
from chain.instant import Instant
from chain.store.database import Database
from chain.store.seals import Sealed
from odfd.access.relations import Role
from odfd.access.tokens import ID_BYTES, SECRET_BYTES, TokenGrant, digest_of, id_in, is_of, token_of

MOST: Final = 100
"""Most tokens of one account."""
ROOM: Final = "access_tokens"
STEPS: Final = (
    """
    CREATE TABLE access_tokens (
        id TEXT NOT NULL,
        account TEXT NOT NULL,
        most INTEGER NOT NULL,
        note TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER NOT NULL,
        digest BLOB NOT NULL,
        seal BLOB,
        PRIMARY KEY (id)
    ) STRICT, WITHOUT ROWID;
    """,
)
_TABLE: Final = Sealed(
    "access_tokens",
    ("id", "account", "most", "note", "created_at", "expires_at", "digest"),
    "revoke the token and make another: odfctl token revoke ID",
)
RULE: Final = "access-token"
LIMIT: Final = "access-token-limit"


class TokenStore:
    """Makes, lists, checks and revokes the tokens of a node. ``random``: returns that many random bytes."""

    def __init__(self, database: Database, now: Callable[[], Instant], random: Callable[[int], bytes]) -> None:
        self._database, self._now, self._random = database, now, random
        self._lock = threading.Lock()
        self._kept: dict[str, TokenGrant] | None = None

    def make(self, account: str, most: Role, note: str, expires_at: Instant) -> tuple[str, TokenGrant]:
        """Returns a new token, whose text is kept nowhere, and its record. Raises Refused at the limit of tokens."""
        token = token_of(self._random(ID_BYTES), self._random(SECRET_BYTES))
        grant = TokenGrant(
            id=id_in(token) or "", account=account, most=most, note=note, created_at=self._now(),
            expires_at=expires_at, digest=digest_of(token),
        )  # fmt: skip
        with self._lock:
            self._forget_expired()
            known = self._read()
            if sum(each.account == account for each in known.values()) >= MOST:
                hint = "odfctl token list, and odfctl token revoke ID"
                raise Refused(f"the account has {MOST} tokens, and no more", rule="token-limit", hint=hint)
            with self._database.write() as connection:
                values = grant.id, account, int(most), note, grant.created_at, expires_at, grant.digest
                _TABLE.put(connection, *values)
            known[grant.id] = grant
        return token, grant

    def list(self, account: str | None = None) -> list[TokenGrant]:
        """Returns the valid tokens of an account, or of all, oldest first."""
        with self._lock:
            found = [each for each in self._read().values() if account in (None, each.account)]
        now = self._now()
        return sorted((each for each in found if now < each.expires_at), key=lambda each: (each.created_at, each.id))

    def revoke(self, id_: str, account: str | None = None) -> TokenGrant:
        """Revokes a token, of an account if one is named. Raises NotFound."""
        with self._lock:
            grant = self._read().get(id_)
            if grant is None or account not in (None, grant.account):
                hint = "odfctl token list has their ids"
                raise NotFound(f"there is no token {id_[:40]!r}", rule="token", hint=hint)
            with self._database.write() as connection:
                connection.execute("DELETE FROM access_tokens WHERE id = ?", (id_,))
            # After the row: forgotten in memory alone, it would be good again after a restart.
            del self._read()[id_]
        return grant

    def admit(self, token: str) -> TokenGrant:
        """Returns the record of a valid token. Raises Refused for any other text."""
        id_ = id_in(token)
        if id_ is None:
            raise Refused("that is no token of a node", rule=RULE, hint="odfctl token create makes one: odf_…")
        with self._lock:
            grant = self._read().get(id_)
        # Asked without a grant too, so that an unknown id takes as long as a wrong secret.
        if not is_of(grant, token, self._now()) or grant is None:
            hint = "ask for another, or make one at the node: odfctl token create"
            raise Refused("the token is not known here, or no longer good", rule=RULE, hint=hint)
        return grant

    def is_good(self, id_: str) -> bool:
        """Whether a token that was admitted is still valid."""
        with self._lock:
            grant = self._read().get(id_)
        return grant is not None and self._now() < grant.expires_at

    def _read(self) -> dict[str, TokenGrant]:
        if self._kept is None:
            with self._database.read() as connection:
                rows = list(_TABLE.whole(connection))  # damaged tokens are not valid
            self._kept = {row[0]: _grant(row) for row in rows}
        return self._kept

    def _forget_expired(self) -> None:
        now, known = self._now(), self._read()
        gone = [each.id for each in known.values() if each.expires_at <= now]
        if gone:
            with self._database.write() as connection:
                connection.executemany("DELETE FROM access_tokens WHERE id = ?", [(each,) for each in gone])
        for each in gone:
            del known[each]


def forget_all(database: Database) -> None:
    """Revokes all tokens of a node that is not running."""
    with database.write() as connection:
        connection.execute("DELETE FROM access_tokens")


def _grant(row: tuple[object, ...]) -> TokenGrant:
    id_, account, most, note, created, expires, digest = row
    assert isinstance(most, int)
    assert isinstance(created, int)
    assert isinstance(expires, int)
    assert isinstance(digest, bytes)
    return TokenGrant(
        id=str(id_), account=str(account), most=Role(most), note=str(note), created_at=Instant(created),
        expires_at=Instant(expires), digest=digest,
    )  # fmt: skip
