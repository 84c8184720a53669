"""Limits what one GraphQL request may ask for: its depth, its aliases, and how many values it may make.

Each fragment is counted once and its sums are reused, so the counting takes no time proportional to what fragments
expand to. It precedes validation, whose rules compare fields with each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from graphql import (
    DocumentNode,
    FieldNode,
    FragmentDefinitionNode,
    FragmentSpreadNode,
    IntValueNode,
    OperationDefinitionNode,
    SelectionSetNode,
    ValueNode,
    VariableNode,
)

from chain.errors import Invalid

MAX_SOURCE: Final = 64 * 1024
"""Most characters of a query; manifests are passed as variables."""
MAX_TOKENS: Final = 4_000
MAX_DEPTH: Final = 20
"""Most levels of fields within fields; what tools ask about the schema has 14."""
MAX_ALIASES: Final = 30
"""Most fields that are asked for under another name than their own, counted each time."""
MAX_COST: Final = 20_000
"""Most values that an answer may have; the fields of a list count as often as its page is long."""
MAX_PAGE: Final = 500
DEFAULT_PAGE: Final = 50
PAGED: Final = {"resources": "first", "datasets": "first", "blocks": "first", "rows": "last"}
"""Fields that are lists, each with the argument that bounds its length."""
WEIGHTS: Final = {"blocks": 10, "rows": 20, "schema": 5, "detail": 20, "apply": 500, "rename": 500, "delete": 500}
"""The cost of a field in addition to its values: a read of a chain or a file, or a change."""


class Size(NamedTuple):
    """The size of a selection of fields."""

    depth: int
    aliases: int
    cost: int


def check_size(document: DocumentNode, variables: Mapping[str, Any]) -> None:
    """Raises Invalid for an operation that is too deep, has too many aliases, or may make too many values."""
    count = _Count(document, variables)
    for definition in document.definitions:
        if isinstance(definition, OperationDefinitionNode):
            found = count.selection(definition.selection_set)
            for what, size, most in (
                ("levels of fields", found.depth, MAX_DEPTH),
                ("aliases", found.aliases, MAX_ALIASES),
                ("values", found.cost, MAX_COST),
            ):
                if size > most:
                    raise Invalid(f"the query has more than {most} {what}", rule="graphql-limit", hint="ask for less")


class _Count:
    """Counts the selections of one document."""

    def __init__(self, document: DocumentNode, variables: Mapping[str, Any]) -> None:
        fragments = [
            definition for definition in document.definitions if isinstance(definition, FragmentDefinitionNode)
        ]
        self._fragments = {fragment.name.value: fragment for fragment in fragments}
        self._known: dict[str, Size] = {}
        self._open: set[str] = set()
        self._variables = variables

    def selection(self, selected: SelectionSetNode | None, level: int = 0) -> Size:
        if level > 2 * MAX_DEPTH:  # nested inline fragments are no deeper fields, but they deepen our own stack
            raise Invalid(f"the query has more than {MAX_DEPTH} levels of fields", rule="graphql-limit")
        depth = aliases = cost = 0
        for each in selected.selections if selected is not None else ():
            if isinstance(each, FieldNode):
                below = self.selection(each.selection_set, level + 1)
                found = Size(
                    below.depth + 1, below.aliases, WEIGHTS.get(each.name.value, 1) + self._times(each) * below.cost
                )
                aliases += each.alias is not None and each.alias.value != each.name.value
            elif isinstance(each, FragmentSpreadNode):
                found = self._fragment(each.name.value, level + 1)
            else:
                found = self.selection(each.selection_set, level + 1)  # type: ignore[attr-defined]
            depth, aliases, cost = max(depth, found.depth), aliases + found.aliases, cost + found.cost
        return Size(depth, aliases, cost)

    def _fragment(self, name: str, level: int) -> Size:
        """Returns the size of a fragment, zero for a missing one, which validation reports.

        Raises Invalid for a cycle.
        """
        if name in self._open:
            raise Invalid(f"the fragment {name[:80]} is within itself", rule="graphql-limit", hint="take it out")
        if name not in self._known and name in self._fragments:
            self._open.add(name)
            self._known[name] = self.selection(self._fragments[name].selection_set, level)
            self._open.discard(name)
        return self._known.get(name, Size(0, 0, 0))

    def _times(self, field: FieldNode) -> int:
        """Returns how many values a field may have: the length of its page, or 1."""
        argument = PAGED.get(field.name.value)
        if argument is None:
            return 1
        given = [each.value for each in field.arguments or () if each.name.value == argument]
        return self._number(given[0]) if given else DEFAULT_PAGE

    def _number(self, value: ValueNode) -> int:
        said: Any = None
        if isinstance(value, IntValueNode):
            said = int(value.value[:10])
        elif isinstance(value, VariableNode):
            said = self._variables.get(value.name.value)
        return min(max(said, 1), MAX_PAGE) if isinstance(said, int) else MAX_PAGE
