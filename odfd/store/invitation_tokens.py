"""Counts the uses of tokens in this node's invitations, by the nodes that redeemed them.

A token is bound to the redeeming node in the transaction that admits it, before the node gets its answer: a crash in
between admits nobody else, and the same node is admitted when it asks again. The database holds a digest of the token,
so whoever reads the database cannot redeem it. The number of invitations is bounded, and old ones are deleted. ADR 57.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Final

import msgspec

from chain.errors import Environment, Invalid, NotFound, Refused
from chain.ids import KeyDid
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.store.seals import ROW_DAMAGED, Row, Sealed
from p2p.identity import did_of_peer
from p2p.ports import PeerId
from p2p.wire.invite import Redemption

ROOM: Final = "invitations"
INVITATIONS: Final = Sealed(
    "invitations",
    ("id", "digest", "network", "uses", "made", "expires", "revoked", "nodes"),
    "it admits no node: invite again",
)
STEPS: Final = (
    """
    CREATE TABLE invitations (
        id TEXT PRIMARY KEY,
        digest BLOB NOT NULL UNIQUE,
        network TEXT NOT NULL,
        uses INTEGER NOT NULL,
        made INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        revoked INTEGER NOT NULL,
        nodes BLOB NOT NULL,
        seal BLOB
    ) STRICT, WITHOUT ROWID;
    """,
)
"""The tables, as migration steps; new steps are added at the end, old ones never change."""
MAX_USES: Final = 100
MAX_INVITATIONS: Final = 256
"""Invitations of one node. Their nodes are at most 25,600; a host holds far fewer (``p2p.max-peers``)."""
KEPT_SECONDS: Final = 90 * 86_400
"""How long after its expiry an invitation that nobody redeemed is deleted."""
_ID: Final = 8
"""Hexadecimal digits of the digest that form an invitation's id."""
_KEY_BYTES: Final = 34
"""Bytes of a key's DID."""


class IssuedInvitation(msgspec.Struct, frozen=True, kw_only=True):
    """An invitation with a token, as its issuer stores it."""

    digest: bytes
    network: str
    uses: int
    """How many nodes may redeem it."""
    made: Instant
    expires: Instant
    revoked: bool = False
    nodes: tuple[KeyDid, ...] = ()
    """The nodes that redeemed it, in order."""

    @property
    def id(self) -> str:
        return self.digest.hex()[:_ID]

    def state(self, now: Instant) -> str:
        if self.revoked:
            return "revoked"
        return "used" if len(self.nodes) >= self.uses else "expired" if self.expires <= now else "open"


def digest_of_token(token: bytes) -> bytes:
    return Multihash.sha3_256(token).digest


def redeem(
    issued: IssuedInvitation | None, node: KeyDid, joined: Iterable[str], now: Instant
) -> tuple[Redemption, IssuedInvitation | None]:
    """Decides about a node that shows a token. Returns the invitation to store; ``None`` for no change.

    ``joined``: networks that this node is in. A node that was admitted is admitted again, until the invitation is
    revoked.
    """
    if issued is None or issued.network not in joined:
        return Redemption.UNKNOWN, None
    if issued.revoked:
        return Redemption.REVOKED, None
    # Before uses and end: the answer to this node may have been lost
    # (test_a_crash_between_use_and_answer_lets_no_two_in_and_locks_nobody_out).
    if node in issued.nodes:
        return Redemption.ADMITTED, None
    if len(issued.nodes) >= issued.uses:
        return Redemption.USED, None
    if issued.expires <= now:
        return Redemption.EXPIRED, None
    return Redemption.ADMITTED, msgspec.structs.replace(issued, nodes=(*issued.nodes, node))


