"""Publishes datasets, shares them with some peers, or makes them private again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from chain.errors import Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.state import load_state
from chain.statements.card import MAX_SAMPLE, MAX_WORD
from chain.statements.envelope import Signed
from chain.wording import agree, plural
from config.model import Settings
from odfd.access.relations import Action
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import NODE_PATH, EachOf, Owner, operation
from odfd.datasets.creation import input_ids
from odfd.datasets.shard_reading import is_later_shard
from odfd.network.joined_networks import Network, list_joined
from odfd.network.node_names import peer_named
from odfd.runtime.subjects import about
from odfd.services.views.views import words_view
from odfd.store import collections, mirror_specs
from odfd.store.card_choices import CardChange, ChosenWords
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.collections import Member
from odfd.store.directory import StateDirectory
from odfd.store.ledger.authorities import Authorities
from odfd.store.ledger.log import Ledger
from odfd.store.visibility import Visibility, VisibilityMark
from p2p.ports import PeerView

SHOWN: Final = 3
"""Most datasets that a note names."""


@dataclass(eq=False)
class VisibilityService:
    """The API service that publishes, shares and unpublishes datasets."""

    home: StateDirectory
    visibility: Visibility
    context: Context
    changed: Callable[[DatasetId], None]
    """Called for each dataset published or withdrawn."""
    announce: Callable[[DatasetId, Signed], None]
    """Sends the signed statements."""
    peers: Callable[[], Sequence[PeerView]]
    """Lists the known peers."""
    joined: Callable[[], Sequence[Network]]
    """Lists the joined networks."""
    sign: Callable[[DatasetId], None]
    """Signs the frontier of a dataset that others may know of from now on. Blocking."""
    shares_changed: Callable[[DatasetId], None]
    """Called for each shard that is shared with other peers than before."""
    say_handovers: Callable[[DatasetId], None]
    """Writes into a chain how its collection handed over, before others may know it."""

    @operation("POST", NODE_PATH + "/publish", needs=EachOf(Action.OWN))
    def publish(self, request: wire.VisibilityRequest) -> Sequence[wire.VisibilityView]:
        """Publishes datasets, everywhere or in some networks. Raises NotFound, Refused, Invalid."""
        change = _change_of(request)
        wanted = self._resolve_all(request)
        networks = self._find_networks(request.to)
        theirs = [each for each in wanted if _is_shared_by_others(self.home, each.id)]
        if theirs and not request.all:
            raise _is_theirs(theirs[0])
        kept = [self._view(entry, False, [_is_theirs(entry).message]) for entry in theirs]
        mine = [each for each in wanted if each not in theirs]
        if change:
            self._check_own(mine, change)
        views = [*kept, *[self._all(each, True, networks, change) for each in mine]]
        return views if self.joined() else _unfound(views)

    def _check_own(self, entries: Sequence[DatasetEntry], change: CardChange) -> None:
        """Raises Refused for a dataset whose card others sign."""
        what, rule = (
            ("which rows its card shows", "sample") if change.rows is not None else ("what its card says", "words")
        )
        for entry in entries:
            if not self.home.keys.has_dataset_key(entry.id):
                raise Refused(
                    f"{entry.name} is a mirror: only its publisher says {what}",
                    rule=f"{rule}-of-others",
                    hint=f"odfctl publish {entry.name} without options for its card serves it like any other",
                )

    def _on_card(self, dataset: DatasetId) -> tuple[int, ChosenWords]:
        return self.visibility.shown_rows(dataset), self.visibility.card_words(dataset)

    def _card_changed(self, entry: DatasetEntry, before: tuple[int, ChosenWords], now: tuple[int, ChosenWords]) -> None:
        self.changed(entry.id)
        rows, words = now
        if rows != before[0]:
            text = f"its card shows up to {plural(rows, 'row')}" if rows else "its card shows no rows"
            self.context.events.emit("dataset.sample", entry.name, text, about=about(entry.id), id=str(entry.id))
        if words != before[1]:
            said = [name for name, value in msgspec.structs.asdict(words).items() if value]
            text = f"its card states its {', '.join(said)}" if said else "its card states nothing but its name"
            self.context.events.emit("dataset.words", entry.name, text, about=about(entry.id), id=str(entry.id))

    def _find_networks(self, names: Sequence[str]) -> frozenset[str]:
        """Returns the joined networks with these names. Raises NotFound for one that is not joined."""
        joined = {each.name.casefold(): each.name for each in self.joined()}
        for name in names:
            if name.casefold() not in joined:
                raise NotFound(
                    f"this node is not in the network {name}",
                    rule="network",
                    hint=f"odfctl network join {name}, then publish to it; odfctl network list shows those joined",
                )
        return frozenset(joined[name.casefold()] for name in names)

    @operation("POST", NODE_PATH + "/unpublish", needs=EachOf(Action.OWN))
    def unpublish(self, request: wire.VisibilityRequest) -> Sequence[wire.VisibilityView]:
        """Makes datasets private again; copies that others hold remain. Raises NotFound, Invalid."""
        return [self._all(entry, False) for entry in self._resolve_all(request)]

    @operation("POST", NODE_PATH + "/share", needs=Owner.NETWORK)
    def share(self, request: wire.ShareRequest) -> wire.VisibilityView:
        """Shares a private dataset with peers, or ends that; copies that they hold remain. Raises Refused, Invalid."""
        known = self.peers()
        more, less = ([peer_named(known, peer) for peer in peers] for peers in (request.peers, request.revoke))
        if both := set(more) & set(less):
            raise Invalid(f"{min(both)} is in both lists", rule="share-peers", hint="name it in one of them")

        def shards_of(connection: sqlite3.Connection) -> tuple[DatasetId, ...]:
            """The shards that the name means in the transaction of the change, whatever hands over meanwhile."""
            return collections.shards_of(connection, Catalog(connection).resolve(request.ref).id)

        def every(connection: sqlite3.Connection) -> list[DatasetId]:
            shards = shards_of(connection)
            return [*shards, *_former(connection, shards[0])]

        entry = self.home.resolve(request.ref)
        if is_later_shard(self.home, entry.id):
            raise _is_later(entry)
        if more:
            self._check_sharing(entry)
            self.say_handovers(entry.id)
        given = bool(more) and self.visibility.share(entry.id, more, self.context.clock.now(), shards_of)
        taken = bool(less) and self.visibility.revoke(entry.id, less, every)
        with self.home.database.read() as connection:
            # Read again after the change: a handover may have added shards since.
            chains = every(connection)
        for kind, is_so in (("dataset.shared", given), ("dataset.revoked", taken)):
            if is_so:
                self.context.events.emit(kind, entry.name, about=about(entry.id), id=str(entry.id))
        if given or taken:
            self._frontiers_known(chains)
        return self._view(entry, given or taken)

    def _frontiers_known(self, chains: Sequence[DatasetId]) -> None:
        """Lets the peers that shards are shared with know of them all, and of their frontiers."""
        for chain in chains if len(chains) > 1 else ():
            self.shares_changed(chain)
            self.sign(chain)

    def _check_sharing(self, entry: DatasetEntry) -> None:
        if self.visibility.is_told(entry.id):
            raise Refused(
                f"{entry.name} is published: every node may copy it",
                rule="share-published",
                hint=f"to give it to some alone: odfctl unpublish {entry.name}, then share it",
            )
        if _is_shared_by_others(self.home, entry.id):
            raise _is_theirs(entry)
        self._shards(entry, True)

    def _all(
        self, entry: DatasetEntry, public: bool, networks: Collection[str] = (), change: CardChange | None = None
    ) -> wire.VisibilityView:
        """Publishes or withdraws a dataset with all its shards; returns the view of the first, which has its name.

        Former renditions have the same rows: they are withdrawn too, and not published again.
        """
        first, *others = self._shards(entry, public)
        former = [] if public else self._find_former(first)
        chains = (first, *others, *former)
        if change and not networks:  # what a card says of a dataset shows it to nobody else
            limits = self._limits(first.id)
            networks = limits or ()
        if public:
            self.say_handovers(first.id)
        before = self._on_card(first.id)
        changes = self._set(chains, public, networks, change)
        after = self._on_card(first.id)
        if is_shown := bool(change) and after != before:
            self._card_changed(first, before, after)
        for each in (chain for chain, is_new in zip(chains, changes, strict=True) if is_new):
            self._say(each, public=public)
        notes = [f"{len(others) + 1} shards, each with an id of its own"] if others else []
        if former:
            names = self._names([each.id for each in former])
            notes.append(f"{names} too, of former renditions, with the same rows")
        notes += list(self._notes(first, public=public))
        return self._view(first, is_shown or any(changes), notes)

    def _shards(self, entry: DatasetEntry, public: bool) -> list[DatasetEntry]:
        """Lists the chains with the rows of a dataset. Raises Refused if no card can say how they are divided."""
        with self.home.database.read() as connection:
            member = collections.member_of(connection, entry.id)
            ids = collections.shards_of(connection, entry.id)
            catalog = Catalog(connection)
            found = [catalog.resolve(str(id_)) for id_ in ids]
        if public and member is not None:
            check_card_of(member, entry.name)
        return found

    def _find_former(self, first: DatasetEntry) -> list[DatasetEntry]:
        """Lists the chains of former renditions that others may know."""
        with self.home.database.read() as connection:
            told = [each for each in _former(connection, first.id) if self.visibility.is_told(each)]
            catalog = Catalog(connection)
            return [catalog.resolve(str(each)) for each in told]

    def _view(self, entry: DatasetEntry, changed: bool, notes: Sequence[str] = ()) -> wire.VisibilityView:
        return wire.VisibilityView(
            name=entry.name,
            id=str(entry.id),
            published=self.visibility.is_told(entry.id),
            unsigned=not self._is_signed(entry.id),
            sample=self.visibility.shown_rows(entry.id),
            words=words_view(self.visibility.card_words(entry.id)),
            networks=self._limits(entry.id),
            shared_with=tuple(self.visibility.shared_with(entry.id)),
            changed=changed,
            notes=tuple(notes),
        )

    def _resolve_all(self, request: wire.VisibilityRequest) -> Sequence[DatasetEntry]:
        """Resolves all datasets of a request before any is changed. Raises NotFound, Invalid."""
        if bool(request.refs) == request.all:
            raise Invalid("name datasets, or all of them", rule="request", hint="refs, or all: true")
        with self.home.catalog() as catalog:
            found = catalog.entries() if request.all else [catalog.resolve(ref) for ref in request.refs]
        later = [each for each in found if is_later_shard(self.home, each.id)]
        if later and not request.all:
            raise _is_later(later[0])
        return [each for each in found if each not in later]

    def _limits(self, dataset: DatasetId) -> tuple[str, ...] | None:
        scope = self.visibility.scope(dataset)
        return None if scope is None or not self.visibility.is_told(dataset) else tuple(sorted(scope))

    def _set(
        self, entries: Sequence[DatasetEntry], public: bool, networks: Collection[str], change: CardChange | None
    ) -> Sequence[bool]:
        """Sets the visibility of the shards of a dataset; returns of each whether that changed anything."""
        now = self.context.clock.now()
        if networks:
            return self.visibility.publish_to(entries, networks, now, change)
        mark = VisibilityMark.PUBLISHED if public else VisibilityMark.PRIVATE
        return self.visibility.set_for_all([entry.id for entry in entries], mark, now, change)

    def _say(self, entry: DatasetEntry, *, public: bool) -> None:
        """Tells this node and others of a chain that was published or withdrawn."""
        self.changed(entry.id)
        kind = "dataset.published" if public else "dataset.unpublished"
        self.context.events.emit(kind, entry.name, about=about(entry.id), id=str(entry.id))
        if public:
            self._tell(entry.id)

    def show_to_others(self, dataset: DatasetId) -> None:
        """Tells others of a dataset that they may know since its collection handed over to it."""
        self.changed(dataset)
        self._tell(dataset)

    def _tell(self, dataset: DatasetId) -> None:
        """Signs the frontier of a dataset, and announces the statements about it."""
        self.sign(dataset)
        for signed in self._find_statements(dataset):
            self.announce(dataset, signed)

    def _find_statements(self, dataset: DatasetId) -> list[Signed]:
        """Returns the statements that others need to follow a dataset: its authority, then the newest head."""
        with self.home.database.read() as connection:
            versions = [signed for _, signed in Authorities(connection).versions(dataset)]
            newest = Ledger(connection).newest_head(dataset)
        return versions if newest is None else [*versions, newest[1]]

    def _is_signed(self, dataset: DatasetId) -> bool:
        with self.home.database.read() as connection:
            return Ledger(connection).newest_head(dataset) is not None

    def _notes(self, entry: DatasetEntry, *, public: bool) -> Iterator[str]:
        inputs = self._inputs(entry.id)
        hidden = [input_ for input_ in inputs if not self.visibility.is_told(input_)] if public else []
        if hidden:
            yield (
                f"it derives from {self._names(hidden)}, private here, whose"
                f" {agree(len(hidden), 'id is', 'ids are')} in its blocks, and without which no other node can run"
                " it again"
            )
        if public and not self._is_signed(entry.id):
            yield (
                "its head is not signed: it can be pushed and exported, but peers and readers over HTTP do not see it"
                " until its key signs, or it is pulled from a node that has the signature"
            )
        if not public:
            with self.home.catalog() as catalog:
                entries = catalog.chains()
            readers = [each.id for each in entries if each.id != entry.id and entry.id in self._inputs(each.id)]
            told = [reader for reader in readers if self.visibility.is_told(reader)]
            if told:
                does = agree(len(told), "derives from it and stays", "derive from it and stay")
                yield f"{self._names(told)} {does} published, with its id in the blocks"

    def _inputs(self, dataset: DatasetId) -> Sequence[DatasetId]:
        transform = load_state(self.home.chains.chain(dataset)).set_transform
        return input_ids(transform) if transform is not None else ()

    def _names(self, datasets: Sequence[DatasetId]) -> str:
        with self.home.catalog() as catalog:
            names = [catalog.name_of(dataset) for dataset in datasets]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return ", ".join(names[:SHOWN]) + more


def _change_of(request: wire.VisibilityRequest) -> CardChange:
    """Returns what a request says of cards. Raises Invalid for what no card can have, or of datasets nobody named."""
    if request.sample is not None and not 0 <= request.sample <= MAX_SAMPLE:
        raise Invalid(f"a sample of {plural(request.sample, 'row')}", rule="sample-rows", hint=f"0 to {MAX_SAMPLE}")
    if request.all and request.sample is not None:
        hint = "odfctl publish NAME --sample N"
        raise Invalid("a sample shows rows to every node: name the datasets", rule="sample-all", hint=hint)
    words = {name: getattr(request, name) for name in ChosenWords.__struct_fields__}
    change = CardChange(rows=request.sample, **words).check()
    if change.words and (request.all or len(request.refs) > 1):
        raise Invalid(
            "title, place, area and frequency are of one dataset",
            rule="words-all",
            hint="odfctl publish NAME --title TEXT",
        )
    return change


def _unfound(views: Sequence[wire.VisibilityView]) -> Sequence[wire.VisibilityView]:
    """Adds a note to the first dataset that was private: the node is in no network."""
    note = "peers do not find it yet: this node is in no network, until odfctl network join NAME, or odfctl join"
    first = next((view for view in views if view.changed), None)
    return [view if view is not first else msgspec.structs.replace(view, notes=(*view.notes, note)) for view in views]


def _is_shared_by_others(home: StateDirectory, dataset: DatasetId) -> bool:
    with home.database.read() as connection:
        spec = mirror_specs.of(connection, dataset)
    return spec is not None and bool(spec.peers)


def check_card_of(member: Member, name: str) -> None:
    """Raises Refused for shards whose card cannot say how their rows are divided: nobody else could unite them."""
    long = [column for column in member.row.by if len(column) > MAX_WORD]
    if long:
        raise Refused(
            f"the column {long[0][:40]}… divides {name} into shards, and its name is too long for a card",
            rule="shard-column",
            hint=f"at most {MAX_WORD} characters: odfctl rendition create NAME --from snapshot --by another one",
        )


def _former(connection: sqlite3.Connection, dataset: DatasetId) -> list[DatasetId]:
    """Lists the chains of former renditions of a collection, if a dataset is the active one's first."""
    state = collections.of(connection, dataset)
    if state.active.dataset != dataset:
        return []
    return [
        shard for member in state.members if not member.dropped and member != state.active for shard in member.shards
    ]


