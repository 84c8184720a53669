"""Keeps the views of datasets until something that they rest on changes, and saves them for the next start.

A write (``Database.has_changed``), another policy or the time ends what is kept. What an earlier run saved is taken at
the first question, by a few questions to the database for all datasets: of chains whose head is still the same, by
rules that are in force. ``ViewRefresher`` looks at each dataset once after a start, whatever was saved of it; later at
those that a write or the time changed. A list that comes meanwhile shows what was saved and looks at the rest itself.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec
import trio

from chain.errors import Environment, Invalid
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import SetTransform
from chain.multihash import Multihash
from odfd import __version__
from odfd.control import wire
from odfd.datasets import saved_views
from odfd.datasets.catalog import DatasetEntry
from odfd.datasets.saved_views import SavedView
from odfd.datasets.visibility import Visibility
from odfd.runtime.reconcile_loop import ReconcileLoop
from odfd.state.directory import NAMES, StateDirectory, keys_of
from odfd.trust.judgement.trust_evaluator import TrustEvaluator
from odfd.trust.policy.policy import Policy

ROUND_SECONDS: Final = 3600.0
"""Between rounds when nothing is written: signed heads age within days."""
QUIET_SECONDS: Final = 5.0
"""Before each round: what is written meanwhile is looked at once, and a start has other work."""


class Views(Protocol):
    """The port of a store of views. Called in worker threads."""

    def load(self) -> None:
        """Read what an earlier run saved, so that the first list does not have to."""

    def outdated(self) -> Sequence[DatasetEntry]:
        """Lists datasets whose view is outdated, or was saved by an earlier run and not checked since."""

    def look(self, entry: DatasetEntry) -> object:
        """Compute the dataset's view again, and cache it."""

    def save(self) -> None:
        """Saves computed views."""


