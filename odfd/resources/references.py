"""Finds the references in the spec of any type, and resolves them to ids. Pure.

Fields that hold references are marked with the type that they refer to (``refers_to``); one walk over the layout of a
class finds them all. A reference is an id, a did, or a name; together with its type it is a *key*, which is the same
however it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from chain.codec import layout
from chain.codec.bind import TAG
from chain.codec.layout import JsonObject, Kind, Table, Text, Union, Vector
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.ids import DID_ODF, DatasetId, parse_local_alias, parse_own_name
from chain.model.wire import REFERS_TO
from odfd.resources.registry import OF_ACCOUNTS, OWNER
from odfd.resources.resource import ACCOUNT, UUID, Json, Resource, ResourceHandle, handle_of
from odfd.resources.selectors import TARGETS, in_text_form
from odfd.resources.types import Remarks, beyond, notes_of

_DID: Final = "did:"
_TYPE: Final = re.compile(r"[A-Z][A-Za-z]{0,63}\Z", re.ASCII)
SETS: Final = ("SecretSet", "VariableSet")
"""Types of which a reference may name a part: ``SecretSet:hooks#key``."""
SELECTS: Final = "x-selects"
_WILD: Final = re.compile(r"[%_]")
"""Wildcards, which occur in patterns of names and in no name."""
_NAMED: Final = re.compile(r"[^:/]*\Z")
"""The name at the end of a reference, without type and account."""
OR: Final = "|"
ANY: Final = "resource"
"""Stands for a type in fields whose references state it: ``Dataset:sales``."""


class Reference(msgspec.Struct, frozen=True):
    """A reference: its place in the spec, its type, and its text."""

    path: str
    type: str
    text: str
    """The text as it was written."""

    @property
    def key(self) -> str:
        """The key of the reference. Raises Invalid."""
        return reference_key(self.text, self.type)


def refers_to(type_: str, *, selects: bool = False) -> msgspec.Meta:
    """Marks a field, or each text of a list, as a reference to a resource of a type.

    ``type_``: a type, or several with ``|`` between them, of which the first is meant by a name alone.
    ``selects``: it may also be a pattern of names, which is no reference.
    """
    return msgspec.Meta(extra_json_schema={REFERS_TO: type_, **({SELECTS: True} if selects else {})})


def references_of(cls: type[msgspec.Struct], value: Mapping[str, Json]) -> Sequence[Reference]:
    """Returns the references in the plain form of an instance of a class."""
    return references_in(Table(cls), value)


def references_in(kind: Kind, value: Mapping[str, Json]) -> Sequence[Reference]:
    """Returns the references in the plain form of a spec with this layout."""
    found: list[Reference] = []
    _replace(kind, value, "spec", None, lambda each: found.append(each) or each.text)  # type: ignore[func-returns-value]
    return found


def with_names(kind: Kind, value: Json, references: Mapping[str, ResourceHandle | None]) -> Json:
    """Returns a spec in which what was renamed since it was written has its present name."""
    names = {key: held.name for key, held in references.items() if held is not None and _has_other_name(key, held)}

    def present(each: Reference) -> str:
        name = names.get(each.key)
        if name is None:
            return each.text
        before, part, after = each.text.partition("#")
        return f"{before[: _NAMED.search(before).start()]}{name}{part}{after}"  # type: ignore[union-attr]  # it matches any

    return _replace(kind, value, "spec", None, present) if names else value


def _has_other_name(key: str, held: ResourceHandle) -> bool:
    """Whether a reference by name is to what has another name now."""
    said = key.partition(":")[2]
    return not said.startswith(_DID) and not UUID.match(said) and said.rpartition("/")[2] != held.name.casefold()


def _replace(kind: Kind, value: Any, path: str, refers: str | None, change: Callable[[Reference], str]) -> Any:
    """Returns a value with this layout in which each reference is replaced by what ``change`` returns for it."""
    match kind:
        case Text() if refers is not None:
            return change(Reference(path, refers, value))
        case Table(of):
            return _replaced_fields(of, value, path, change)
        case Union(variants):
            cls = next(variant for variant in variants if variant.__struct_config__.tag == value[TAG])
            return _replaced_fields(cls, value, path, change)
        case Vector(item):
            return [_replace(item, each, f"{path}[{number}]", refers, change) for number, each in enumerate(value)]
        case JsonObject() if refers is not None:
            return {key: change(Reference(f"{path}.{key}", refers, str(each))) for key, each in value.items()}
    return value