def _is_later(entry: DatasetEntry) -> Refused:
    return Refused(
        f"{entry.name} is one of several shards, which are published and withdrawn together",
        rule="shard-member",
        hint="name the collection: odfctl get renditions",
    )


def _is_theirs(entry: DatasetEntry) -> Refused:
    return Refused(
        f"others share {entry.name} with this node; only its owner may pass it on",
        rule="share-of-others",
        hint="ask its owner to publish it; then mirror it again: odfctl mirror add DID",
    )


def settle_visibility(home: StateDirectory, visibility: Visibility, settings: Settings, context: Context) -> None:
    """Converts a state directory from before datasets could be private."""
    if not visibility.is_unsettled():
        return
    with home.database.read() as connection:
        in_network, mirrors = bool(list_joined(connection)), mirror_specs.all_of(connection)
    from_network = [mirror.id for mirror in mirrors if not mirror.is_from_web]
    gave = in_network or bool(settings.p2p.network or settings.http.listen or settings.policy.publish.ipfs)
    given = visibility.settle(from_network, context.clock.now(), gave=gave)
    if given:
        with home.catalog() as catalog:
            names = [catalog.name_of(dataset) for dataset in given]
        hint = "odfctl unpublish NAME makes one private, odfctl publish NAME confirms it; new ones are private"
        context.logger.info("what was given to others before stays published", datasets=names, hint=hint)