class ViewRefresher:
    """A background refresh of the views of one node."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self.loop = ReconcileLoop(self._round)

    async def refresh(self) -> None:
        """Compute outdated views again, in a thread per dataset, so that other work runs in between."""
        for entry in await trio.to_thread.run_sync(self._views.outdated):
            await trio.to_thread.run_sync(self._views.look, entry)
        await trio.to_thread.run_sync(self._views.save)

    async def _round(self) -> float:
        await trio.to_thread.run_sync(self._views.load)
        await trio.sleep(QUIET_SECONDS)
        await self.refresh()
        return ROUND_SECONDS


DAMAGED: Final = "damaged"
_TRANSFORMS: Final = (SetTransform.__name__,)
EDITION: Final = (__version__, 4)
"""Of what is saved: the number is raised whenever a view comes to mean something else within one version."""
_NO_HEAD: Final = b""
"""In place of the head of a chain that is damaged."""


class _Kept(msgspec.Struct, frozen=True):
    """A view, and what it rests on: the writes up to ``since``, the policy, the time, and all that ``keys`` name."""

    view: wire.DatasetView
    since: int
    policy: Policy
    at: Instant
    until: Instant
    keys: frozenset[bytes]
    is_looked_at: bool = True
    """``False``: an earlier run saved it."""


class ViewCache:
    """The views of a node's datasets, about a kilobyte each. Called from worker threads."""

    def __init__(
        self,
        home: StateDirectory,
        evaluator: TrustEvaluator,
        visibility: Visibility,
        view_of: Callable[[DatasetEntry, dict[DatasetId, int]], wire.DatasetView],
    ) -> None:
        """``view_of`` looks at a dataset, and adds to its second argument the others that it looked at."""
        self._home = home
        self._evaluator = evaluator
        self._visibility = visibility
        self._view_of = view_of
        self._kept: dict[DatasetId, _Kept] | None = None
        self._lock = threading.Lock()
        self._unsaved: set[DatasetId] = set()
        self._entries: tuple[int, Sequence[DatasetEntry]] = (-1, ())

    def load(self) -> None:
        """Read what an earlier run saved, unless that was done before."""
        self._known()

    def all(self) -> list[wire.DatasetView]:
        """Returns the views of all datasets, by name; computes only changed ones."""
        return [self.dataset(entry) for entry in self.entries()]

    @property
    def kept(self) -> int:
        """Views in memory."""
        return len(self._kept or ())

    def standings(self) -> tuple[Counter[str], int]:
        """How many datasets there are by state, and how many are published, as they were last looked at."""
        views = [kept.view for kept in list(self._known().values())]
        return Counter(view.state for view in views), sum(view.published for view in views)

    def entries(self) -> Sequence[DatasetEntry]:
        """Returns the entries of all datasets, by name."""
        since, entries = self._entries
        if since < 0 or self._home.database.has_changed(NAMES, since):
            since = self._home.database.writes
            entries = self._home.entries()
            there, known = {entry.id for entry in entries}, self._known()
            for gone in known.keys() - there:
                known.pop(gone, None)
            self._entries = since, entries
        return entries

    def dataset(self, entry: DatasetEntry) -> wire.DatasetView:
        """Returns the current view; computed again where a write, the time or an input may have changed it."""
        kept = self._known().get(entry.id)
        return kept.view if kept is not None and self._holds(kept, entry) else self.look(entry)

    def outdated(self) -> Sequence[DatasetEntry]:
        known = self._known()

        def is_current(entry: DatasetEntry) -> bool:
            kept = known.get(entry.id)
            return kept is not None and kept.is_looked_at and self._holds(kept, entry)

        return [entry for entry in self.entries() if not is_current(entry)]

    def look(self, entry: DatasetEntry) -> wire.DatasetView:
        """Computes the current view, whatever is cached."""
        known = self._known()
        before = known.get(entry.id)
        since, policy, now = self._home.database.writes, self._evaluator.policy, self._evaluator.now()
        within: dict[DatasetId, int] = {}
        view = self._view_of(entry, within)
        of = {entry.id, *within}
        until = None if view.state == DAMAGED else self._evaluator.lasts_until(of)
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
        """Returns the keys to watch for the datasets, and for all inputs that their transforms ever named.

        An input may arrive later. ``None`` if a damaged block hides the inputs.
        """
        found: set[bytes] = set()
        try:
            for dataset in of:
                found |= keys_of(dataset)
                for event in self._transforms(dataset):
                    found |= {bytes(DatasetId.parse(each.dataset_ref)) for each in event.inputs}
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
            and kept.at <= self._evaluator.now() < kept.until
            and kept.view.owner == self._home.keys.has_dataset_key(entry.id)
            and not self._is_touched(kept)
        )

    def _known(self) -> dict[DatasetId, _Kept]:
        """Returns what is kept; at first what an earlier run saved, by a few questions for all."""
        with self._lock:
            if self._kept is None:
                self._kept = self._saved()
            return self._kept

    def _saved(self) -> dict[DatasetId, _Kept]:
        """Returns what was saved of chains whose head is still the same, by the rules that are in force."""
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
        """Saves views computed since the last time, in one transaction, except those that changed meanwhile."""
        with self._lock:
            names, self._unsaved = self._unsaved, set()
        if not names:
            return
        try:
            self._write(names)
        except BaseException:
            with self._lock:
                self._unsaved |= names
            raise

    def _write(self, names: Iterable[DatasetId]) -> None:
        there, known = {entry.id for entry in self.entries()}, self._known()
        policy, basis = self._evaluator.policy, self._basis()
        with self._home.database.write() as connection:
            for dataset in names:
                kept = known.get(dataset) if dataset in there else None
                if kept is None:
                    saved_views.forget(connection, dataset)
                elif kept.policy is policy and not self._is_touched(kept):
                    saved_views.put(connection, _row(dataset, kept, basis))

    def _is_touched(self, kept: _Kept) -> bool:
        return any(self._home.database.has_changed(each, kept.since) for each in kept.keys)

    def _basis(self) -> bytes:
        """Names all that a view is made by beside what is stored: rules, settings, and the code that makes it."""
        policy = self._evaluator.policy
        said = (policy.digest, *map(str, policy.floors), self._visibility.publishes_all, self._evaluator.me, EDITION)
        return hashlib.sha3_256(msgspec.msgpack.encode(said, enc_hook=str)).digest()


def _is_same(one: _Kept, other: _Kept) -> bool:
    """Whether they would be saved alike."""
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