class InvitationTokens:
    """The invitations of one node that have tokens, over one SQLite connection. All raise Environment."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def issue(self, issued: IssuedInvitation) -> None:
        """Stores a new invitation. Raises Invalid for a bad number of uses, Refused for one invitation too many."""
        if not 0 < issued.uses <= MAX_USES:
            raise Invalid(f"an invitation for {issued.uses:,} nodes", rule="invitation-uses", hint=f"1 to {MAX_USES}")
        self._forget(issued.made)
        kept = self.all()
        revoked = [each for each in kept if each.revoked]
        if len(kept) >= MAX_INVITATIONS and not revoked:
            raise Refused(
                f"this node has {len(kept)} invitations with tokens",
                rule="invitations",
                hint="odfctl network invitations lists them; odfctl network revoke ID frees one",
            )
        if len(kept) >= MAX_INVITATIONS:
            # A revoked one admits nobody; others still admit again the nodes that they are bound to.
            self._delete(revoked[-1])
        # An id is 32 bits of the digest, and a row of the same id would be replaced.
        if self._db.execute("SELECT 1 FROM invitations WHERE id = ?", (issued.id,)).fetchone() is not None:
            raise Refused("two invitations of one id", rule="invitation-id", hint="invite again: ids are random")
        self._put(issued)

    def redeem(self, token: bytes, peer: PeerId, joined: Iterable[str], now: Instant) -> Redemption:
        """Binds a token to a node in this connection's transaction; a damaged invitation admits nobody."""
        row, whole = INVITATIONS.look(self._db, "digest = ?", (digest_of_token(token),))
        if row is not None and not whole:
            raise Environment("an invitation is damaged on disk", rule=ROW_DAMAGED, hint=INVITATIONS.hint)
        outcome, changed = redeem(None if row is None else _to_issued(row), did_of_peer(peer), joined, now)
        if changed is not None:
            self._put(changed)
        return outcome

    def knows(self, token: bytes) -> bool:
        """Whether the token was issued here; so that unknown ones need no writing transaction."""
        found = self._db.execute("SELECT 1 FROM invitations WHERE digest = ?", (digest_of_token(token),))
        return found.fetchone() is not None

    def all(self) -> list[IssuedInvitation]:
        """Lists undamaged invitations, newest first."""
        found = (_to_issued(row) for row in INVITATIONS.whole(self._db))
        return sorted(found, key=lambda each: (-each.made, each.id))

    def revoke(self, id_: str) -> IssuedInvitation:
        """Revokes an invitation, named by its id or a prefix of it. Raises NotFound, Invalid."""
        found = [each for each in self.all() if each.id.startswith(id_.lower())]
        if len(found) != 1:
            fault = Invalid if found else NotFound
            text = "more than one invitation begins" if found else "no invitation with a token begins"
            raise fault(f"{text} with {id_[:60]!r}", rule="invitation", hint="odfctl network invitations")
        revoked = msgspec.structs.replace(found[0], revoked=True)
        self._put(revoked)
        return revoked

    def list_admitted(self, joined: Iterable[str]) -> frozenset[KeyDid]:
        """Returns the nodes that redeemed an unrevoked invitation to one of these networks."""
        names = frozenset(joined)
        kept = (each for each in self.all() if not each.revoked and each.network in names)
        return frozenset(node for each in kept for node in each.nodes)

    def _forget(self, now: Instant) -> None:
        """Deletes invitations that can admit nobody: expired or revoked long ago, and unused."""
        for each in self.all():
            is_old = each.expires + KEPT_SECONDS * SECOND <= now
            if is_old and (each.revoked or not each.nodes):
                self._delete(each)

    def _delete(self, one: IssuedInvitation) -> None:
        self._db.execute("DELETE FROM invitations WHERE id = ?", (one.id,))

    def _put(self, one: IssuedInvitation) -> None:
        nodes = b"".join(one.nodes)
        values = one.id, one.digest, one.network, one.uses, one.made, one.expires, int(one.revoked), nodes
        INVITATIONS.put(self._db, *values)


def _to_issued(row: Row) -> IssuedInvitation:
    _, digest, network, uses, made, expires, revoked, nodes = row
    return IssuedInvitation(
        digest=digest,
        network=network,
        uses=uses,
        made=Instant(made),
        expires=Instant(expires),
        revoked=bool(revoked),
        nodes=tuple(KeyDid(nodes[at : at + _KEY_BYTES]) for at in range(0, len(nodes), _KEY_BYTES)),
    )
