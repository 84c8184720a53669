"""Lives of one invitation: nodes ask in random order, answers are lost, the node that invites is killed and goes on.

Whatever happens, no more nodes are admitted than it is for, and a node that was bound to it is admitted when it asks
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from chain.instant import SECOND, Instant
from chain.store.database import Database, open_database
from odfd.store import invitation_tokens
from odfd.store.invitation_tokens import InvitationTokens, IssuedInvitation, digest_of_token
from p2p.identity import peer_of_did
from p2p.ports import PeerId
from p2p.wire.invite import Redemption
from sim.kernel import BATCH, Simulation, batches, hold
from worlds.statements import NOW, key

TOKEN = bytes(range(32))
NODES = 6
ENDS = {Redemption.ADMITTED, Redemption.USED, Redemption.EXPIRED, Redemption.REVOKED}


def peer(number: int) -> PeerId:
    return peer_of_did(key(number).did)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    folder: Path = tmp_path_factory.mktemp("invitations")
    with closing(open_database(folder / "odfd.sqlite")) as opened:
        opened.migrate(invitation_tokens.ROOM, invitation_tokens.STEPS)
        yield opened


class Crash(Exception):
    """The end of a process."""


class Life(Simulation):
    """One invitation, the node that made it, and what joiners were told; ``ends`` is what all are told at last."""

    def __init__(self, seed: int, database: Database, ends: Counter[Redemption]) -> None:
        super().__init__(seed)
        self.database, self.ends = database, ends
        self.uses = self.rng.randint(1, NODES + 1)
        """Up to one seat more than there are nodes: else all were taken before anybody came too late."""
        self.told: dict[int, set[Redemption]] = {}
        expires = Instant(NOW + self.rng.randint(100, 4000) * SECOND)
        made = IssuedInvitation(
            digest=digest_of_token(TOKEN), network="village", uses=self.uses, made=NOW, expires=expires
        )
        with database.write() as connection:
            connection.execute("DELETE FROM invitations")
            InvitationTokens(connection).issue(made)

    @property
    def instant(self) -> Instant:
        return Instant(NOW + int(self.now) * SECOND)

    @property
    def kept(self) -> IssuedInvitation:
        with self.database.read() as connection:
            (kept,) = InvitationTokens(connection).all()
        return kept

    def ask(self, who: int, fate: str = "well") -> Redemption | None:
        """What ``who`` is told; ``None``: nothing, since the answer was lost or the node died."""
        try:
            with self.database.write() as connection:
                if fate == "before":
                    raise Crash
                outcome = InvitationTokens(connection).redeem(TOKEN, peer(who), ["village"], self.instant)
                if fate == "inside":
                    raise Crash
        except Crash:
            return None
        if fate == "lost":
            return None
        self.note(who, outcome)
        self.told.setdefault(who, set()).add(outcome)
        return outcome

    def revoke(self) -> None:
        with self.database.write() as connection:
            InvitationTokens(connection).revoke(self.kept.id)

    def converge(self) -> None:
        for _ in range(40):
            self.run_until(self.now + self.rng.choice((0, 1, 1, 200)))
            if self.rng.random() < 0.005:
                self.revoke()
            self.ask(self.rng.randint(1, NODES), self.rng.choice(["well", "well", "lost", "before", "inside"]))
            kept = self.kept
            admitted = {key(who).did for who, said in self.told.items() if Redemption.ADMITTED in said}
            assert len(kept.nodes) <= self.uses
            assert admitted <= set(kept.nodes), "who was told so is bound"
        for who in range(1, NODES + 1):
            kept = self.kept
            said = self.ask(who)
            assert said is told(kept, who, self.instant)
            self.ends[said] += 1


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(25), ids=str)
def test_a_crash_between_use_and_answer_lets_no_two_in_and_locks_nobody_out(batch: range, database: Database) -> None:
    """Attack T-INVITE-01: a kill of the inviting node, or a lost answer, to have two nodes admitted or to lock the
    right one out.

    Defence: what was bound stays bound, and the same node is admitted again.
    """
    ends = Counter[Redemption]()
    hold(batch, partial(Life, database=database, ends=ends))
    assert len(batch) < BATCH or ends.keys() == ENDS, "each end was reached"


def told(kept: IssuedInvitation, who: int, now: Instant) -> Redemption:
    """What a node must be told; nobody is locked out whose answer was lost."""
    if kept.revoked:
        return Redemption.REVOKED
    if key(who).did in kept.nodes:
        return Redemption.ADMITTED
    if len(kept.nodes) == kept.uses:
        return Redemption.USED
    return Redemption.ADMITTED if now < kept.expires else Redemption.EXPIRED
