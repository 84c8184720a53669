"""Moves slices to and from volumes whenever datasets have new blocks or volumes are declared anew.

One round checks all volumes in the order of their names, so a dataset that two of them name is stored in the first.
Works while ``run`` runs; work that a stop interrupts continues after the next start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from chain.errors import Fault, Refused
from chain.ids import DatasetId
from chain.store.volumes import VolumeUsage
from chain.wording import plural
from odfd.control.assembly import Context
from odfd.datasets.manifest import VOLUME
from odfd.resources.controller import Controller, ObservedState
from odfd.resources.resource import Resource
from odfd.resources.status import ConditionValue
from odfd.runtime.hanging_calls import end_if_unwanted
from odfd.runtime.reconcile_loop import UNTIL_POKED, KeyedReconcileLoop
from odfd.runtime.subjects import about
from odfd.runtime.supervision import Life
from odfd.services.volumes.manifest import FIXED
from odfd.services.volumes.mover import VolumeMover, VolumeState
from odfd.services.volumes.volumes import Volumes
from odfd.store.catalog import Labels
from odfd.store.directory import StateDirectory

START_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 60.0
"""Seconds until the next check of a volume that is unavailable or full, or whose slices are being read."""


class VolumeWorker:
    """Moves slices for all volumes of one node."""

    def __init__(self, home: StateDirectory, context: Context, changed: Callable[[str], None], labels: Labels) -> None:
        """``changed``: called with the name of a volume whose state changed."""
        self.volumes = Volumes(home)
        self._mover = VolumeMover(home, self.volumes, labels, _cancellable)
        self._index = home.objects.volumes
        self._events = context.events
        self.loop: KeyedReconcileLoop[DatasetId] = KeyedReconcileLoop(self._round, start_after=START_SECONDS)
        self.states: Mapping[str, VolumeState] = {}
        """The state of each volume after the last round, by the id of its resource."""
        self._changed = changed
        self.moved = 0
        """Number of slices moved to volumes since the start."""
        self.returned = 0
        self._said: dict[str, object] = {}
        self.rounds = 0

    async def run(self, life: Life) -> None:
        await self.loop.run(life)

    def touch(self, dataset: DatasetId) -> None:
        """Marks a dataset that may belong in another volume. Called from the event loop."""
        if self.states:
            self.loop.touch(dataset)

    def faults(self) -> dict[str, Fault]:
        """Asks each declared volume now; returns what is wrong with those that do not answer or failed last.

        Blocking, in a worker thread.
        """
        declared = self.volumes.all()
        known = {each.name: state.fault for each in declared if (state := self.states.get(each.id)) is not None}
        found = {name: fault for name, fault in known.items() if fault is not None}
        for resource in declared:
            try:
                self.volumes.claim(resource)
            except Fault as fault:
                found[resource.name] = fault
        return found

    def state(self, resource: Resource) -> VolumeState | None:
        """Returns the state of a volume as it is declared now; ``None``: it is being checked."""
        found = self.states.get(resource.id)
        if found is None or found.generation != resource.generation:
            self.loop.poke()
            return None
        return found

    def _round(self) -> float:
        touched = self.loop.take()
        volumes = self.volumes.all()
        known = {key: each.generation for key, each in self.states.items() if each.fault is None}
        # A changed policy of one volume may send slices of any dataset elsewhere, whose chains did not move.
        if known != {volume.id: volume.generation for volume in volumes}:
            touched = None  # one is another, or was not looked at to the end
        states: dict[str, VolumeState] = {}
        for at, resource in enumerate(volumes):
            state = self._mover.round(at, volumes, touched)
            states[resource.id] = state
            self.states = {**self.states, resource.id: state}
            self._tell(resource, state)
        self.states = states
        self.rounds += 1
        if not volumes:
            return UNTIL_POKED
        unfinished = any(state.fault or state.waiting or state.remaining for state in states.values())
        return AGAIN_SECONDS if unfinished else UNTIL_POKED

    def _tell(self, resource: Resource, state: VolumeState) -> None:
        self.moved, self.returned = self.moved + state.moved, self.returned + state.returned
        if state.moved or state.returned:
            text = f"{plural(state.moved, 'slice')} moved there, {state.returned:,} returned"
            self._events.emit(
                "volume.moved",
                resource.name,
                text,
                about=about(resource.id),
                moved=state.moved,
                returned=state.returned,
            )
        usage = self._index.usage(resource.id)
        fault = "" if state.fault is None else str(state.fault)
        said = (msgspec.structs.replace(state, fault=None, moved=0, returned=0), usage, fault)
        if self._said.get(resource.id) != said:
            self._said[resource.id] = said
            self._changed(resource.name)


def _cancellable(_: str) -> None:
    end_if_unwanted()


class VolumeController(Controller):
    """Reports how much is in a volume, and why it cannot be used."""

    type = VOLUME
    conditions: Collection[str] = ("Usage",)

    def __init__(self, home: StateDirectory, volumes: VolumeWorker) -> None:
        self._index, self._volumes = home.objects.volumes, volumes

    def check(self, before: Resource, after: Resource | None) -> None:
        """Checks that a volume that holds data keeps its place. Blocking. Raises Refused."""
        usage = self._index.usage(before.id)
        changed = [key for key in FIXED if after is not None and after.spec.get(key) != before.spec.get(key)]
        if (after is not None and not changed) or not (usage.objects or usage.remains):
            return
        name, what = before.name, "is not deleted" if after is None else f"keeps its {', '.join(changed)}"
        slices, remains = plural(usage.objects, "slice"), plural(usage.remains, "copy", "copies")
        raise Refused(
            f"volume {name} {what}: {slices} of datasets and {remains} to be deleted are there",
            rule="volume-in-use",
            hint=f"take the datasets out of its volumePolicy: odfctl edit volume {name}; their slices come back first"
            if usage.objects
            else "odfctl gc deletes the copies, the second time at the latest",
        )

    def observe(self, resource: Resource) -> ObservedState:
        state = self._volumes.state(resource)
        usage = self._index.usage(resource.id)
        if state is None:  # the worker reports after its first look: until then its place is asked here
            self._volumes.volumes.claim(resource)
            return ObservedState(told={"Usage": _usage_condition(usage, 0)})
        return ObservedState(told={"Usage": _usage_condition(usage, state.waiting)}, fault=state.fault)

    def finalize(self, resource: Resource) -> None:
        self._volumes.volumes.release(resource)


def _usage_condition(usage: VolumeUsage, waiting: int) -> ConditionValue:
    value = {"slices": usage.objects, "bytes": usage.bytes, "waiting": waiting, "remains": usage.remains}
    still = f", {waiting:,} also here still, since a reader may use them" if waiting else ""
    remains = f", {plural(usage.remains, 'copy', 'copies')} to be deleted" if usage.remains else ""
    return ConditionValue(value=value, message=f"{plural(usage.objects, 'slice')}{still}{remains}")
