"""Begins collections at a repository, and ingests them as one of several instances, for the API.

Spec: docs/spec/collections.md#reclocking.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import msgspec
import trio

from chain.errors import Refused
from chain.ids import DatasetId
from chain.instant import Instant, from_millis, parse, render
from chain.model.events import SetPollingSource
from chain.state import load_state
from odfd.api.resources.dataset_batch import BASE_KIND
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.datasets.catalog import DatasetEntry
from odfd.datasets.creation import declaration
from odfd.ingest.capture_bindings import layout_of
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.plan import PUSH_SOURCE
from odfd.ingest.templates import redacted
from odfd.reclock.creation import Declared, ShardsWanted, begin, check_declared, check_division, declared_in
from odfd.reclock.instance import Instance
from odfd.reclock.push_once import BoundReceipt, PushedFiles, push
from odfd.reclock.shared_chains import SharedChains, SharedFiles
from odfd.resources import records
from odfd.runtime.slots import KeyedLocks
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report
from odfd.state.directory import RECLOCK, StateDirectory
from odfd.state.uploads import Uploads


class ReclockService:
    """The API service for collections that several nodes ingest."""

    def __init__(
        self,
        home: StateDirectory,
        ingest: IngestDependencies,
        files: Callable[[str], SharedFiles],
        values: Callable[[DatasetId], Mapping[str, str]],
        context: Context,
        terms: tuple[Callable[[Instant | None], int], Callable[[], str], Callable[[], float], int],
        uploads: Uploads,
    ) -> None:
        """``files`` opens a repository; ``values``: variables that a dataset's source may use.

        ``terms``: how far the clock was set ahead, names of writers, numbers from 0 to 1 by chance, bytes of the disk
        that stay free.
        """
        self._home, self._ingest, self._files, self._values = home, ingest, files, values
        self._uploads = uploads
        self._board, self._clock = context.board, context.clock
        self._ahead, self._new_name, self._jitter, self._reserve = terms
        self._copies = KeyedLocks()

    async def run(self, ref: str, request: wire.ReclockRequest) -> wire.TaskRef:
        """Begins a collection by a dataset's declaration, or takes in what is new, or a push, as one of its instances.

        Result: ReclockView. Raises NotFound, Invalid, Refused.
        """
        entry = await trio.to_thread.run_sync(self._home.resolve, ref)
        source = await trio.to_thread.run_sync(self._source, entry)
        chain = None if request.chain is None else DatasetId.parse(request.chain)
        if chain is None:
            check_division(_wanted(request))
        if request.uploads:
            self._check_push(entry, source, request)
        files = await trio.to_thread.run_sync(self._files, request.at)

        async def work(report: Report) -> wire.ReclockView:
            report.begin(f"ingesting {entry.name} at {request.at}", None, "transactions")
            if chain is None:
                return await trio.to_thread.run_sync(self._begun, entry, request, files)
            taken = self._uploads.claim(request.uploads) if request.uploads else []
            try:
                async with self._copies.of(str(chain)):
                    return await self._ingested(entry, source, (request.at, chain), files, _pushed(request, taken))
            finally:
                await self._uploads.done(taken)

        return task_ref(self._board.submit("reclock", entry.name, work, about(entry.id)))

    def _check_push(self, entry: DatasetEntry, source: Declared, request: wire.ReclockRequest) -> None:
        """Raises Refused for a push to a collection that polls or that is not named, NotFound for an unknown upload."""
        if isinstance(source, SetPollingSource):
            raise Refused(
                f"{entry.name} polls its source",
                rule=PUSH_SOURCE,
                hint="odfctl reclock brings its collection up to date",
            )
        if request.chain is None:
            raise Refused(
                "a push goes into a collection that is there", rule="reclock-chain", hint="name it: --chain ID"
            )
        self._uploads.check(request.uploads)

    def _source(self, entry: DatasetEntry) -> Declared:
        """Returns the source that this node declares for a dataset. Raises Refused without one."""
        if not self._home.keys.has_dataset_key(entry.id):
            raise Refused(
                f"{entry.name} is another node's: its source is not read here",
                rule="reclock-source",
                hint="apply a manifest with the same source, under a name of its own",
            )
        source = declared_in(load_state(self._home.chains.chain(entry.id)))
        if source is None:
            raise Refused(
                f"{entry.name} declares no source",
                rule="reclock-source",
                hint="declare what is polled by SetPollingSource, or what is pushed by AddPushSource",
            )
        return source

    def _begun(self, entry: DatasetEntry, request: wire.ReclockRequest, files: SharedFiles) -> wire.ReclockView:
        """Begins the chains, with keys of this node; they are deleted if the chains do not begin."""
        known = load_state(self._home.chains.chain(entry.id))
        declared = declaration(known, entry.name).metadata
        check_declared(declared, _wanted(request))
        keys: list[DatasetId] = []

        def new_id() -> DatasetId:
            keys.append(self._home.keys.new_dataset_key().dataset_id)
            return keys[-1]

        settle = self._home.keys.discard_dataset_key
        with closing(self._opened(files, f"new-{entry.id.multibase}")) as place:
            try:
                chain = begin(place, new_id, declared, _wanted(request), self._clock.now())
                settle = self._home.keys.keep_dataset_key
            finally:
                for each in keys:
                    settle(each)
            place.read([chain])
            layout = layout_of(load_state(place.chains.chain(chain)).set_info, chain.short)
        return wire.ReclockView(
            chain=str(chain),
            at=request.at,
            shards=tuple(map(str, layout.shards)),
            by=layout.by,
            by_part=layout.by_part,
            keep_raw=layout.keep_raw,
        )

    async def _ingested(
        self,
        entry: DatasetEntry,
        source: Declared,
        where: tuple[str, DatasetId],
        files: SharedFiles,
        wanted: PushedFiles | None,
    ) -> wire.ReclockView:
        at, chain = where
        async with self._instance(entry, source, chain, files) as instance:
            receipt = None if wanted is None else await push(instance, wanted)
            counts = instance.counts if wanted is not None else await instance.run(jitter=self._jitter)
        return wire.ReclockView(
            chain=str(chain),
            at=at,
            shards=tuple(map(str, instance.layout.shards)),
            by=instance.layout.by,
            by_part=instance.layout.by_part,
            keep_raw=instance.layout.keep_raw,
            bound=counts.bound,
            forgotten=counts.forgotten,
            written=counts.written,
            repeated=counts.repeated,
            receipt=None if receipt is None else _receipt_view(receipt),
            skipped=tuple(wire.SkippedFile(name=each.name, reason=each.reason) for each in instance.skipped),
        )

    @asynccontextmanager
    async def instance(self, entry: DatasetEntry, at: str, chain: DatasetId) -> AsyncIterator[Instance]:
        """Opens an instance of a collection at a repository, the only one here. Raises Refused, NotFound, Invalid."""
        source = await trio.to_thread.run_sync(self._source, entry)
        files = await trio.to_thread.run_sync(self._files, at)
        async with self._copies.of(str(chain)), self._instance(entry, source, chain, files) as instance:
            yield instance

    @asynccontextmanager
    async def _instance(
        self, entry: DatasetEntry, source: Declared, chain: DatasetId, files: SharedFiles
    ) -> AsyncIterator[Instance]:
        deps = await trio.to_thread.run_sync(self.dependencies, entry)
        place = await trio.to_thread.run_sync(self._opened, files, chain.multibase)
        try:
            with redacted(deps.settings.variables):
                yield await trio.to_thread.run_sync(Instance, deps, place, chain, source, self._ahead)
        finally:
            place.close()

    def dependencies(self, entry: DatasetEntry) -> IngestDependencies:
        """Returns what an ingest of a dataset uses, with the variables that its source may name."""
        said = self._values(entry.id)
        settings = msgspec.structs.replace(self._ingest.settings, variables={**self._ingest.settings.variables, **said})
        return replace(self._ingest, base=lambda _: self._base(entry.id), settings=settings)

    def _base(self, dataset: DatasetId) -> Path | None:
        """Returns the folder that relative paths of a dataset's manifest start from."""
        with self._home.database.read() as connection:
            found = records.get(connection, BASE_KIND, str(dataset))
        return Path(found.body.decode()) if found is not None and found.body else None

    def _opened(self, files: SharedFiles, name: str) -> SharedChains:
        folder = self._home.folder(RECLOCK) / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return SharedChains(files, folder, self._new_name(), self._reserve)


def _wanted(request: wire.ReclockRequest) -> ShardsWanted:
    return ShardsWanted(request.shards, request.by, request.by_part, request.keep_raw)


def _pushed(request: wire.ReclockRequest, files: Sequence[Path]) -> PushedFiles | None:
    """Returns the push of a request; ``None``: it is none. Raises Invalid."""
    if not files:
        return None
    moment = None if request.event_time is None else parse(request.event_time)
    return PushedFiles(files=tuple(files), id=request.id, source=request.source, event_time=moment)


def _receipt_view(receipt: BoundReceipt) -> wire.PushReceiptView:
    shards = tuple(
        wire.ShardReceiptView(
            shard=str(each.shard), block=str(each.block), number=each.number, first=each.first, last=each.last
        )
        for each in receipt.shards
    )
    return wire.PushReceiptView(
        id=receipt.id,
        time=render(from_millis(receipt.time)),
        records=receipt.records,
        shards=shards,
        repeated=receipt.is_repeated,
    )
