"""Cosigns the trees of datasets if the policy requires it: of mirrored and of attended datasets.

If a dataset's blocks are not here, peers that serve it are asked to prove that the newest head continues the one
cosigned last; a head without a proof is not cosigned. If peers answer and the proof does not hold, both heads are
announced: nodes that hold either history can prove the fork with them. A dataset that may not be cosigned is reported
once and does not hold up others. Spec: docs/spec/trust.md#witnesses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple, Protocol

import trio

from chain.errors import Fault, Refused, Remote
from chain.ids import DatasetId
from chain.statements.cosignature import Cosignature
from chain.store.base import ChainStore
from chain.wording import plural
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.reconcile_loop import KeyedReconcileLoop
from odfd.runtime.supervision import Logger
from odfd.trust.witness.witness import CosignRequest, Witness
from p2p.ports import PeerId, TreeRoot

ROUND_SECONDS: Final = 3600.0
"""Seconds between two checks even if nothing moves; cosignatures are renewed after days."""
RETRY_SECONDS: Final = 60.0
"""Seconds until the next try while no peer could be asked to prove a head."""
PROVE_SECONDS: Final = 60.0
"""Seconds for all peers asked about one head, so that a silent one delays no other for long."""
AT_ONCE: Final = 8
"""Datasets for which proofs are requested at the same time."""
MAX_TOLD: Final = 1024
"""Announced pairs of heads without a joining proof that are remembered; forgotten ones are announced again."""


class WitnessPeers(Protocol):
    """The operations of the replication layer that witnessing uses."""

    async def prove_prefix(
        self, peers: Sequence[PeerId], dataset: DatasetId, old: TreeRoot, signed: TreeRoot
    ) -> bool: ...

    async def seek(self, dataset: DatasetId, beyond: Collection[str] = ()) -> int: ...


class Providers(Protocol):
    """Returns the peers that hold a dataset."""

    async def of(self, dataset: DatasetId, size: int) -> list[PeerId]: ...


class WitnessRequest(NamedTuple):
    """The datasets to cosign according to the policy in force."""

    mirrored: bool
    """Whether the mirrored datasets are cosigned."""
    attended: Collection[DatasetId] = ()
    """Further datasets to cosign, mirrored or not."""


class WitnessEvents(NamedTuple):
    """Receives the outcomes of cosigning."""

    cosigned: Callable[[Cosignature], None]
    contradicted: Callable[[CosignRequest], None]
    """Two heads of one epoch without a proof that one extends the other."""


class Witnessing:
    """Cosigns datasets for one node. ``loop`` is touched with a dataset whose head or chain moved."""

    def __init__(
        self,
        chains: ChainStore,
        witness: Witness,
        asked: Callable[[], WitnessRequest],
        peers: WitnessPeers,
        providers: Providers,
        told: WitnessEvents,
        logger: Logger,
    ) -> None:
        self._asked = asked
        self._chains = chains
        self._witness = witness
        self._peers, self._providers = peers, providers
        self._told = told
        self._logger = logger
        self.loop = KeyedReconcileLoop[DatasetId](self._round, ROUND_SECONDS)
        self._refused: dict[DatasetId, str] = {}
        self._shown: set[tuple[bytes, bytes]] = set()

    async def _round(self) -> float:
        asked, touched = self._asked(), self.loop.take()
        attended = sorted(asked.attended if touched is None else touched.intersection(asked.attended))
        await trio.to_thread.run_sync(self._consider_all, touched if asked.mirrored else (), attended)
        unsettled: list[DatasetId] = []
        limiter = trio.CapacityLimiter(AT_ONCE)

        async def attend(dataset: DatasetId) -> None:
            async with limiter:
                if not await self._attend(dataset):
                    unsettled.append(dataset)
                    self.loop.leave(dataset)

        async with trio.open_nursery() as nursery:
            for dataset in attended:
                nursery.start_soon(attend, dataset)
        return RETRY_SECONDS if unsettled else ROUND_SECONDS

    def _list_held(self, touched: Collection[DatasetId] | None) -> Collection[DatasetId]:
        if touched is None:
            return self._chains.datasets()
        return [dataset for dataset in touched if self._chains.chain(dataset).head() is not None]

    def _consider_all(self, touched: Collection[DatasetId] | None, attended: Collection[DatasetId]) -> None:
        """Cosigns what of touched datasets is here (``None``: all that are here), and of attended ones."""
        for dataset in {*self._list_held(touched), *attended}:
            for consider in (self._witness.consider_authority, self._witness.consider):
                end_if_unwanted()
                self._consider(dataset, consider)

    def _consider(self, dataset: DatasetId, consider: Callable[[DatasetId], Cosignature | None]) -> None:
        try:
            made = consider(dataset)
        except Fault as fault:
            self._log_fault(dataset, fault)
            return
        if made is not None:
            self._told.cosigned(made)

    async def _attend(self, dataset: DatasetId) -> bool:
        """Cosigns the newest head of a dataset that need not be here; returns whether nothing has to be tried again."""
        try:
            question = await trio.to_thread.run_sync(self._witness.question, dataset)
            if question is None:
                return True
            # Without its blocks a witness cannot see that the new head extends the old one; a cosignature says just
            # that.
            if question.needs_proof and not await self._is_proven(question):
                self._contradict(question)
            # ``settle`` looks again: while peers were asked, another head may have been cosigned.
            made = await trio.to_thread.run_sync(self._witness.settle, question)
        except Fault as fault:
            self._log_fault(dataset, fault)
            return False
        if made is not None:
            self._told.cosigned(made)
        return True

    async def _is_proven(self, question: CosignRequest) -> bool:
        """Asks peers for the proof of a question. Raises Remote if none answers in time."""
        tree, old = question.tree, question.old
        with trio.move_on_after(PROVE_SECONDS):
            peers = await self._providers.of(tree.dataset, tree.size)
            if not peers and await self._peers.seek(tree.dataset):
                peers = await self._providers.of(tree.dataset, tree.size)
            signed = TreeRoot(tree.size, tree.root_hash)
            return await self._peers.prove_prefix(peers, tree.dataset, TreeRoot(old.size, old.root), signed)
        raise Remote(
            f"no peer proved {plural(tree.size, 'block')} of {tree.origin} in {PROVE_SECONDS:g} s",
            rule="prove",
            hint="it is asked again in a minute",
        )

    def _contradict(self, question: CosignRequest) -> None:
        """Announces both heads of a question without proof, once. Raises Refused."""
        tree = question.tree
        pair = (question.old.root, tree.root_hash)
        if pair not in self._shown:
            # Datasets of others can make pairs without end; announcing one again does no harm.
            if len(self._shown) >= MAX_TOLD:
                self._shown.clear()
            self._shown.add(pair)
            self._told.contradicted(question)
        raise Refused(
            f"no peer shows that {question.old.size} cosigned last are the beginning of "
            f"{plural(tree.size, 'block')} of {tree.origin}",
            rule="trust.unproven",
            hint="it is not cosigned; nodes that hold either history get both heads",
        )

    def _log_fault(self, dataset: DatasetId, fault: Fault) -> None:
        if self._refused.get(dataset) != str(fault):
            self._refused[dataset] = str(fault)
            self._logger.error("not cosigned", dataset=str(dataset), fault=str(fault), rule=fault.rule)
