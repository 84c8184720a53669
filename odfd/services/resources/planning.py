"""Plans what becomes of resources that manifests state or that get another name, and writes it with what they own."""

from __future__ import annotations

import difflib
import functools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from chain.codec.bind import plain_of
from chain.codec.manifest import Mistakes
from chain.errors import Conflict, Environment, Invalid, NotFound
from chain.instant import Instant
from odfd.control.assembly import Context
from odfd.resources.controller import Controller, Controllers
from odfd.resources.manifest import Draft, check_name
from odfd.resources.owners import OwnedPart, keep_parts
from odfd.resources.plan import (
    PLAIN,
    DesiredResource,
    PlannedResource,
    Terms,
    TypeRules,
    check_generation,
    plan,
    renaming,
)
from odfd.resources.references import FinalState, Reference, references_in, with_names
from odfd.resources.registry import OF_ACCOUNTS
from odfd.resources.resource import Json, Resource
from odfd.resources.sets import (
    SecretSealer,
    renewed_secrets,
    sealed_secrets,
    sealed_values,
    with_values,
)
from odfd.resources.store import ResourceStore
from odfd.resources.types import ResourceType, TypeRegistry
from odfd.runtime.clock import Clock
from odfd.services.resources.types import TYPES
from odfd.store.catalog import DatasetResources
from odfd.store.directory import StateDirectory

MOVED: Final = "head-moved"
"""The rule of a conflict with what came or went since the plan."""


class PartsKeeper:
    """Computes what resources own, and writes it with them. Blocking."""

    def __init__(
        self, home: StateDirectory, clock: Clock, new_id: Callable[[], str], registry: TypeRegistry = TYPES
    ) -> None:
        self._home, self._clock = home, clock
        self.new_id, self.registry = new_id, registry

    def of(self, owner: Resource) -> Iterable[OwnedPart]:
        """Yields the resources that one makes. Raises Invalid."""
        kind = self.registry.get(owner.type)
        return () if kind.parts is None else kind.parts(owner)

    def store(self, connection: sqlite3.Connection) -> ResourceStore:
        """Returns a store that also writes the resources that others make."""
        return DatasetResources(connection, functools.partial(keep_parts, self.of, self.new_id))

    def lack(self, owner: Resource) -> bool:
        """Whether the resources that this one makes are missing or differ."""
        with self._home.database.read() as connection:
            held = {(each.type, each.name): each.spec for each in ResourceStore(connection).list_owned(owner.id)}
        return held != {(each.type, each.name): each.spec for each in self.of(owner)}

    def make(self, owner: Resource) -> None:
        """Writes the resources that this one makes, and removes those it no longer makes. Raises Invalid."""
        with self._home.database.write() as connection:
            store = self.store(connection)
            held = store.get(owner.id)
            if held is not None:
                keep_parts(self.of, self.new_id, store, held, self._clock.now())


