"""How the datasets of this node stand: the facts of each, gathered from ledger and chain, and the reach they give.

Reads only; every answer is computed anew from what is recorded, at a cost of the verdicts, not of the blocks: between
two places where somebody's verdict changes all steps are judged alike, so only the first of each stretch is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Final

import msgspec

from chain import instant
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.model.events import DatasetKind, ExecuteTransform, Seed
from chain.statements.envelope import dataset_key
from chain.statements.statement import Attestation, HeadStatement
from chain.store.base import ChainReader, ChainStore
from chain.store.database import Database
from odfd.trust.judge import Bench, Decision, Extent, Reach, Said, Voice, decide, quorum_of, reach, value_id
from odfd.trust.ledger import Ledger, Run
from odfd.trust.policy import Expression, Policy
from odfd.trust.proofs import Proofs

MAX_INPUT_STEPS: Final = 10_000
"""Steps walked back to find those whose inputs are within reach."""
MAX_LINEAGE: Final = 64
"""Derivations upon derivations that are followed."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """All that is recorded of one dataset."""

    size: int
    head: HeadStatement | None
    """Newest signed head known, whether or not its blocks are here."""
    extent: Extent
    heard: Mapping[KeyDid, Attestation]
    """Live attestations that speak of this chain (their root is mine), by validator."""
    runs: Mapping[int, Run]
    root: bool
    quorum: int
    """K of ``attested:K`` as asked of this dataset; 0 when nobody asks."""


class Standing:
    """Answers of one node; ``policy`` is asked each time, so that a reload counts at once."""

    def __init__(
        self,
        database: Database,
        chains: ChainStore,
        policy: Callable[[], Policy],
        me: KeyDid,
        clock: Callable[[], Instant],
        purposes: Callable[[DatasetId], tuple[Expression | None, Expression | None]] = lambda _: (None, None),
    ) -> None:
        """``purposes``: expressions for use and serve that hold for one dataset in place of the node's."""
        self._database = database
        self._chains = chains
        self._policy = policy
        self.me = me
        self._clock = clock
        self._purposes = purposes

    def use(self, dataset: DatasetId) -> Expression:
        return self._purposes(dataset)[0] or self.policy.use

    def serve(self, dataset: DatasetId) -> Expression:
        return self._purposes(dataset)[1] or self.policy.serve

    @property
    def policy(self) -> Policy:
        return self._policy()

    def known(self, dataset: DatasetId, depth: int = 0) -> Known:
        """What is recorded of a dataset; ``depth`` counts the derivations already followed."""
        chain = self._chains.chain(dataset)
        head = chain.head()
        size = head.size if head else 0
        with self._database.read() as connection:
            ledger = Ledger(connection)
            newest = ledger.newest_head(dataset)
            checked = ledger.chain(dataset)
            heard = ledger.attestations(dataset)
            runs = ledger.runs(dataset)
            proofs = Proofs(connection)
            forked_at = proofs.forked_at(dataset, newest[0].epoch if newest else 0)
            silent = self._silent(proofs.double_voters(), dataset)
        signed = newest[0] if newest else None
        seed = chain.block_at(0).event if size else None
        is_root = isinstance(seed, Seed) and seed.dataset_kind is DatasetKind.ROOT
        extent = Extent(
            linked=size,
            chain=min(size, signed.size) if signed else 0,
            data=min(size, checked.data),
            forked_at=forked_at,
            inputs=None if is_root or not size or depth > MAX_LINEAGE else self._inputs(chain, size, depth),
            fresh=signed is not None and self._is_fresh(signed),
        )
        mine = {checked.frontier.size: checked.frontier.root}
        return Known(
            size=size,
            head=signed,
            extent=extent,
            heard={key: said for key, said in heard.items() if not silent(key) and self._speaks_of(chain, said, mine)},
            runs=runs,
            root=is_root,
            quorum=quorum_of((self.use(dataset), self.serve(dataset))),
        )

    def reach(self, dataset: DatasetId, expression: Expression, depth: int = 0) -> Reach:
        """How many blocks of a dataset meet an expression."""
        return self.reach_of(self._chains.chain(dataset), self.known(dataset, depth), expression)

    def reach_of(self, chain: ChainReader, known: Known, expression: Expression) -> Reach:
        steps = list(_telling_steps(chain, known))
        return reach(expression, known.extent, steps, lambda step: self.decision(known, step))

    def decision(self, known: Known, step: int) -> Decision:
        """The judgement of one transform step."""
        bench = Bench(policy=self.policy, me=self.me, quorum=known.quorum)
        return decide(bench, known.heard, own_voice(known.runs.get(step)), step)

    def _silent(self, double_voters: frozenset[KeyDid], dataset: DatasetId) -> Callable[[KeyDid], bool]:
        """Whose word does not count here: who contradicted himself, the dataset's own writer, and their groups."""
        policy = self.policy
        keys = {*double_voters, dataset_key(dataset)}
        groups = {policy.group_of(key) for key in keys} - {None}
        return lambda key: key in keys or policy.group_of(key) in groups

    def _is_fresh(self, head: HeadStatement) -> bool:
        return self._clock() <= head.expires + self.policy.max_stale * instant.SECOND

    def _speaks_of(self, chain: ChainReader, said: Attestation, mine: dict[int, bytes]) -> bool:
        """Whether a verdict is about my chain: the block it names as its last must stand at that place here."""
        if said.size in mine:
            return mine[said.size] == said.root_hash
        head = chain.head()
        if head is None or said.size > head.size:
            return False
        return chain.block_at(said.size - 1).hash == said.head

    def _inputs(self, chain: ChainReader, size: int, depth: int) -> int:
        """Blocks below the first step that read an input beyond that input's own reach. Inputs not held here pass."""
        within: dict[DatasetId, int] = {}
        bound = size
        before = size
        for _ in range(MAX_INPUT_STEPS):
            block = chain.last_of(("ExecuteTransform",), before)
            if block is None or not isinstance(block.event, ExecuteTransform):
                return bound
            if self._inputs_hold(block.event, within, depth):
                return bound
            bound = before = block.sequence_number
        return bound

    def _inputs_hold(self, event: ExecuteTransform, within: dict[DatasetId, int], depth: int) -> bool:
        for each in event.query_inputs:
            read = each.new_block_hash or each.prev_block_hash
            chain = self._chains.chain(each.dataset_id)
            if read is None or chain.head() is None:
                continue
            if each.dataset_id not in within:
                within[each.dataset_id] = self.reach(each.dataset_id, self.use(each.dataset_id), depth + 1).blocks
            if chain.block_by_hash(read).sequence_number >= within[each.dataset_id]:
                return False
        return True


def own_voice(run: Run | None) -> Voice | None:
    """What this node's own run says of a step."""
    if run is None:
        return None
    if run.verdict == Said.REPRODUCED.value:
        return Voice(Said.REPRODUCED)
    if run.verdict == Said.MISMATCH.value and run.actual is not None:
        return Voice(Said.MISMATCH, value_id(run.actual))
    if run.verdict == Said.NONDETERMINISTIC.value and run.reason == "nondeterministic":
        return Voice(Said.NONDETERMINISTIC)
    return None


def _telling_steps(chain: ChainReader, known: Known) -> Iterable[int]:
    """The first step of each stretch within which all verdicts stay the same."""
    places = {0, known.size}
    for said in known.heard.values():
        for span in said.spans:
            places.update((span.first, span.last + 1))
    for sequence_number in known.runs:
        places.update((sequence_number, sequence_number + 1))
    for start, stop in pairwise(sorted(place for place in places if place <= known.size)):
        last = chain.last_of(("ExecuteTransform",), stop)
        if last is None or last.sequence_number < start:
            continue
        for sequence_number in range(start, stop):
            if isinstance(chain.block_at(sequence_number).event, ExecuteTransform):
                yield sequence_number
                break
