"""Lives of one invitation: nodes ask in random order, answers are lost, the node that invites is killed and goes on.

Whatever happens, no more nodes are admitted than it is for, and a node that was bound to it is admitted when it asks
again. ``sim.kernel`` says how many lives are run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from chain.instant import SECOND, Instant
from chain.store.database import Database, open_database
from odfd.store import invitation_tokens
from odfd.store.invitation_tokens import InvitationTokens, IssuedInvitation, digest_of_token
from p2p.identity import peer_of_did
from p2p.ports import PeerId
from p2p.wire.invite import Redemption
from sim.kernel import BATCH, batches
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


class Life:
    """One invitation, the node that made it, and what joiners were told."""

    def __init__(self, database: Database, rng: Random) -> None:
        self.database, self.rng, self.now = database, rng, NOW
        self.uses = rng.randint(1, NODES + 1)
        """Up to one seat more than there are nodes: else all were taken before anybody came too late."""
        self.told: dict[int, set[Redemption]] = {}
        expires = Instant(NOW + rng.randint(100, 4000) * SECOND)
        made = IssuedInvitation(
            digest=digest_of_token(TOKEN), network="village", uses=self.uses, made=NOW, expires=expires
        )
        with database.write() as connection:
            connection.execute("DELETE FROM invitations")
            InvitationTokens(connection).issue(made)

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
                outcome = InvitationTokens(connection).redeem(TOKEN, peer(who), ["village"], self.now)
                if fate == "inside":
                    raise Crash
        except Crash:
            return None
        if fate == "lost":
            return None
        self.told.setdefault(who, set()).add(outcome)
        return outcome

    def revoke(self) -> None:
        with self.database.write() as connection:
            InvitationTokens(connection).revoke(self.kept.id)


@pytest.mark.slow
@pytest.mark.parametrize("batch", batches(25), ids=str)
def test_a_crash_between_use_and_answer_lets_no_two_in_and_locks_nobody_out(batch: range, database: Database) -> None:
    ends = Counter[Redemption]()
    for seed in batch:
        ends += live(seed, database)
    assert len(batch) < BATCH or ends.keys() == ENDS, "each end was reached"


def live(seed: int, database: Database) -> Counter[Redemption]:
    """Returns what the nodes were told in the end."""
    life = Life(database, Random(seed))
    for _ in range(40):
        life.now = Instant(life.now + life.rng.choice((0, 1, 1, 200)) * SECOND)
        if life.rng.random() < 0.005:
            life.revoke()
        life.ask(life.rng.randint(1, NODES), life.rng.choice(["well", "well", "lost", "before", "inside"]))
        kept = life.kept
        admitted = {key(who).did for who, said in life.told.items() if Redemption.ADMITTED in said}
        assert len(kept.nodes) <= life.uses, seed
        assert admitted <= set(kept.nodes), "who was told so is bound"
    ends = Counter[Redemption]()
    for who in range(1, NODES + 1):
        kept = life.kept
        said = life.ask(who)
        assert said is told(kept, who, life.now), seed
        ends[said] += 1
    return ends


def told(kept: IssuedInvitation, who: int, now: Instant) -> Redemption:
    """What a node must be told; nobody is locked out whose answer was lost."""
    if kept.revoked:
        return Redemption.REVOKED
    if key(who).did in kept.nodes:
        return Redemption.ADMITTED
    if len(kept.nodes) == kept.uses:
        return Redemption.USED
    return Redemption.ADMITTED if now < kept.expires else Redemption.EXPIRED
