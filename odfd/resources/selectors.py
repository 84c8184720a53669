"""Selects resources by patterns of names, by labels (``env=prod,!old``), and by RFC-018's filters of labels. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from chain.codec.bind import Mistake, plain
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.ids import parse_own_name
from odfd.resources.label_schemas import DATASET_KIND, short_name
from odfd.resources.resource import Json, canonical
from odfd.resources.types import Remarks

MAX_DEPTH: Final = 16
NAME: Final = "$name"
"""The operator of a filter that selects by a pattern of names."""
TARGETS: Final = "x-targets"
"""Marks a field of ``Targets`` in schemas."""
_DATASET: Final = "Dataset:"
_WILD: Final = "%_"
"""Wildcards in patterns of names; no name contains one."""
_PATTERN: Final = re.compile(r"[A-Za-z0-9.\-%_]{1,100}\Z")
_HINT: Final = "like -l 'env=prod,team in (a,b),!old'"
_JSON_HINT: Final = """like -l '{"$or": [{"env": "prod"}, {"$not": {"team": {"$in": ["a", "b"]}}}]}'"""
_WORD: Final = re.compile(r"[^\s=!,(){}\[\]$]+")
_OPERANDS: Final = {"$in": list, "$exists": bool}
_TERM: Final = re.compile(
    r"\s*(?:(?P<not>!)\s*(?P<absent>[^\s=!,()]+)"
    r"|(?P<in>[^\s=!,()]+)\s+(?P<notin>not)?(?:in)\s*\((?P<list>[^()]*)\)"
    r"|(?P<key>[^\s=!,()]+)\s*(?:(?P<op>!=|==?)\s*(?P<value>[^,()]*?))?)\s*(?:,|\Z)"
)
LabelFilter = dict[str, Any]
"""A filter such as ``{env: prod, $not: {…}, $or: […], $and: […], $name: "nyc.%"}``.

For one key also ``{$in: […]}`` and ``{$exists: true}``.
"""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects datasets by name, labels and account: what a target with a pattern means."""

    name: str
    """A pattern: ``%`` stands for any text, ``_`` for one character."""
    labels: str | None = None
    """A selector of labels, as it is written after ``-l``."""
    account: str | None = None
    """The name of the account that owns them; ``None``: of whoever."""

    def __str__(self) -> str:
        name = self.name if self.account is None else f"{self.account}/{self.name}"
        return name if self.labels is None else f"{name} ({self.labels})"


Facts: TypeAlias = tuple[Mapping[str, Json], str | None]
"""What else than its name selects a dataset: all its labels, and the name of its account, ``None`` for the owner's."""
Targets: TypeAlias = Annotated[
    tuple[str, ...],
    msgspec.Meta(extra_json_schema={TARGETS: True, "items": {"type": ["string", "object"]}}),
]
"""The type of a field that selects datasets by a list of targets.

Each is an object as the target of a Flow, ``{account, name, labels}``, or the text ``[ACCOUNT/]PATTERN[ SELECTOR]``,
which stands for it: ``nyc.%``, ``% env=prod``, ``% {"$or": …}``.
"""
TARGETS_HELP: Final = (
    "Names of datasets: % stands for any text, _ for one character. Also {name: PATTERN, labels: …, account: …}, or "
    "'PATTERN SELECTOR', as the target of a Flow."
)


def parse_target(text: str) -> Selection:
    """Parses one of ``Targets``. Raises Invalid."""
    named, _, labels = text.strip().partition(" ")
    account, _, pattern = named.removeprefix(_DATASET).rpartition("/")
    if account:
        parse_own_name(account)
    if labels:
        parse_selector(labels)
    return Selection(name=parse_pattern(pattern), labels=labels or None, account=account or None)


@lru_cache(maxsize=1024)
def _target(text: str) -> Selection | None:
    try:
        return parse_target(text)
    except Invalid:
        return None  # of before they were checked; no name matches it


