"""What is said in a network: its quota, its way out, what is told of datasets, and what proves a fork."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain import instant
from chain.errors import Invalid
from chain.ids import DatasetId
from chain.instant import SECOND, Instant
from chain.multihash import Multihash
from chain.statements import proof as proofs
from chain.statements.statement import HEAD
from chain.statements.tree import GROUP, Frontier, Tree, is_consistent, root_from_inclusion
from chain.store import schema
from chain.store.base import Head
from chain.store.database import Database, open_database
from chain.store.files import ObjectDamaged
from chain.store.objects import SMALL, DiskObjects
from chain.store.sqlite import SqliteChains
from odfd.datasets.uncommitted_objects import UncommittedObjects
from odfd.network.forks import MAX_BRANCH, ForkFinder
from odfd.network.library import PART, REACH_AGE, TOLD_AGE, ServingLibrary, ServingTerms, VerifiedReads
from odfd.network.statement_quota import NEW_DATASETS, StatementQuota
from odfd.network.statement_store import LedgerStatementStore, Subscribers
from odfd.network.tree_proofs import TreeProofs
from odfd.network.unheld_statements import MAX_OF_ONE, MAX_WAITING, EarlyStatements, UnheldStatements
from odfd.store.ledger import log as ledger_room
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import ROOM, STEPS, CheckedChain, Ledger
from odfd.store.ledger.proofs import Proofs
from odfd.trust.admission.statement_kinds import KINDS, MAX_LISTED, MAX_UNLISTED
from p2p.budget.buckets import Rate
from p2p.machines.reconcile import Done, Fetch, Reconcile, Show, answer
from p2p.ports import Concern, Judgement, PeerId, StatementRef, Topic
from worlds.statements import NOW, PEER, attestation, authority, head, key

# What strangers say has its limits; what must wait is tried again; what time changes is not remembered.

OTHER = PeerId("12D3KooWOther")


class Board:
    def __init__(self, database: Database, room: StatementQuota, folder: Path) -> None:
        self.database, self.now = database, NOW
        self.news: list[Any] = []
        chains: Any = SqliteChains(database, DiskObjects(folder / "objects", database))
        self.board = LedgerStatementStore(
            database, chains, lambda: self.now, frozenset, Subscribers(self.news.append), room
        )

    def hear(self, raw: bytes, peer: PeerId = PEER, topic: Topic = Topic.HEADS) -> Judgement:
        return self.board.judge(topic, raw, peer)


def strangers(*mirrored: DatasetId) -> StatementQuota:
    """The quota of a node that mirrors these datasets, and lists nobody."""
    return StatementQuota(is_listed=lambda _: False, is_mirrored=lambda _connection, dataset: dataset in mirrored)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path / "odfd.sqlite")) as opened:
        opened.migrate(ledger_room.ROOM, ledger_room.STEPS)
        yield opened


@pytest.fixture
def other_database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(tmp_path / "other.sqlite")) as opened:
        opened.migrate(ledger_room.ROOM, ledger_room.STEPS)
        yield opened


@pytest.mark.slow
def test_a_peer_brings_so_many_new_datasets_an_hour(database: Database, tmp_path: Path) -> None:
    """Attack T-HEAD-08: invented datasets and verdicts by unlisted keys.

    Defence: limits of new ones by peer and hour, and in all; listed validators have a reserve.
    """
    mirrored = key(5000).dataset_id
    board = Board(database, strangers(mirrored), tmp_path)
    burst = int(NEW_DATASETS.burst)
    heads = [head(key(number)) for number in range(1000, 1000 + burst + 2)]
    assert [board.hear(raw) for raw in heads[:burst]] == [Judgement.ACCEPT] * burst
    assert board.hear(heads[burst]) is Judgement.IGNORE
    assert board.hear(head(key(5000))) is Judgement.ACCEPT, "one that is to be mirrored is always heard"
    assert board.hear(head(key(1000), late=1)) is Judgement.ACCEPT, "one that is known, too"
    assert board.hear(heads[burst + 1], OTHER) is Judgement.ACCEPT, "another peer has a budget of its own"
    board.now = Instant(NOW + 120 * instant.SECOND)
    assert board.hear(heads[burst]) is Judgement.ACCEPT, "refused for want of room is not remembered"


def test_of_interest_is_what_is_kept_or_mirrored_and_public(database: Database, tmp_path: Path) -> None:
    kept, unsaid, brought, private, unheld = (key(number).dataset_id for number in range(1, 6))
    room = strangers(kept, private)
    room.interests = lambda _connection: (unsaid, private)
    board = Board(database, room, tmp_path)
    board.board._public_of = lambda datasets: set(datasets) - {private}
    for number in (1, 4, 5):
        board.hear(head(key(number)))
    assert {ref.dataset for ref in board.board.refs()} == {kept, unheld}
    assert set(board.board.interests()) == {kept, unsaid}
    with board.board.attend(brought):
        board.hear(head(key(3)))
        assert set(board.board.interests()) == {kept, unsaid}, "that of a folder, say, is private once it is here"
        assert not board.board.concern(Topic.HEADS, head(key(3))).is_wanted
    for number, is_wanted in ((1, True), (4, False), (5, False)):
        dataset = key(number).dataset_id
        assert board.board.concern(Topic.HEADS, head(key(number))) == Concern((dataset,), is_wanted), number


@pytest.mark.parametrize("is_mirrored", [True, False])
def test_proofs_are_listed_by_whom_they_accuse(database: Database, tmp_path: Path, *, is_mirrored: bool) -> None:
    """So that who lists a validator hears of them though he wants none of their datasets."""
    validator, dataset, other = key(1), key(2).dataset_id, key(3)
    room = StatementQuota(
        is_listed=lambda each: is_mirrored and each == validator.did,
        is_mirrored=lambda _connection, _dataset: is_mirrored,
    )
    board = Board(database, room, tmp_path)
    votes = [attestation(validator, dataset, previous=each) for each in (None, Multihash.sha3_256(b"?"))]
    found = proofs.double_vote(*votes)
    board.hear(head(key(2)))
    assert board.hear(found.raw, topic=Topic.PROOFS) is Judgement.ACCEPT
    accused = DatasetId.from_public_key(validator.did.public_key)
    concern = board.board.concern(Topic.PROOFS, found.raw)
    assert concern == Concern((dataset, accused), is_mirrored), "of who is listed, whatever dataset it is on"
    asked = [accused, DatasetId.from_public_key(other.did.public_key)]
    assert board.board.refs(asked) == [StatementRef(found.id, accused)]
    assert StatementRef(found.id, dataset) in board.board.refs([dataset])
    assert {ref.dataset for ref in board.board.refs()} == {dataset}, "sums are over datasets alone"
    board.board._public_of = lambda _datasets: frozenset()
    assert not is_mirrored or board.board.refs(asked) == []


def test_a_round_over_listed_keys_brings_proofs_on_datasets_nobody_wants(
    database: Database, other_database: Database, tmp_path: Path
) -> None:
    """Attack T-HEAD-08: statements without end on a dataset of no interest, so that a proof against a listed validator
    on it never arrives.

    Defence: such proofs are requested by the key that they accuse.
    """
    validator, dataset = key(1), key(2).dataset_id
    accused = DatasetId.from_public_key(validator.did.public_key)
    holder = Board(database, strangers(), tmp_path)
    lister = Board(
        other_database,
        StatementQuota(
            is_listed=lambda each: each == validator.did,
            is_mirrored=lambda _connection, _dataset: False,
            interests=lambda _connection: (accused,),
        ),
        tmp_path,
    )
    holder.hear(head(key(2)))
    votes = [attestation(validator, dataset, previous=each) for each in (None, Multihash.sha3_256(b"?"))]
    assert holder.hear(proofs.double_vote(*votes).raw, topic=Topic.PROOFS) is Judgement.ACCEPT
    asked = lister.board.interests()
    machine = Reconcile(lister.board.refs(asked), asked)
    effects = machine.start()
    while not isinstance(effect := effects.pop(0), Done):
        if isinstance(effect, Fetch):
            effects += machine.handle(answer(effect.ask, holder.board.refs, holder.board.envelope))
        elif isinstance(effect, Show):
            for signed in effect.statements:
                assert lister.hear(signed.envelope, topic=signed.topic) is Judgement.ACCEPT
    with other_database.read() as connection:
        assert Proofs(connection).double_voters() == {validator.did}


def test_datasets_not_held_make_room_for_others(database: Database, tmp_path: Path) -> None:
    board = Board(database, strangers(), tmp_path)
    board.board.unheld = UnheldStatements(most=3)
    for number in (1, 2, 3):
        board.hear(head(key(number)))
    board.hear(head(key(1), late=1))
    board.hear(head(key(4)))
    assert {ref.dataset for ref in board.board.refs()} == {key(number).dataset_id for number in (1, 3, 4)}
    assert board.hear(head(key(2))) is Judgement.ACCEPT, "what had to go is new when it comes again"


@pytest.mark.slow
def test_listed_validators_have_room_that_others_cannot_take(database: Database, tmp_path: Path) -> None:
    owner = key(1)
    listed = {key(number).did for number in range(9000, 9000 + MAX_LISTED + 1)}
    board = Board(database, StatementQuota(is_listed=lambda each: each in listed), tmp_path)
    board.hear(head(owner))

    def hear(number: int) -> Judgement:
        return board.hear(attestation(key(number), owner.dataset_id), topic=Topic.ATTEST)

    strangers = [hear(number) for number in range(100, 100 + MAX_UNLISTED + 3)]
    assert strangers == [Judgement.ACCEPT] * MAX_UNLISTED + [Judgement.IGNORE] * 3
    known = [hear(number) for number in range(9000, 9000 + MAX_LISTED + 1)]
    assert known == [Judgement.ACCEPT] * MAX_LISTED + [Judgement.IGNORE]


def test_a_kind_without_a_pace_is_taken_as_often_as_it_comes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = key(1)

    def hear_three() -> list[Judgement]:
        board = Board(database, strangers(owner.dataset_id), tmp_path)
        return [board.hear(head(owner, 8 + number, number)) for number in range(3)]

    paced = KINDS[HEAD]._replace(pace=Rate(per_second=1e-9, burst=1.0))
    monkeypatch.setitem(KINDS, HEAD, paced)
    assert hear_three() == [Judgement.ACCEPT, Judgement.IGNORE, Judgement.IGNORE]
    monkeypatch.setitem(KINDS, HEAD, paced._replace(pace=None))
    with database.write() as connection:
        connection.execute("DELETE FROM trust_live")
    assert hear_three() == [Judgement.ACCEPT] * 3


def test_what_came_too_early_is_heard_later(database: Database, tmp_path: Path) -> None:
    board = Board(database, StatementQuota(), tmp_path)
    raw = head(key(1), late=3600)
    assert board.hear(raw) is Judgement.IGNORE
    board.now = Instant(NOW + 3600 * instant.SECOND)
    assert board.hear(raw) is Judgement.ACCEPT


def test_what_rests_on_a_later_version_waits_for_it(database: Database, tmp_path: Path) -> None:
    """A head under version 3, and the versions in the wrong order: all are taken once the first is there."""
    board, owner = Board(database, StatementQuota(), tmp_path), key(77)
    one, sid = authority(owner, 1, None)
    two, sid = authority(owner, 2, sid)
    three, _ = authority(owner, 3, sid, [key(3)])
    for raw in (head(owner, version=3, by=key(3)), three, two):
        assert board.hear(raw) is Judgement.IGNORE
    with database.read() as connection:
        assert not Ledger(connection).speaks_of(owner.dataset_id)
    assert board.hear(one) is Judgement.ACCEPT
    with database.read() as connection:
        assert Authorities(connection).rights(owner.dataset_id).version == 3
        newest = Ledger(connection).newest_head(owner.dataset_id)
    assert newest is not None
    assert newest[1].signers == (key(3).did,)
    assert len(board.news) == 4


def test_two_versions_of_one_number_are_kept_as_a_proof(database: Database, tmp_path: Path) -> None:
    """Attack T-HEAD-05: two versions of one authority.

    Defence: the roots that signed both are proven to have done so; a node that knows both follows no head.
    """
    board, owner = Board(database, StatementQuota(), tmp_path), key(77)
    one, _ = authority(owner, 1, None)
    other, _ = authority(owner, 1, None, [key(78)])
    assert board.hear(one) is Judgement.ACCEPT
    assert board.hear(other) is Judgement.ACCEPT
    assert board.news[-1].proof.kind == "authority-fork"
    assert board.hear(head(owner)) is Judgement.IGNORE, "who may write is disputed"


def test_waiting_is_bounded() -> None:
    waiting = EarlyStatements()
    one = key(1).dataset_id
    for number in range(MAX_OF_ONE + 5):
        waiting.put(one, b"%d" % number, PEER)
    assert [raw for raw, _ in waiting.take(one)] == [b"%d" % number for number in range(5, MAX_OF_ONE + 5)]
    assert waiting.take(one) == []
    for number in range(MAX_WAITING + 5):
        waiting.put(key(number + 1).dataset_id, b"%d" % number, PEER)
    left = [waiting.take(key(number + 1).dataset_id) for number in range(MAX_WAITING + 5)]
    assert [bool(each) for each in left] == [False] * 5 + [True] * MAX_WAITING


def test_an_old_database_gains_the_tables(tmp_path: Path) -> None:
    with closing(open_database(tmp_path / "old.sqlite")) as opened:
        opened.migrate(ledger_room.ROOM, ledger_room.STEPS[:2])
        with opened.write() as connection:
            connection.execute("INSERT INTO trust_chains VALUES (?, ?, 0)", (key(1).dataset_id, bytes(8)))
        opened.migrate(ledger_room.ROOM, ledger_room.STEPS)
        with opened.read() as connection:
            assert Ledger(connection).chain(key(1).dataset_id).epoch == 0
            assert isinstance(connection, sqlite3.Connection)


# How often it is computed what of a dataset is given: seldom for whoever only tells of it, and never too late.

MANY = [DatasetId.from_public_key(bytes([number]) * 32) for number in range(5)]
ONE = MANY[0]


class World:
    """Chains of which only heads are asked, and a reach that counts how often it is computed."""

    def __init__(self) -> None:
        self.now = Instant(10**18)
        self.blocks = dict.fromkeys(MANY, 7)
        self.within = dict.fromkeys(MANY, 5)
        self.computed: list[DatasetId] = []
        nothing: Any = None
        self.library = ServingLibrary(
            nothing,
            self,
            nothing,
            ServingTerms(frozenset, self.reach),
            lambda: self.now,  # type: ignore[arg-type]
        )

    def datasets(self) -> Sequence[DatasetId]:
        return MANY

    def chain(self, dataset: DatasetId) -> Any:
        blocks = self.blocks[dataset]

        class Chain:
            def head(self) -> Head:
                return Head(Multihash.sha3_256(bytes(blocks)), blocks - 1)

        return Chain()

    def reach(self, dataset: DatasetId) -> int:
        self.computed.append(dataset)
        return self.within[dataset]

    def later(self, nanoseconds: int) -> None:
        self.now = Instant(self.now + nanoseconds)


def test_telling_of_many_costs_little_while_nothing_moves() -> None:
    world = World()
    for _ in range(30):
        assert world.library.datasets(10) == MANY
        world.later(15 * SECOND)
    assert world.computed == MANY
    world.later(TOLD_AGE)
    world.library.datasets(10)
    assert world.computed == MANY * 2, "in the end all is looked at again"


@pytest.mark.parametrize("moved", ["head", "signed", "policy"])
def test_what_moved_is_looked_at_at_once(moved: str) -> None:
    world = World()
    world.library.datasets(10)
    world.within[ONE] = 0
    if moved == "head":
        world.blocks[ONE] += 1
    elif moved == "signed":
        world.library.note_change(ONE)
    else:
        world.library.policy_changed()
    world.computed.clear()
    assert world.library.datasets(10) == MANY[1:]
    assert world.computed == (MANY if moved == "policy" else [ONE])


def test_what_was_not_given_is_told_of_as_soon_as_it_is() -> None:
    world = World()
    world.within[ONE] = 0
    assert world.library.datasets(10) == MANY[1:]
    world.within[ONE] = 1
    world.later(REACH_AGE)
    assert world.library.datasets(10) == MANY


def test_whoever_asks_is_answered_by_the_reach_of_now() -> None:
    world = World()
    world.library.datasets(10)
    world.within[ONE] = 0
    world.later(REACH_AGE)
    assert world.library.size(ONE) == 0
    assert world.library.datasets(10) == MANY[1:]


def test_no_more_are_looked_at_than_are_told() -> None:
    world = World()
    assert world.library.datasets(2) == MANY[:2]
    assert world.computed == MANY[:2]


class Swarm:
    """Answers whatever it is asked, and counts it; nothing is on its way."""

    def __init__(self) -> None:
        self.asked, self.arriving = 0, UncommittedObjects()

    def parts(self, *_: Any) -> str:
        self.asked += 1
        return "parts"

    pieces = piece_list = parts


def test_which_parts_of_a_private_dataset_are_here_is_told_to_nobody() -> None:
    """Nor of an object that is none of the dataset by which it is asked for: the answer is that of what is absent."""
    world, swarm, name = World(), Swarm(), Multihash.sha3_256(b"object")
    terms: Any = ServingTerms(lambda asked, _=None: {*asked} - {ONE}, world.reach, swarm=swarm)  # type: ignore[arg-type]
    library: Any = ServingLibrary(None, world, None, terms, lambda: world.now)  # type: ignore[arg-type]
    library._find_naming = lambda _: [(ONE, 3), (MANY[1], 3)]

    def told(dataset: DatasetId) -> list[Any]:
        ask: Any = SimpleNamespace(dataset=dataset, name=name)
        return [library.parts(ask), library.pieces(ask), library.piece_list(dataset, name, 1)]

    assert told(ONE) == [None] * 3
    assert swarm.asked == 0
    assert told(MANY[1]) == ["parts"] * 3
    assert told(MANY[2])[1:] == [None] * 2, "it is no object of this one"


# What is fetched to prove a fork is bounded before it is fetched.

DATASET = DatasetId.from_public_key(bytes(32))
TELLER = PeerId("peer")


class Peers:
    """A peer whose every block is another than ours."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    async def fetch_blocks(self, _peer: PeerId, _dataset: DatasetId, start: int, count: int) -> list[bytes]:
        self.asked.append((start, count))
        return [b"another"]


