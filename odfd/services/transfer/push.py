"""Pushes datasets to repositories, each request as a task. A dataset that fails harms no other.

A repository is a place to publish (ADR 9): a private dataset is pushed only if the request says so explicitly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import trio

from chain.errors import Conflict, Fault, Invalid, Refused
from chain.ids import DID_ODF, DatasetId
from odfd.access.relations import Action
from odfd.control import wire
from odfd.control.board import task_ref
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.datasets.shard_reading import check_united, find_first_shard
from odfd.errors import sole_faults
from odfd.repositories.catalog import Target
from odfd.resources.store import ResourceStore
from odfd.runtime.tasks import Report, TaskBoard
from odfd.services.transfer.collection_transfer import CollectionTransfer
from odfd.services.views.task_progress import show_failures
from odfd.store.catalog import DatasetEntry
from odfd.store.directory import StateDirectory
from odfd.store.visibility import Visibility

PRIVATE: Final = "push-private"
RACED: Final = "push-raced"


class _Asked(NamedTuple):
    """A dataset to push, and its shards if it is pushed with all of several."""

    entry: DatasetEntry
    shards: tuple[DatasetId, ...] = ()


class PushService:
    """The API service for pushes."""

    def __init__(
        self, home: StateDirectory, visibility: Visibility, import_export: CollectionTransfer, board: TaskBoard
    ) -> None:
        self._home = home
        self._visibility = visibility
        self._import_export = import_export
        self._board = board
        self._repositories = import_export.repositories

    @operation("POST", NODE_PATH + "/push", needs=Owner.NETWORK)
    def push(self, request: wire.PushRequest) -> wire.TaskRef:
        """Pushes datasets to repositories. Result: PushResult."""
        wanted = self._resolve_all(request)
        targets = [(asked, self._repositories.to_push(request.to, asked.entry.name)) for asked in wanted]

        async def work(report: Report) -> wire.PushResult:
            items = [await self._try(asked, target, request, report) for asked, target in targets]
            show_failures(report, items)
            return wire.PushResult(items=tuple(items))

        return task_ref(self._board.submit("push", ", ".join(asked.entry.name for asked in wanted), work))

    def push_for(self, ref: str, by: str, key: str) -> wire.TaskRef:
        """Pushes a dataset to the repository that a resource, by its id, refers to. Result: PushResult."""
        name, whole = self._find_repository(by, key), self._whole(ref)
        return self.push(wire.PushRequest(refs=(whole,), to=name))

    def _find_repository(self, by: str, key: str) -> str:
        """Returns the present name of the repository to which a resource refers. Raises NotFound, Refused."""
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            return self._home.uses.find_meant(store, store.get(by), key, Action.WRITE).name

    def _whole(self, ref: str) -> str:
        """Returns the name of the collection that a dataset is a shard of; else what was given."""
        entry = self._home.resolve(ref)
        first = find_first_shard(self._home, entry.id)
        return ref if first is None else self._home.name_of(first)

    def _resolve_all(self, request: wire.PushRequest) -> Sequence[_Asked]:
        if request.all:
            with self._home.catalog() as catalog:
                entries = catalog.entries()
            wanted = list(map(self._expand, entries))
        else:
            wanted = list(dict.fromkeys(map(self._resolve, request.refs)))
        if request.to is not None and "/" in request.to and (request.all or len(wanted) != 1):
            text = f"{request.to[:80]} is the folder of one dataset"
            raise Invalid(text, rule="repository", hint="leave out what follows the /: each goes under its own name")
        return wanted

    def _resolve(self, ref: str) -> _Asked:
        """Returns what a reference means: an id one chain, a name all shards. Raises NotFound, Invalid."""
        entry = self._home.resolve(ref)
        if ref.startswith(DID_ODF):
            return _Asked(entry)
        check_united(self._home, entry)
        return self._expand(entry)

    def _expand(self, entry: DatasetEntry) -> _Asked:
        shards = self._home.shards_of(entry.id)
        return _Asked(entry, shards if len(shards) > 1 else ())

    async def _try(self, asked: _Asked, target: Target, request: wire.PushRequest, report: Report) -> wire.PushItem:
        entry = asked.entry
        try:
            with sole_faults():
                if not await trio.to_thread.run_sync(self._may_go, asked, target, request):
                    return wire.PushItem(ref=entry.name, outcome="private", place=str(target))
                return await self._push(asked, target, report)
        except Fault as fault:
            problem = wire.Problem.of(fault)
            return wire.PushItem(ref=entry.name, outcome="failed", place=str(target), fault=problem)

    def _may_go(self, asked: _Asked, target: Target, request: wire.PushRequest) -> bool:
        """Whether a dataset is pushed; one of all that is private is not. Raises Refused for one that may not be."""
        is_public = request.private or self._visibility.is_public(asked.entry.id)
        if request.all and not is_public:
            return False
        if request.all and not asked.shards:
            check_united(self._home, asked.entry)
        if not is_public:
            raise _private(asked.entry, target)
        return True

    async def _push(self, asked: _Asked, target: Target, report: Report) -> wire.PushItem:
        entry, shards = asked
        try:
            done = (
                await self._import_export.push_collection(entry, shards, target, report)
                if shards
                else await self._import_export.push(entry, target, report)
            )
        except Conflict as fault:
            raise _explain(fault, target, entry) from None
        return wire.PushItem(
            ref=entry.name, outcome="pushed" if done.blocks else "up-to-date", place=str(target), blocks=done.blocks,
            objects=done.objects, bytes=done.bytes, head=str(done.head),
        )  # fmt: skip


def _private(entry: DatasetEntry, target: Target) -> Refused:
    return Refused(
        f"{entry.name} is private: no data of it leaves this node",
        rule=PRIVATE,
        hint=f"odfctl publish {entry.name}, or give it to this repository alone: odfctl push {entry.name} --to {target}"
        " --private",
    )


def _explain(fault: Conflict, target: Target, entry: DatasetEntry) -> Conflict:
    """Returns the conflict with a hint of what the person who pushes can do."""
    pull = f"odfctl pull {target} --as NAME"
    match fault.rule:
        case "compare-and-append":
            hint = f"odfctl push {entry.name} again; where it is refused, the other history is there: {pull}"
            return Conflict(f"someone else pushed to {target} meanwhile: {fault.message}", rule=RACED, hint=hint)
        case "export-behind":
            return Conflict(fault.message, rule="push-behind", hint=f"pull what is there first: odfctl pull {target}")
        case "export-diverged":
            hint = f"look at what is there on another node: {pull}; or push under another name: --to {target}-2"
            return Conflict(fault.message, rule="push-diverged", hint=hint)
    return fault
