"""Lists, adopts or finally deletes the datasets that were deleted without their data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio

from chain import instant
from chain.wording import plural
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import NODE_PATH, Owner, operation
from odfd.runtime.subjects import about
from odfd.services.transfer.import_export import ImportExport
from odfd.store import unmanaged
from odfd.store.directory import StateDirectory


class UnmanagedService:
    """The API service for deleted datasets whose data is kept."""

    def __init__(self, home: StateDirectory, import_export: ImportExport, context: Context) -> None:
        self._home = home
        self._import_export = import_export
        self._events = context.events
        self._clock = context.clock

    @operation("GET", NODE_PATH + "/unmanaged", needs=Owner.UNMANAGED)
    def list(self) -> Sequence[wire.UnmanagedView]:
        """Lists the deleted datasets whose data is kept, the newest deletion first."""
        with self._home.database.read() as connection:
            return [self._view(each) for each in unmanaged.all_of(connection)]

    @operation("GET", NODE_PATH + "/unmanaged/{ref}", needs=Owner.UNMANAGED)
    def get(self, ref: str) -> wire.UnmanagedView:
        """Shows a deleted dataset. ``ref`` is a did, or a name that exactly one had. Raises NotFound, Invalid."""
        return self._view(self._find(ref))

    @operation("PUT", NODE_PATH + "/unmanaged/{ref}/name", needs=Owner.UNMANAGED)
    async def adopt(self, ref: str, request: wire.AdoptRequest) -> wire.AdoptedView:
        """Adopts a deleted dataset, as private, by its former name or another. Raises NotFound, Invalid, Conflict."""
        dataset = (await trio.to_thread.run_sync(self._find, ref)).dataset
        adopt = partial(self._import_export.adopt, dataset, request.name)
        name = await self._home.turns.perform(dataset, adopt)
        self._events.emit(
            "dataset.adopted", name, "its data was kept when it was deleted", about=about(dataset), id=str(dataset)
        )
        return wire.AdoptedView(name=name, id=str(dataset))

    @operation("DELETE", NODE_PATH + "/unmanaged/{ref}", needs=Owner.UNMANAGED)
    def delete(self, ref: str) -> wire.UnmanagedView:
        """Deletes the kept data of a deleted dataset: its chain now, its objects with the next collection.

        Raises NotFound, Invalid.
        """
        gone = self._find(ref)
        with self._home.database.write() as connection:
            unmanaged.find(connection, gone.dataset)
            unmanaged.destroy(connection, gone.dataset, self._clock.now())
        text = f"{plural(gone.remains.blocks, 'block')} forgotten"
        self._events.emit(
            "dataset.purged", gone.name or gone.dataset.short, text, about=about(gone.dataset), id=str(gone.dataset)
        )
        return self._view(gone)

    def _find(self, ref: str) -> unmanaged.Unmanaged:
        with self._home.database.read() as connection:
            return unmanaged.resolve(connection, ref)

    def _view(self, kept: unmanaged.Unmanaged) -> wire.UnmanagedView:
        return wire.UnmanagedView(
            id=str(kept.dataset),
            name=kept.name,
            deleted_at=instant.render(kept.at) if kept.at else None,
            blocks=kept.remains.blocks,
            bytes=kept.remains.bytes,
            owner=self._home.keys.has_dataset_key(kept.dataset),
        )