async def test_a_branch_that_is_longer_than_any_proof_is_not_fetched() -> None:
    """A head may claim any size: its signer would have this node fetch for ever, and prove nothing."""
    nothing: Any = None
    ours = [bytes([number]) * 32 for number in range(8)]
    for beyond, fetched in ((0, 1), (1, 0)):
        peers: Any = Peers()
        finder = ForkFinder(nothing, nothing, peers, nothing, nothing)
        head: Any = SimpleNamespace(dataset=DATASET, size=MAX_BRANCH + beyond, root_hash=bytes(32))
        if beyond:
            with pytest.raises(Invalid) as caught:
                await finder._branch(TELLER, head, ours)
            assert caught.value.rule == "fork-branch"
        else:
            peers.fetch_blocks = stopping(peers)
            assert await finder._branch(TELLER, head, ours) is None
        assert len([start for start, count in peers.asked if count > 1]) == fetched


def stopping(peers: Peers) -> Any:
    """The same, but it gives nothing of the branch itself."""
    one = peers.fetch_blocks

    async def fetch(peer: PeerId, dataset: DatasetId, start: int, count: int) -> list[bytes]:
        found = await one(peer, dataset, start, count)
        return found if count == 1 else []

    return fetch


# What a node sends is proven: roots of trees, and bytes of the disk.


