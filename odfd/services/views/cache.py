"""Caches the views of datasets until something that they depend on changes, and saves them for the next start.

A cached view becomes outdated by a write to the database that concerns it (``Database.has_changed``), by another
policy, or by the time. After a start the first request loads the saved views, with a few queries for all datasets, and
keeps those whose chain has the same head and whose rules are still in force. ``ViewRefresher`` then computes each view
once more in the background; later it computes those that a write or the time has outdated. A list that is requested
meanwhile shows saved views and computes the others itself.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import msgspec
import trio

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import SetTransform
from chain.multihash import Multihash
from odfd import __version__
from odfd.control import wire
from odfd.datasets.engine_pins import differs
from odfd.policy.policy import Policy
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.reconcile_loop import ReconcileLoop
from odfd.store import saved_views
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import NAMES, StateDirectory, keys_of
from odfd.store.saved_views import SavedView
from odfd.trust.judgement.trust_evaluator import TrustEvaluator

ROUND_SECONDS: Final = 3600.0
"""Between two rounds if nothing is written: signed heads expire within days."""
QUIET_SECONDS: Final = 5.0
"""Waited before each round: requested views are computed at once anyway, and a node that starts has other work."""


class Views(Protocol):
    """The port to a store of views. Called in worker threads."""

    def load(self) -> None:
        """Loads the views that an earlier run saved, so that the first list need not."""

    def list_outdated(self) -> Sequence[DatasetEntry]:
        """Lists datasets whose view is outdated, or was saved by an earlier run and not computed since."""

    def look(self, entry: DatasetEntry) -> object:
        """Computes a dataset's view again, and caches it."""

    def save(self) -> None:
        """Saves computed views."""


