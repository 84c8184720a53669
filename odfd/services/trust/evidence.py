"""Finds evidence by its id: bundles and proofs kept here, and bundles fetched from peers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

import trio

from chain.errors import Invalid, NotFound
from chain.multihash import Multihash
from odfd.control import wire
from odfd.control.board import task_ref
from odfd.network.evidence import EvidenceFetcher
from odfd.runtime.tasks import Report, TaskBoard, outside
from odfd.store.directory import StateDirectory
from odfd.store.ledger import kinds
from odfd.trust.evidence.bundle_store import BundleStore

_LISTED: Final = "odfctl trust show REF lists what is kept"


class EvidenceService:
    """Finds and fetches evidence by its id."""

    def __init__(self, home: StateDirectory, bundles: BundleStore, fetcher: EvidenceFetcher, board: TaskBoard) -> None:
        self._home = home
        self._bundles = bundles
        self._fetcher = fetcher
        self._board = board

    def has_bundle(self, name: Multihash) -> bool:
        return self._bundles.has(name)

    def find(self, evidence_id: str) -> bytes | Path:
        """Returns the bundle of a mismatch, as a file, or the JSON of a proof. Raises NotFound."""
        name = _parse_id(evidence_id)
        proof = self._proof(name)
        return self._bundles.path(name) if proof is None else proof

    def fetch(self, evidence_id: str) -> wire.TaskRef:
        """Begins a task that fetches evidence that is not here. Raises NotFound for text that is no id."""
        name = _parse_id(evidence_id)
        return task_ref(self._board.submit("evidence", str(name), partial(self._bring, name)))

    async def _bring(self, name: Multihash, report: Report) -> wire.EvidenceFetched:
        found: bytes | Path | None = await trio.to_thread.run_sync(self._proof, name)
        if found is None:
            report.begin("asking peers for it")
            async with outside("peers who have it"):
                found = await self._fetcher.fetch(name)
        size = found.stat().st_size if isinstance(found, Path) else len(found)
        return wire.EvidenceFetched(id=str(name), size=size)

    def _proof(self, name: Multihash) -> bytes | None:
        with self._home.database.read() as connection:
            found = kinds.find(connection, name)
        return found[1] if found is not None and found[0] == kinds.PROOF else None


def _parse_id(text: str) -> Multihash:
    try:
        return Multihash.parse(text)
    except Invalid as error:
        raise NotFound(f"{text[:60]!r} is not the id of evidence", rule="evidence", hint=_LISTED) from error
