"""Stores the specification of each mirror (what to hold, and how) as a resource of the type Mirror."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId, KeyDid
from chain.instant import Instant
from chain.multihash import Multihash
from chain.wording import plural
from odfd.mirrors.retention import parse_keep, parse_rate
from odfd.resources.resource import Json, Resource
from odfd.resources.store import ResourceStore
from odfd.trust.policy.policy import Expression, parse_expression
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
    """How much of the data is kept, as ``odfd.mirrors.retention`` parses it; ``None``: all."""
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
    """Stores the spec; returns ``False`` if it was stored already."""
    return ResourceStore(connection).declare(TYPE, spec.name, said(spec), now, spec.dataset, renames=True)


def hand_on(
    connection: sqlite3.Connection, old: DatasetId, new: DatasetId, names: Mapping[DatasetId, str], now: Instant
) -> None:
    """Lets the resource that mirrors ``old`` mirror ``new``, and that of ``new`` the old one. ``names``: of both."""
    specs = [spec for spec in (of(connection, new), of(connection, old)) if spec is not None]
    ResourceStore(connection).exchange(TYPE, str(old), str(new), now)
    for each in specs:
        keep(connection, msgspec.structs.replace(each, name=names[each.id]), now)


def said(spec: MirrorSpec) -> Json:
    """Returns what a mirror's resource says, without defaults."""
    parts = msgspec.to_builtins(spec)
    return {"source": parts.pop("dataset"), **{key: value for key, value in parts.items() if key != "name"}}


def drop(connection: sqlite3.Connection, dataset: DatasetId, now: Instant) -> bool:
    return ResourceStore(connection).withdraw(TYPE, "", now, str(dataset))


def all_of(connection: sqlite3.Connection) -> list[MirrorSpec]:
    return [spec_of(each) for each in ResourceStore(connection).all(TYPE)]


def of(connection: sqlite3.Connection, dataset: DatasetId) -> MirrorSpec | None:
    found = ResourceStore(connection).with_did(TYPE, str(dataset))
    return None if found is None else spec_of(found)


def spec_of(mirror: Resource) -> MirrorSpec:
    """Returns what a resource of the type Mirror says."""
    more = {key: value for key, value in mirror.spec.items() if key != "source"}
    return msgspec.convert({"dataset": mirror.did, "name": mirror.name, **more}, MirrorSpec)


def purposes(connection: sqlite3.Connection, dataset: DatasetId) -> tuple[Expression | None, Expression | None]:
    """Returns ``use`` and ``serve`` of a dataset's spec, ``None`` where it has none."""
    spec = of(connection, dataset)
    if spec is None:
        return None, None
    return (parse_expression(spec.use) if spec.use else None, parse_expression(spec.serve) if spec.serve else None)
