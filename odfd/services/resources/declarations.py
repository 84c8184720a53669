"""Keeps and shows resources: plans applies, and lists, labels, deletes and watches resources.

Some are not declared: the node, its engines, and running tasks. They live as long as the daemon and have no events in
the log. A watch reports all of them when it begins, even from a version, and then each change that it sees; a change
that was undone before it looked is never reported.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import trio

from chain.errors import Invalid, NotFound, Refused
from chain.wording import a
from odfd.control import wire
from odfd.control.assembly import Context
from odfd.control.operations import Owner, Permission, operation
from odfd.control.responses import SharedValue
from odfd.resources.controller import Controllers
from odfd.resources.label_schemas import by_short_name
from odfd.resources.manifest import wrong_entries
from odfd.resources.owners import owned_fault
from odfd.resources.plan import APPLY, LABEL, check_generation
from odfd.resources.reader import ambiguous, place
from odfd.resources.registry import VERSION
from odfd.resources.resource import ACCOUNT, Resource, account_handle
from odfd.resources.selectors import first_equality, matches, parse_selector
from odfd.resources.sets import sealed_values
from odfd.resources.store import ResourceStore
from odfd.resources.types import ResourceType
from odfd.runtime.hanging_calls import invoke
from odfd.runtime.subjects import Sees, Subjects, about
from odfd.services.resources.pages import ResourcePage, ResourcePages, page_after, rest_after
from odfd.services.resources.planning import PartsKeeper, contradictions, meant_by, renew
from odfd.services.resources.views import view_of, with_state
from odfd.services.resources.watches import News, ResourceWatches
from odfd.store.catalog import DatasetResources
from odfd.store.directory import StateDirectory

UNINDEXED: Final = frozenset(("did",))
"""Labels that are in no index: a resource is found by its did anyway."""


async def _at_once(_: str) -> None:
    """Waits for nothing, where nobody undoes."""


class Surroundings(NamedTuple):
    """Holds the parts of a running node that act on its resources."""

    controllers: Controllers = Controllers()
    """They judge changes and deletions."""
    live: Mapping[str, Callable[[], Awaitable[Sequence[Resource]]]] = {}
    """By type: lists the undeclared resources, without declared names."""
    undone: Callable[[str], Awaitable[None]] = _at_once
    """Waits until what a deleted resource made is undone, given its id."""


T = TypeVar("T")


class DeclarationService:
    """The API service that lists, labels, deletes and watches resources."""

    def __init__(
        self, home: StateDirectory, context: Context, parts: PartsKeeper, around: Surroundings | None = None
    ) -> None:
        self._home = home
        self._clock, self._events = context.clock, context.events
        self._parts, self._registry = parts, parts.registry
        self.controllers, self.live, self._undone = around or Surroundings()
        self._watches = ResourceWatches(
            home, context.events, view=self._view, is_listed=self._is_listed
        )  # fmt: skip
        self._pages = ResourcePages(
            home, views=self._views, labels=self.labels_of, system=UNINDEXED
        )  # fmt: skip
        self.unlisted = tuple(each.name for each in self._registry if each.is_derived)
        """Types that are listed only if asked for by name: the elements of sets."""

    def labels_of(self, each: Resource) -> Mapping[str, Any]:
        """Returns the labels that people set of a resource, and those that the node sets. Blocking."""
        return {**each.labels, **self.controllers.of(each.type).labels(each)}

    @operation("GET", f"/config/{VERSION}/keys", needs=Permission.FREE)
    def secret_key(self) -> wire.SecretKey:
        """Returns the public key with which others seal secrets for this node. Raises Environment."""
        return wire.SecretKey(**self._home.secrets.public())

    @operation("POST", f"/config/{VERSION}/keys" + "/rotation", needs=Owner.KEYS)
    def rotate_secrets(self) -> wire.SecretRotation:
        """Seals all secrets to a new key, and destroys the old one. Raises Environment if one cannot be opened.

        After a crash all still open, and the next rotation goes on.
        """
        keys, count = self._home.secrets, 0
        keys.begin_rotation()
        with self._home.database.write() as connection:
            store = self._parts.store(connection)
            for kind in self._registry:
                for each in store.all(kind.name) if kind.sealed else ():
                    renew(store, each, kind.sealed, keys, self._clock.now())
                    count += len(sealed_values(kind.sealed, each.spec))
        keys.end_rotation()
        self._events.emit("secret.rotated", "", f"{count} values are sealed to a new key")
        return wire.SecretRotation(values=count)

    @operation(needs=Permission.BY_RULE)
    async def list(self, word: str | None, labels: str | None) -> Sequence[wire.ResourceView]:
        """Lists resources of one type or all; undeclared ones only of one type.

        Raises NotFound for a type, Invalid for a selector.
        """
        kind = None if word is None else self._registry.find_served(word)
        selector = None if labels is None else parse_selector(labels)
        return await self._beside_live(kind, partial(self._list, kind, selector))

    def writers(self) -> Mapping[str, str]:
        """Returns the manager that wrote the spec of each resource, by the resource's id."""
        with self._home.database.read() as connection:
            return {each.id: each.managers.get("spec", APPLY) for each in ResourceStore(connection).all()}

    @operation(needs=Permission.BY_RULE, is_watched=True)
    async def page(self, word: str, labels: str | None, limit: int, rest: str | None) -> ResourcePage:
        """Returns a page of a type. Raises NotFound for the type; Usage and Invalid as ``ResourcePages.page``."""
        kind = self._registry.find_served(word)
        return await self._beside_live(kind, partial(self._page, kind, labels, limit, rest))

    def _page(
        self, kind: ResourceType, labels: str | None, limit: int, rest: str | None, alive: Sequence[Resource]
    ) -> ResourcePage:
        declared = self._pages.page(kind.name, labels, limit, rest)
        if kind.name not in self.live:
            return declared
        after = "" if rest is None else page_after(rest, (kind.name, labels))
        live = self._beside(alive, labels)
        last = None if declared.rest is None else _place(declared.views[-1])
        met = (each for each in live if after < _place(each) and (last is None or _place(each) <= last))
        found = sorted([*declared.views, *met], key=_place)
        has_more = len(found) > limit or declared.rest is not None
        more = rest_after(declared.version, (kind.name, labels), _place(found[:limit][-1])) if has_more else None
        return msgspec.structs.replace(declared, views=tuple(found[:limit]), rest=more)

    def _beside(self, live: Sequence[Resource], labels: str | None) -> Sequence[wire.ResourceView]:
        """Returns those of some undeclared resources that a selector selects, and that nothing declares."""
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            free = [each for each in live if each.did is None or store.with_did(each.type, each.did) is None]
        selector = None if labels is None else parse_selector(labels)
        return [self._view(each) for each in free if selector is None or matches(selector, each.name, each.labels)]

    @operation(needs=Permission.BY_RULE)
    async def get(self, word: str, name: str) -> wire.ResourceView:
        """Returns a resource by name, id or did. Raises NotFound."""
        kind = self._registry.find_served(word)
        return await self._beside_live(
            kind, lambda live: self._view(self._find_alive(live, kind, name) or self._find(kind, name))
        )

    @operation(needs=Permission.BY_RULE)
    async def label(self, word: str, name: str, request: wire.LabelRequest) -> wire.ResourceView:
        """Sets labels and annotations, or removes those that are ``null``.

        Raises NotFound, Invalid; Refused for one that is not declared.
        """
        kind = self._registry.find_served(word)
        view = await self._beside_live(kind, lambda live: self._view(self._label(live, kind, name, request)))
        self._events.emit("resource.labelled", view.name, view.type, about=about(view.id))
        return view

    @operation(needs=Permission.BY_RULE)
    async def delete(
        self, word: str, name: str, generation: int | None = None, *, force: bool = False, purge: bool = False
    ) -> wire.ResourceView:
        """Deletes a declared resource, and waits until its effects are undone, or could not be and are tried later.

        ``force`` deletes also one that another resource made; ``purge`` the data of a dataset too. Raises NotFound;
        Refused as the controller of its type does, and for what is not declared; Conflict as ``plan`` does.
        """
        kind = self._registry.find_served(word)
        view = await self._beside_live(
            kind, lambda live: self._view(self._delete(live, kind, name, generation, force=force, purge=purge))
        )
        self._events.emit("resource.deleted", view.name, view.type, about=about(view.id))
        await self._undone(view.id)
        return view

    @operation(needs=Permission.BY_RULE)
    async def stated(self, views: Sequence[wire.ResourceView], sees: Sees | None = None) -> Sequence[wire.ResourceView]:
        """Returns resources with what only the running node knows of them. ``sees``: as of ``Controller.states``."""
        states: dict[str, wire.Value] = {}
        for type_ in {view.type for view in views}:
            of_type = [view for view in views if view.type == type_]
            states |= await invoke(self.controllers.of(type_).states, of_type, sees)
        return [with_state(view, states[view.id]) if view.id in states else view for view in views]

    async def subjects(self, views: Sequence[wire.ResourceView]) -> Mapping[str, Sequence[Subjects]]:
        """Returns what resources are about (``Controller.subjects``), by id."""
        found: dict[str, Sequence[Subjects]] = {}
        for type_ in {view.type for view in views}:
            found |= await self.controllers.of(type_).subjects([view for view in views if view.type == type_])
        return found

    async def watch(self, since: str | None, word: str | None) -> AsyncGenerator[wire.ResourceNews, None]:
        """Yields the changes of ``news``, each as a plain value."""
        async with aclosing(self.news(since, word)) as news:
            async for each in news:
                yield each.value

    @operation(needs=Permission.BY_RULE, is_watched=True)
    async def news(self, since: str | None, word: str | None, *, ticks: bool = False) -> AsyncGenerator[News, None]:
        """Yields the present resources of one type or all and a bookmark if ``since`` is absent; then each change.

        Undeclared ones only of one type. Raises NotFound for a type; Invalid for a version of another log, after which
        a reader lists anew.
        """
        kind = None if word is None else self._registry.find_served(word)
        is_live = kind is not None and kind.name in self.live
        told: dict[str, Resource] = {}
        has_begun = False
        declared = self._watches.news(since, None if kind is None else kind.name, ticks=ticks or is_live)
        async with aclosing(declared):
            async for each in declared:
                is_mark = each.value.resource is None
                if kind is not None and is_live and is_mark:
                    look = partial(self._changes, told, each.value.version)
                    for change in await self._beside_live(kind, look):
                        yield SharedValue(change)
                if not (is_live and is_mark and has_begun) or ticks:
                    yield each
                has_begun = has_begun or is_mark

    def _changes(
        self, told: dict[str, Resource], version: str, live: Sequence[Resource]
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

    async def _beside_live(self, kind: ResourceType | None, call: Callable[[Sequence[Resource]], T]) -> T:
        """Calls a function that blocks with the undeclared resources of a type, which only the running node knows."""
        find = None if kind is None else self.live.get(kind.name)
        live = () if find is None else await find()
        return await trio.to_thread.run_sync(call, live)

    def _find_alive(self, live: Sequence[Resource], kind: ResourceType, name: str) -> Resource | None:
        """Returns the undeclared resource that is meant, unless what it stands for is declared.

        Raises Invalid for a name that several accounts have, and the node's owner has not.
        """
        keys = {name.casefold(), name, kind.object_named(name)}
        several = [each for each in live if keys & {each.key, each.id, each.did}]
        owner, _, own_name = name.casefold().rpartition("/")
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            if owner:
                of = [each for each in live if each.key == own_name and each.account is not None]
                several += [each for each in of if store.account_name(each.account or "").casefold() == owner]
            found = next((each for each in several if each.account is None or len(several) == 1), None)
            if several and found is None:
                raise ambiguous(store, kind.name, name, several)
        if found is not None:
            with suppress(NotFound):
                self._find(kind, found.did or name)
                return None
        return found

    def _check_declared(self, live: Sequence[Resource], kind: ResourceType, name: str, text: str) -> None:
        """Raises Refused for a resource that is not declared. ``text``: what it cannot have, or be."""
        if self._find_alive(live, kind, name) is not None:
            what = f"{kind.name} {name[:80]} {text}: {a(kind.name)} is made by {kind.made_by}"
            raise Refused(what, rule="derived-type", hint=kind.instead)

    def _is_listed(self, type_: str, asked: str | None) -> bool:
        """Whether a resource of this type is listed in answer to a request for one type, or for all."""
        return type_ == asked or (asked is None and type_ not in self.unlisted)

    def id_of(self, word: str, name: str) -> str:
        """Returns the id of a resource by name, id or did; or of the last deleted one of a name. Raises NotFound."""
        kind = self._registry.find_served(word)
        with self._home.database.read() as connection:
            store = ResourceStore(connection)
            try:
                return meant_by(store, kind, name).id
            except NotFound:
                gone = store.find_deleted(kind.name, name)
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
        return self._views(
            each for each in told if selector is None or matches(selector, each.name, self.labels_of(each))
        )

    def _find(self, kind: ResourceType, name: str) -> Resource:
        with self._home.database.read() as connection:
            return meant_by(DatasetResources(connection), kind, name, is_read=True)

    def _label(self, live: Sequence[Resource], kind: ResourceType, name: str, request: wire.LabelRequest) -> Resource:
        self._check_declared(live, kind, name, "has no labels of yours")
        with self._home.database.write() as connection:
            store, now = self._parts.store(connection), self._clock.now()
            before = meant_by(store, kind, name)
            after = _change_labels(before, request)
            for path, message, rule, hint in wrong_entries(kind.name, after.labels, after.annotations):
                raise Invalid(f"{path}: {message}", rule=rule, hint=hint)
            for fault in contradictions(after, self.controllers.of(kind.name), lambda _: ""):
                raise fault
            if after == before:
                return before
            self.controllers.check(before, after)
            after = msgspec.structs.replace(after, generation=before.generation + 1, updated_at=now)
            store.put(after, now)
        return after

    def _delete(
        self, live: Sequence[Resource], kind: ResourceType, name: str, generation: int | None, *, force: bool,
        purge: bool,
    ) -> Resource:  # fmt: skip
        self._check_declared(live, kind, name, "is not deleted")
        with self._home.database.write() as connection:
            store = self._parts.store(connection)
            found = meant_by(store, kind, name)
            if generation is not None:
                check_generation(found, generation, found.name)
            if found.owners and not force:
                raise owned_fault(found)
            self.controllers.check(found, None)
            with self.controllers.of(kind.name).deletion(connection, found, purge=purge):
                store.delete(found, self._clock.now())
            if kind.sealed:
                store.blank(found.id)
        return found

    def _handle(self, account: str) -> dict[str, str]:
        """Returns the handle of an account by its id. Blocking."""
        with self._home.database.read() as connection:
            held = ResourceStore(connection).get(account)
        return account_handle(account, account) if held is None else account_handle(held.id, held.name, held.spec)

    @functools.cached_property
    def owner(self) -> dict[str, str]:
        """The handle of the account of the node's owner. Blocking."""
        with self._home.database.read() as connection:
            return ResourceStore(connection).owner()

    def _view(self, each: Resource) -> wire.ResourceView:
        """Shows a resource. Blocking, since a system label may be read from a chain."""
        return self._views([each])[0]

    def _views(self, resources: Iterable[Resource]) -> Sequence[wire.ResourceView]:
        """Shows resources; reads each account that has some once."""
        handle = functools.cache(self._handle)
        found = []
        for resource in resources:
            owner = (
                self.owner if resource.type != ACCOUNT else account_handle(resource.id, resource.name, resource.spec)
            )
            account = owner if resource.account is None else handle(resource.account)
            kind, labels = (
                self._registry.find_served(resource.type),
                self.controllers.of(resource.type).labels(resource),
            )
            found.append(view_of(resource, kind, labels, account))
        return found


def _change_labels(before: Resource, request: wire.LabelRequest) -> Resource:
    """Returns a resource with labels and annotations set by hand; their manager is ``LABEL``."""
    managers = dict(before.managers)
    parts: dict[str, dict[str, Any]] = {}
    for part, said in (("labels", by_short_name(request.labels)), ("annotations", request.annotations)):
        values = dict(getattr(before, part))
        for key, value in said.items():
            if value is None:
                values.pop(key, None)
                managers.pop(f"{part}.{key}", None)
            elif values.get(key) != value:
                values[key] = value
                managers[f"{part}.{key}"] = LABEL
        parts[part] = values
    return msgspec.structs.replace(before, managers=managers, **parts)


def _place(view: wire.ResourceView) -> str:
    return place(view.name, view.id)
