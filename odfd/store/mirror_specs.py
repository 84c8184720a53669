"""Stores the specification of each mirror (what to hold, and how) as a resource of the type Mirror."""

from __future__ import annotations

import sqlite3
from typing import Final, Literal

import msgspec

from chain.errors import Invalid, NotFound
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.wording import plural
from odfd.policy.policy import Expression, parse_expression
from odfd.renditions.former_rows import INNER_MIRROR
from odfd.resources import records
from odfd.resources.resource import Json, Resource
from odfd.resources.store import ResourceStore
from odfd.store import collections
from odfd.store.catalog import Catalog
from odfd.store.retention import parse_keep, parse_rate
from p2p.identity import did_of_peer, parse_peer

TYPE: Final = "Mirror"
MAX_PRIORITY: Final = 100
MAX_PEERS: Final = 16
"""The most peers that share one dataset with this node."""


class MirrorSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The specification of a mirror. ``use`` and ``serve`` replace the node's policy for it;
    ``expect`` is a known hash."""

    dataset: str
    name: str
    network: str | None = None
    want: Literal["chain", "data"] = "data"
    priority: int = 0
    """When room is short, data of lower priorities is deleted for higher ones."""
    keep: str | None = None
    """How much of the data is kept, as ``odfd.store.retention`` parses it; ``None``: all."""
    rate: str | None = None
    """Bytes a second that it may receive, like ``2MiB``; ``None``: only the node's cap applies."""
    use: str | None = None
    serve: str | None = None
    expect: str | None = None
    via: str | None = None
    """Where it is published and read too, ``https://…``, ``/ipns/…`` or ``/ipfs/…``; ``None``: nowhere."""
    peers: tuple[str, ...] = ()
    """The peers that share it with this node: only they are asked, and it is not passed on. Empty: it is public."""
    paused: bool = False
    """Whether nothing is fetched until a person resumes it; data that is here stays and is served."""

    @property
    def id(self) -> DatasetId:
        return DatasetId.parse(self.dataset)

    @property
    def brings_data(self) -> bool:
        """Whether each block is stored together with its data, because all data is wanted."""
        return self.want == "data" and self.keep is None

    @property
    def sharing(self) -> list[KeyDid]:
        """Returns the keys of the nodes that share it with this one."""
        return [did_of_peer(peer) for peer in self.peers]

    @property
    def is_from_web(self) -> bool:
        """Whether a web server serves the dataset, which other nodes may not be able to reach."""
        return self.via is not None and self.via.startswith(("http://", "https://"))

    def check(self) -> None:
        """Raises Invalid if an expression, a hash or a bound cannot be parsed."""
        if abs(self.priority) > MAX_PRIORITY:
            raise Invalid(
                f"a priority of {self.priority}", rule="mirror-priority", hint=f"-{MAX_PRIORITY} to {MAX_PRIORITY}"
            )
        if self.keep is not None:
            parse_keep(self.keep)
            if self.want == "chain":
                raise Invalid(
                    "a mirror of the chain alone keeps no data", rule="mirror-keep", hint="leave out --keep or --want"
                )
        if self.rate is not None:
            parse_rate(self.rate)
        for text in (self.use, self.serve):
            if text is not None:
                parse_expression(text)
        if self.expect is not None:
            Multihash.parse(self.expect)
        if len(self.peers) > MAX_PEERS:
            raise Invalid(
                f"shared by {plural(len(self.peers), 'peer')}", rule="mirror-from", hint=f"at most {MAX_PEERS}"
            )
        for peer in self.peers:
            parse_peer(peer)


def keep(connection: sqlite3.Connection, spec: MirrorSpec, now: Instant) -> bool:
    """Stores the spec; returns ``False`` if it was stored already.

    Of a chain inside a collection only its own part is stored: all else is as its collection's resource says.
    """
    entry = Catalog(connection).find(spec.id)
    if entry is None or not entry.is_inner:
        return ResourceStore(connection).declare(TYPE, spec.name, to_resource(spec), now, spec.dataset, renames=True)
    part = msgspec.json.encode(_Part(via=spec.via, paused=spec.paused))
    known = records.get(connection, INNER_MIRROR, spec.dataset)
    if known is not None and known.body == part:
        return False
    records.put(connection, INNER_MIRROR, spec.dataset, part, now)
    return True


def take_in(connection: sqlite3.Connection, dataset: DatasetId, now: Instant) -> None:
    """Lets the mirror of a chain that became part of a collection in the catalogue be no resource of its own."""
    store, spec = ResourceStore(connection), of(connection, dataset)
    row, whole = store.with_did(TYPE, str(dataset)), _whole(connection, dataset)
    if spec is not None and row is not None and whole is not None and whole.id != row.id:
        store.gather(whole, [row], now)
        keep(connection, spec, now)


