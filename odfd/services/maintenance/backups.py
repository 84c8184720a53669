"""Backs up the running node (``odfd.services.maintenance.backup``); no garbage is collected meanwhile."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import trio

from chain.errors import Invalid
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.board import task_ref
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.runtime.systemd import check_shared
from odfd.runtime.tasks import Report
from odfd.services.maintenance.backup import BackupFolder
from odfd.services.maintenance.garbage_collection import GarbageCollector
from odfd.store.directory import StateDirectory


class BackupService:
    """The API service for backups of one node, which run one at a time."""

    def __init__(self, home: StateDirectory, collection: GarbageCollector, context: Context) -> None:
        self._home = home
        self._collection = collection
        self._context = context

    @operation("POST", NODE_PATH + "/backup", needs=Owner.FILES)
    def backup(self, request: wire.BackupRequest) -> wire.TaskRef:
        """Backs up the node into a folder. Result: BackupResult."""
        folder = Path(request.to)
        if not folder.is_absolute():
            hint = "odfctl backup DIR makes it one"
            raise Invalid(f"{request.to} is no absolute path", rule="backup-folder", hint=hint)
        if folder.resolve().is_relative_to(self._home.directory.resolve()):
            hint = "name one on another disk"
            raise Invalid(f"{folder} is inside the state directory", rule="backup-folder", hint=hint)
        check_shared(folder)
        return task_ref(self._context.board.submit("backup", str(folder), partial(self._work, folder, request.keep)))

    async def _work(self, folder: Path, keep: int, report: Report) -> wire.BackupResult:
        report.begin("waiting for a collection or a backup under way")
        async with self._collection.alone:
            return await trio.to_thread.run_sync(self._write, folder, keep, report)

    def _write(self, folder: Path, keep: int, report: Report) -> wire.BackupResult:
        target = BackupFolder(folder, str(self._home.keys.node_key().did))
        done = target.add(self._home, self._context.clock.now(), self._context.version, keep, report)
        return wire.BackupResult(
            snapshot=str(done.snapshot),
            objects=done.objects,
            copied=done.copied,
            bytes=done.bytes,
            dropped=done.dropped,
            small=done.small,
            database=done.database,
        )
