"""Many statements: what free keys that speak without end cost a node, and how what it signs itself leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
import trio
from trio.testing import MockClock

from chain import instant
from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import MetadataBlock
from chain.model.events import DatasetKind, MetadataEvent, Seed, SetInfo
from chain.multihash import Multihash
from chain.statements import authority as rules
from chain.statements import envelope, statement
from chain.statements.card import Card, ChainFacts, PublisherClaims
from chain.statements.keys import SigningKey
from chain.statements.statement import (
    HEAD,
    HeadStatement,
    Observation,
)
from chain.statements.tree import Frontier
from chain.store.base import Append, BlockDamaged
from chain.store.database import Database, open_database
from chain.store.objects import DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.network.outbox import Outbox
from odfd.network.statement_quota import CONTRADICTIONS, NEW_DATASETS, RENEWALS, UNLISTED, StatementQuota
from odfd.network.statement_store import LedgerStatementStore, Subscribers
from odfd.network.unheld_statements import UnheldStatements
from odfd.runtime.supervision import Life
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.store.ledger.retention import HEADS, drop_unneeded, prune
from odfd.trust.admission.statement_kinds import CARD_PACE, HEAD_PACE
from odfd.trust.admission.statement_processor import StatementProcessor
from p2p.budget.buckets import MAX_KEYS, Budget
from p2p.ports import Judgement, PeerId, Topic
from worlds.statements import NOW, PEER, attestation, authority, head, key

ENTRIES = "SELECT COUNT(*), COALESCE(SUM(LENGTH(body)), 0) FROM trust_ledger"
LIVE = "SELECT COUNT(*), COALESCE(SUM(LENGTH(envelope)), 0) FROM trust_live"


OWNER = key(1)


def observation(observer: SigningKey, dataset: DatasetId, number: int) -> bytes:
    said = Observation(
        observer=observer.did, dataset=dataset, epoch=0, sequence_number=number, result="unreachable",
        at=statement.when(NOW), head=Multihash.sha3_256(b"block %d" % number),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), observer)


def versions(owner: SigningKey, count: int) -> list[bytes]:
    """An authority of so many versions."""
    found: list[bytes] = []
    previous = None
    for version in range(1, count + 1):
        raw, previous = authority(owner, version, previous)
        found.append(raw)
    return found


class Node:
    """A statement store as a node with default settings has it: it lists nobody, and mirrors nothing it is not
    told."""

    def __init__(self, database: Database, folder: Path, *mirrored: DatasetId) -> None:
        self.database, self.now, self.mirrored = database, NOW, set(mirrored)
        self.news: list[Any] = []
        self.chains = SqliteChains(database, DiskObjects(folder / "objects", database))
        self.quota = StatementQuota(
            is_listed=lambda _: False,
            is_mirrored=lambda _connection, dataset: dataset in self.mirrored,
            share_of=lambda peer: peer.split("/")[0],
        )
        self.board = LedgerStatementStore(
            database, self.chains, lambda: self.now, frozenset, Subscribers(self.news.append), self.quota
        )

    def hear(self, raw: bytes, topic: Topic = Topic.HEADS, sender: PeerId = PEER) -> Judgement:
        return self.board.judge(topic, raw, sender)

    def count(self, query: str = ENTRIES) -> tuple[int, int]:
        with self.database.read() as connection:
            entries, size = connection.execute(query).fetchone()
        return entries, size

    def newest(self, dataset: DatasetId) -> int | None:
        with self.database.read() as connection:
            found = Ledger(connection).newest_head(dataset)
        return None if found is None else found[0].size


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path / "odfd.sqlite")) as opened:
        opened.migrate(ledger_room.ROOM, ledger_room.STEPS)
        yield opened


@pytest.mark.slow
def test_what_nobody_wants_costs_nothing_lasting(database: Database, tmp_path: Path) -> None:
    """Attack T-HEAD-08: an unlisted key that signs heads, contradictions, versions and verdicts without end, about
    datasets of no interest.

    Defence: kept in memory, 128 KiB for a dataset and 32 MiB in all; no row, and no transaction that writes.

    A stranger's dataset: ever larger heads, renewals, contradictions, versions, verdicts, sightings by free keys.
    """
    node, dataset = Node(database, tmp_path), OWNER.dataset_id
    before = database.writes
    assert node.hear(head(OWNER, 1)) is Judgement.ACCEPT, "it is passed on"
    for number in range(2, 300):
        node.hear(head(OWNER, number))
        node.hear(head(OWNER, number, late=number))
        node.hear(head(OWNER, number, root=b"%32d" % number))
    for raw in versions(key(2), 256):
        node.hear(raw)
    for number in range(100, 200):
        node.hear(attestation(key(number), dataset, 1, None), Topic.ATTEST)
        node.hear(observation(key(number), dataset, 3), Topic.ATTEST)
    assert node.count() == (0, 0)
    assert node.count(LIVE) == (0, 0)
    assert database.writes == before, "nothing of it waits for, or holds, the one transaction that writes"
    assert node.board.unheld.size <= 2 * 128 << 10
    assert not node.news


def test_what_was_said_before_is_kept_once_it_is_wanted(database: Database, tmp_path: Path) -> None:
    """Said while nobody wanted it; then a person mirrors the dataset."""
    node, dataset = Node(database, tmp_path), OWNER.dataset_id
    told = [*versions(OWNER, 3), head(OWNER, 5, version=3)]
    for raw in told:
        assert node.hear(raw) is Judgement.ACCEPT
    assert {node.board.envelope(ref.sid) for ref in node.board.refs([dataset])} == {(Topic.HEADS, raw) for raw in told}
    assert node.newest(dataset) is None
    node.mirrored.add(dataset)
    node.board.adopt(dataset)
    assert node.newest(dataset) == 5
    with database.read() as connection:
        assert Authorities(connection).rights(dataset).version == 3
    assert not node.board.unheld.datasets()
    assert node.hear(head(OWNER, 6, version=3)) is Judgement.ACCEPT


def test_what_is_wanted_no_more_is_forgotten(database: Database, tmp_path: Path) -> None:
    node, dataset = Node(database, tmp_path, OWNER.dataset_id), OWNER.dataset_id
    node.hear(head(OWNER, 5))
    assert drop_unneeded(database, node.quota.concerns) == 0
    node.mirrored.clear()
    assert drop_unneeded(database, node.quota.concerns) == 1
    assert node.newest(dataset) is None
    assert node.hear(head(OWNER, 6)) is Judgement.ACCEPT
    assert node.newest(dataset) is None


@pytest.mark.slow
def test_strangers_to_a_dataset_never_hold_the_writing_transaction(database: Database, tmp_path: Path) -> None:
    """Attack T-HEAD-08: statements on a dataset of interest by keys without rights, to block the writing transaction.

    Defence: they are checked on a reading connection; only statements that will be kept are written.

    Of a dataset that is wanted: heads by keys that may not write, replays, words under unknown versions.
    """
    node = Node(database, tmp_path, OWNER.dataset_id)
    for number in (1, 2, 3):
        node.hear(head(OWNER, number))
    before = database.writes
    for number in range(1, 100):
        assert node.hear(head(OWNER, 100 + number, by=key(900 + number))) is Judgement.REJECT
        assert node.hear(head(OWNER, 100 + number, version=7, by=key(900 + number))) is Judgement.IGNORE
        assert node.hear(head(OWNER, 2)) is Judgement.IGNORE
    assert database.writes == before


def judged(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each time that a statement is judged, and whether that was inside the transaction that writes."""
    found: list[bool] = []

    judge = StatementProcessor.judge

    def counted(processor: StatementProcessor, *args: Any) -> Any:
        is_reading = bool(processor._db.execute("PRAGMA query_only").fetchone()[0])
        found.append(not is_reading)
        return judge(processor, *args)

    monkeypatch.setattr(StatementProcessor, "judge", counted)
    return found


