"""Saying what this node's own runs found of a dataset: its living attestation, signed anew and told.

Made with the validator. Spec: trust.md section 4.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import trio

from chain.ids import DatasetId
from chain.model.block import Block
from chain.multihash import Multihash
from chain.state import load_state
from chain.statements import envelope, statement
from chain.statements.envelope import Signed
from chain.statements.statement import InputTree
from chain.store.base import ChainReader, ChainStore
from odfd.trust.attesting import Subject, Tried, attest
from odfd.trust.ledger import Ledger
from odfd.trust.post import Post
from odfd.trust.runs import Place, Runs
from odfd.trust.steps import first_step

Determinism: TypeAlias = Callable[[DatasetId], Awaitable[str]]
"""Own analysis of the transform in force: ``strict``, ``no`` or ``unknown``."""


class Speaker:
    """See the module."""

    def __init__(self, post: Post, chains: ChainStore, determinism: Determinism) -> None:
        self._post = post
        self._chains = chains
        self._determinism = determinism

    def is_unsaid(self, dataset: DatasetId) -> bool:
        """Whether there are runs, and no attestation of ours speaks of the present tree."""
        with self._post.database.read() as connection:
            ledger = Ledger(connection)
            mine = ledger.attestation(dataset, self._post.keys.node_key().did)
            return bool(Runs(connection).of(dataset)) and (mine is None or mine.size < ledger.chain(dataset).data)

    async def say(self, dataset: DatasetId) -> None:
        """Sign what was found of the newest tree that is here whole, and tell it."""
        determinism = await self._determinism(dataset)
        signed = await trio.to_thread.run_sync(self._sign, dataset, determinism)
        if signed is not None:
            self._post.announce(dataset, signed)
            self._post.events.emit("attestation.signed", self._post.name_of(dataset), "", sid=str(signed.sid))

    def _sign(self, dataset: DatasetId, determinism: str) -> Signed | None:
        """Sign what the runs so far say of the newest tree that is here whole."""
        key = self._post.keys.node_key()
        with self._post.database.read() as connection:
            ledger = Ledger(connection)
            newest, checked, runs = ledger.newest_head(dataset), ledger.chain(dataset), Runs(connection).of(dataset)
            before, place = ledger.attestation(dataset, key.did), Runs(connection).place(dataset)
        if newest is None or newest[0].root_hash != checked.frontier.root:
            return None
        head = newest[0]
        untried = step_after(self._chains.chain(dataset), place, head.size)
        subject = Subject(dataset=dataset, epoch=head.epoch, size=head.size, root_hash=head.root_hash, head=head.head)
        last = None if before is None else (before.serial, envelope.sid(statement.encode(before)))
        topic = f"attestation:{dataset}:{head.epoch}"
        journalled = self._post.keys.last_said(key.did, topic)
        if journalled is not None and (last is None or journalled.order[0] > last[0]):
            last = (journalled.order[0], Multihash.parse(journalled.subject))
        tried = Tried(runs, head.size if untried is None else untried.sequence_number)
        said = attest(key.did, subject, tried, self._inputs(dataset), determinism, last, self._post.clock.now())
        payload = statement.encode(said)
        sealed = self._post.keys.sign(key, topic, (said.serial,), str(envelope.sid(payload)), payload)
        signed = envelope.unseal(sealed, statement.limit_of(said))
        with self._post.database.write() as connection:
            Ledger(connection).record(signed, key.did, "signed", "", self._post.clock.now(), live=True)
        return signed

    def _inputs(self, dataset: DatasetId) -> list[InputTree]:
        """The trees that were read."""
        trees = []
        transform = load_state(self._chains.chain(dataset)).set_transform
        with self._post.database.read() as connection:
            ledger = Ledger(connection)
            for each in transform.inputs if transform else ():
                read = DatasetId.parse(each.dataset_ref)
                checked = ledger.chain(read)
                tree = checked.frontier
                if tree.size:
                    trees.append(InputTree(dataset=read, epoch=checked.epoch, size=tree.size, root_hash=tree.root))
        return trees


def step_after(chain: ChainReader, place: Place | None, stop: int) -> Block | None:
    """The first step below ``stop`` that this node has not replayed."""
    return first_step(chain, 0 if place is None else place.sequence_number + 1, stop)
