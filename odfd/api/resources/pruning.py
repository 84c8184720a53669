"""Deletes what an apply leaves out: sets and flows with the labels that a person named, of which no manifest speaks.

Only those that a manifest made. Datasets, and intents to hold data of others, go by commands of their own alone: it is
too easy to leave a file out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Final

from odfd.api.resources.declarations import DeclarationService
from odfd.control import wire

PRUNED: Final = ("VariableSet", "SecretSet", "Flow")


class Pruning:
    """Finds and deletes them."""

    def __init__(self, declarations: DeclarationService, delete_flow: Callable[[str], Awaitable[object]]) -> None:
        self._declarations = declarations
        self._delete_flow = delete_flow

    async def prune(self, selector: str, named: Collection[tuple[str, str]], *, dry_run: bool) -> list[wire.ApplyItem]:
        """``named``: types and names in lower case that stay. Raises Invalid for what is no selector."""
        items = []
        for each in await self._declarations.list(None, selector):
            if (each.type, each.name.casefold()) in named or each.spec is None:
                continue
            kind = each.type.lower()
            if each.type not in PRUNED:
                told = f"it is not pruned: odfctl delete {kind} {each.name}"
                items.append(
                    wire.ApplyItem(kind=kind, name=each.name, action="unchanged", id=each.id, warnings=(told,))
                )
                continue
            if not dry_run and each.type == "Flow":
                await self._delete_flow(each.name)
            elif not dry_run:
                await self._declarations.delete(each.type, each.name)
            items.append(wire.ApplyItem(kind=kind, name=each.name, action="deleted", id=each.id))
        return items