class Planning:
    """Plans and writes the resources of one node. Blocking."""

    def __init__(
        self, home: StateDirectory, context: Context, parts: PartsKeeper, controllers: Controllers | None = None
    ) -> None:
        """``controllers`` judge changes, and say in which form specs are stored."""
        self._home, self._clock, self._parts = home, context.clock, parts
        self._registry, self._controllers = parts.registry, controllers or Controllers()

    def plan(
        self, drafts: Sequence[Draft], *, dry_run: bool = False, terms: Terms = PLAIN, account: str | None = None
    ) -> list[PlannedResource]:
        """Plans what becomes of the drafts, in order; writes nothing.

        ``account``: gets what is new and names none. Raises Invalid, and Conflict for another generation than ``terms``
        states.
        """
        keys = self._home.secrets

        def spec_to_store(desired: DesiredResource, before: Resource | None, resource_id: str) -> Json:
            if desired.is_kept:
                return desired.spec
            kind, spec = self._registry.get(desired.type), desired.spec
            stands = None if before is None else before.spec
            if before is not None and stands is not None and spec == with_names(kind.layout, stands, before.references):
                return stands  # as it is printed
            if kind.kept is not None:
                spec = kind.kept(desired.name, said[desired.place], stands)
            given = sealed_values(kind.sealed, spec)
            if given:
                held = {} if stands is None else sealed_values(kind.sealed, stands)
                spec = with_values(
                    kind.sealed, spec, sealed_secrets(given, held, (resource_id, desired.name), keys, dry_run=dry_run)
                )  # fmt: skip
            if spec is not desired.spec:
                desired = msgspec.structs.replace(desired, spec=spec)
            return self._controllers.of(kind.name).spec_to_store(desired, before)

        desired = [_to_desired(draft) for draft in drafts]
        said = {each.place: draft.spec for each, draft in zip(desired, drafts, strict=True)}
        with self._home.database.read() as connection:
            store = DatasetResources(connection)
            owner = store.owner()
            rules = TypeRules(
                spec_to_store, self._references, self._parts.of, self._object_of, account, (owner["id"], owner["did"])
            )  # fmt: skip
            planned, faults = self._plan_all(desired, store, terms, rules)
            batch, number = [each.after for each in planned], len(drafts)
            told = [_waiting(each, draft, store, batch) for each, draft in zip(planned, drafts, strict=False)]
            planned = [*told, *planned[number:]]
        for each in planned[:1] if terms.generation is not None else ():
            check_generation(each.before, terms.generation or 0, each.after.name)
        by_name = {(draft.type.name, draft.headers.name.casefold()): draft.place for draft in drafts}
        for each in planned:
            if (place := by_name.get((each.after.type, each.after.name.casefold()))) is not None:
                faults += contradictions(each.after, self._controllers.of(each.after.type), place)
        if faults:
            raise faults[0] if len(faults) == 1 else Mistakes("the manifests", tuple(faults))
        return planned

    def plan_rename(self, word: str, ref: str, name: str) -> list[PlannedResource]:
        """Plans another name of one resource, which is the first planned. Raises NotFound, Invalid."""
        kind = self._registry.find_served(word)
        check_name(kind.name, name)
        with self._home.database.read() as connection:
            store = DatasetResources(connection)
            held = meant_by(store, kind, ref)
            if ref.startswith("did:") and held.did != ref:
                text, hint = f"{ref} is inside {held.name}, and is called after it", f"odfctl rename {held.name} {name}"
                raise Invalid(text, rule="rendition-name", hint=hint)
            desired = [renaming(held, name)]
            rules = TypeRules(walk=self._references, parts=self._parts.of, object=self._object_of)
            planned, faults = self._plan_all(desired, store, PLAIN, rules)
        if faults:
            raise faults[0]
        return planned

    def check(self, planned: Sequence[PlannedResource], generation: int) -> None:
        """Raises Conflict if a resource no longer has the generation that it was planned on."""
        with self._home.database.read() as connection:
            for each in planned[:1]:
                check_generation(ResourceStore(connection).get(each.after.id), generation, each.after.name)

    def commit(
        self,
        connection: sqlite3.Connection,
        planned: Sequence[PlannedResource],
        generation: int | None = None,
        dids: Mapping[str, str] | None = None,
    ) -> None:
        """Writes the changed ones, in the transaction of whatever is done with them.

        ``dids``: what new ones stand for, by their ids. Raises Conflict as ``plan``, and if something came or went that
        the plan did not know.
        """
        store, born = self._parts.store(connection), dids or {}
        for one in planned[:1] if generation is not None else ():
            check_generation(store.get(one.after.id), generation or 0, one.after.name)
        held = store.among(each.after.id for each in planned)
        standing = [_standing(each, held, store, born) for each in planned]
        final = FinalState(standing, store)
        changed = [after for each in standing if (after := _meaning(each, final)) != held.get(each.id)]
        now = self._clock.now()
        try:
            store.put_all(changed, now)
        except Invalid as fault:
            if fault.rule != "name-taken":
                raise
            raise Conflict(
                f"{fault.message}, which was created meanwhile", rule=MOVED, hint="apply it again"
            ) from fault
        for each in changed:
            if sealed := self._registry.get(each.type).sealed:
                # The key may have changed since it was planned.
                renew(store, each, sealed, self._home.secrets, now)

    def _plan_all(
        self, desired: list[DesiredResource], store: ResourceStore, terms: Terms, rules: TypeRules
    ) -> tuple[list[PlannedResource], list[Invalid]]:
        """Plans resources, and after them those that get a name with them. Raises Refused."""
        desired = [*desired, *self._namesakes(desired, store, terms.manager)]
        planned, faults = plan(desired, store, self._parts.new_id, self._clock.now(), terms, rules)
        for each, said in zip(planned, desired, strict=False):
            for fault in self._change_faults(each, planned):
                fault.place = fault.place or said.place
                faults.append(fault)
        return planned, faults

    def _namesakes(
        self, desired: Sequence[DesiredResource], store: ResourceStore, manager: str
    ) -> Iterator[DesiredResource]:
        """Yields those of another type that have the names of renamed resources, since both are one thing."""
        told: set[object] = {each.id for each in desired}
        told |= {(each.type, each.name.casefold()) for each in desired if each.id is None}
        for each in desired:
            other_type = self._registry.get(each.type).namesake
            held = store.get(each.id) if each.id is not None and other_type else None
            if held is None or held.type != each.type or held.did is None or held.name == each.name:
                continue
            other = store.with_did(other_type, held.did)
            if other is not None and other.id not in told and (other.type, other.key) not in told:
                yield renaming(other, each.name, each.place, manager)

    def _change_faults(self, planned: PlannedResource, batch: Sequence[PlannedResource]) -> Iterator[Invalid]:
        """Yields the faults of a change by itself, and of a name that its namesake does not have."""
        before, after = planned.before, planned.after
        if before is None:
            return
        try:
            self._controllers.check(before, after)
        except Invalid as fault:
            yield fault
        namesake = self._registry.get(after.type).namesake
        for other in batch if namesake and before.name != after.name else ():
            is_same = other.after.type == namesake and other.after.did == after.did is not None
            if is_same and other.after.name != after.name:
                text = f"{after.type} {after.name} and {other.after.type} {other.after.name} are one dataset"
                yield Invalid(text, rule="mirror-name", hint="give both the same name, or leave one of them out")

    def _object_of(self, type_: str, spec: Json) -> str | None:
        """Returns what a resource stands for by its spec, if that says it."""
        field = self._registry.get(type_).stands_for
        return spec[field] if field and spec is not None else None

    def _references(self, type_: str, spec: Any) -> Sequence[Reference]:
        """Returns the references in the spec of any type."""
        kind = self._registry.get(type_)
        return references_in(kind.layout, spec) if kind.spec is not None and spec is not None else ()