def hand_on(connection: sqlite3.Connection, old: DatasetId, new: DatasetId, now: Instant) -> None:
    """Lets the resource that mirrors ``old`` mirror ``new``, on its terms.

    The collection has handed over already. What is its own part of either, such as a place, stays with it.
    """
    store = ResourceStore(connection)
    row = store.with_did(TYPE, str(old))
    if row is None:
        return
    spec, part = spec_of(row), _part(connection, new)
    store.exchange(TYPE, str(old), str(new), now)
    records.remove(connection, INNER_MIRROR, str(new))
    gone_on = msgspec.structs.replace(spec, dataset=str(new), via=part.via, paused=part.paused, expect=None)
    keep(connection, gone_on, now)
    keep(connection, spec, now)


def to_resource(spec: MirrorSpec) -> Json:
    """Returns what a mirror's resource says, without defaults."""
    parts = msgspec.to_builtins(spec)
    return {"source": parts.pop("dataset"), **{key: value for key, value in parts.items() if key != "name"}}


def drop(connection: sqlite3.Connection, dataset: DatasetId, now: Instant) -> None:
    drop_inner(connection, dataset)
    ResourceStore(connection).withdraw(TYPE, "", now, str(dataset))


def drop_inner(connection: sqlite3.Connection, dataset: DatasetId) -> None:
    """Lets a chain inside a collection be mirrored no longer."""
    records.remove(connection, INNER_MIRROR, str(dataset))


def list_declared(connection: sqlite3.Connection) -> list[MirrorSpec]:
    """Lists the mirrors that are resources."""
    return list(map(spec_of, ResourceStore(connection).all(TYPE)))


def all_of(connection: sqlite3.Connection) -> list[MirrorSpec]:
    """Lists all mirrors, and then those of the chains inside collections."""
    inner = [of(connection, DatasetId.parse(each.key)) for each in records.of_kind(connection, INNER_MIRROR)]
    return [*list_declared(connection), *filter(None, inner)]


def of(connection: sqlite3.Connection, dataset: DatasetId) -> MirrorSpec | None:
    found = ResourceStore(connection).with_did(TYPE, str(dataset))
    if found is not None:
        return spec_of(found)
    if records.get(connection, INNER_MIRROR, str(dataset)) is None or (whole := _whole(connection, dataset)) is None:
        return None
    name, part = Catalog(connection).name_of(dataset), _part(connection, dataset)
    return msgspec.structs.replace(
        spec_of(whole), dataset=str(dataset), name=name, via=part.via, paused=part.paused, expect=None
    )


def inside(connection: sqlite3.Connection, dataset: DatasetId) -> list[MirrorSpec]:
    """Lists the mirrors of the chains inside a collection, given by the chain that its name means."""
    catalog = Catalog(connection)
    entry = catalog.find(dataset)
    chains = () if entry is None or entry.is_inner else catalog.chains_of(entry)
    return [spec for chain in chains if chain != dataset and (spec := of(connection, chain)) is not None]


def spec_of(mirror: Resource) -> MirrorSpec:
    """Returns what a resource of the type Mirror says."""
    more = {key: value for key, value in mirror.spec.items() if key != "source"}
    return msgspec.convert({"dataset": mirror.did, "name": mirror.name, **more}, MirrorSpec)


def not_mirrored(dataset: DatasetId) -> NotFound:
    return NotFound(f"{dataset.short} is not mirrored here", rule="mirror", hint="odfctl mirror list shows what is")


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is of the mirror of one chain inside a collection alone."""

    via: str | None = None
    paused: bool = False


def _part(connection: sqlite3.Connection, dataset: DatasetId) -> _Part:
    found = records.get(connection, INNER_MIRROR, str(dataset))
    return _Part() if found is None else msgspec.json.decode(found.body, type=_Part)


def _whole(connection: sqlite3.Connection, dataset: DatasetId) -> Resource | None:
    """Returns the mirror of the collection that a chain is inside of."""
    active = collections.of(connection, dataset).active.dataset
    return ResourceStore(connection).with_did(TYPE, str(active))


def purposes(connection: sqlite3.Connection, dataset: DatasetId) -> tuple[Expression | None, Expression | None]:
    """Returns ``use`` and ``serve`` of a dataset's spec, ``None`` where it has none."""
    spec = of(connection, dataset)
    if spec is None:
        return None, None
    return (parse_expression(spec.use) if spec.use else None, parse_expression(spec.serve) if spec.serve else None)