class ViewRefresher:
    """Refreshes the views of one node in the background."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.loop = ReconcileLoop(self._round)

    def refresh(self) -> None:
        """Computes outdated views again. Blocking."""
        for entry in self._views.list_outdated():
            end_if_unwanted()
            self._views.look(entry)
        self._views.save()

    async def _round(self) -> float:
        await trio.to_thread.run_sync(self._views.load)
        await trio.sleep(QUIET_SECONDS)
        await trio.to_thread.run_sync(self.refresh)
        return ROUND_SECONDS


DAMAGED: Final = "damaged"
WITHDRAWN: Final = "Withdrawn"
"""A condition: its publisher shows it no more."""
_TRANSFORMS: Final = (SetTransform.__name__,)
BLOCKED: Final = "Blocked"
"""A condition: its transform pins an engine that is not here."""
EDITION: Final = (__version__, 6)
"""The version of saved views. Raise the number if the meaning of a view changes within one release."""
_NO_HEAD: Final = b""
"""Stands for the head of a damaged chain."""


class _Kept(msgspec.Struct, frozen=True):
    """A cached view with what it depends on: the database up to write ``since``, the policy, the time, and ``keys``."""

    view: wire.DatasetView
    since: int
    policy: Policy
    at: Instant
    until: Instant
    keys: frozenset[bytes]
    is_looked_at: bool = True
    """``False`` for a view that an earlier run saved and that was not computed since."""


class Standings(NamedTuple):
    """Numbers of datasets."""

    by_state: Mapping[str, int]
    published: int
    withdrawn: int
    """Copies of datasets that their publishers withdrew."""
    blocked: int
    """Own datasets that pin an engine which is not here."""


class ViewCache:
    """The views of a node's datasets, about a kilobyte each. Called from worker threads."""

    def __init__(
        self,
        home: StateDirectory,
        evaluator: TrustEvaluator,
        view_of: Callable[[DatasetEntry, dict[DatasetId, int]], wire.DatasetView],
        refused_by: Callable[[DatasetId], str],
        engines: Callable[[], Collection[str] | None],
    ) -> None:
        """``view_of`` computes the view of a dataset, and adds to its second argument other datasets that it read.

        ``refused_by``: returns the rule by which newer blocks of a mirror are refused; empty: they are not.
        ``engines``: returns the digests of the engines here; ``None``: not known yet.
        """
        self._home = home
        self._evaluator = evaluator
        self._visibility = home.visibility
        self._view_of = view_of
        self._kept: dict[DatasetId, _Kept] | None = None
        self._lock = threading.Lock()
        self._unsaved: set[DatasetId] = set()
        self._entries: tuple[int, Sequence[DatasetEntry]] = (-1, ())
        self._refused_by, self._engines = refused_by, engines

    def load(self) -> None:
        """Loads the views that an earlier run saved; does nothing the second time."""
        self._list_known()

    def all(self) -> list[wire.DatasetView]:
        """Returns the views of all datasets, by name; computes only changed ones."""
        return [self.dataset(entry) for entry in self.entries()]

    @property
    def kept(self) -> int:
        """The number of views in memory."""
        return len(self._kept or ())

    def standings(self) -> Standings:
        """Counts datasets by the cached views."""
        views = [self._complete(kept.view) for kept in list(self._list_known().values())]
        return Standings(
            Counter(view.state for view in views),
            sum(view.published for view in views),
            sum(view.withdrawn_at is not None for view in views),
            len(self.list_blocked()),
        )

    def list_blocked(self) -> Sequence[str]:
        """Names the own datasets that pin an engine which is not here, as far as views are in memory."""
        here = self._engines()
        return sorted(kept.view.name for kept in list((self._kept or {}).values()) if is_blocked(kept.view, here))

    def entries(self) -> Sequence[DatasetEntry]:
        """Returns the entries of all datasets, by name."""
        since, entries = self._entries
        if since < 0 or self._home.database.has_changed(NAMES, since):
            since = self._home.database.writes
            entries = self._home.entries()
            there, known = {entry.id for entry in entries}, self._list_known()
            for gone in known.keys() - there:
                known.pop(gone, None)
            self._entries = since, entries
        return entries

    def dataset(self, entry: DatasetEntry) -> wire.DatasetView:
        """Returns the current view; computes it if a write, the time or an input may have changed it."""
        kept = self._list_known().get(entry.id)
        view = kept.view if kept is not None and self._holds(kept, entry) else self.look(entry)
        return self._complete(view)

    def _complete(self, view: wire.DatasetView) -> wire.DatasetView:
        """Completes a cached view by what changes without a write to the dataset."""
        if view.state == "syncing" and (rule := self._refused_by(DatasetId.parse(view.id))):
            view = msgspec.structs.replace(view, state="refused", refused_by=rule)
        return with_engines(view, self._engines())

    def list_outdated(self) -> Sequence[DatasetEntry]:
        known = self._list_known()

        def is_current(entry: DatasetEntry) -> bool:
            kept = known.get(entry.id)
            return kept is not None and kept.is_looked_at and self._holds(kept, entry)

        return [entry for entry in self.entries() if not is_current(entry)]

    def look(self, entry: DatasetEntry) -> wire.DatasetView:
        """Computes the current view and caches it, even if the cached one is current."""
        known = self._list_known()
        before = known.get(entry.id)
        # Read before the view is computed: a write during the computation then outdates it at once.
        since, policy, now = self._home.database.writes, self._evaluator.policy, self._evaluator.now()
        within: dict[DatasetId, int] = {}
        view = self._view_of(entry, within)
        of = {entry.id, *within}
        until = None if view.state == DAMAGED or entry.is_inner else self._evaluator.lasts_until(of)
        keys = None if until is None else self._keys(of)
        if until is None or keys is None:
            known.pop(entry.id, None)
            is_saved = before is None
        else:
            kept = known[entry.id] = _Kept(view, since, policy, now, until, keys)
            is_saved = before is not None and _is_same(before, kept) and self._holds(before, entry)
        if not is_saved:
            with self._lock:
                self._unsaved.add(entry.id)
        return view

    def _keys(self, of: Iterable[DatasetId]) -> frozenset[bytes] | None:
        """Returns the database keys on which views of ``of`` depend: the datasets, and all inputs they ever had.

        An input may arrive later, so its key counts as well. ``None`` if a damaged block hides the inputs.
        """
        found: set[bytes] = set()
        try:
            for dataset in of:
                found |= keys_of(dataset)
                for event in self._transforms(dataset):
                    found |= {bytes(DatasetId.parse(input_.dataset_ref)) for input_ in event.inputs}
        except (Environment, Invalid):
            return None
        return frozenset(found)

    def _transforms(self, dataset: DatasetId) -> Iterator[SetTransform]:
        chain, before = self._home.chains.chain(dataset), None
        while (block := chain.last_of(_TRANSFORMS, before)) is not None:
            before = block.sequence_number
            if isinstance(block.event, SetTransform):
                yield block.event

    def _holds(self, kept: _Kept, entry: DatasetEntry) -> bool:
        return (
            kept.view.name == entry.name
            and kept.policy is self._evaluator.policy
            # Also not after the clock was set back: rules with a time may not hold yet.
            and kept.at <= self._evaluator.now() < kept.until
            and kept.view.owner == self._home.keys.has_dataset_key(entry.id)
            and not self._is_touched(kept)
        )

    def _list_known(self) -> dict[DatasetId, _Kept]:
        """Returns the cached views; the first call loads those that an earlier run saved."""
        with self._lock:
            if self._kept is None:
                self._kept = self._load_saved()
            return self._kept

    def _load_saved(self) -> dict[DatasetId, _Kept]:
        """Loads saved views whose chain has the same head, and whose rules are still in force."""
        # Before the rows are read, for the same reason as in ``look``.
        since, policy, basis = self._home.database.writes, self._evaluator.policy, self._basis()
        with self._home.database.read() as connection:
            rows = [row for row in saved_views.whole(connection) if row.basis == basis]
        heads = {each: _NO_HEAD if head is None else head.hash for each, head in self._home.chains.heads().items()}
        found = {}
        for row in rows:
            if heads.get(row.dataset) == row.head:
                keys = frozenset((bytes(row.dataset), *row.inputs))
                with suppress(msgspec.MsgspecError):
                    view = msgspec.json.decode(row.view, type=wire.DatasetView)
                    found[row.dataset] = _Kept(view, since, policy, row.at, row.until, keys, is_looked_at=False)
        return found

    def save(self) -> None:
        """Saves the views computed since the last call, in one transaction; leaves out those that changed meanwhile."""
        with self._lock:
            names, self._unsaved = self._unsaved, set()
        if not names:
            return
        try:
            self._write(names)
        # Also when cancelled: otherwise these views would be saved only after their next change.
        except BaseException:
            with self._lock:
                self._unsaved |= names
            raise

    def _write(self, names: Iterable[DatasetId]) -> None:
        there, known = {entry.id for entry in self.entries()}, self._list_known()
        policy, basis = self._evaluator.policy, self._basis()
        with self._home.database.write() as connection:
            for dataset in names:
                kept = known.get(dataset) if dataset in there else None
                if kept is None:
                    saved_views.SAVED.forget(connection, dataset)
                elif kept.policy is policy and not self._is_touched(kept):
                    saved_views.put(connection, _row(dataset, kept, basis))

    def _is_touched(self, kept: _Kept) -> bool:
        return any(self._home.database.has_changed(key, kept.since) for key in kept.keys)

    def _basis(self) -> bytes:
        """Returns a digest of all that views depend on besides the database: rules, settings, version of the code."""
        policy = self._evaluator.policy
        said = (policy.digest, *map(str, policy.floors), self._visibility.publishes_all(), self._evaluator.me, EDITION)
        return hashlib.sha3_256(msgspec.msgpack.encode(said, enc_hook=str)).digest()


def is_blocked(view: wire.DatasetView, here: Collection[str] | None) -> bool:
    """Whether an own dataset waits for its engine."""
    return view.owner and differs(view.engine, here)


def with_engines(view: wire.DatasetView, here: Collection[str] | None) -> wire.DatasetView:
    """Completes a cached view, which names engines whether or not they are here: they come and go without a write."""
    if view.unheld:
        unheld = tuple(each for each in view.unheld if here is not None and each.digest not in here)
        view = msgspec.structs.replace(view, unheld=unheld)
    if not is_blocked(view, here):
        return view
    return msgspec.structs.replace(view, conditions=(*view.conditions, BLOCKED))


def _is_same(one: _Kept, other: _Kept) -> bool:
    """Whether two views would be saved alike."""
    return one.view == other.view and one.until == other.until and one.keys == other.keys


def _row(dataset: DatasetId, kept: _Kept, basis: bytes) -> SavedView:
    return SavedView(
        dataset=dataset,
        head=None if kept.view.head is None else Multihash.parse(kept.view.head),
        basis=basis,
        at=kept.at,
        until=kept.until,
        inputs=tuple(sorted(kept.keys - {bytes(dataset)})),
        view=msgspec.json.encode(kept.view),
    )