def _replaced_fields(
    cls: type[msgspec.Struct], value: Mapping[str, Json], path: str, change: Callable[[Reference], str]
) -> dict[str, Json]:
    notes, made = notes_of(cls), dict(value)
    for each in layout.fields_of(cls):
        if value.get(each.key) is not None:
            refers = notes.get(each.name, {}).get(REFERS_TO)
            if notes.get(each.name, {}).get(SELECTS) and _WILD.search(value[each.key]):
                continue
            made[each.key] = _replace(each.kind, value[each.key], f"{path}.{each.key}", refers, change)
    return made


def in_short_form(kind: Kind, node: Node, path: str, remarks: Remarks, refers: str | None = None) -> Node:
    """Returns a spec with this layout, before it is bound, with each reference that is an object in its short form."""
    match kind, node.value:
        case Text(), dict() if refers is not None:
            return remarks.reference(node, path, "" if refers == ANY else refers.partition(OR)[0])
        case Table(of), dict():
            return _fields(of, node, path, remarks)
        case Union(variants), dict() if TAG in node.value:
            tag = node.value[TAG].value
            cls = next((variant for variant in variants if variant.__struct_config__.tag == tag), None)
            return node if cls is None else _fields(cls, node, path, remarks)
        case Vector(item), list():
            made = [in_short_form(item, each, f"{path}[{at}]", remarks, refers) for at, each in enumerate(node.value)]
            return Node(node.line, made)
        case JsonObject(), dict() if refers is not None:
            entries = node.value.items()
            return Node(
                node.line, {key: in_short_form(Text(), each, f"{path}.{key}", remarks, refers) for key, each in entries}
            )
        case _:
            return node


def _fields(cls: type[msgspec.Struct], node: Node, path: str, remarks: Remarks) -> Node:
    assert isinstance(node.value, dict)
    notes, fields = notes_of(cls), dict(node.value)
    for each in layout.fields_of(cls):
        if (child := fields.get(each.key)) is not None:
            refers = notes.get(each.name, {}).get(REFERS_TO)
            if notes.get(each.name, {}).get(TARGETS):
                child = in_text_form(child, f"{path}.{each.key}", remarks)
            fields[each.key] = in_short_form(each.kind, child, f"{path}.{each.key}", remarks, refers)
    return Node(node.line, fields)


def reference_key(text: str, type_: str) -> str:
    """Formats ``Type:id``, ``Type:did:…`` or ``Type:name`` in lower case, from ``[Type:](id | did | name)[#part]``.

    A name may be written with its account, ``account/name``. ``Secret:NAME#KEY`` means the same as
    ``SecretSet:NAME#KEY``. Raises Invalid.
    """
    prefix, colon, rest = text.partition(":")
    if type_ == ANY:
        if not colon or not _TYPE.match(prefix):
            raise Invalid(f"{text[:120]!r} names no type", rule="reference-type", hint="write Dataset:NAME")
        type_ = prefix
    elif OR in type_:
        types = type_.split(OR)
        type_ = prefix if colon and prefix in types else types[0]
    # ``did:odf:…`` has colons too, and no type before the first.
    if colon and not text.startswith(_DID):
        is_element = type_ in SETS and f"{prefix}Set" == type_ and "#" in rest
        if prefix != type_ and not is_element:
            text = f"expected a {type_}, found {text[:120]!r}"
            raise Invalid(text, rule="reference-type", hint=f"write {type_}:NAME, or the name alone")
        text = rest
    if type_ in SETS:
        text = text.partition("#")[0]
    if "#" in text:
        raise Invalid(f"a {type_} has no part {text[:120]!r}", rule="reference-part", hint="leave out # and the part")
    if text.startswith(DID_ODF):
        return f"{type_}:{DatasetId.parse(text)}"
    if text.startswith(_DID):
        return f"{type_}:{text}"
    if "/" in text:
        if type_ not in OF_ACCOUNTS:
            hint = f"write {type_}:{text.rpartition('/')[2][:80]}"
            text = beyond(f"a {type_} is of the node, and of no account", "References")
            raise Invalid(text, rule="reference-account", hint=hint)
        parse_local_alias(text)
    elif not UUID.match(text):
        parse_own_name(text)
    return f"{type_}:{text.casefold()}"