# Proofs from a database: right at every size while the chain grows, and right again after it was rewritten.

PROVEN = DatasetId.from_public_key(b"p" * 32)


def leaf(text: str) -> bytes:
    return hashlib.sha3_256(text.encode()).digest()


class Hashes(TreeProofs):
    """A prover over a list in place of a table."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self.names: list[bytes] = []
        self.read = 0

    def _digests(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        found = self.names[max(start, 0) : stop]
        self.read += len(found)
        return found

    def _find_known(self, dataset: DatasetId) -> Frontier:
        return Frontier().extend(self.names)

    def _tree(self, dataset: DatasetId) -> Tree:
        return Tree(partial(self._leaves, dataset))

    def root(self, size: int) -> bytes:
        return Frontier().extend(self.names[:size]).root


steps = st.lists(st.tuples(st.sampled_from(["grow", "prove", "rewrite"]), st.integers(1, 3000)), max_size=12)


@pytest.mark.slow
@settings(max_examples=25)
@given(steps)
def test_right_at_every_size(steps: list[tuple[str, int]]) -> None:
    prover = Hashes()
    for number, (step, count) in enumerate(steps):
        if step == "grow":
            prover.names += [leaf(f"{number} {at}") for at in range(count)]
        elif step == "rewrite":
            del prover.names[count:]
            prover.names += [leaf(f"again {number}")]
        elif prover.names:
            size = len(prover.names)
            old = 1 + count % size
            nodes = prover.prove(PROVEN, size, old=old)
            assert is_consistent(old, prover.root(old), size, prover.root(size), nodes)
            path = prover.prove(PROVEN, size, index=old - 1)
            assert root_from_inclusion(prover.names[old - 1], old - 1, size, path) == prover.root(size)


@pytest.mark.slow
def test_a_second_proof_reads_little() -> None:
    prover = Hashes()
    prover.names = [leaf(str(at)) for at in range(40_000)]
    prover.prove(PROVEN, 40_000, old=20_000)
    before = prover.read
    for old in (1, 777, 32_768, 39_999):
        prover.prove(PROVEN, 40_000, old=old)
    assert before >= 40_000
    assert prover.read - before < 4 * 3 * 1024


class Table:
    """Hashes of a chain in a real database, and what was checked of it."""

    def __init__(self, path: Path, count: int) -> None:
        self.database = Database(path)
        self.close = self.database.close
        self.database.migrate(schema.ROOM, schema.STEPS)
        self.database.migrate(ROOM, STEPS)
        self.names = [leaf(str(at)) for at in range(count)]
        rows = [(at, b"\x16\x20" + name) for at, name in enumerate(self.names)]
        with self.database.write() as connection:
            connection.execute(
                "INSERT INTO datasets (number, id, head_sequence, head_hash) VALUES (1, ?, ?, ?)",
                (bytes(PROVEN), count - 1, rows[-1][1]),
            )
            connection.executemany("INSERT INTO blocks VALUES (1, ?, 1, ?, x'')", rows)
            Ledger(connection).keep_chain(PROVEN, CheckedChain(Frontier().extend(self.names)))

    def prove(self, old: int) -> int:
        """How many hashes a proof by a new process reads."""
        prover, size = Counting(self.database), len(self.names)
        nodes = prover.prove(PROVEN, size, old=old)
        assert is_consistent(
            old, Frontier().extend(self.names[:old]).root, size, Frontier().extend(self.names).root, nodes
        )
        return prover.read


class Counting(TreeProofs):
    read = 0

    def _digests(self, dataset: DatasetId, start: int, stop: int) -> list[bytes]:
        found = super()._digests(dataset, start, stop)
        self.read += len(found)
        return found


@pytest.mark.slow
def test_what_was_read_once_is_kept_for_the_next_start(tmp_path: Path) -> None:
    with closing(Table(tmp_path / "db", 20_000)) as table:
        assert table.prove(7_777) >= 20_000
        assert table.prove(7_777) < 4 * GROUP
        assert table.prove(19_999) < 4 * GROUP


@pytest.mark.slow
@pytest.mark.parametrize("spoil", ["UPDATE trust_subtrees SET root = zeroblob(32) WHERE place = 3",
                                   "DELETE FROM trust_subtrees WHERE place = 3",
                                   "UPDATE trust_subtrees SET root = zeroblob(3) WHERE place = 3"])  # fmt: skip
def test_what_is_kept_is_not_believed(tmp_path: Path, spoil: str) -> None:
    with closing(Table(tmp_path / "db", 20_000)) as table:
        table.prove(7_777)
        with table.database.write() as connection:
            connection.execute(spoil)
        assert table.prove(7_777) >= 20_000
        assert table.prove(7_777) < 4 * GROUP, "it was made anew"


# What a disk has changed is not sent on: each byte is hashed on its way, of small objects and of large ones.


class Files:
    """Objects as files, which a test may damage."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, data: bytes) -> Multihash:
        name = Multihash.sha3_256(data)
        self.path(name).write_bytes(data)
        return name

    def path(self, name: Multihash) -> Path:
        return self._folder / str(name)

    def size(self, name: Multihash) -> int:
        return self.path(name).stat().st_size

    def read(self, name: Multihash) -> bytes:
        return self.path(name).read_bytes()

    def flip(self, name: Multihash, at: int) -> None:
        raw = bytearray(self.read(name))
        raw[at] ^= 1
        self.path(name).write_bytes(raw)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def read(reads: VerifiedReads, name: Multihash, offset: int, count: int) -> bytes:
    into = bytearray(count)
    _, got = reads.read(name, offset, memoryview(into))
    return bytes(into[:got])


