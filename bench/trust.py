"""Measures trust: receiving statements, the reach of one of many datasets, proving a fork, spreading false data.

The last is counted in rounds of anti-entropy on virtual time, by the simulator of tests/sim/trust; all else is measured
on the parts that a node is made of, over SQLite.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from bench.measure import CPU, Row, Side, Size, in_turns, seconds
from chain import instant
from chain.codec.blocks import encode_block
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.block import Block, MetadataBlock
from chain.model.events import DatasetKind, ExecuteTransform, ExecuteTransformInput, MetadataEvent, Seed
from chain.multihash import Multihash
from chain.statements import envelope, keys, proof, statement
from chain.statements.keys import SigningKey
from chain.statements.statement import Attestation, EngineUsed, HeadStatement, Span
from chain.statements.tree import Frontier
from chain.store.base import Append
from chain.store.database import open_database
from odfd.network.statement_quota import StatementQuota
from odfd.network.statement_store import LedgerStatementStore
from odfd.policy.policy import KeyGroup, Policy, parse_expression
from odfd.store.directory import StateDirectory
from odfd.store.ledger.log import CheckedChain, Ledger
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from p2p.ports import Judgement, PeerId, Topic

NOW: Final = instant.parse("2026-11-20T08:00:00Z")
ENGINE: Final = EngineUsed(name="spark", digest="sha256:0", pinned=True, sandbox="image", platform="linux/amd64")
VALIDATORS: Final = tuple(SigningKey(hashlib.sha256(b"validator %d" % number).digest()) for number in range(5))
POLICY: Final = Policy(
    use=parse_expression("data & attested:2"),
    groups=tuple(KeyGroup(f"g{number}", frozenset({key.did})) for number, key in enumerate(VALIDATORS)),
    tolerated=1,
)


def owner(number: int) -> SigningKey:
    return SigningKey(hashlib.sha256(b"owner %d" % number).digest())


def head_of(key: SigningKey, size: int, root: bytes, head: Multihash) -> bytes:
    said = HeadStatement(
        dataset=key.dataset_id,
        epoch=0,
        size=size,
        root_hash=root,
        authority=0,
        issued_at=statement.when(NOW),
        expires_at=statement.when(Instant(NOW + 7 * 86400 * instant.SECOND)),
        head=head,
    )
    return envelope.seal(statement.encode(said), key)


def attestation_of(
    key: SigningKey, dataset: DatasetId, serial: int, size: int, root: bytes, head: Multihash | None = None
) -> bytes:
    """Signs an attestation with gaps between serials, so that none has to name the one before."""
    said = Attestation(
        validator=key.did,
        dataset=dataset,
        epoch=0,
        size=size,
        root_hash=root,
        serial=2 * serial,
        determinism="strict",
        finished_at=statement.when(NOW),
        engines=(ENGINE,),
        spans=(Span(first=0, last=size - 1, verdict="reproduced", state="genesis", engine=0),),
        head=head or Multihash.sha3_256(root),
    )
    return envelope.seal(statement.encode(said), key)


def measure_hearing(size: Size, folder: Path) -> list[Row]:
    """Statements that are all new, one by one as gossip brings them, against verifying their signatures."""
    count, rounds = size.pick(40, 1_000), size.pick(1, 5)
    few = [owner(number) for number in range(200)]  # a node takes 60 heads of one a day
    root = bytes(32)

    def heads(turn: int) -> list[bytes]:
        at = turn * count
        return [
            head_of(few[number % len(few)], 1 + at + number, root, Multihash.sha3_256(root)) for number in range(count)
        ]

    def attestations(turn: int) -> list[bytes]:
        pairs = [(key, one) for one in few for key in VALIDATORS]
        return [
            attestation_of(key, one.dataset_id, 1 + turn * count + number, 4, root)
            for number in range(count)
            for key, one in (pairs[number % len(pairs)],)
        ]

    return [
        _heard(folder / topic.value, topic, [make(turn) for turn in range(rounds + 1)])
        for topic, make in ((Topic.HEADS, heads), (Topic.ATTEST, attestations))
    ]


def _heard(folder: Path, topic: Topic, batches: Sequence[list[bytes]]) -> Row:
    with at_home(folder) as home:
        board = LedgerStatementStore(
            home.database,
            home.chains,
            lambda: NOW,
            lambda some, _=None: frozenset(some),
            room=StatementQuota(lambda _: True),
        )
        waiting, signed = iter(batches), [envelope.unseal(raw, statement.MAX_ANY) for raw in batches[0]]
        claimed = [_signature(raw) for raw in batches[0]]

        def hear() -> None:
            for number, raw in enumerate(next(waiting)):
                assert board.judge(topic, raw, PeerId(f"p{number % 100}")) is Judgement.ACCEPT

        def verify() -> None:
            for said, signature in zip(signed, claimed, strict=True):
                assert keys.verify(said.signers[0].public_key, envelope.preauth(said.payload), signature)

        ours, peer = in_turns(hear, verify, len(batches) - 1, CPU)
    return Row(
        name=f"hear {topic.value}",
        measures="CPU time from an envelope to a row of the ledger, one transaction each",
        ours=Side(name="noticeboard", costs=ours, amount=len(signed), unit="statements"),
        peer=Side(name="their signatures only", costs=peer, amount=len(signed), unit="signatures"),
        # A node owes others 2,000 a second (docs/spec/trust.md#gossip), where a core verifies 16,000.
        goal="≤ 8",
        facts={"statements a round": len(signed), "B each": sum(map(len, batches[0])) / len(signed)},
    )


def _signature(raw: bytes) -> bytes:
    _, ((_, signature),) = envelope._decode(raw)
    return signature


def measure_reach(size: Size, folder: Path) -> list[Row]:
    """Measures the arrival of one verdict: the reach of its dataset among many, against the same among few."""
    few, many, repeats = size.pick(5, 10), size.pick(50, 10_000), size.pick(3, 200)
    with _evaluator(folder / "few", few) as one, _evaluator(folder / "many", many) as other:

        def ask(evaluator: TrustEvaluator, count: int) -> Callable[[], None]:
            def work() -> None:
                for number in range(repeats):
                    dataset = owner(number * 7919 % count).dataset_id
                    assert evaluator.reach(dataset, POLICY.use).blocks == 4

            return work

        ours, peer = in_turns(ask(other, many), ask(one, few), size.pick(1, 5), CPU)
    each = min(ours) / repeats
    return [
        Row(
            name=f"reach of {many:,}",
            measures="CPU time of the reach of one dataset, of which a verdict came",
            ours=Side(name=f"among {many:,}", costs=tuple(cost / repeats for cost in ours)),
            peer=Side(name=f"among {few}", costs=tuple(cost / repeats for cost in peer)),
            goal="≤ 1.2",
            facts={"s to ask of all anew, by this": each * many},
        )
    ]


@contextmanager
def _evaluator(folder: Path, count: int) -> Iterator[TrustEvaluator]:
    """A node with ``count`` derived datasets of four blocks, each attested by two groups."""
    with at_home(folder) as home:
        for number in range(count):
            key = owner(number)
            blocks = _derived(key.dataset_id)
            frontier = Frontier().extend(block.hash.digest for block in blocks)
            said = [head_of(key, 4, frontier.root, blocks[-1].hash)]
            for each in VALIDATORS[:2]:
                said.append(attestation_of(each, key.dataset_id, 1, 4, frontier.root, blocks[-1].hash))
            home.chains.commit([Append(dataset=key.dataset_id, expected=None, blocks=blocks, objects=())])
            with home.database.write() as connection:
                ledger = Ledger(connection)
                ledger.keep_chain(key.dataset_id, CheckedChain(frontier, data=4))
                for raw in said:
                    signed = envelope.unseal(raw, statement.MAX_ANY)
                    ledger.record(signed, signed.signers[0], "new", "", NOW, live=True)
        yield TrustEvaluator(home.database, home.chains, lambda: POLICY, owner(0).did, lambda: NOW)


def _derived(dataset: DatasetId) -> list[Block]:
    read = ExecuteTransformInput(dataset_id=dataset)
    seed = Seed(dataset_id=dataset, dataset_kind=DatasetKind.DERIVATIVE)
    steps = (ExecuteTransform(query_inputs=(read,), new_watermark=Instant(NOW + number)) for number in range(3))
    events: list[MetadataEvent] = [seed, *steps]
    blocks: list[Block] = []
    for number, event in enumerate(events):
        before = blocks[-1].hash if blocks else None
        content = MetadataBlock(system_time=NOW, prev_block_hash=before, sequence_number=number, event=event)
        blocks.append(encode_block(content))
    return blocks


@contextmanager
def at_home(folder: Path) -> Iterator[StateDirectory]:
    folder.mkdir(parents=True)
    database = open_database(folder / "odfd.sqlite")
    try:
        yield StateDirectory(folder, database)
    finally:
        database.close()


def measure_fork(size: Size, folder: Path) -> list[Row]:
    """Measures the check of a proof of a fork in a long history against one in a short history."""
    del folder
    short, long, repeats = 100, size.pick(5_000, 1_000_000), size.pick(2, 200)
    small, large = _forked(short), _forked(long)
    made: list[proof.Proof] = []
    building = seconds(lambda: made.append(large()), CPU)
    raw, other = made[0].raw, small().raw

    def check(what: bytes) -> Callable[[], None]:
        def work() -> None:
            for _ in range(repeats):
                assert proof.decode(what).kind == proof.FORK

        return work

    ours, peer = in_turns(check(raw), check(other), size.pick(1, 5), CPU)
    return [
        Row(
            name=f"fork at {long:,}",
            measures="CPU time of checking a proof of a fork, which needs no blocks",
            ours=Side(name=f"{long:,} blocks", costs=tuple(cost / repeats for cost in ours)),
            peer=Side(name=f"{short} blocks", costs=tuple(cost / repeats for cost in peer)),
            goal="≤ 1.2",
            facts={"B": len(raw), "s of CPU to make, trees not cached": building},
        )
    ]


def _forked(length: int) -> Callable[[], proof.Proof]:
    """Two signed trees that differ from the middle on; what makes the proof."""
    key = owner(0)
    common = [number.to_bytes(32, "big") for number in range(length)]
    changed = [*common[: length // 2], *(bytes([1]) + leaf[1:] for leaf in common[length // 2 :])]
    heads = [
        head_of(key, length, Frontier().extend(leaves).root, Multihash.sha3_256(leaves[-1]))
        for leaves in (common, changed)
    ]
    return lambda: proof.fork(
        heads[0], heads[1], lambda start, stop: common[start:stop], lambda start, stop: changed[start:stop]
    )


def measure_rumour(size: Size, folder: Path) -> list[Row]:
    """Rounds of anti-entropy from a lie's publication until every honest node has refuted it."""
    del folder
    network = simulator()
    rows = []
    for nodes in size.pick(1, 0) * [10] or [10, 100, 1_000]:
        spent = []
        for seed in range(size.pick(2, 12 if nodes < 1_000 else 3)):
            world = network.World(seed, network.Plan(nodes=nodes, kinds=("lie",), heal=0))
            lied = world.sources[0].at
            while world.round <= lied or not world.promises.settled():
                world.one_round()
            spent.append((world.round - lied, world.bound))
        rows.append(
            Row(
                name=f"rumour of {nodes:,}",
                measures=f"rounds until {nodes:,} nodes know a lie, re-running included; three contacts a round",
                ours=Side(name="simulated", costs=tuple(float(rounds) for rounds, _ in spent), unit="rounds"),
                peer=Side(name="2·⌈log2 n⌉+4", costs=tuple(float(bound) for _, bound in spent), unit="rounds"),
                goal="≤ 1",
                facts={"seeds": len(spent)},
            )
        )
    return rows


def simulator() -> ModuleType:
    """Loads the module of the tests, which is not installed."""
    tests = str(Path(__file__).parents[1] / "tests")
    if tests not in sys.path:
        sys.path.append(tests)
    return importlib.import_module("sim.trust.network")
