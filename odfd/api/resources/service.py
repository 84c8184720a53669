"""Shows resources that are not declared along with those that are: the node, its engines, and running tasks.

They live as long as the daemon and have no events in the log. A watch reports all of them when it begins, even from a
version, and then each change that it sees; a change that was undone before it looked is never reported.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Literal

from chain.errors import Refused
from chain.wording import a
from odfd.api.resources.declarations import DeclarationService
from odfd.api.resources.pages import ResourcePage, page_after, rest_after
from odfd.api.resources.views import with_state
from odfd.api.resources.watches import News
from odfd.control import wire
from odfd.control.shared_encoding import SharedValue
from odfd.resources.resource import Resource
from odfd.resources.selectors import matches, parse_selector
from odfd.runtime.subjects import Sees


class ResourceService(DeclarationService):
    """The API service for all resources, declared or not."""

    live: Mapping[str, Callable[[], Sequence[Resource]]] = {}
    """By type: lists the undeclared resources; set where the services are joined. Leaves out declared names."""

    async def list(self, word: str | None, labels: str | None) -> Sequence[wire.ResourceView]:
        """Lists resources as ``DeclarationService.list``, and undeclared ones if their type is asked for."""
        declared = await super().list(word, labels)
        if word is None or not (live := self._live(word)):
            return declared
        selector = None if labels is None else parse_selector(labels)
        found = [self._view(each) for each in live if selector is None or matches(selector, each.name, each.labels)]
        return sorted([*declared, *found], key=_key)

    async def page(self, word: str, labels: str | None, limit: int, rest: str | None) -> ResourcePage:
        """Returns a page of a type, declared or not."""
        if self._type(word).name not in self.live:
            return await super().page(word, labels, limit, rest)
        first = await super().page(word, labels, 1, None)
        version, after = (first.version, "") if rest is None else page_after(rest, (first.type, labels))
        left = [each for each in await self.list(word, labels) if _key(each) > after]
        more = rest_after(version, (first.type, labels), left[limit - 1].name) if len(left) > limit else None
        return ResourcePage(version, tuple(left[:limit]), more, first.type)

    async def get(self, word: str, name: str) -> wire.ResourceView:
        """Returns a resource by name, id or did. Raises NotFound."""
        found = self._alive(word, name)
        return await super().get(word, name) if found is None else self._view(found)

    async def stated(self, views: Sequence[wire.ResourceView], sees: Sees | None = None) -> Sequence[wire.ResourceView]:
        """Returns resources with what only the running node knows of them. ``sees``: as of ``Controller.states``."""
        states: dict[str, wire.Value] = {}
        for type_ in {each.type for each in views}:
            states |= await self.controllers.of(type_).states([each for each in views if each.type == type_], sees)
        return [with_state(each, states[each.id]) if each.id in states else each for each in views]

    async def label(self, word: str, name: str, request: wire.LabelRequest) -> wire.ResourceView:
        """Labels a declared resource. Raises NotFound, Invalid; Refused for one that is not declared."""
        if self._alive(word, name) is not None:
            raise self._undeclared(word, name, "has no labels of yours")
        return await super().label(word, name, request)

    async def check_generation(self, word: str, name: str, generation: int) -> None:
        """Checks the generation of a declared resource. Raises NotFound; Conflict for another generation."""
        if self._alive(word, name) is None:
            await super().check_generation(word, name, generation)

    async def delete(
        self, word: str, name: str, generation: int | None = None, *, force: bool = False
    ) -> wire.ResourceView:
        """Deletes a declared resource.

        Raises as ``DeclarationService.delete``; Refused for one that is not declared.
        """
        if self._alive(word, name) is not None:
            raise self._undeclared(word, name, "is not deleted")
        return await super().delete(word, name, generation, force=force)

    async def news(self, since: str | None, word: str | None, *, ticks: bool = False) -> AsyncGenerator[News, None]:
        """Yields news as ``DeclarationService.news``, and those of undeclared resources if their type is asked for."""
        kind = None if word is None else self._type(word).name
        if word is None or kind not in self.live:
            async with aclosing(super().news(since, word, ticks=ticks)) as plain:
                async for each in plain:
                    yield each
            return
        told: dict[str, Resource] = {}
        has_begun = False
        async with aclosing(super().news(since, word, ticks=True)) as declared:
            async for each in declared:
                if each.value.resource is None:
                    for change in self._changes(word, told, each.value.version):
                        yield SharedValue(change)
                if each.value.resource is not None or ticks or not has_begun:
                    yield each
                has_begun = has_begun or each.value.resource is None

    async def watch(self, since: str | None, word: str | None) -> AsyncGenerator[wire.ResourceNews, None]:
        """Yields the changes of ``news``, each as a plain value."""
        async with aclosing(self.news(since, word)) as news:
            async for each in news:
                yield each.value

    def _changes(self, word: str, told: dict[str, Resource], version: str) -> Iterator[wire.ResourceNews]:
        """Yields the differences between ``told`` and the present resources, and updates ``told``."""
        now = {each.id: each for each in self._live(word)}
        for id_ in [each for each in told if each not in now]:
            yield wire.ResourceNews(version=version, op="Deleted", resource=self._view(told.pop(id_)))
        for id_, each in now.items():
            before = told.get(id_)
            told[id_] = each
            if before != each:
                op: Literal["Added", "Modified"] = "Added" if before is None else "Modified"
                yield wire.ResourceNews(version=version, op=op, resource=self._view(each))

    def _live(self, word: str) -> Sequence[Resource]:
        find = self.live.get(self._type(word).name)
        return () if find is None else find()

    def _alive(self, word: str, name: str) -> Resource | None:
        key = name.casefold()
        return next((each for each in self._live(word) if key in (each.name.casefold(), each.id)), None)

    def _undeclared(self, word: str, name: str, text: str) -> Refused:
        kind = self._type(word)
        what = f"{kind.name} {name[:80]} {text}: {a(kind.name)} is made by {kind.made_by}"
        return Refused(what, rule="derived-type", hint=kind.instead)


def _key(view: wire.ResourceView) -> str:
    return view.name.casefold()