def test_a_small_object_that_was_changed_is_not_given(files: Files) -> None:
    store: Any = files
    reads, data = VerifiedReads(store), bytes(range(200))
    name = files.add(data)
    assert (reads.size(name), read(reads, name, 10, 20)) == (200, data[10:30])
    files.flip(name, 199)
    for asked in (lambda: reads.size(name), lambda: read(reads, name, 0, 5), lambda: reads.small(name)):
        with pytest.raises(ObjectDamaged):
            asked()


@pytest.mark.slow
def test_a_part_of_a_large_object_that_was_changed_after_it_was_looked_at_is_not_given(files: Files) -> None:
    """Only the MiBs that are asked for are read again; the whole is hashed anew once one was found damaged."""
    store: Any = files
    reads, data = VerifiedReads(store), bytes(SMALL) + b"x" * (2 * PART) + b"end"
    name = files.add(data)
    assert read(reads, name, PART - 3, 7) == data[PART - 3 : PART + 4]
    files.flip(name, PART + 9)
    assert read(reads, name, 0, 10) == data[:10], "this part is what it was"
    for count in (1, PART):
        with pytest.raises(ObjectDamaged):
            read(reads, name, PART, count)
    files.flip(name, PART + 9)
    assert read(reads, name, PART, 20) == data[PART : PART + 20], "it was mended"


def test_a_large_object_that_is_damaged_from_the_start_is_never_given(files: Files) -> None:
    store: Any = files
    reads = VerifiedReads(store)
    name = files.add(bytes(SMALL + 1))
    files.flip(name, SMALL)
    with pytest.raises(ObjectDamaged):
        read(reads, name, 0, 1)
