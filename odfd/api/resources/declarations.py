"""Keeps and shows resources: plans applies, and lists, labels, deletes and watches resources.

Some are not declared: the node, its engines, and running tasks. They live as long as the daemon and have no events in
the log. A watch reports all of them when it begins, even from a version, and then each change that it sees; a change
that was undone before it looked is never reported.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, Literal

import msgspec
import trio

from chain.codec.manifest import Mistakes
from chain.errors import Environment, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.wording import a
from odfd.api.resources.batch_steps import (
    dataset_spec,
    desired_of,
    meaning,
    namesakes,
    rename_faults,
    sets_of,
    standing_of,
    waiting,
)
from odfd.api.resources.labels import UNINDEXED, SystemLabels, contradictions, labelled
from odfd.api.resources.pages import ResourcePage, ResourcePages, page_after, rest_after
from odfd.api.resources.types import TYPES
from odfd.api.resources.views import view_of, with_state
from odfd.api.resources.watches import News, ResourceWatches
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.responses import SharedValue
from odfd.datasets.catalog import TYPE as DATASET
from odfd.datasets.catalog import Catalog, DatasetResources
from odfd.mirrors.mirror_spec import TYPE as MIRROR
from odfd.resources.controller import Controllers
from odfd.resources.manifest import Draft, check_name, wrong_entries
from odfd.resources.owners import OwnedPart, keep_parts, owned_fault
from odfd.resources.plan import (
    APPLY,
    PLAIN,
    DesiredResource,
    PlannedResource,
    Rules,
    Terms,
    check_generation,
    plan,
    renaming,
)
from odfd.resources.references import FinalState, Reference, references_in
from odfd.resources.resource import ACCOUNT, Json, Resource, account_handle
from odfd.resources.selectors import first_equality, matches, parse_selector
from odfd.resources.sets import (
    SEALED,
    DrySealing,
    SecretSealer,
    binding,
    names_in,
    renewed_secrets,
    sealed_secrets,
    sealed_values,
    with_values,
)
from odfd.resources.store import ResourceStore
from odfd.resources.types import ResourceType, TypeRegistry
from odfd.runtime.hanging_calls import in_worker
from odfd.runtime.subjects import Sees, about
from odfd.state.directory import StateDirectory

SECRET_SET: Final = "SecretSet"  # noqa: S105  the name of a type
INTENDED: Final = frozenset(each.name for each in TYPES if each.kept is not None)
"""Types that an apply prepares (``Controller.prepare``): networks, peers, validators and mirrors."""
ELSEWHERE: Final = frozenset({DATASET, *INTENDED})
"""Types with their own commands and checks, whose truth is not their declaration."""


class DeclarationService:
    """The API service that plans, stores, lists, labels, deletes and watches declared resources."""

    def __init__(
        self, home: StateDirectory, context: Context, new_id: Callable[[], str], registry: TypeRegistry = TYPES
    ) -> None:
        self._home = home
        self._clock, self._events = context.clock, context.events
        self._new_id = new_id
        self._registry = registry
        self._system_labels = SystemLabels(home.chains)
        self.labels_of = self._system_labels.all_of
        """Returns all labels of a resource, also those that the node sets. Blocking."""
        self._watches = ResourceWatches(
            home, context.events, view=self._view, is_listed=self._is_listed
        )  # fmt: skip
        self._pages = ResourcePages(
            home, view=self._view, labels=self._system_labels.all_of, system=UNINDEXED
        )  # fmt: skip
        self.unlisted = tuple(each.name for each in registry if each.is_derived)
        """Types that are listed only if asked for by name: the elements of sets."""
        self.live: Mapping[str, Callable[[], Sequence[Resource]]] = {}
        """By type: lists the undeclared resources; set where services are joined. Leaves out declared names."""
        self.controllers = Controllers()
        """They judge changes and deletions; set where services are joined."""
        self.undone: Callable[[str], Awaitable[None]]
        """Waits until what a deleted resource made is undone, given its id; set where services are joined."""
        self.applied: Sequence[Callable[[], None]] = ()
        """Called in the event loop after an apply, whose events may have arrived before it was recorded."""

    def apply_ended(self) -> None:
        """Tells those who follow applies, in the event loop."""
        for each in self.applied:
            each()
        self._events.nudge()

    # Used by applies.

    def plan(
        self, drafts: Sequence[Draft], *, dry_run: bool = False, terms: Terms = PLAIN, account: str | None = None
    ) -> list[PlannedResource]:
        """Plans what becomes of the drafts, in order; writes nothing.

        ``account``: gets what is new and names none. Raises Invalid, and Conflict for another generation than ``terms``
        states.
        """
        keys: SecretSealer = DrySealing(self._home.secrets) if dry_run else self._home.secrets

        def kept(desired: DesiredResource, before: Resource | None, resource_id: str) -> Any:
            if desired.is_kept:
                return desired.spec
            if desired.type == DATASET:
                return dataset_spec(desired, before)
            given = sealed_values(desired.type, desired.spec)
            if not given:
                form = self._registry.named(desired.type).kept
                stands = None if before is None else before.spec
                spec = desired.spec if form is None else form(desired.name, said[desired.place], stands)
                return spec if desired.type != MIRROR else self._gone_on(spec, before)
            held = {} if before is None else sealed_values(desired.type, before.spec)
            sealed = sealed_secrets(given, held, (resource_id, desired.name), keys)
            return with_values(desired.type, desired.spec, sealed)

        desired = [desired_of(each) for each in drafts]
        said = {each.place: draft.spec for each, draft in zip(desired, drafts, strict=True)}
        with self._home.database.read() as connection:
            store = DatasetResources(connection)
            owner = self.owner["id"], self.owner["did"]
            rules = Rules(kept, self._references, self._parts, self._object_of, account, owner)
            planned, faults = self._planned(desired, store, connection, terms, rules)
            batch, number = [each.after for each in planned], len(drafts)
            told = [waiting(each, draft, store, batch) for each, draft in zip(planned, drafts, strict=False)]
            planned = [*told, *planned[number:]]
        for each in planned[:1] if terms.generation is not None else ():
            check_generation(each.before, terms.generation or 0, each.after.name)
        by_name = {(each.type.name, each.headers.name.casefold()): each.place for each in drafts}
        for each in planned:
            if (place := by_name.get((each.after.type, each.after.name.casefold()))) is not None:
                faults += self._label_faults(each.after, place)
        if faults:
            raise faults[0] if len(faults) == 1 else Mistakes("the manifests", tuple(faults))
        return planned

    def plan_rename(self, word: str, ref: str, name: str) -> list[PlannedResource]:
        """Plans another name of one resource, which is the first planned. Blocking. Raises NotFound, Invalid."""
        kind = self._type(word)
        check_name(kind.name, name)
        with self._home.database.read() as connection:
            store = DatasetResources(connection)
            desired = [renaming(self._found(store, kind, ref), name)]
            rules = Rules(walk=self._references, parts=self._parts, object=self._object_of)
            planned, faults = self._planned(desired, store, connection, PLAIN, rules)
        if faults:
            raise faults[0]
        return planned

    def _planned(
        self,
        desired: list[DesiredResource],
        store: ResourceStore,
        connection: sqlite3.Connection,
        terms: Terms,
        rules: Rules,
    ) -> tuple[list[PlannedResource], list[Invalid]]:
        """Plans resources, and after them the mirrors and datasets that get a name with them. Raises Refused."""
        desired = [*desired, *namesakes(desired, store, terms.manager)]
        planned, faults = plan(desired, store, self._new_id, self._clock.now(), terms, rules)
        catalog = Catalog(connection)
        for each, said in zip(planned, desired, strict=False):
            for fault in rename_faults(each, planned, catalog):
                fault.place = said.place
                faults.append(fault)
            if each.before is not None:
                self.controllers.check(each.before, each.after)
        return planned, faults

    def _gone_on(self, spec: Any, before: Resource | None) -> Any:
        """Returns the spec of a mirror, for what it mirrors now if its owner handed over since it was written."""
        if before is None or before.did is None or spec["source"] == before.did:
            return spec
        with self._home.catalog() as catalog:
            whole = catalog.declared(DatasetId.parse(spec["source"]))
        return {**spec, "source": before.did} if whole is not None and whole.did == before.did else spec

    def commit(
        self,
        connection: sqlite3.Connection,
        planned: Sequence[PlannedResource],
        generation: int | None = None,
        dids: Mapping[tuple[str | None, str], str] | None = None,
    ) -> None:
        """Writes the changed ones, in the transaction of their datasets.

        ``dids``: those of the datasets, by account and name in lower case.

        Raises Conflict as ``plan``, and if something came or went that the plan did not know.
        """
        store, born = self._store(connection), dids or {}
        for one in planned[:1] if generation is not None else ():
            check_generation(store.get(one.after.id), generation or 0, one.after.name)
        held = store.among(each.after.id for each in planned)
        standing = [standing_of(each, held, store, born) for each in planned]
        final = FinalState(standing, store)
        changed = [after for each in standing if (after := meaning(each, final)) != held.get(each.id)]
        store.put_all(changed, self._clock.now())
        for each in changed:
            if each.type in SEALED:
                self._renew(store, each)  # the key may have changed since it was planned
                store.blank(each.id)

    async def secret_key(self) -> wire.SecretKey:
        """Returns the public key with which others seal secrets for this node. Raises Environment."""
        found = await trio.to_thread.run_sync(self._home.secrets.public)
        return wire.SecretKey(**found)

    async def rotate_secrets(self) -> wire.SecretRotation:
        """Seals all secrets to a new key, and destroys the old one. Raises Environment if one cannot be opened."""
        count = await trio.to_thread.run_sync(self._rotate)
        self._events.emit("secret.rotated", "", f"{count} values are sealed to a new key")
        return wire.SecretRotation(values=count)

    def _rotate(self) -> int:
        """Seals all secrets anew and counts them. After a crash all still open, and the next rotation goes on."""
        self._home.secrets.begin_rotation()
        with self._home.database.write() as connection:
            store = self._store(connection)
            sets = [each for type_ in SEALED for each in store.all(type_)]
            for each in sets:
                self._renew(store, each)
                store.blank(each.id)
        self._home.secrets.end_rotation()
        return sum(len(sealed_values(each.type, each.spec)) for each in sets)

    def _renew(self, store: ResourceStore, each: Resource) -> None:
        try:
            values = renewed_secrets(sealed_values(each.type, each.spec), each.id, self._home.secrets)
        except Environment as fault:
            fault.place = f"{each.type} {each.name}"
            raise
        spec = with_values(each.type, each.spec, values)
        if spec != each.spec:
            held = store.get(each.id)
            assert held is not None
            store.rewrite(msgspec.structs.replace(held, spec=spec), self._clock.now())

    def values(self, dataset: DatasetId) -> Mapping[str, str]:
        """Returns the values that sources of a dataset may read: secrets before variables. Blocking.

        Raises Environment if the key of a secret is not here.
        """
        with self._home.database.read() as connection:
            row = Catalog(connection).declared(dataset)
        return {} if row is None else self.values_named(row.name, row.account)

    def values_named(self, name: str, account: str | None) -> Mapping[str, str]:
        """Returns the values in the sets of a name and an account. Blocking. Raises Environment."""
        with self._home.database.read() as connection:
            variables, secrets = sets_of(ResourceStore(connection), name, account)
        values = {} if variables is None else dict(variables.spec["variables"])
        for key, sealed in ({} if secrets is None else secrets.spec["secrets"]).items():
            assert secrets is not None
            values[key] = self._home.secrets.open(sealed["value"], (binding(secrets.id, key),)).reveal()
        return values

    def names_of_values(self, name: str, account: str | None) -> frozenset[str]:
        """Lists the names that ``values_named`` returns. Blocking."""
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            found = sets_of(store, name, account)
        return frozenset(key for each in found if each is not None for key in names_in(each.type, each.spec))

    # Used by the API.

    async def list(self, word: str | None, labels: str | None) -> Sequence[wire.ResourceView]:
        """Lists resources of one type or all; undeclared ones only of one type.

        Raises NotFound for a type, Invalid for a selector.
        """
        kind = None if word is None else self._type(word)
        selector = None if labels is None else parse_selector(labels)
        live = () if kind is None else self._live(kind)
        return await trio.to_thread.run_sync(self._list, kind, selector, live)

    @in_worker
    def writers(self) -> Mapping[str, str]:
        """Returns the manager that wrote the spec of each resource, by the resource's id."""
        with self._home.database.read() as connection:
            return {each.id: each.managers.get("spec", APPLY) for each in ResourceStore(connection).all()}

    async def page(self, word: str, labels: str | None, limit: int, rest: str | None) -> ResourcePage:
        """Returns a page of a type. Raises NotFound for the type; Usage and Invalid as ``ResourcePages.page``."""
        kind = self._type(word)
        if kind.name not in self.live:
            return await trio.to_thread.run_sync(self._pages.page, kind.name, labels, limit, rest)
        first = await trio.to_thread.run_sync(self._pages.page, kind.name, labels, 1, None)
        version, after = (first.version, "") if rest is None else page_after(rest, (kind.name, labels))
        left = [each for each in await self.list(word, labels) if each.name.casefold() > after]
        more = rest_after(version, (kind.name, labels), left[limit - 1].name) if len(left) > limit else None
        return ResourcePage(version, tuple(left[:limit]), more, kind.name)

    async def get(self, word: str, name: str) -> wire.ResourceView:
        """Returns a resource by name, id or did. Raises NotFound."""
        kind = self._type(word)
        live = await self._alive(kind, name)
        return await trio.to_thread.run_sync(lambda: self._view(live or self._find(kind, name)))

    async def label(self, word: str, name: str, request: wire.LabelRequest) -> wire.ResourceView:
        """Sets labels and annotations, or removes those that are ``null``.

        Raises NotFound, Invalid; Refused for one that is not declared.
        """
        kind = self._type(word)
        await self._check_declared(kind, name, "has no labels of yours")
        view = await trio.to_thread.run_sync(lambda: self._view(self._label(kind, name, request)))
        self._events.emit("resource.labelled", view.name, view.type, about=about(view.id))
        return view

    def check_planned(self, planned: Sequence[PlannedResource], generation: int) -> None:
        """Raises Conflict if a resource no longer has the generation that it was planned on. Blocking."""
        with self._home.database.read() as connection:
            for each in planned[:1]:
                check_generation(ResourceStore(connection).get(each.after.id), generation, each.after.name)

    async def delete(
        self, word: str, name: str, generation: int | None = None, *, force: bool = False, purge: bool = False
    ) -> wire.ResourceView:
        """Deletes a declared resource, and waits until its effects are undone, or could not be and are tried later.

        ``force`` deletes also one that another resource made; ``purge`` the data of a dataset too. Raises NotFound;
        Refused as the controller of its type does, and for what is not declared; Conflict as ``plan`` does.
        """
        kind = self._type(word)
        await self._check_declared(kind, name, "is not deleted")
        gone = await trio.to_thread.run_sync(lambda: self._delete(kind, name, generation, force=force, purge=purge))
        view = await trio.to_thread.run_sync(self._view, gone)
        self._events.emit("resource.deleted", view.name, view.type, about=about(view.id))
        await self.undone(view.id)
        return view

    async def stated(self, views: Sequence[wire.ResourceView], sees: Sees | None = None) -> Sequence[wire.ResourceView]:
        """Returns resources with what only the running node knows of them. ``sees``: as of ``Controller.states``."""
        states: dict[str, wire.Value] = {}
        for type_ in {each.type for each in views}:
            states |= await self.controllers.of(type_).states([each for each in views if each.type == type_], sees)
        return [with_state(each, states[each.id]) if each.id in states else each for each in views]

    @in_worker
    def owned_fault(self, word: str, name: str) -> Invalid:
        """Returns the fault for deleting a resource that another one made. Raises NotFound."""
        return owned_fault(self._find(self._type(word), name))

    async def watch(self, since: str | None, word: str | None) -> AsyncGenerator[wire.ResourceNews, None]:
        """Yields the changes of ``news``, each as a plain value."""
        async with aclosing(self.news(since, word)) as news:
            async for each in news:
                yield each.value

    async def news(self, since: str | None, word: str | None, *, ticks: bool = False) -> AsyncGenerator[News, None]:
        """Yields the present resources of one type or all and a bookmark if ``since`` is absent; then each change.

        Undeclared ones only of one type. Raises NotFound for a type; Invalid for a version of another log, after which
        a reader lists anew.
        """
        kind = None if word is None else self._type(word)
        is_live = kind is not None and kind.name in self.live
        told: dict[str, Resource] = {}
        has_begun = False
        declared = self._watches.news(since, None if kind is None else kind.name, ticks=ticks or is_live)
        async with aclosing(declared):
            async for each in declared:
                is_mark = each.value.resource is None
                if kind is not None and is_live and is_mark:
                    for change in await self._changes(self._live(kind), told, each.value.version):
                        yield SharedValue(change)
                if not (is_live and is_mark and has_begun) or ticks:
                    yield each
                has_begun = has_begun or is_mark

    @in_worker
    def _changes(
        self, live: Sequence[Resource], told: dict[str, Resource], version: str
    ) -> Sequence[wire.ResourceNews]:
        """Returns the differences between ``told`` and the undeclared resources that are here; updates ``told``."""
        now, news = {each.id: each for each in live}, []
        for id_ in [each for each in told if each not in now]:
            news.append(wire.ResourceNews(version=version, op="Deleted", resource=self._view(told.pop(id_))))
        for id_, each in now.items():
            before = told.get(id_)
            told[id_] = each
            if before != each:
                op: Literal["Added", "Modified"] = "Added" if before is None else "Modified"
                news.append(wire.ResourceNews(version=version, op=op, resource=self._view(each)))
        return news

    def _live(self, kind: ResourceType) -> Sequence[Resource]:
        """Lists the undeclared resources of a type."""
        find = self.live.get(kind.name)
        return () if find is None else find()

    async def _alive(self, kind: ResourceType, name: str) -> Resource | None:
        """Returns the undeclared resource that is meant, unless what it stands for is declared."""
        live, keys = self._live(kind), {name.casefold(), name, kind.object_named(name)}
        found = next((each for each in live if keys & {each.key, each.id, each.did}), None)
        if found is not None and found.did is not None:
            with suppress(NotFound):
                await trio.to_thread.run_sync(self._find, kind, found.did)
                return None
        return found

    async def _check_declared(self, kind: ResourceType, name: str, text: str) -> None:
        """Raises Refused for a resource that is not declared. ``text``: what it cannot have, or be."""
        if await self._alive(kind, name) is not None:
            what = f"{kind.name} {name[:80]} {text}: {a(kind.name)} is made by {kind.made_by}"
            raise Refused(what, rule="derived-type", hint=kind.instead)

    def _is_listed(self, type_: str, asked: str | None) -> bool:
        """Whether a resource of this type is listed in answer to a request for one type, or for all."""
        return type_ == asked or (asked is None and type_ not in self.unlisted)

    def lacks_parts(self, owner: Resource) -> bool:
        """Whether the resources that this one makes are missing or differ. Blocking."""
        with self._home.database.read() as connection:
            held = {(each.type, each.name): each.spec for each in ResourceStore(connection).owned(owner.id)}
        return held != {(each.type, each.name): each.spec for each in self._parts(owner)}

    def make_parts(self, owner: Resource) -> None:
        """Writes the resources that this one makes, and removes those it no longer makes. Blocking. Raises Invalid."""
        with self._home.database.write() as connection:
            store = self._store(connection)
            held = store.get(owner.id)
            if held is not None:
                keep_parts(self._parts, self._new_id, store, held, self._clock.now())

    def id_of(self, word: str, name: str) -> str:
        """Returns the id of a resource by name, id or did; or of the last deleted one of a name. Raises NotFound."""
        kind = self._type(word)
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            try:
                return self._found(store, kind, name).id
            except NotFound:
                gone = store.deleted(kind.name, name)
                if gone is None:
                    raise
                return gone.id

    def _list(
        self, kind: ResourceType | None, selector: dict[str, Any] | None, live: Sequence[Resource]
    ) -> Sequence[wire.ResourceView]:
        with self._home.database.read() as connection:
            label = None if selector is None or kind is None else first_equality(selector)
            indexed = None if label is None or label[0] in UNINDEXED else label
            found = ResourceStore(connection).all(None if kind is None else kind.name, indexed)
        told = [each for each in found if self._is_listed(each.type, None if kind is None else kind.name)]
        if live:
            held = {each.did for each in told if each.did is not None}
            told = sorted([*told, *(each for each in live if each.did not in held)], key=lambda each: each.key)
        labels_of = self._system_labels.all_of
        return [self._view(each) for each in told if selector is None or matches(selector, each.name, labels_of(each))]

    def _find(self, kind: ResourceType, name: str) -> Resource:
        with self._home.database.read() as connection:
            return self._found(DatasetResources(connection), kind, name, is_read=True)

    def _found(self, store: ResourceStore, kind: ResourceType, name: str, *, is_read: bool = False) -> Resource:
        found = store.sought(kind.name, name) or store.with_did(kind.name, kind.object_named(name))
        found = store.held_back(kind.name, name) if found is None and is_read else found
        if found is None:
            hint = f"odfctl get {kind.plural} lists them"
            raise NotFound(f"there is no {kind.name} {name[:120]!r}", rule="resource", hint=hint)
        return found

    def _label(self, kind: ResourceType, name: str, request: wire.LabelRequest) -> Resource:
        with self._home.database.write() as connection:
            store, now = self._store(connection), self._clock.now()
            before = self._found(store, kind, name)
            after = labelled(before, request)
            for path, message, rule, hint in wrong_entries(kind.name, after.labels, after.annotations):
                raise Invalid(f"{path}: {message}", rule=rule, hint=hint)
            for fault in self._label_faults(after):
                raise fault
            if after == before:
                return before
            self.controllers.check(before, after)
            after = msgspec.structs.replace(after, generation=before.generation + 1, updated_at=now)
            store.put(after, now)
        return after

    def _delete(self, kind: ResourceType, name: str, generation: int | None, *, force: bool, purge: bool) -> Resource:
        with self._home.database.write() as connection:
            store = self._store(connection)
            found = self._found(store, kind, name)
            if generation is not None:
                check_generation(found, generation, found.name)
            if found.owners and not force:
                raise owned_fault(found)
            self.controllers.check(found, None)
            with self.controllers.of(kind.name).deletion(connection, found, purge=purge):
                store.delete(found, self._clock.now())
            if kind.name in SEALED:
                store.blank(found.id)
        return found

    def _store(self, connection: sqlite3.Connection) -> ResourceStore:
        """Returns a store that also writes the resources that others make."""
        return DatasetResources(connection, functools.partial(keep_parts, self._parts, self._new_id))

    def _object_of(self, type_: str, spec: Json) -> str | None:
        """Returns what a resource stands for by its spec, if that says it."""
        field = self._registry.named(type_).stands_for
        return spec[field] if field and spec is not None else None

    def _type(self, word: str) -> ResourceType:
        found = self._registry.word(word)
        if found is None or found.spec is None:
            raise NotFound(f"there is no type {word[:80]!r}", rule="unknown-type", hint="odfctl types lists them")
        return found

    def _references(self, type_: str, spec: Any) -> Iterator[Reference]:
        """Yields the references in the spec of any type."""
        kind = self._type(type_)
        return references_in(kind.layout, spec) if kind.spec is not None and spec is not None else iter(())

    def _parts(self, owner: Resource) -> Iterable[OwnedPart]:
        """Yields the resources that this one makes."""
        kind = self._type(owner.type)
        return () if kind.parts is None else kind.parts(owner)

    def _account(self, each: Resource) -> dict[str, str]:
        """Returns the handle of the account that owns a resource; of an account, its own. Blocking."""
        if each.account is None:
            return self.owner if each.type != ACCOUNT else account_handle(each.id, each.name, each.spec)
        with self._home.database.read() as connection:
            held = ResourceStore(connection).get(each.account)
        return account_handle(each.account, each.account) if held is None else self._account(held)

    @functools.cached_property
    def owner(self) -> dict[str, str]:
        """The handle of the account of the node's owner. Blocking."""
        with self._home.database.read() as connection:
            return ResourceStore(connection).owner()

    def _label_faults(self, each: Resource, place: Callable[[str], str] = lambda _: "") -> Iterator[Invalid]:
        """Yields a fault for each label set by people that contradicts one of the controller."""
        return contradictions(each, self._system_labels.of(each), place)

    def _view(self, each: Resource) -> wire.ResourceView:
        """Shows a resource. Blocking, since a system label may be read from a chain."""
        return view_of(each, self._type(each.type), self._system_labels.of(each), self._account(each))