def means(targets: Iterable[str], name: str, facts: Callable[[], Facts]) -> bool:
    """Whether a dataset is one of some ``Targets``. ``facts`` is called if its name alone does not decide."""
    for each in map(_target, targets):
        if each is not None and names((each.name,), name):
            has_more = each.labels is not None or each.account is not None
            if not has_more or selects(each, name, *facts()):
                return True
    return False


def selects(selection: Selection, name: str, labels: Mapping[str, Json], account: str | None) -> bool:
    """Whether a dataset is selected. ``account``: the name of the account that owns it."""
    if selection.account is not None and selection.account.casefold() != (account or "").casefold():
        return False
    if not names((selection.name,), name):
        return False
    return selection.labels is None or matches(_labels(selection.labels), name, labels)


@lru_cache(maxsize=1024)
def _labels(text: str) -> LabelFilter:
    """Returns a selector as a filter; one is asked for each dataset whenever one changes."""
    return parse_selector(text)


def target_parts(node: Node, path: str, remarks: Remarks) -> tuple[Node, Node | None]:
    """Returns the reference of a target that is written as an object, and the text of its labels, if it has some."""
    assert isinstance(node.value, dict)
    said = dict(node.value)
    labels = said.pop("labels", None)
    reference = remarks.reference(Node(node.line, said), path, "Dataset")
    return reference, None if labels is None else _labels_text(labels, f"{path}.labels", remarks)


def in_text_form(node: Node, path: str, remarks: Remarks) -> Node:
    """Returns ``Targets``, before they are bound, with each that is an object as its text."""
    if not isinstance(node.value, list):
        return node
    return Node(node.line, [_text(each, f"{path}[{at}]", remarks) for at, each in enumerate(node.value)])


def _text(node: Node, path: str, remarks: Remarks) -> Node:
    if not isinstance(node.value, dict):
        return node
    reference, labels = target_parts(node, path, remarks)
    more = "" if labels is None else f" {labels.value}"
    return Node(node.line, f"{str(reference.value).removeprefix(_DATASET)}{more}")


def _labels_text(node: Node, path: str, remarks: Remarks) -> Node | None:
    said = plain(node)
    if isinstance(said, dict) and said.get("kind") in ("Root", "Derivative"):
        said = {DATASET_KIND if key == "kind" else key: each for key, each in said.items()}
        remarks.warnings.append(f"{path}.kind is read as {DATASET_KIND}, the label that the node gives")
    try:
        parse_filter(said)
    except Invalid as fault:
        remarks.mistakes.append(Mistake(path, node.line, fault.message, fault.rule, fault.hint))
        return None
    return Node(node.line, selector_text(said))


@lru_cache(maxsize=1024)
def name_pattern(text: str) -> re.Pattern[str]:
    """Compiles a pattern of names, in which ``%`` stands for any text and ``_`` for one character."""
    first, *others = ["".join("." if each == "_" else re.escape(each) for each in part) for part in text.split("%")]
    if not others:
        return re.compile(first, re.IGNORECASE)
    # The first place of each part is as good as any later one. The atomic group keeps it, so that time is linear in the
    # pattern: with plain ``.*``, fifty of which fit into a pattern, a request held the interpreter for hours.
    within = "".join(f"(?>.*?{other})" for other in others[:-1])
    return re.compile(f"{first}{within}.*{others[-1]}", re.IGNORECASE)


