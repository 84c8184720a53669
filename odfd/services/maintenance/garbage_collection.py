"""Frees disk space that no block needs, on request and at intervals.

Only blocks keep an object: evidence has its own copies (``odfd.trust.evidence.bundle_store``), a replay its own
checkpoints, and the store protects objects that are on their way or being read. Afterwards the trust ledger drops
entries that it need not keep (``odfd.store.ledger.retention``). An interrupted run has freed some, and the next one
frees the rest. Works while ``run`` runs; one collection at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from chain.errors import Fault
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.store.collect import Collected, collect
from chain.wording import plural
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.datasets.local_data import held_from
from odfd.queries.folds import FoldStore
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.supervision import Life
from odfd.runtime.tasks import Report, Task
from odfd.store import captures, unmanaged
from odfd.store.directory import FOLDS, StateDirectory
from odfd.store.ledger.retention import drop_unneeded, prune
from odfd.store.read_holds import ReadHolds

MAX_LISTED: Final = 1000
"""Objects that a dry run lists at most."""
FIRST_SECONDS: Final = 600.0
"""Seconds from the start to the first collection; by then mirrors have requested the objects that arrived before."""
_HOUR: Final = 3600.0


class GarbageCollector:
    """Collects the garbage of one node, every ``hours`` hours; 0: only on request."""

    def __init__(
        self,
        home: StateDirectory,
        context: Context,
        hours: float,
        is_wanted: Callable[[sqlite3.Connection, DatasetId], bool] = lambda _connection, _dataset: True,
    ) -> None:
        """``is_wanted``: whether statements about a dataset that is not here are kept."""
        self._is_wanted = is_wanted
        self._home = home
        self._board = context.board
        self._events = context.events
        self._logger = context.logger
        self._clock = context.clock
        self._hours = hours
        self.alone = trio.Lock()
        """While it is held no object is collected."""

    async def run(self, life: Life) -> None:
        life.ready()
        pause = FIRST_SECONDS if self._hours else float("inf")
        while not life.stopping.is_set():
            with trio.move_on_after(pause):
                await life.stopping.wait()
                return
            pause = self._hours * _HOUR
            try:
                task = self._submit(dry_run=False)
            except Fault as fault:
                self._logger.info("collection put off", fault=str(fault), rule=fault.rule)
            else:
                await task.finished.wait()

    @operation("POST", NODE_PATH + "/collect", needs=Owner.DISK)
    def collect(self, request: wire.CollectRequest) -> wire.TaskRef:
        """Runs a collection. Result: CollectResult."""
        return task_ref(self._submit(request.dry_run))

    def _submit(self, dry_run: bool) -> Task:
        return self._board.submit("gc", "", partial(self._work, dry_run))

    async def _work(self, dry_run: bool, report: Report) -> wire.CollectResult:
        report.begin("waiting for the collection under way")
        # A backup holds it too: an object may not go between the copy of the database and that of the objects.
        async with self.alone:
            return await trio.to_thread.run_sync(self._collect_all, dry_run, report)

    def _collect_all(self, dry_run: bool, report: Report) -> wire.CollectResult:
        report.begin("looking at what is named", None, "objects")
        listed: list[wire.CollectedObject] = []
        done = self._collect(dry_run, report, listed)
        end_if_unwanted()
        folds, fold_bytes = self._collect_folds(dry_run)
        report.begin("looking through the trust ledger")
        end_if_unwanted()
        statements = self._prune(dry_run)
        for dataset in [] if dry_run else self._drop_keys():
            self._events.emit("key.discarded", dataset.short, "its dataset was deleted for good 30 days ago")
        if done.objects and not dry_run:
            self._events.emit(
                "objects.collected",
                "",
                f"{plural(done.objects, 'object')} freed",
                objects=done.objects,
                bytes=done.bytes,
            )
        if statements and not dry_run:
            self._logger.info("trust ledger pruned", statements=statements)
        return wire.CollectResult(
            objects=done.objects,
            bytes=done.bytes,
            waiting=done.kept,
            waiting_bytes=done.kept_bytes,
            dry_run=dry_run,
            listed=tuple(listed),
            unlisted=done.objects - len(listed) if dry_run else 0,
            statements=statements,
            folds=folds,
            fold_bytes=fold_bytes,
        )

    def _collect(self, dry_run: bool, report: Report, listed: list[wire.CollectedObject]) -> Collected:
        def note_freed(name: Multihash, size: int) -> None:
            report.advance()
            if dry_run and len(listed) < MAX_LISTED:
                listed.append(wire.CollectedObject(name=str(name), size=size))
            end_if_unwanted()

        raw = captures.objects(self._home.database)
        return collect(self._home.chains, self._home.objects, raw, dry_run=dry_run, freed=note_freed)

    def _collect_folds(self, dry_run: bool) -> tuple[int, int]:
        """Deletes folds of histories that no longer exist; folds of present ones replace each other."""
        with self._home.catalog() as catalog:
            here = {entry.id.multibase: entry.id for entry in catalog.chains()}

        def is_good(folder: str, size: int, block: str) -> bool:
            head = self._home.chains.chain(here[folder]).head() if folder in here else None
            # A fold has the rows of all blocks; of a mirror without the earliest, it would show what is not kept here.
            if head is None or size > head.size or held_from(self._home, here[folder]):
                return False
            return str(self._home.chains.chain(here[folder]).block_at(size - 1).hash) == block

        return FoldStore(self._home.folder(FOLDS), 0).collect(is_good, dry_run=dry_run)

    def _prune(self, dry_run: bool) -> int:
        if not dry_run:
            with self._home.database.write() as connection:
                ReadHolds(connection).sweep(self._clock.now())
            drop_unneeded(self._home.database, self._is_wanted)
        return prune(self._home.database, self._clock.now(), dry_run=dry_run, step=_cancellable)

    def _drop_keys(self) -> list[DatasetId]:
        """Discards the keys of datasets that were deleted for good long ago, and returns these datasets."""
        with self._home.database.read() as connection:
            due = unmanaged.keys_due(connection, self._clock.now())
        gone = [
            each for each in due
            # A dataset that was fetched again from a peer since needs its key to go on.
            if self._home.chains.chain(each).head() is None and self._home.keys.has_dataset_key(each)
        ]  # fmt: skip
        for each in gone:
            self._home.keys.discard_dataset_key(each)
        if due:
            with self._home.database.write() as connection:
                # Marked only after the keys are gone: a crash in between repeats the deletion, which is harmless.
                for each in due:
                    unmanaged.key_settled(connection, each)
        return gone


def _cancellable(_: str) -> None:
    end_if_unwanted()
