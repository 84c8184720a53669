"""Lists, shows, renames and removes datasets, and reads their blocks and rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import trio

from chain.codec.arrow_schema import schema_of
from chain.codec.bind import plain_of
from chain.codec.manifest import to_builtins
from chain.data.arrow_schema import to_arrow
from chain.data.json_values import plain_rows
from chain.errors import Environment, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.multihash import Multihash
from chain.state import load_state
from chain.wording import agree, plural
from odfd.api.datasets import quarantine
from odfd.api.datasets.blocks import BlockReader
from odfd.api.datasets.own_roots import check_owner
from odfd.api.datasets.profiles import profile_of
from odfd.api.resources.apply import ApplyOperation
from odfd.api.resources.dataset_batch import BASE_KIND
from odfd.api.resources.desired_state import OWNERS, ApplyTerms
from odfd.api.resources.types import TYPES
from odfd.api.views.data_sizes import PAUSE_SECONDS, DataSizes
from odfd.api.views.holder_counts import HolderCounts
from odfd.api.views.views import DatasetViews, schema_view
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.datasets import previews, row_counts, unmanaged, visibility
from odfd.datasets.catalog import Catalog, DatasetEntry, is_one_chain
from odfd.datasets.creation import declaration
from odfd.datasets.holdings import Holdings
from odfd.datasets.manifest import DatasetSpec
from odfd.datasets.pushes import PushTable
from odfd.datasets.references import drop_references
from odfd.flows import store as flows
from odfd.ingest import segments, spool
from odfd.ingest.push import commit_point, given_id
from odfd.mirrors import mirror_spec as mirror_specs
from odfd.mirrors.scheduler import MirrorScheduler
from odfd.queries import folds
from odfd.queries.sharded_cuts import complete_sizes
from odfd.renditions import tables as renditions
from odfd.resources import records
from odfd.resources.reader import labels_by_did, labels_of
from odfd.resources.store import ResourceStore
from odfd.runtime.hanging_calls import in_worker
from odfd.runtime.reconcile_loop import UNTIL_POKED, ReconcileLoop
from odfd.runtime.subjects import about
from odfd.state.directory import FOLDS, SEGMENTS, StateDirectory
from odfd.trust.ledger.log import Ledger
from odfd.verify.damage import Damage

_TYPE: Final = TYPES.written("Dataset")


class RemoteState(NamedTuple):
    """Tells and is told how datasets that are here stand on other nodes."""

    holders: HolderCounts
    gone: Callable[[DatasetId], None]
    """Called with the id of a deleted dataset."""


class DatasetService:
    """The API service for the datasets of a node."""

    def __init__(
        self,
        home: StateDirectory,
        views: DatasetViews,
        applying: ApplyOperation,
        scheduler: MirrorScheduler,
        context: Context,
        others: RemoteState,
    ) -> None:
        self._holders, self._gone = others
        self._home = home
        self._scheduler = scheduler
        self._views, self._sizes = views, DataSizes(home)
        self._blocks = BlockReader(home, views)
        self.summing = ReconcileLoop(self._sum)
        """Sums the sizes of long chains in the background; rests until a view needs one."""
        self._applying = applying
        self._events = context.events
        self._clock = context.clock

    async def list(self) -> Sequence[wire.DatasetView]:
        """Lists all datasets of this node."""
        return await self._completed(self._views.all)

    async def get(self, ref: str) -> wire.DatasetView:
        """Shows a dataset. Raises NotFound, Invalid."""
        (view,) = await self._completed(lambda: [self._views.dataset(self._home.resolve(ref))])
        return view

    @in_worker
    def commit_point(self, ref: str) -> wire.CommitPointView:
        """Returns where the dataset ends, in all shards, and its last push. Raises Refused for another node's."""
        entry = self._home.resolve(ref)
        check_owner(self._home, entry)
        self._home.check_fed(entry.id)
        # In this order: a push that comes between is told, and what is made to follow the older head is refused.
        head = commit_point([self._home.chains.chain(each) for each in self._home.shards_of(entry.id)])
        last = PushTable(self._home.database).newest(entry.id)
        return wire.CommitPointView(
            id=str(entry.id), block=str(head.hash), sequence_number=head.sequence_number,
            push=None if last is None else given_id(last),
        )  # fmt: skip

    async def describe(self, ref: str, *, profile: bool = False) -> wire.DatasetDetail:
        """Describes a dataset; with ``profile`` also the values of its columns, from the files of its slices."""

        def look() -> wire.DatasetDetail:
            entry = self._home.resolve(ref)
            detail = self._views.detail(entry)
            shards = (entry.id,) if is_one_chain(ref) else self._home.shards_of(entry.id)
            return msgspec.structs.replace(detail, profile=profile_of(self._home, entry, shards) if profile else None)

        detail = await trio.to_thread.run_sync(look)
        (view,) = await self._completed(lambda: [detail.dataset])
        return msgspec.structs.replace(detail, dataset=view)

    @in_worker
    def snapshot(self, ref: str) -> dict[str, Any]:
        """Returns the dataset as a DatasetSnapshot, the older form of manifests; applying it changes nothing."""
        entry = self._home.resolve(ref)
        declared = declaration(load_state(self._home.chains.chain(entry.id)), entry.name)
        return {"kind": "DatasetSnapshot", "version": 1, "content": to_builtins(declared)}

    @in_worker
    def manifest(self, ref: str) -> wire.ResourceManifest:
        """Returns the manifest of the dataset as it is declared now; applying it changes nothing."""
        entry = self._home.resolve(ref)
        state = load_state(self._home.chains.chain(entry.id))
        declared = declaration(state, entry.name)
        with self._home.database.read() as connection:
            row = Catalog(connection).declared(entry.id)
        beside = {} if row is None else {"labels": row.labels, "annotations": row.annotations}
        headers = {"name": entry.name, **{key: dict(said) for key, said in beside.items() if said}}
        spec = plain_of(DatasetSpec(kind=declared.kind, metadata=declared.metadata))
        return wire.ResourceManifest(schema=_TYPE.schema_of(spec), headers=headers, spec=spec)

    async def delete(self, ref: str, *, purge: bool = False) -> wire.DatasetView:
        """Deletes a dataset and returns its last view. Refused while others derive from it.

        Its data stays as unmanaged (``UnmanagedService``), or is deleted too if ``purge`` is set.
        """
        entry = await trio.to_thread.run_sync(lambda: self._unused(ref))
        for shard in (await trio.to_thread.run_sync(lambda: self._shards(entry)))[::-1]:
            async with self._scheduler.still(shard.id):
                view, dropped = await trio.to_thread.run_sync(partial(self._delete, shard, purge=purge))
            self._gone(shard.id)
        for name, stays in dropped:
            text = f"{view.name}, which it pulled, is deleted"
            self._events.emit("flow.stranded" if stays else "flow.deleted", name, text)
        text = f"{plural(view.blocks, 'block')} {'forgotten' if purge else 'kept as unmanaged'}"
        self._events.emit("dataset.deleted", view.name, text, about=about(view.id), id=view.id)
        return view

    async def rename(self, ref: str, request: wire.RenameRequest) -> wire.DatasetView:
        """Changes the dataset's local name; its name on other nodes does not change."""
        entry = await trio.to_thread.run_sync(lambda: self._home.resolve(ref))
        if entry.is_inner:
            raise Invalid(
                f"{entry.name} is inside a collection, and is called after it",
                rule="rendition-name",
                hint=f"odfctl rename {entry.name.partition('.r')[0]} {request.name}",
            )
        await self._applying.rename(_TYPE.name, str(entry.id), request.name)
        return await self.get(str(entry.id))

    @in_worker
    def log(
        self, ref: str, kinds: Sequence[str], limit: int, before: str | None, epoch: int | None = None
    ) -> Sequence[wire.BlockView]:
        """Lists blocks, newest first, after the block ``before`` and only of the events ``kinds``.

        ``before``: its hash, or in one chain its number. ``epoch``: lists those that a later epoch gave up.
        """
        return self._blocks.log(ref, kinds, limit, before, epoch)

    @in_worker
    def block(self, ref: str, at: str) -> wire.BlockDetail:
        """Shows a block. ``at`` is its hash, or in one chain its sequence number in digits."""
        return self._blocks.block(ref, at)

    @in_worker
    def tail(self, ref: str, limit: int) -> wire.Records:
        """Returns the last records in the order of their offsets."""
        entry = self._home.resolve(ref)
        chain = self._home.chains.chain(entry.id)
        state = load_state(chain)
        described = schema_view(entry.name, state)
        self._home.need_data(entry.id, entry.name)
        if state.schema is None:
            return wire.Records(columns=(), rows=(), dataset=self._views.dataset(entry))
        schema, first = to_arrow(schema_of(state.schema)), self._home.held_from(entry.id)
        shards = (entry.id,) if is_one_chain(ref) else self._home.shards_of(entry.id)
        if len(shards) == 1:
            end = None
            if not is_one_chain(ref):
                self._home.check_united(entry)
                end = self._home.unfollowed(entry.id)
            before = None if end is None else end[1]
            table = previews.tail(chain, self._home.slices.of(entry.id), limit, schema, first, before)
        else:
            sources = map(self._home.chains.chain, shards), map(self._home.slices.of, shards)
            cut = zip(*sources, complete_sizes(self._home, shards), strict=True)
            table = previews.tail_of_shards(tuple(cut), limit, schema, state.vocab)
        rows = () if table is None else tuple(plain_rows(table))
        return wire.Records(columns=described.fields, rows=rows, dataset=self._views.dataset(entry))

    @in_worker
    def schema(self, ref: str) -> wire.Schema:
        """Returns the columns of a dataset. Raises NotFound, Invalid."""
        entry = self._home.resolve(ref)
        return schema_view(entry.name, load_state(self._home.chains.chain(entry.id)))

    async def apply(self, request: wire.ApplyRequest, terms: ApplyTerms = OWNERS) -> wire.TaskRef:
        """Applies manifests. Result: ApplyResult.

        Raises at once for manifests that cannot be read; those that are refused later are items of the result.
        """
        return await self._applying.submit(request, terms)

    def _declared(self, views: Sequence[wire.DatasetView]) -> Mapping[str, dict[str, Any]]:
        """Returns what views show of the declarations, by did."""
        with self._home.database.read() as connection:
            one = views[0].id if len(views) == 1 else None
            labels = {one: labels_of(connection, one)} if one is not None else labels_by_did(connection, "Dataset")
            accounts = ResourceStore(connection).account_names("Dataset")
        return {
            each.id: {"labels": labels.get(each.id, {}), "account": accounts.get(each.id)} for each in views
        }  # fmt: skip

    async def _sum(self) -> float:
        await trio.to_thread.run_sync(self._sizes.step)
        return PAUSE_SECONDS if self._sizes.is_behind else UNTIL_POKED

    async def _completed(self, look: Callable[[], Sequence[wire.DatasetView]]) -> Sequence[wire.DatasetView]:
        """Adds to views what changes without a new block, such as labels and holders, and the sum of data sizes.

        ``look`` returns the views; it is called in a worker thread, with the reading of the rest: each change of the
        thread costs as much as the reading.
        """
        views, datasets, declared, sizes = await trio.to_thread.run_sync(partial(self._beside, look))
        if self._sizes.is_behind:
            self.summing.poke()
        counts = self._holders.of(datasets)
        return [
            msgspec.structs.replace(view, peers=counts[dataset], bytes=sizes.get(dataset), **declared[view.id])
            for view, dataset in zip(views, datasets, strict=True)
        ]

    def _beside(
        self, look: Callable[[], Sequence[wire.DatasetView]]
    ) -> tuple[Sequence[wire.DatasetView], Sequence[DatasetId], Mapping[str, dict[str, Any]], Mapping[DatasetId, int]]:
        """Returns views, and in the same order the ids of their datasets; what is declared, and sizes of their data."""
        views = look()
        datasets = [DatasetId.parse(view.id) for view in views]
        return views, datasets, self._declared(views), self._sizes.of(datasets)

    def _unused(self, ref: str) -> DatasetEntry:
        """Resolves a dataset to be deleted. Raises Refused while others derive from it."""
        entry = self._home.resolve(ref)
        with self._home.database.read() as connection:
            member = renditions.member_of(connection, entry.id)
            if member is not None:
                renditions.check_member(renditions.of(connection, entry.id), entry.id)
            chains = Catalog(connection).chains_of(entry)
        readers = list(dict.fromkeys(other.name for each in chains for other in self._views.readers.of(each)))
        if readers:
            raise Refused(
                f"{', '.join(readers)} {agree(len(readers), 'derives', 'derive')} from {entry.name}",
                rule="dataset-in-use",
                hint=f"delete {agree(len(readers), 'it', 'them')} first: odfctl delete dataset {readers[0]}",
            )
        return entry

    def _shards(self, entry: DatasetEntry) -> Sequence[DatasetEntry]:
        """Lists the chains that are deleted with a dataset, itself first.

        Raises Refused while a reader holds history.
        """
        with self._home.database.read() as connection:
            catalog = Catalog(connection)
            chains = catalog.chains_of(entry)
            for each in chains:
                self._home.held(connection, each)
            return [catalog.resolve(str(each)) for each in chains]

    def _delete(self, entry: DatasetEntry, *, purge: bool) -> tuple[wire.DatasetView, Sequence[tuple[str, bool]]]:
        """Deletes a dataset. Returns its last view, and the names of its flows, each with whether it stays and waits.

        Name, mirror spec and all that was concluded about the dataset are deleted in one transaction, with or
        without the chain; then the objects that nobody names. After a crash in between the collector deletes the
        remaining objects, and a person sees nothing of them.
        """
        view = self._views.dataset(entry)
        with suppress(Environment):  # a damaged chain has no known size, and is deleted all the same
            view = msgspec.structs.replace(view, bytes=self._sizes.of((entry.id,)).get(entry.id))
        now = self._clock.now()
        unneeded: list[Multihash] = []
        dropped: list[tuple[str, bool]] = []

        def together(connection: sqlite3.Connection) -> None:
            if purge:
                unmanaged.forget_data(connection, entry.id, now)
            else:
                unmanaged.keep(connection, _remaining(connection, entry, view, now))
            dropped.extend(flows.forget(connection, entry.id))
            Catalog(connection).remove(entry, now)
            mirror_specs.drop(connection, entry.id, now)
            records.remove(connection, BASE_KIND, str(entry.id))
            if not entry.is_inner:
                records.remove(connection, quarantine.KIND, str(renditions.of(connection, entry.id).id))
            visibility.deleted(connection, entry.id, now)
            Ledger(connection).forget(entry.id)
            Damage(connection).forget(entry.id)
            row_counts.forget(connection, entry.id)
            renditions.forget(connection, entry.id)
            spool.forget_reader(connection, entry.id)
            named = drop_references(connection, entry.id)
            unneeded.extend(named if purge else ())

        self._home.chains.drop(entry.id, together, keep=not purge)
        self._home.objects.remove_all(unneeded)
        segments.forget(self._home.folder(SEGMENTS), entry.id)
        folds.forget(self._home.folder(FOLDS), entry.id)
        return view, dropped


def _remaining(
    connection: sqlite3.Connection, entry: DatasetEntry, view: wire.DatasetView, now: Instant
) -> unmanaged.Unmanaged:
    """Describes what stays of a dataset, before it is forgotten."""
    checked = Ledger(connection).chain(entry.id)
    remains = unmanaged.Remains(
        blocks=view.blocks,
        bytes=view.bytes,
        data=checked.data,
        epoch=checked.epoch,
        extent=Holdings(connection).extent(entry.id),
    )
    return unmanaged.Unmanaged(dataset=entry.id, name=entry.name, at=now, remains=remains)


def known_dataset(home: StateDirectory, ref: str) -> DatasetId:
    """Returns the id that a ref names, whether or not the dataset has a name here. Raises NotFound, Invalid."""
    with home.catalog() as catalog:
        try:
            return catalog.resolve(ref).id
        except NotFound:
            if ref.startswith("did:"):
                return DatasetId.parse(ref)
            raise