def names(patterns: Iterable[str], name: str) -> bool:
    """Whether a name matches one of the patterns."""
    return any(name_pattern(pattern).fullmatch(name) for pattern in patterns)


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern of names: it has a wildcard, which no name has."""
    return any(each in text for each in _WILD)


def parse_pattern(text: str) -> str:
    """Returns a pattern of names, in which ``%`` stands for any text and ``_`` for a character. Raises Invalid."""
    if _PATTERN.match(text) is None:
        hint = "% stands for any text and _ for one character: house.%"
        raise Invalid(f"not a pattern of names: {text[:80]!r}", rule="name-pattern", hint=hint)
    return text


def selecting(labels: str | None, name: str | None) -> str | None:
    """Returns one selector for a selector of labels and a pattern of names; ``None`` for neither. Raises Invalid."""
    if name is None:
        return labels
    by_name = {NAME: parse_pattern(name)}
    return canonical(by_name if labels is None else {"$and": [parse_selector(labels), by_name]})


def parse_selector(text: str) -> LabelFilter:
    """Parses a selector of labels, the argument of ``-l``: terms, or a filter as JSON. Raises Invalid."""
    if text.lstrip().startswith("{"):
        try:
            return parse_filter(json.loads(text))
        # The json module recurses: a few thousand brackets, which any reader may send, raise RecursionError.
        except (ValueError, RecursionError) as error:
            raise Invalid(f"not a filter in JSON: {error}", rule="label-selector", hint=_JSON_HINT) from error
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
    return parse_filter(terms[0] if len(terms) == 1 else {"$and": terms})


def parse_filter(wanted: Any, depth: int = 0) -> LabelFilter:
    """Returns a filter with the short names of labels. Raises Invalid if it is malformed, wherever that is."""
    if depth > MAX_DEPTH:
        raise Invalid(f"a filter nested deeper than {MAX_DEPTH}", rule="label-selector", hint=_JSON_HINT)
    if not isinstance(wanted, Mapping):
        raise Invalid("a filter is an object by labels", rule="label-selector", hint=_JSON_HINT)
    return {short_name(key): _parse(key, value, depth + 1) for key, value in wanted.items()}


def selector_text(wanted: LabelFilter) -> str:
    """Returns a filter as the argument of ``-l``: in terms if it is of equalities alone, else as JSON."""
    texts = {key: value if isinstance(value, str) else canonical(value) for key, value in wanted.items()}
    if all(_WORD.fullmatch(each) for pair in texts.items() for each in pair):
        return ",".join(f"{key}={value}" for key, value in texts.items())
    return canonical(wanted)


def _parse(key: str, value: Any, depth: int) -> Any:
    match key:
        case "$not":
            return parse_filter(value, depth)
        case "$name":
            if not isinstance(value, str):
                raise Invalid("$name has a pattern of names", rule="label-selector", hint=_JSON_HINT)
            return parse_pattern(value)
        case "$and" | "$or":
            if not isinstance(value, list) or not value:
                raise Invalid(f"{key} has a list of filters", rule="label-selector", hint=_JSON_HINT)
            return [parse_filter(each, depth) for each in value]
    if key.startswith("$"):
        known = "$not, $and, $or, $name"
        raise Invalid(f"unknown operator {key[:40]!r} in a filter", rule="label-selector", hint=f"known are {known}")
    for operator, operand in value.items() if isinstance(value, Mapping) else ():
        if not isinstance(operand, _OPERANDS.get(operator, ())):
            text = f"unknown operator {str(operator)[:40]!r} of {key}, or another operand than it has"
            raise Invalid(text, rule="label-selector", hint="known are {$in: [a, b]} and {$exists: true}")
    return value


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


def matches(wanted: LabelFilter, name: str, labels: Mapping[str, Json]) -> bool:
    """Whether a resource with this name and these labels matches a filter, as ``parse_filter`` returns it."""
    return all(_holds(key, value, name, labels) for key, value in wanted.items())


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


def _holds(key: str, value: Any, name: str, labels: Mapping[str, Json]) -> bool:
    match key:
        case "$not":
            return not matches(value, name, labels)
        case "$and":
            return all(matches(each, name, labels) for each in value)
        case "$or":
            return any(matches(each, name, labels) for each in value)
        case "$name":
            return names((value,), name)
    if not isinstance(value, Mapping):
        return key in labels and _same(labels[key], value)
    return all(_matches(key, operator, operand, labels) for operator, operand in value.items())


def _matches(key: str, operator: str, operand: Any, labels: Mapping[str, Json]) -> bool:
    if operator == "$in":
        return key in labels and any(_same(labels[key], each) for each in operand)
    return bool((key in labels) is operand)


def _same(held: Json, asked: Json) -> bool:
    """Whether two values are equal as JSON; a text also equals the number or boolean that is written so."""
    return canonical(held) == canonical(asked) or (isinstance(asked, str) and canonical(held) == asked)