def test_each_statement_is_judged_once(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept or not, of a dataset that is wanted, and never while everybody else waits to write."""
    node, found = Node(database, tmp_path, OWNER.dataset_id), judged(monkeypatch)
    words = [head(OWNER, 1), head(OWNER, 2), head(OWNER, 1, late=9), *versions(OWNER, 2), head(OWNER, 3, by=key(900))]
    for word in words:
        node.hear(word)
    assert found == [False] * len(words)
    node.hear(head(key(2), 1))
    assert len(found) == len(words) + 1, "nor twice of a dataset that nobody wants"


def test_what_was_written_in_between_is_judged_with(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another head of the same epoch is recorded after this one was judged: it is no advance any more."""
    node, rival = Node(database, tmp_path, OWNER.dataset_id), head(OWNER, 5, root=b"another history".ljust(32))
    takes = node.quota.takes

    def race(*args: Any) -> bool:
        monkeypatch.undo()
        assert node.hear(rival) is Judgement.ACCEPT
        return takes(*args)

    monkeypatch.setattr(node.quota, "takes", race)
    node.hear(head(OWNER, 5))
    assert [each.outcome.value for each in node.news] == ["advance", "fork"]


@pytest.mark.slow
def test_a_signer_renews_and_contradicts_itself_so_often(database: Database, tmp_path: Path) -> None:
    """Attack T-HEAD-08: a writer that renews or contradicts its statements without end.

    Defence: a rate limit by signer; one contradiction of a signer and epoch is recorded.
    """
    node = Node(database, tmp_path, OWNER.dataset_id)
    node.hear(head(OWNER, 3))
    entries, _ = node.count()
    renewed = [node.hear(head(OWNER, 3, late=late)) for late in range(1, 100)]
    assert renewed.count(Judgement.ACCEPT) == int(RENEWALS.burst)
    node.now = Instant(NOW + 601 * instant.SECOND)
    assert node.hear(head(OWNER, 3, late=99)) is Judgement.ACCEPT, "refused for its pace is heard later"
    assert node.count()[0] == entries + int(RENEWALS.burst) + 1
    contradicted = [node.hear(head(OWNER, 3, late=late, root=b"%32d" % late)) for late in range(1, 100)]
    assert contradicted.count(Judgement.ACCEPT) == 1, "one contradiction of a signer and epoch is kept and passed on"
    assert node.count()[0] == entries + int(RENEWALS.burst) + 2
    looked_into = sum(each.outcome.value == "fork" for each in node.news)
    assert looked_into == int(CONTRADICTIONS.burst), "others are looked into, as often as that"


@pytest.mark.slow
def test_frontiers_have_the_pace_of_blocks(database: Database, tmp_path: Path) -> None:
    """A shard that gets no blocks is as late as its frontier; and nobody may move it more often than add blocks."""
    node = Node(database, tmp_path, OWNER.dataset_id)
    node.hear(head(OWNER, 3))
    moved = [node.hear(head(OWNER, 3, upper=upper)) for upper in range(1, 200)]
    assert moved.count(Judgement.ACCEPT) == int(HEAD_PACE.burst) - 1
    assert node.hear(head(OWNER, 3, late=1, upper=2)) is not Judgement.ACCEPT, "it does not go back"


@pytest.mark.slow
def test_free_keys_share_one_pace(database: Database, tmp_path: Path) -> None:
    """Attack T-HEAD-08: thousands of unlisted validators and observers.

    Defence: one rate limit for all of them together.

    Sightings of blocks of a dataset that is here, by keys that nobody listed, on and on.
    """
    node, dataset = Node(database, tmp_path, OWNER.dataset_id), OWNER.dataset_id
    node.hear(head(OWNER, 9))
    for observer in range(100, 110):
        for number in range(100):
            node.hear(observation(key(observer), dataset, number), Topic.ATTEST)
    assert node.count()[0] <= 1 + 256


@pytest.mark.slow
def test_free_keys_leave_a_newcomer_elsewhere_its_turn(database: Database, tmp_path: Path) -> None:
    """Keys without end say all that the pace lets through, from peers of one block; a newcomer speaks in another."""
    node, dataset = Node(database, tmp_path, OWNER.dataset_id), OWNER.dataset_id
    node.hear(head(OWNER, 9))
    for number in range(600):
        peer = PeerId(f"198.51.0.0/16/{number % 40}")
        node.hear(observation(key(100 + number % 15), dataset, number), Topic.ATTEST, peer)
    raw = observation(key(900), dataset, 7)
    assert node.hear(raw, Topic.ATTEST, PeerId("198.51.0.0/16/41")) is Judgement.IGNORE, "the block has had its share"
    assert node.hear(raw, Topic.ATTEST, PeerId("203.0.0.0/16/1")) is Judgement.ACCEPT


@pytest.mark.slow
@pytest.mark.parametrize("silence", [1, 10, 61, 600, 2561])
@pytest.mark.parametrize("blocks", [1, 8])
def test_no_timing_of_a_flood_takes_the_turn_of_others(blocks: int, silence: int) -> None:
    """Attack T-HEAD-08: unlimited keys that use up the rate of unlisted validators, to exclude newcomers.

    Defence: half of the rate is divided among the subnets of the peers that send such statements; a subnet is
    remembered until its rate would be restored.

    For hours all that some blocks can say, with any pause; now and then one speaks from a block of its own.
    """
    quota = StatementQuota(share_of=lambda peer: peer.split("/")[0])
    said, heard, refused, hours = 0, 0, 0, 6
    at_once = blocks * (40 if silence > 60 else 3)
    for second in range(0, hours * 3600, silence):
        now = Instant(NOW + second * instant.SECOND)
        for number in range(at_once):
            heard += quota.takes_unlisted(PeerId(f"flood {number % blocks}/{number}"), now)
        if second // 3600 != (second - silence) // 3600:
            said += 1
            refused += not quota.takes_unlisted(PeerId(f"honest {said}/1"), now)
    assert said == hours
    assert refused == 0
    assert heard <= UNLISTED.burst + hours * 3600 * UNLISTED.per_second


@pytest.mark.slow
def test_blocks_of_addresses_without_end_cost_no_memory() -> None:
    quota = StatementQuota(share_of=str)
    passed = sum(quota.takes_unlisted(PeerId(str(number)), NOW) for number in range(3 * MAX_KEYS))
    assert passed <= UNLISTED.burst
    assert len(quota._unlisted._shares) <= MAX_KEYS


@pytest.mark.slow
def test_heads_signed_each_second_fill_no_disk(database: Database, tmp_path: Path) -> None:
    """Attack T-HEAD-08: a head each second by a publisher that is mirrored.

    Defence: the last 256 superseded statements of a signer are kept.

    A publisher that is mirrored signs a head a second for an hour: the last few hundred are kept.
    """
    node = Node(database, tmp_path, OWNER.dataset_id)
    for number in range(1, 600):
        node.now = Instant(NOW + number * instant.SECOND)
        assert node.hear(head(OWNER, number, late=number)) is Judgement.ACCEPT
    assert node.count()[0] == 599
    prune(database, node.now)
    with database.read() as connection:
        kept = connection.execute("SELECT COUNT(*) FROM trust_ledger WHERE type = ?", (HEAD,)).fetchone()[0]
        Ledger(connection).check()
    assert kept == HEADS
    assert node.newest(OWNER.dataset_id) == 599


@pytest.mark.slow
def test_an_authority_is_walked_once(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-HEAD-08: an authority of 256 versions, so that each statement under it is expensive to check.

    Defence: a version is checked once; the result is found by the id of its last version.

    256 versions, then a hundred words under the last of them: each version is followed when it comes.
    """
    owner = key(3)
    node, followed = Node(database, tmp_path, owner.dataset_id), []
    follow = rules.follow

    def counted(*args: Any) -> Any:
        followed.append(args[1].version)
        return follow(*args)

    monkeypatch.setattr(rules, "follow", counted)
    for raw in versions(owner, 256):
        assert node.hear(raw) is Judgement.ACCEPT
    assert len(followed) <= 256
    for size in range(1, 60):
        assert node.hear(head(owner, size, version=256)) is Judgement.ACCEPT
    for size in range(1, 100):
        assert node.hear(head(owner, size, version=256, by=key(77))) is not Judgement.ACCEPT
    assert len(followed) <= 256


@pytest.mark.slow
def test_a_proof_of_what_is_held_is_made_again_lower(database: Database, tmp_path: Path) -> None:
    """Contradictions beyond the first are no longer recorded, and still prove a fork at a lower place."""
    node, dataset = Node(database, tmp_path, OWNER.dataset_id), OWNER.dataset_id
    made, previous = [], None
    for number in range(6):
        event = Seed(dataset_id=dataset, dataset_kind=DatasetKind.ROOT) if number == 0 else _info(number)
        block = encode_block(
            MetadataBlock(
                system_time=Instant(NOW + number), prev_block_hash=previous, sequence_number=number, event=event
            )
        )
        made.append(block)
        previous = block.hash
    node.chains.commit([Append(dataset=dataset, expected=None, blocks=made)])
    tree = Frontier().extend(block.hash.digest for block in made)
    with database.write() as connection:
        Ledger(connection).keep_chain(dataset, CheckedChain(tree, tree.size))

    def signed(count: int, last: bytes) -> bytes:
        leaves = [*(block.hash.digest for block in made[: count - 1]), last]
        said = HeadStatement(
            dataset=dataset, epoch=0, size=count, root_hash=Frontier().extend(leaves).root, authority=0,
            issued_at=statement.when(NOW), expires_at=statement.when(Instant(NOW + 86400 * instant.SECOND)),
            head=Multihash.parse(f"f1620{last.hex()}"),
        )  # fmt: skip
        return envelope.seal(statement.encode(said), OWNER)

    assert node.hear(signed(6, made[5].hash.digest)) is Judgement.ACCEPT
    for count in (6, 4, 2):
        node.hear(signed(count, bytes([count]) * 32))
    proven = [each.proof.index for each in node.news if each.proof is not None]
    assert proven == [5, 3, 1]
    forks = f"SELECT COUNT(*), 0 FROM trust_ledger WHERE outcome = 'fork' AND type = '{HEAD}'"
    assert node.count(forks) == (1, 0)


def _info(number: int) -> MetadataEvent:
    return SetInfo(description=f"{number}")


@pytest.mark.slow
def test_who_asks_of_one_dataset_pays_for_one(database: Database, tmp_path: Path) -> None:
    """Whatever is kept of others, wanted here or not: strangers ask as often as they like."""
    node = Node(database, tmp_path)
    steps: list[int] = []

    def work() -> int:
        """Instructions of both databases for one question."""
        done: list[int] = []
        with database.read() as connection:
            for each in (connection, node.board.unheld._db):
                each.set_progress_handler(lambda: done.append(1), 1)
            assert [ref.dataset for ref in node.board.refs([OWNER.dataset_id])] == [OWNER.dataset_id]
            for each in (connection, node.board.unheld._db):
                each.set_progress_handler(None, 0)
        return len(done)

    assert node.hear(head(OWNER, 5)) is Judgement.ACCEPT
    for number in range(2, 600):
        other = key(number)
        if number % 2:
            node.mirrored.add(other.dataset_id)
        node.hear(head(other, 3))
        if number in (20, 599):
            steps.append(work())
    assert len(node.board.refs()) > 100
    assert steps[1] < 2 * steps[0]


def card(owner: SigningKey, size: int) -> bytes:
    at = instant.parse("2026-01-01T00:00:00Z")
    facts = ChainFacts(kind="root", records=1, created_at=statement.when(at), updated_at=statement.when(at))
    said = Card(
        dataset=owner.dataset_id, author=owner.did, authority=0, epoch=0, size=size, issued_at=statement.when(NOW),
        expires_at=statement.when(Instant(NOW + 86400 * instant.SECOND)), head=Multihash.sha3_256(b"block"),
        chain=msgspec.structs.replace(facts, description="buy " * 250), claims=PublisherClaims(name="weather"),
    )  # fmt: skip
    return envelope.seal(statement.encode(said), owner)


@pytest.mark.slow
def test_cards_without_end_stay_in_memory_and_within_bounds(database: Database, tmp_path: Path) -> None:
    """Attack T-CARD-01: cards of invented datasets, or new cards of one without end.

    Defence: 100 new ids an hour from a peer, 8 cards at once and one in ten minutes for a dataset, 32 MiB in memory; no
    row and no transaction.

    Of invented datasets, by free keys; and ever new ones of one dataset.
    """
    node = Node(database, tmp_path)
    node.board.unheld = UnheldStatements(most_bytes=64 << 10)
    before = database.writes
    heard = [node.hear(card(key(number), 1)) for number in range(1, 200)]
    assert heard.count(Judgement.ACCEPT) == NEW_DATASETS.burst, "so many new ones of one peer at once"
    assert 32 << 10 < node.board.unheld.size <= 64 << 10
    assert [node.hear(card(OWNER, size)) for size in range(2, 40)].count(Judgement.ACCEPT) <= CARD_PACE.burst
    assert database.writes == before
    assert node.count() == (0, 0)
    assert not node.news


# What a node signs leaves as fast as peers take it, and the last of it always does.

BUSY, QUIET = (DatasetId.from_public_key(bytes([number]) * 32) for number in (1, 2))


class Announced:
    """What was announced, and when."""

    def __init__(self) -> None:
        self.heads: list[tuple[float, bytes]] = []

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        assert topic is Topic.HEADS
        self.heads.append((trio.current_time(), envelope))


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time would jump while one runs."""

    async def at_once(function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)


async def announced_of(heads: int, pause: float, also: bytes = b"") -> list[tuple[float, bytes]]:
    """So many heads of one dataset are signed, one after each pause, and one of another in the end."""
    network, logger, life = Announced(), Any, Life()
    outbox = Outbox(network, set, logger, lambda _: None)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run, life)
        await life.wait_ready()
        for number in range(heads):
            outbox.put_head(BUSY, b"%d" % number)
            await trio.sleep(pause)
        if also:
            outbox.put_head(QUIET, also)
        await trio.sleep(5)
        life.stopping.set()
    return network.heads


@pytest.mark.usefixtures("no_threads")
async def test_every_head_of_a_busy_publisher_that_leaves_is_taken(autojump_clock: MockClock) -> None:
    """Twenty a second: peers refused all but one a second, and the last with them, for two minutes."""
    announced = await announced_of(400, 0.05)
    taken = Budget[None](HEAD_PACE)
    assert all(taken.spend(None, at) for at, _ in announced)
    assert announced[-1][1] == b"399"
    assert 60 * 0.7 < len(announced) < 100


@pytest.mark.usefixtures("no_threads")
async def test_a_head_of_another_dataset_does_not_wait(autojump_clock: MockClock) -> None:
    announced = await announced_of(400, 0.01, also=b"quiet")
    assert [at for at, said in announced if said == b"quiet"] == [pytest.approx(4.0, abs=0.1)]


@pytest.mark.usefixtures("no_threads")
async def test_heads_that_are_signed_slowly_leave_at_once_and_all(autojump_clock: MockClock) -> None:
    announced = await announced_of(100, 2.0)
    assert [said for _, said in announced] == [b"%d" % number for number in range(100)]


@pytest.mark.usefixtures("no_threads")
async def test_a_damaged_chain_is_not_announced_and_others_are(autojump_clock: MockClock) -> None:
    def public_of(datasets: Iterable[DatasetId], _peer: PeerId | None = None) -> set[DatasetId]:
        if BUSY in datasets:
            raise BlockDamaged(BUSY, 4, "it is cut off")
        return set(datasets)

    network, life = Announced(), Life()
    with structlog.testing.capture_logs() as logs:
        outbox = Outbox(network, public_of, structlog.get_logger(), lambda _: None)  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run, life)
            await life.wait_ready()
            outbox.put_head(BUSY, b"damaged")
            await trio.sleep(2)
            outbox.put_head(QUIET, b"whole")
            await trio.sleep(2)
            life.stopping.set()
    assert [said for _, said in network.heads] == [b"whole"]
    assert [each["event"] for each in logs] == ["not announced"]
