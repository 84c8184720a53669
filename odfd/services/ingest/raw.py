"""Lists the captures of a dataset, and computes blocks from them again, for the API.

Spec: docs/spec/collections.md#raw.
"""

from __future__ import annotations

from typing import Final

import trio

from chain import instant
from chain.instant import from_millis
from odfd.access.relations import Action
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import DATASET_PATH, Owner, operation
from odfd.datasets.manifest import KEPT_ELSEWHERE
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.raw_replay import replay
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.services.ingest.own_roots import own_root
from odfd.services.ingest.raw_chains import RawChains
from odfd.services.ingest.sources import SourceReader
from odfd.store import captures, collections
from odfd.store.captures import BoundCapture
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory

LISTED: Final = 1000
"""Most captures that are listed (the newest), and most differences that are reported (the first)."""


class RawService:
    """The API service for captured bytes."""

    def __init__(self, home: StateDirectory, ingest: IngestDependencies, context: Context, chains: RawChains) -> None:
        self._home = home
        self._ingest = ingest
        self._board = context.board
        self._chains = chains
        self._sources = SourceReader(home)

    @operation("GET", DATASET_PATH + "/raw", needs=Action.OWN)
    def show(self, ref: str) -> wire.RawView:
        """Lists the captured bytes of a dataset. Raises NotFound."""
        return self._view(self._home.resolve(ref))

    @operation("DELETE", DATASET_PATH + "/raw/captures", needs=Owner.SOURCES)
    def drop(self, ref: str) -> wire.RawView:
        """Forgets all captures of a dataset; the next collection frees their bytes. Raises NotFound."""
        entry = self._home.resolve(ref)
        with self._home.database.write() as connection:
            captures.CAPTURES.forget(connection, entry.id)
        return self._view(entry)

    @operation("POST", DATASET_PATH + "/raw/bind", needs=Owner.SOURCES)
    def bind(self, ref: str) -> wire.TaskRef:
        """Appends the captures of a source dataset to its raw chain, and begins that if needed. Result: RawChainView.

        Raises NotFound, Refused.
        """
        return self._chains.bind(ref)

    @operation("POST", DATASET_PATH + "/raw/attest", needs=Owner.SOURCES)
    def attest(self, ref: str, request: wire.AttestRawRequest) -> wire.TaskRef:
        """Decodes the captures of another node's source dataset again, and signs the result for its blocks.

        Result: RawAttestResult. Raises NotFound, Refused.
        """
        return self._chains.attest(ref, request)

    @operation("POST", DATASET_PATH + "/raw/replay", needs=Owner.SOURCES)
    def replay(self, ref: str) -> wire.TaskRef:
        """Computes each captured transaction again, and compares the results. Result: RawReplayResult.

        Raises NotFound.
        """
        entry = own_root(self._home, ref, KEPT_ELSEWHERE)

        async def work(report: Report) -> wire.RawReplayResult:
            bound, by = await trio.to_thread.run_sync(self._captures, entry)
            report.begin(f"computing {entry.name} again", len(bound), "transactions")
            counts = dict.fromkeys(("same", "equivalent", "differs", "rewritten"), 0)
            told: list[wire.RawDifference] = []
            for each in bound:
                deps = await trio.to_thread.run_sync(self._sources.decoding, self._ingest, entry.id, each.capture)
                found = await replay(deps, entry.id, each, by)
                counts[found.outcome] += 1
                if found.outcome == "differs" and len(told) < LISTED:
                    told.append(
                        wire.RawDifference(block=str(each.block), sequence_number=each.last, message=found.message)
                    )
                report.advance()
            return wire.RawReplayResult(ref=entry.name, ok=not counts["differs"], differences=tuple(told), **counts)

        return task_ref(self._board.submit("replay", entry.name, work, about(entry.id)))

    def _captures(self, entry: DatasetEntry) -> tuple[list[BoundCapture], tuple[str, ...]]:
        """Returns the captures of a dataset, and the columns that decide the shard of its rows."""
        with self._home.database.read() as connection:
            member = collections.member_of(connection, entry.id)
            return captures.of(connection, entry.id), () if member is None else member.row.by

    def _view(self, entry: DatasetEntry) -> wire.RawView:
        with self._home.database.read() as connection:
            found, keeping = captures.of(connection, entry.id), captures.goes_on(connection, entry.id)
        return wire.RawView(
            dataset=entry.name,
            keeping=keeping,
            count=len(found),
            bytes=sum(each.capture.size for each in found),
            captures=tuple(map(_capture, found[: -LISTED - 1 : -1])),
        )


def _capture(bound: BoundCapture) -> wire.CaptureView:
    files = bound.capture.files
    label = bound.capture.label
    return wire.CaptureView(
        time=instant.render(from_millis(bound.time)),
        block=str(bound.block),
        sequence_number=bound.last,
        source=bound.capture.source,
        label=None if label is None else label.value,
        files=tuple(wire.CapturedFileView(name=file.name, object=str(file.object), size=file.size) for file in files),
    )
