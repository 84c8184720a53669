"""Publishes datasets to IPFS, once or continuously.

A continuous publication follows its dataset, and its record is renewed long before it expires; if Kubo is not running
or has lost everything, it is tried again. A dataset is touched in ``loop`` when its head moved.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import msgspec
import trio

from chain import instant
from chain.errors import Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.wording import plural
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.datasets.shard_reading import resolve_chains
from odfd.ipfs.delegation import check_delegation
from odfd.ipfs.publishing import LIFETIME, RENEW, Publication, Publisher
from odfd.ipfs.transport import no_ipfs
from odfd.resources import records
from odfd.resources.records import KeptRecord
from odfd.runtime.reconcile_loop import KeyedReconcileLoop
from odfd.runtime.subjects import about
from odfd.runtime.tasks import Report, outside
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.ledger.log import Ledger
from odfd.store.visibility import Visibility
from p2p.ipfs import record

KIND: Final = "publication"
"""Resource kind of publications, stored under the dataset's id."""
ROUND_SECONDS: Final = 600.0
RETRY_SECONDS: Final = 60.0
"""Seconds until the next try while one of them is not up to date."""
_NOT_KEPT: Final = "neither kept nor withdrawn while [ipfs] api of the settings names no Kubo"


class PublicationSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A requested publication."""

    standing: bool = True
    delegation: bytes | None = None


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The status of a publication, stored in the intent so that following a dataset does not grow a log."""

    root: str
    name: str | None
    head: str
    blocks: int
    at: Instant
    signed: str | None = None
    """Id of the signed head that is published with it."""


class KeptPublication(NamedTuple):
    spec: PublicationSpec
    done: Published


class PublicationTerms(NamedTuple):
    """The limits for publications of datasets."""

    served: Callable[[DatasetId], int]
    """Returns how many blocks of a public dataset the policy allows to pass on."""
    visibility: Visibility