def meant_by(store: ResourceStore, kind: ResourceType, name: str, *, is_read: bool = False) -> Resource:
    """Returns what a person means by a name, an id or a did; to read, also what is not undone yet. Raises NotFound."""
    known = store.find_any(kind.name, name) or store.with_did(kind.name, kind.object_named(name))
    known = store.held_back(kind.name, name) if known is None and is_read else known
    if known is None:
        hint = f"odfctl get {kind.plural} lists them"
        raise NotFound(f"there is no {kind.name} {name[:120]!r}", rule="resource", hint=hint)
    return known


def contradictions(resource: Resource, controller: Controller, place: Callable[[str], str]) -> Iterator[Invalid]:
    """Yields a fault for each label set by people that differs from the controller's.

    ``place`` returns where a path of the headers was written.
    """
    stated = sorted(key for key in controller.own_labels if key in resource.labels)
    system = controller.labels(resource) if stated else {}
    for key in stated:
        if resource.labels[key] == system.get(key):
            continue
        is_so = f"and this one is {system[key]}" if key in system else "and this one has none yet"
        yield Invalid(
            f"labels.{key} of {resource.name} is {str(resource.labels[key])[:80]!r}: the node sets it, {is_so}",
            rule="system-label",
            hint=f"leave {key} out: it can be selected by without being written",
            place=place(f"headers.labels.{key}"),
        )


def renew(store: ResourceStore, each: Resource, sealed: str, keys: SecretSealer, now: Instant) -> None:
    """Seals the values of a resource to the present key, and removes those of before. Raises Environment."""
    try:
        values = renewed_secrets(sealed_values(sealed, each.spec), each.id, keys)
    except Environment as fault:
        fault.place = f"{each.type} {each.name}"
        raise
    spec = with_values(sealed, each.spec, values)
    held = store.get(each.id) if spec != each.spec else None
    if held is not None:
        store.rewrite(msgspec.structs.replace(held, spec=spec), now)
    store.blank(each.id)


def _waiting(
    planned: PlannedResource, draft: Draft, store: ResourceStore, batch: Sequence[Resource]
) -> PlannedResource:
    """Adds a warning for each reference to what is not here, with the nearest name of its own account."""
    if planned.action == "unchanged":
        return planned
    told = []
    for each in planned.dangling:
        type_, _, name = each.key.partition(":")
        account = planned.after.account if type_ in OF_ACCOUNTS else None
        known = {row.name for row in store.rows(type_) if row.account == account}
        known |= {other.name for other in batch if (other.type, other.account) == (type_, account)}
        near = difflib.get_close_matches(name, sorted(known), n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        told.append(f"{draft.place(each.path)}: no {type_.lower()} {name!r} here{meant}; it begins when that is here")
    return msgspec.structs.replace(planned, warnings=(*planned.warnings, *told))


def _to_desired(draft: Draft) -> DesiredResource:
    return DesiredResource(
        type=draft.type.name,
        name=draft.headers.name,
        id=draft.headers.id,
        account=draft.headers.account,
        labels=draft.headers.labels or {},
        annotations=draft.headers.annotations or {},
        spec=plain_of(draft.spec),
        place=draft.place("headers.name"),
        is_partial=draft.is_partial,
    )


def _meaning(each: Resource, final: FinalState) -> Resource:
    """Resolves the references of a resource to others of the same batch."""
    references = {key: final.resolve(key, held, each.account) for key, held in each.references.items()}
    return msgspec.structs.replace(each, references=references)


def _standing(
    planned: PlannedResource, present: Mapping[str, Resource], store: ResourceStore, dids: Mapping[str, str]
) -> Resource:
    """Returns the resource to store, with the status and the object that it has now. Raises Conflict.

    ``present``: what stands now, by id.
    """
    after, held = planned.after, present.get(planned.after.id)
    if (held is None) != (planned.before is None):
        text = f"the {after.type} {after.name} {'is gone' if held is None else 'came'} meanwhile"
        raise Conflict(text, rule=MOVED, hint="apply it again")
    # A handover that came meanwhile gave it another object.
    did = (after.did if held is None else held.did) or dids.get(after.id)
    if held is None and did is not None and (back := store.with_did(after.type, did)) is not None:
        held = back  # the data of a deleted dataset was taken back for it
        after = msgspec.structs.replace(after, id=back.id, generation=back.generation + 1, created_at=back.created_at)
    return msgspec.structs.replace(after, did=did, status=after.status if held is None else held.status)
