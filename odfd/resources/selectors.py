"""Selects resources by patterns of names, by labels (``env=prod,!old``), and by RFC-018's filters of labels. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

from chain.errors import Invalid
from odfd.resources.resource import Json, canonical

MAX_DEPTH: Final = 16
_WILD: Final = {"%": ".*", "_": "."}
"""Wildcards in patterns of names, as regular expressions; no name contains one."""
_HINT: Final = "like -l 'env=prod,team in (a,b),!old'"
_TERM: Final = re.compile(
    r"\s*(?:(?P<not>!)\s*(?P<absent>[^\s=!,()]+)"
    r"|(?P<in>[^\s=!,()]+)\s+(?P<notin>not)?(?:in)\s*\((?P<list>[^()]*)\)"
    r"|(?P<key>[^\s=!,()]+)\s*(?:(?P<op>!=|==?)\s*(?P<value>[^,()]*?))?)\s*(?:,|\Z)"
)
LabelFilter = dict[str, Any]
"""A filter such as ``{env: prod, $not: {…}, $or: […], $and: […]}``.

For one key also ``{$in: […]}`` and ``{$exists: true}``.
"""


@lru_cache(maxsize=1024)
def name_pattern(text: str) -> re.Pattern[str]:
    """Compiles a pattern of names, in which ``%`` stands for any text and ``_`` for one character."""
    return re.compile("".join(_WILD.get(each, re.escape(each)) for each in text), re.IGNORECASE)


def names(patterns: Iterable[str], name: str) -> bool:
    """Whether a name matches one of the patterns."""
    return any(name_pattern(each).fullmatch(name) for each in patterns)


def parse_selector(text: str) -> LabelFilter:
    """Parses a selector of labels, the argument of ``-l``. Raises Invalid."""
    terms: list[LabelFilter] = []
    at = 0
    while at < len(text):
        found = _TERM.match(text, at)
        if found is None or found.end() == at:
            raise Invalid(f"not a selector of labels at {text[at:][:40]!r}", rule="label-selector", hint=_HINT)
        terms.append(_term(found))
        at = found.end()
    if not terms:
        raise Invalid("an empty selector of labels", rule="label-selector", hint=_HINT)
    return terms[0] if len(terms) == 1 else {"$and": terms}


def _term(found: re.Match[str]) -> LabelFilter:
    if found["absent"]:
        return {found["absent"]: {"$exists": False}}
    if found["in"]:
        among = {found["in"]: {"$in": [each.strip() for each in found["list"].split(",") if each.strip()]}}
        return {"$not": among} if found["notin"] else among
    if found["op"] is None:
        return {found["key"]: {"$exists": True}}
    same = {found["key"]: found["value"]}
    return {"$not": same} if found["op"] == "!=" else same


def matches(wanted: LabelFilter, labels: Mapping[str, Json], depth: int = 0) -> bool:
    """Whether labels match a filter. Raises Invalid for a malformed filter."""
    if depth > MAX_DEPTH:
        raise Invalid(f"a filter nested deeper than {MAX_DEPTH}", rule="label-selector")
    return all(_holds(key, value, labels, depth) for key, value in wanted.items())


def first_equality(wanted: LabelFilter) -> tuple[str, Json] | None:
    """Returns a label with the value that every match has, for a lookup by an index; ``None`` if there is none."""
    for key, value in wanted.items():
        if key == "$and":
            found = next((found for each in value if (found := first_equality(each)) is not None), None)
            if found is not None:
                return found
        elif not key.startswith("$") and not isinstance(value, Mapping):
            return key, value
    return None


def _holds(key: str, value: Any, labels: Mapping[str, Json], depth: int) -> bool:
    match key:
        case "$not":
            return not matches(value, labels, depth + 1)
        case "$and":
            return all(matches(each, labels, depth + 1) for each in value)
        case "$or":
            return any(matches(each, labels, depth + 1) for each in value)
    if key.startswith("$"):
        known = "$not, $and, $or"
        raise Invalid(f"unknown operator {key[:40]!r} in a filter", rule="label-selector", hint=f"known are {known}")
    if not isinstance(value, Mapping):
        return key in labels and _same(labels[key], value)
    return all(_asked(key, operator, operand, labels) for operator, operand in value.items())


def _asked(key: str, operator: str, operand: Any, labels: Mapping[str, Json]) -> bool:
    if operator == "$in" and isinstance(operand, list):
        return key in labels and any(_same(labels[key], each) for each in operand)
    if operator == "$exists" and isinstance(operand, bool):
        return (key in labels) is operand
    raise Invalid(f"unknown operator {operator[:40]!r} of {key}", rule="label-selector", hint="known are $in, $exists")


def _same(held: Json, asked: Json) -> bool:
    """Whether two values are equal as JSON; a text also equals the number or boolean that is written so."""
    return canonical(held) == canonical(asked) or (isinstance(asked, str) and canonical(held) == asked)