class ResourceLookup(Protocol):
    """Looks up the present resources."""

    def get(self, resource_id: str) -> Resource | None: ...
    def find_named(self, type_: str, name: str, account: str | None) -> Resource | None: ...
    def with_did(self, type_: str, did: str) -> Resource | None: ...


class FinalState:
    """The state after a batch: the present resources, replaced by those of the batch."""

    def __init__(self, batch: Sequence[Resource], standing: ResourceLookup) -> None:
        self._standing = standing
        self._ids = {each.id: each for each in batch}
        self._names = {(each.account, each.type, each.key): each for each in batch}

    def get(self, resource_id: str) -> Resource | None:
        return self._ids.get(resource_id) or self._standing.get(resource_id)

    def has_in_batch(self, resource_id: str) -> bool:
        return resource_id in self._ids

    def find(self, key: str, account: str | None) -> Resource | None:
        """Resolves a key without regard to an earlier target; ``None`` if nothing has it.

        ``account``: the account in which a name without one is looked up. Nothing of the owner stands in for what
        it has not: then an account would reach by a name what it may not read.
        """
        type_, _, sought = key.partition(":")
        owner, _, name = sought.rpartition("/")
        if UUID.match(sought):
            found = self.get(sought)
        elif sought.startswith(_DID):
            found = self._standing.with_did(type_, sought)
        elif not owner:
            found = self.find_named(type_, name, account if type_ in OF_ACCOUNTS else None)
        else:
            held = self.find_named(ACCOUNT, owner, None)
            is_known = held is not None or owner == OWNER
            found = self.find_named(type_, name, None if held is None else held.id) if is_known else None
        return found if found is not None and found.type == type_ else None

    def account(self, ref: str) -> Resource | None:
        """Returns an Account by its name, id or did."""
        return self.find(f"{ACCOUNT}:{ref if ref.startswith(_DID) else ref.casefold()}", None)

    def find_named(self, type_: str, name: str, account: str | None) -> Resource | None:
        """Returns what has a name in an account after the batch."""
        found = self._names.get((account, type_, name)) or self._standing.find_named(type_, name, account)
        if found is None:
            return None
        now = self._ids.get(found.id, found)
        return now if (now.account, now.key) == (account, name) else None  # it is renamed, or moved, in the batch

    def resolve(self, key: str, held: ResourceHandle | None, account: str | None) -> ResourceHandle | None:
        """Resolves a reference: to its earlier target while that exists, even if another has the name now.

        ``account``: that of the resource which has the reference.
        """
        if held is not None and (there := self._living(key, held)) is not None:
            return handle_of(there)
        found = self.find(key, account)
        return None if found is None else handle_of(found)

    def _living(self, key: str, held: ResourceHandle) -> Resource | None:
        """Returns the earlier target by its id, or by its did if it was deleted and made again."""
        type_ = key.partition(":")[0]
        return self.get(held.id) or (self._standing.with_did(type_, held.did) if held.did is not None else None)


def dids_of(references: Mapping[str, ResourceHandle | None]) -> dict[str, str]:
    """Returns the dids of the targets that have one, by key."""
    return {key: held.did for key, held in references.items() if held is not None and held.did is not None}


def find_cycle(starts: Iterable[str], edges: Callable[[str], Iterable[str]]) -> list[str] | None:
    """Finds a cycle along edges, whose first node is also the last, or ``None``. Reads each node's edges once."""
    done: set[str] = set()
    for start in starts:
        # A stack of its own: a line of a thousand derivations would exceed Python's limit of recursion.
        way = {} if start in done else {start: iter(edges(start))}
        while way:
            at, rest = next(reversed(way.items()))
            after = next(rest, None)
            if after is None:
                done.add(at)
                del way[at]
            elif after in way:
                nodes = list(way)
                return [*nodes[nodes.index(after) :], after]
            elif after not in done:
                way[after] = iter(edges(after))
    return None
