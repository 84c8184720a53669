"""Where another branch leaves ours is found by asking few blocks, from peers of whom none is believed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chain import instant
from chain.errors import Remote
from chain.ids import DatasetId
from chain.model.block import Block
from chain.statements import envelope, proof, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import HeadStatement
from chain.statements.tree import Frontier
from chain.store.base import Append
from chain.store.database import open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.network.forks import Contradiction, ForkFinder
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.log import Ledger
from p2p.ports import PeerId, PeerView
from worlds.chains import noted

NOW = instant.parse("2026-11-20T08:00:00Z")
OWNER = SigningKey(b"o" * 32)
SENDER, OTHER = PeerId("sender"), PeerId("other")


def chain_of(notes: list[str]) -> list[Block]:
    return noted(OWNER.dataset_id, notes, NOW)


def head_of(blocks: list[Block]) -> tuple[HeadStatement, bytes]:
    tree = Frontier().extend(block.hash.digest for block in blocks)
    said = HeadStatement(
        dataset=OWNER.dataset_id,
        epoch=0,
        size=tree.size,
        root_hash=tree.root,
        authority=0,
        issued_at=statement.when(NOW),
        expires_at="2026-11-27T08:00:00Z",
        head=blocks[-1].hash,
    )
    return said, envelope.seal(statement.encode(said), OWNER)


class Shown:
    """Peers that show a chain each, or fail."""

    def __init__(self, chains: dict[PeerId, list[Block] | None]) -> None:
        self.chains = chains
        self.asked: list[PeerId] = []

    def peers(self) -> Sequence[PeerView]:
        return [PeerView(peer=peer, connected=True) for peer in self.chains]

    async def fetch_blocks(self, peer: PeerId, dataset: DatasetId, start: int, max_bytes: int) -> Sequence[bytes]:
        self.asked.append(peer)
        chain = self.chains[peer]
        if chain is None:
            raise Remote("gone", rule="refused")
        return [block.raw for block in chain[start : start + (1 if max_bytes == 1 else 10)]]


class Silence:
    def info(self, _message: str, **_facts: object) -> None: ...
    def error(self, _message: str, **_facts: object) -> None: ...


@pytest.fixture
def looked(tmp_path: Path) -> Any:
    """Runs the finder of a node that holds ``ours``, against peers that show what they show."""
    with closing(open_database(tmp_path / "odfd.sqlite")) as database:
        chains = SqliteChains(database, DiskObjects(tmp_path / "objects", database))
        database.migrate(ledger_room.ROOM, ledger_room.STEPS)

        async def look(
            ours: list[Block], theirs: list[Block], peers: Shown, times: int = 1
        ) -> tuple[proof.Proof | None, list[Any]]:
            chains.commit([Append(dataset=OWNER.dataset_id, expected=None, blocks=ours)])
            with database.write() as connection:
                _, sealed = head_of(ours)
                signed = envelope.unseal(sealed, 4096)
                Ledger(connection).record(signed, OWNER.did, "advance", "", NOW, live=True)
            kept: list[proof.Proof] = []
            keep: Callable[[proof.Proof], bool] = lambda made: kept.append(made) is None  # noqa: E731
            finder = ForkFinder(database, chains, peers, keep, Silence())
            head, sealed = head_of(theirs)
            for _ in range(times - 1):
                await finder.look(Contradiction(head, sealed, SENDER))
            return await finder.look(Contradiction(head, sealed, SENDER)), kept

        yield look


LONG = [f"note {number}" for number in range(200)]


@pytest.mark.parametrize(("at", "length"), [(1, 201), (100, 150), (200, 201), (150, 400)])
async def test_the_first_difference_is_proven(looked: Any, at: int, length: int) -> None:
    ours = chain_of(LONG)
    theirs = chain_of([*LONG[: at - 1], *(f"other {number}" for number in range(length - at))])
    peers = Shown({SENDER: theirs})
    found, kept = await looked(ours, theirs, peers)
    assert found is not None
    assert kept == [found]
    assert (found.index, found.accused) == (at, (OWNER.did,))
    assert proof.decode(found.raw) == found
    assert len(peers.asked) <= math.ceil(math.log2(len(ours))) + 1 + math.ceil((length - at) / 10)


async def test_who_shows_something_else_is_passed_over(looked: Any) -> None:
    ours, theirs = chain_of(LONG[:20]), chain_of([*LONG[:10], "other", "more"])
    third = chain_of([*LONG[:5], "a third history", *LONG[:30]])
    peers = Shown({SENDER: None, PeerId("honest"): ours, PeerId("third"): third, OTHER: theirs})
    found, _ = await looked(ours, theirs, peers)
    assert found is not None
    assert found.index == 11
    assert set(peers.asked) == set(peers.chains)


async def test_without_the_branch_there_is_no_proof(looked: Any) -> None:
    ours, theirs = chain_of(LONG[:20]), chain_of([*LONG[:10], "other", "more"])
    found, kept = await looked(ours, theirs, Shown({SENDER: theirs[:-1], OTHER: ours}))
    assert (found, kept) == (None, [])


async def test_a_longer_history_is_no_fork(looked: Any) -> None:
    ours, theirs = chain_of(LONG[:20]), chain_of(LONG[:30])
    found, kept = await looked(ours, theirs, Shown({SENDER: theirs}))
    assert (found, kept) == (None, [])


async def test_a_branch_that_is_another_is_not_fetched_again(looked: Any, autojump_clock: Any) -> None:
    """A neighbour that shows long branches other than the one that was signed, each time that it is repeated."""
    ours, theirs = chain_of(LONG[:20]), chain_of([*LONG[:10], *(f"other {n}" for n in range(150))])
    peers = Shown({SENDER: chain_of([*LONG[:10], *(f"third {n}" for n in range(160))])})
    once = math.ceil(math.log2(len(ours))) + 1 + math.ceil(150 / 10)
    found, _ = await looked(ours, theirs, peers, times=20)
    assert found is None
    assert 0 < len(peers.asked) <= once