class PublicationService:
    """Publishes datasets to IPFS, as worker and API service. ``publisher``: ``None`` without a Kubo."""

    def __init__(
        self,
        home: StateDirectory,
        publisher: Publisher | None,
        giving: PublicationTerms,
        all_of_ours: Callable[[], bool],
        context: Context,
    ) -> None:
        """``all_of_ours``: whether the policy publishes all public datasets of this node."""
        self._home = home
        self._publisher = publisher
        self._served, self._visibility = giving
        self._all_of_ours = all_of_ours
        self._board = context.board
        self._events = context.events
        self._clock = context.clock
        self._logger = context.logger
        self._busy: dict[DatasetId, trio.Lock] = {}
        self._troubles: dict[DatasetId, str] = {}
        self.loop = KeyedReconcileLoop[DatasetId](self._round, ROUND_SECONDS)

    @operation("POST", NODE_PATH + "/publications", needs=Owner.NETWORK)
    def publish(self, request: wire.PublishRequest) -> wire.TaskRef:
        """Publishes a dataset, with all shards, each under the name of its own key. Result: PublicationView.

        The view is that of the first shard.
        """
        entry, *others = resolve_chains(self._home, request.ref)
        publisher = self._with_kubo()
        self._need_public(entry.id)
        if others and request.delegation is not None:
            text = f"{entry.name} has {len(others) + 1} shards, and a record is signed for the name of one"
            raise Refused(text, rule="shard-whole", hint="name each shard by its id: odfctl get renditions -o json")
        delegation = self._check_delegation(publisher, entry.id, request.delegation)

        async def work(report: Report) -> wire.PublicationView:
            report.begin(f"publishing {entry.name}")
            async with outside("the node's Kubo"):
                for other in others:
                    await self._publish(publisher, other.id, standing=not request.once)
                done, kept = await self._publish(publisher, entry.id, standing=not request.once, delegation=delegation)
            return self._view(entry.name, entry.id, kept, done)

        return task_ref(self._board.submit("publish", entry.name, work, about(entry.id)))

    @operation("GET", NODE_PATH + "/publications", needs=Owner.NETWORK)
    def list(self) -> Sequence[wire.PublicationView]:
        """Lists the datasets that this node publishes on IPFS."""
        return [self._view(self._home.name_of(dataset), dataset, each) for dataset, each in self._list_kept().items()]

    @operation("DELETE", NODE_PATH + "/publications/{ref}", needs=Owner.NETWORK)
    async def withdraw(self, ref: str) -> wire.PublicationView:
        """Withdraws a dataset from IPFS, as far as this node has put it there."""
        entries, publisher, kept = await trio.to_thread.run_sync(self._resolve, ref)
        entry = entries[0]
        # The first shard last, and each record after its files: where the Kubo fails, the same command goes on.
        for each in reversed(entries):
            await self._withdraw(publisher, each.id)
        self._events.emit("publication.withdrawn", entry.name, about=about(entry.id))
        return self._view(entry.name, entry.id, kept._replace(spec=PublicationSpec(standing=False)))

    def _resolve(self, ref: str) -> tuple[Sequence[DatasetEntry], Publisher, KeptPublication]:
        """Returns the shards of a dataset and its publication. Raises NotFound, Invalid, Refused."""
        entries, publisher = resolve_chains(self._home, ref), self._with_kubo()
        kept = self._find_kept(entries[0].id)
        if kept is None:
            raise NotFound(f"{entries[0].name} is not on IPFS by us", rule="publication", hint="odfctl ipfs list")
        return entries, publisher, kept

    async def _round(self) -> float:
        if self._publisher is None:
            return float("inf")
        touched = self.loop.take()
        kept, public, ours = await trio.to_thread.run_sync(self._survey)
        for dataset in kept.keys() - public:
            await self._take_back(self._publisher, dataset)
        wanted = {dataset for dataset, each in kept.items() if each.spec.standing and dataset in public}
        wanted.update(each for each in ours if each not in kept)
        for dataset in sorted(wanted if touched is None else wanted & touched):
            await self._consider(self._publisher, dataset, kept.get(dataset))
        concerned = wanted | (kept.keys() - public)
        self._troubles = {dataset: trouble for dataset, trouble in self._troubles.items() if dataset in concerned}
        for dataset in self._troubles:
            self.loop.leave(dataset)
        return RETRY_SECONDS if self._troubles else ROUND_SECONDS

    async def _consider(self, publisher: Publisher, dataset: DatasetId, known: KeptPublication | None) -> None:
        try:
            if known is None or await self._is_behind(publisher, dataset, known.done):
                await self._publish(publisher, dataset, standing=True)
        except Fault as fault:
            if self._troubles.get(dataset) != str(fault):
                self._logger.error("not published", dataset=str(dataset), fault=str(fault), rule=fault.rule)
                self._events.emit(
                    "publication.stalled",
                    self._home.name_of(dataset),
                    str(fault),
                    about=about(dataset),
                    rule=fault.rule,
                )
            self._troubles[dataset] = str(fault)
            return
        self._troubles.pop(dataset, None)

    async def _take_back(self, publisher: Publisher, dataset: DatasetId) -> None:
        """Removes a dataset that is private now, or deleted, from our Kubo; copies that others fetched stay."""
        try:
            await self._withdraw(publisher, dataset)
        except Fault as fault:
            if self._troubles.get(dataset) != str(fault):
                self._logger.error("not withdrawn", dataset=str(dataset), fault=str(fault), rule=fault.rule)
            self._troubles[dataset] = str(fault)
            return
        self._troubles.pop(dataset, None)
        self._events.emit("publication.withdrawn", self._home.name_of(dataset), "it is private", about=about(dataset))

    async def _withdraw(self, publisher: Publisher, dataset: DatasetId) -> None:
        async with self._alone(dataset):
            await publisher.withdraw(dataset)
            # Last: after a crash in between, the next round still finds that there is something to withdraw.
            await trio.to_thread.run_sync(self._forget, dataset)

    async def _is_behind(self, publisher: Publisher, dataset: DatasetId, known: Published) -> bool:
        signed = await trio.to_thread.run_sync(self._find_signed, dataset)
        # Negative after the clock was set back: the record may have expired for all others.
        aged = not 0 <= self._clock.now() - known.at < RENEW
        return aged or signed != known.signed or await publisher.root(dataset) != known.root.removeprefix("/ipfs/")

    async def _publish(
        self, publisher: Publisher, dataset: DatasetId, *, standing: bool, delegation: bytes | None = None
    ) -> tuple[Publication, KeptPublication]:
        async with self._alone(dataset):
            signed, served, known = await trio.to_thread.run_sync(self._terms_of, dataset)
            now = self._clock.now()
            delegation = delegation or (known.spec.delegation if known is not None else None)
            done = await publisher.publish(dataset, served, now)
            if delegation is not None:
                await publisher.put(dataset, delegation)
            became = Published(
                root=f"/ipfs/{done.root}", name=done.name, head=str(done.head), blocks=done.size, at=now, signed=signed
            )
            kept = KeptPublication(PublicationSpec(standing=standing, delegation=delegation), became)
            await trio.to_thread.run_sync(self._keep, dataset, kept)
        self._events.emit(
            "publication.published",
            self._home.name_of(dataset),
            f"{plural(done.size, 'block')}, {became.root}",
            about=about(dataset),
            added=done.blocks,
        )
        return done, kept

    def _terms_of(self, dataset: DatasetId) -> tuple[str | None, int, KeptPublication | None]:
        """Returns the id of the signed head, how many blocks may go out, and what is out. Raises Refused."""
        self._need_public(dataset)
        return self._find_signed(dataset), self._served(dataset), self._find_kept(dataset)

    def _need_public(self, dataset: DatasetId) -> None:
        if not self._visibility.is_public(dataset):
            name = self._home.name_of(dataset)
            raise Refused(f"{name} is private", rule="private", hint=f"first: odfctl publish {name}")

    @asynccontextmanager
    async def _alone(self, dataset: DatasetId) -> AsyncIterator[None]:
        async with self._busy.setdefault(dataset, trio.Lock()):
            yield

    def _with_kubo(self) -> Publisher:
        if self._publisher is None:
            raise no_ipfs()
        return self._publisher

    def _survey(self) -> tuple[dict[DatasetId, KeptPublication], Set[DatasetId], Sequence[DatasetId]]:
        """Returns what is published, which of that is public, and the datasets that the policy publishes."""
        kept = self._list_kept()
        return kept, self._visibility.public_of(kept), self._list_ours() if self._all_of_ours() else ()

    def _list_ours(self) -> Sequence[DatasetId]:
        public = self._visibility.public_of(self._home.chains.datasets())
        return [each for each in public if self._home.keys.has_dataset_key(each)]

    def _find_signed(self, dataset: DatasetId) -> str | None:
        with self._home.database.read() as connection:
            newest = Ledger(connection).newest_head(dataset)
        return None if newest is None else str(newest[1].sid)

    def _check_delegation(self, publisher: Publisher, dataset: DatasetId, text: str | None) -> bytes | None:
        if text is None:
            return None
        key = publisher.key(dataset)
        if key is None:
            raise Refused("this node does not write that dataset", rule="ipns-delegation", hint="its owner's node does")
        try:
            raw = base64.b64decode(text, validate=True)
        except ValueError as error:
            raise Invalid("the delegation is not base64", rule="ipns-delegation") from error
        check_delegation(raw, dataset, record.name_of(key.dataset_id))
        return raw

    def _list_kept(self) -> dict[DatasetId, KeptPublication]:
        with self._home.database.read() as connection:
            found = records.of_kind(connection, KIND)
        return {DatasetId.parse(each.key): _read(each) for each in found}

    def _find_kept(self, dataset: DatasetId) -> KeptPublication | None:
        with self._home.database.read() as connection:
            found = records.get(connection, KIND, str(dataset))
        return None if found is None else _read(found)

    def _keep(self, dataset: DatasetId, kept: KeptPublication) -> None:
        with self._home.database.write() as connection:
            said, done = msgspec.json.encode(kept.spec), msgspec.json.encode(kept.done)
            records.put(connection, KIND, str(dataset), said, self._clock.now(), done)

    def _forget(self, dataset: DatasetId) -> None:
        with self._home.database.write() as connection:
            records.remove(connection, KIND, str(dataset))

    def _view(
        self, name: str, dataset: DatasetId, kept: KeptPublication, done: Publication | None = None
    ) -> wire.PublicationView:
        became = kept.done
        return wire.PublicationView(
            ref=name,
            dataset_id=str(dataset),
            root=became.root,
            name=became.name,
            home=record.name_of(dataset),
            head=became.head,
            blocks=became.blocks,
            at=instant.render(became.at),
            expires=instant.render(Instant(became.at + LIFETIME)) if became.name is not None else None,
            standing=kept.spec.standing,
            added_blocks=done.blocks if done is not None else 0,
            added_objects=done.objects if done is not None else 0,
            added_bytes=done.bytes if done is not None else 0,
            message=self._troubles.get(dataset, "") if self._publisher is not None else _NOT_KEPT,
        )


def _read(each: KeptRecord) -> KeptPublication:
    assert each.done is not None, "it is set in the transaction that records it"
    return KeptPublication(
        msgspec.json.decode(each.body, type=PublicationSpec), msgspec.json.decode(each.done, type=Published)
    )
