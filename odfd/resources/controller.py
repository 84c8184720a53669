"""Defines what the node does for a type of resource: how it is prepared, observed, changed, checked and finalized.

A type of which nothing but the declaration exists needs no controller of its own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Literal, NamedTuple

import msgspec

from chain.errors import Fault
from chain.ids import DatasetId
from chain.instant import Instant
from odfd.obs.events import Event
from odfd.resources.manifest import Draft
from odfd.resources.plan import DesiredResource, PlannedResource
from odfd.resources.resource import Json, Resource
from odfd.resources.status import ConditionValue
from odfd.runtime.subjects import Sees, Subjects


class ObservedState(msgspec.Struct, frozen=True, kw_only=True):
    """The state that a controller observed."""

    is_drift: bool = True
    """Whether steps that are needed without a new declaration mean that the state has drifted from it."""
    goes_on: bool | None = None
    """Whether long work that was begun still goes on; the worker that does it touches the resource at its end."""
    steps: tuple[str, ...] = ()
    """Steps that remain until everything is as declared; may be empty."""
    told: Mapping[str, ConditionValue] = {}
    fault: Fault | None = None
    """Why it is not as declared, if no step would help."""


def _nothing(*_: object) -> None:
    """Does nothing."""


async def _no_more() -> None:
    """Does nothing."""


class Intent(NamedTuple):
    """Holds what an apply does for a resource beside its declaration."""

    record: Callable[[sqlite3.Connection], object] = _nothing
    """Writes it in the transaction of the apply, after the declarations. Raises Invalid, Refused."""
    take_up: Callable[[], Awaitable[object]] = _no_more
    """Brings it into force after the transaction. Raises Fault; the next start does it then."""
    first: Callable[[], object] | None = None
    """Does what has to be done before the transaction: takes back data that was deleted. May block, or be async."""
    tell: Callable[[], object] = _nothing
    """Tells of it, when all is done."""
    did: DatasetId | None = None
    """What a new resource stands for."""
    blocks: Sequence[Any] = ()
    """Additions to chains of this node, which the transaction makes (``odfd.datasets.commit``)."""
    item: Mapping[str, Any] = {}
    """What its item of the result says otherwise than its plan does."""


class ApplyBatch:
    """One apply while its resources are prepared, each upon those before it."""

    def __init__(
        self, planned: Sequence[PlannedResource], drafts: Mapping[str, Draft], now: Instant, *, dry_run: bool,
        forced: bool,
    ) -> None:  # fmt: skip
        """``drafts``: the manifests by the ids of their resources; ``now``: the time of what is written.

        ``forced``: whether what is refused otherwise may be done where only people can decide.
        """
        self.planned, self.drafts, self.now = planned, drafts, now
        self.dry_run, self.forced = dry_run, forced
        self.known: dict[tuple[str | None, str], DatasetId] = {}
        """The datasets that it makes known, by account and name in lower case."""
        self.states: dict[DatasetId, Any] = {}
        """The states of chains as they will be after it."""
        self.nameless = {each.before.did for each in planned if each.gives_up_name and each.before is not None}
        """Dids of those that get other names, so that theirs are free."""
        self.closing = ExitStack()
        """Undoes what was made for resources that were not committed."""
        self._by_name: dict[tuple[str | None, str], list[Resource]] = {}
        for each in planned:
            self._by_name.setdefault((each.after.account, each.after.key), []).append(each.after)

    def find_named(self, account: str | None, key: str) -> Sequence[Resource]:
        """Returns the resources of all types that have a name, in lower case, after the apply."""
        return self._by_name.get((account, key), ())


class Controller:
    """Observes and changes the resources of one type.

    ``observe``, ``perform``, ``finalize`` and ``states`` are plain where they only read and write: a worker runs them.
    """

    type: str
    conditions: Collection[str] = ()
    """The names of the conditions that it reports."""
    own_labels: Collection[str] = ()
    """Labels that it alone sets: people select by them as by their own, and a manifest that has others is refused."""
    prepares: Literal["never", "changes", "always"] = "never"
    """Whether an apply prepares its resources: those that are new or have another spec, or all that it names."""
    has_own_events: bool = False
    """Whether what is applied is told of by events of its own, and not by those of resources."""
    hears: Collection[str] = ()
    """The families of events (``flow`` of ``flow.ended``) whose subjects are resources that may have changed."""

    def check(self, before: Resource, after: Resource | None) -> None:
        """Checks a change of a resource, or its deletion (``after``: ``None``). Blocking. Raises Refused, Invalid."""

    def labels(self, resource: Resource) -> Mapping[str, str]:  # noqa: ARG002  most types have none
        """Returns the labels that it sets; no manifest carries them to another node. Blocking."""
        return {}

    def spec_to_store(self, desired: DesiredResource, before: Resource | None) -> Json:  # noqa: ARG002  most are as written
        """Returns the spec to store. Blocking. Raises Invalid."""
        return desired.spec

    @contextmanager
    def deletion(self, connection: sqlite3.Connection, gone: Resource, *, purge: bool) -> Iterator[None]:  # noqa: ARG002
        """Deletes what is stored of a resource beside its declaration, which is deleted in the block. Blocking.

        ``purge``: with the data of a dataset. ``finalize`` undoes afterwards what is in no database. Raises Fault.
        """
        yield

    def order(self, planned: Sequence[PlannedResource], batch: ApplyBatch) -> Sequence[PlannedResource]:  # noqa: ARG002
        """Returns the resources of an apply in the order in which they can be prepared."""
        return planned

    async def prepare(self, planned: PlannedResource, batch: ApplyBatch) -> Intent | None:  # noqa: ARG002  most are declared
        """Prepares what an apply does beside the declaration, and changes nothing that stays. Raises Fault."""
        return None

    async def follow_changes(self, changed: Sequence[PlannedResource]) -> None:
        """Follows what an apply, or another name, changed."""

    def observe(self, resource: Resource) -> ObservedState | Awaitable[ObservedState]:  # noqa: ARG002  see above
        """Observes a resource, without changing anything. Raises Fault."""
        return ObservedState()

    def perform(self, resource: Resource, step: str) -> Awaitable[None] | None:
        """Performs one of the observed steps; it may have been performed before. Raises Fault."""

    def states(self, resources: Sequence[Any], sees: Sees | None) -> Mapping[str, Any] | Awaitable[Mapping[str, Any]]:  # noqa: ARG002  see above
        """Returns what only the running node knows now of some ``wire.ResourceView``, as ``wire.Value`` by their ids.

        Takes work for these alone, whatever else there is. ``sees``: the rights of an account that may read them; only
        of what it may see too is it told. ``None``: the node's owner asks.
        """
        return {}

    async def subjects(self, resources: Sequence[Any]) -> Mapping[str, Sequence[Subjects]]:  # noqa: ARG002  see above
        """Returns what some ``wire.ResourceView`` are about, by their ids, each with one subject or several.

        Who may see all that one of these names sees the resource too, without a right on it.
        """
        return {}

    def finalize(self, resource: Resource) -> Awaitable[None] | None:
        """Undoes the effects of a deleted resource. May have been called before a crash. Raises Fault."""


class Controllers:
    """The controllers of a node, by type, in the order in which an apply prepares their resources."""

    def __init__(self, controllers: Iterable[Controller] = ()) -> None:
        """Raises ValueError if two report the same condition, which is a bug."""
        self._by_type = {controller.type: controller for controller in controllers}
        owners: dict[str, str] = {}
        for type_, each in self._by_type.items():
            for key in each.conditions:
                if owners.setdefault(key, type_) != type_:
                    raise ValueError(f"{key} is declared by both {owners[key]} and {type_}")

    def __iter__(self) -> Iterator[Controller]:
        return iter(self._by_type.values())

    def of(self, type_: str) -> Controller:
        """Returns the controller of a type; for one that has none, one that finds everything as declared."""
        return self._by_type.get(type_, _DECLARED)

    def told_by(self, event: Event) -> set[tuple[str, str]]:
        """Returns the type and name, id or did of each resource that an event may have changed."""
        family = event.kind.partition(".")[0]
        return {(each.type, event.subject) for each in self if event.subject and family in each.hears}

    def check(self, before: Resource, after: Resource | None) -> None:
        """Checks a change of a resource, or its deletion (``after``: ``None``). Blocking. Raises Refused, Invalid."""
        self.of(before.type).check(before, after)


_DECLARED: Final = Controller()
