"""Defines types of resources: the names of each, the class of its ``spec``, and its description.

A registry is passed as a value to all code that reads, shows or serves resources, so a type that is added to it is
known to all of that code without being named there. Pure.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import typing
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

import msgspec

from chain.codec import layout
from chain.codec.bind import TAG, Mistake
from chain.codec.layout import Flag, Kind, Table, Union, Vector
from chain.codec.yaml_tree import Node
from chain.errors import Invalid, NotFound
from chain.wording import a
from odfd.resources.registry import ODF, OURS, VERSION, Registration

SUFFIX: Final = ".json"
VIEW: Final = "Resource"
"""The schema of RFC-018 by which views of all types are valid."""
JsonSchema: TypeAlias = dict[str, Any]
IS_OWN: Final = "x-odfd"
NEEDED_BY_ODF: Final = "x-odf-required"
OWN: Final = msgspec.Meta(extra_json_schema={IS_OWN: True})
"""Marks a field that the format's schema does not have: a manifest with it names our own schema.

A list of values in place of ``True`` marks these.
"""
NEEDED: Final = msgspec.Meta(extra_json_schema={NEEDED_BY_ODF: True})
"""Marks a field that may be left out here, and which the format's schema requires."""
ATTRIBUTE: Final = b'"w3id.org/odfd/'
"""How attributes of columns begin that hold options which the format has no fields for."""
_LONG: Final = frozenset({"type", "id", "did", "name", "account", "path"})
_ACCOUNT: Final = frozenset({"type", "id", "did", "name"})


RFC_018: Final = "RFC-018"
RFC_019: Final = "RFC-019"
UNSUPPORTED: Final = "rfc-unsupported"
"""The rule by which a node refuses what RFC-018 has, and it has not."""


def beyond(text: str, clause: str) -> str:
    """Returns a message about what RFC-018 has in a clause, and this node has not."""
    return f"{text} ({RFC_018}, {clause})"


class Remarks(NamedTuple):
    """Collects the mistakes and warnings of one manifest while it is read."""

    mistakes: list[Mistake]
    warnings: list[str]

    def refuse(self, path: str, line: int, text: str, clause: str, instead: str) -> None:
        """Adds the mistake of what RFC-018 has and this node has not. ``instead``: the words to use."""
        self.mistakes.append(Mistake(path, line, beyond(text, clause), UNSUPPORTED, instead))

    def reference(self, node: Node, path: str, type_: str = "") -> Node:
        """Returns the short form of a reference that is written as an object, ``{type, name, account, path}``.

        ``type_``: the type of one that states none.
        """
        assert isinstance(node.value, dict)
        said = {key: child.value for key, child in node.value.items()}
        owner, kind = said.get("account"), said.get("type", type_)
        if isinstance(owner, dict) and not owner.keys() - _ACCOUNT:
            owner = next((owner[key].value for key in ("name", "id", "did") if key in owner), None)
        target = next((said[key] for key in ("id", "did", "name") if isinstance(said.get(key), str)), None)
        texts = [kind, target, said.get("path", "")]
        is_wrong = not kind or not all(isinstance(text, str) for text in texts) or said.keys() - _LONG
        if is_wrong or ("account" in said and not isinstance(owner, str)):
            hint = "write {type: Dataset, name: NAME}, or Dataset:NAME"
            self.mistakes.append(Mistake(path, node.line, "this is no reference", "reference", hint))
            return Node(node.line, "Dataset:none")
        is_named = "id" not in said and "did" not in said and isinstance(owner, str)
        name = f"{owner}/{target}" if is_named else str(target)
        part = f"#{said['path']}" if "path" in said else ""
        return Node(node.line, f"{str(kind).removesuffix(SUFFIX).rpartition('/')[2]}:{name}{part}")


class TypeOperations(Protocol):
    """The operations that a type reads and deletes its resources by, as far as the caller may call them."""

    async def declared(self, dataset: str) -> dict[str, Any]:
        """Returns the spec of a dataset as its chain declares it now."""
        ...

    async def cancel(self, task: str) -> Any:
        """Cancels a task, and returns its state."""
        ...

    async def delete(self, word: str, name: str, generation: int | None, *, force: bool) -> Any:
        """Deletes the declaration of a resource."""
        ...


class Deletion(NamedTuple):
    """How a resource is deleted."""

    generation: int | None = None
    """The generation that it must have, or ``None`` for any."""
    force: bool = False
    """Whether one that another resource made may be deleted; such a Flow is stopped instead."""
    purge: bool = False
    """Whether the data of a dataset is deleted too, and not only kept as unmanaged."""


class ResourceType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of resource. One without a ``spec`` is known by name and refused."""

    names: Registration
    about: str
    """Describes a resource of the type, as a sentence."""
    spec: type[msgspec.Struct] | tuple[type[msgspec.Struct], ...] | None = None
    """The class of the spec; several classes are told apart by ``kind``."""
    own_kinds: frozenset[str] = frozenset()
    """Members of unions in its spec, by ``kind``, that the format does not have."""
    annotations: Mapping[str, Any] = {}
    """The types of the annotations that it understands, by their keys: a class, or ``bool`` with its description."""
    prepare: Callable[[Node, Remarks], Node] | None = None
    """Turns short forms of a ``spec`` into those that its class has, before it is bound."""
    converts: Callable[[dict[str, Node], Remarks], dict[str, Node]] | None = None
    """Turns a manifest of a former form, by its parts, into one of the present form, before it is read."""
    reads: Callable[[Any], Any] | None = None
    """Reads a manifest of the format's own kinds (``chain.codec.manifest.Manifest``) as one of this type, if it is."""
    shows: Callable[[Any], Any] | None = None
    """Returns a stored spec as it is printed, where the format's form is no text."""
    uris: tuple[str, ...] = ()
    """Further URIs by which manifests may name it."""
    parts: Callable[[Any], Iterable[Any]] | None = None
    """Returns the resources that a resource of the type owns (``odfd.resources.owners.Parts``)."""
    check: Callable[[Any], object] | None = None
    """Adds the mistakes of a draft (``odfd.resources.manifest.Draft``) to it; its parts have their types already."""
    kept: Callable[[str, Any, Any], Any] | None = None
    """Returns the form in which a spec is stored, given the name, the spec and the stored one. Raises Invalid."""
    judged_at: str = "spec"
    """The part of a manifest that a mistake which ``kept`` finds is told of."""
    sealed: str = ""
    """The field of a spec that is stored sealed, and shown to nobody; with ``.*`` each value in it is."""
    namesake: str = ""
    """The type of which the resource that stands for the same always has the same name."""
    stands_for: str = ""
    """The field of a stored spec that says what a resource of the type stands for: a did, or the id of a peer."""
    object_named: Callable[[str], str] = str
    """Returns what a reference names by a did: for a Peer the id of the peer that has a key. Raises Invalid."""
    is_silent: bool = False
    """Whether a resource is looked at regularly, since no event tells when it is no longer as declared."""
    follows_datasets: bool = False
    """Whether a resource is looked at again when a dataset that it refers to changes."""
    is_pruned: bool = False
    """Whether an apply with labels deletes what it leaves out; it is too easy to leave a file out to delete data so."""
    is_derived: bool = False
    """Whether other resources or the node make its resources, so that a manifest is refused."""
    made_by: str = "other resources"
    """Who makes the resources of a derived type."""
    declared: Callable[[TypeOperations, Any], Awaitable[Any]] | None = None
    """Returns the spec to apply of a resource that is here, a ``wire.ResourceView``; ``None``: the stored one."""
    delete: Callable[[TypeOperations, Any, Deletion], Awaitable[Any]] | None = None
    """Deletes what a ``wire.ResourceView`` stands for, and the resource with it; may return what became of it.

    ``None``: only the declaration is deleted.
    """
    example: str = ""
    instead: str = ""
    """What to do instead of a manifest, for a type that takes none."""

    @property
    def name(self) -> str:
        return self.names.name

    @property
    def context(self) -> str:
        return self.names.context

    @property
    def plural(self) -> str:
        return self.names.plural

    @property
    def aliases(self) -> tuple[str, ...]:
        return self.names.aliases

    @property
    def uri(self) -> str:
        return self.names.uri

    @property
    def own_uri(self) -> str:
        """The URI of the schema that this node has for the type: the format's, and more."""
        return f"{OURS}/{self.path}"

    def schema_of(self, spec: Any) -> str:
        """Returns the URI of the schema that a spec, in plain form, is valid by: the format's if that is one."""
        if self.spec is None or self.names.base == OURS:
            return self.uri
        is_own = spec is None or _has_own(self.layout, spec, self.own_kinds) or ATTRIBUTE in msgspec.json.encode(spec)
        return self.own_uri if is_own else self.uri

    @property
    def path(self) -> str:
        """The path of the type's schema."""
        return self.names.path

    @property
    def layout(self) -> Table | Union:
        """The layout of its ``spec``. Only for a type that has one."""
        assert self.spec is not None
        return Union(self.spec) if isinstance(self.spec, tuple) else Table(self.spec)

    def annotation_layout(self, key: str) -> Table | Flag:
        """The layout of the value of an annotation that the type understands."""
        said = self.annotations[key]
        return Table(said) if isinstance(said, type) else Flag()

    def annotation_uris(self, key: str) -> tuple[str, str]:
        """Returns the long name of an annotation of this type, which is our own, and the one that it had before."""
        return annotation_uris(self.context, key)


def load(names: Registration) -> ResourceType:
    """Returns a registered type; loads the module that declares it."""
    module, _, name = names.declared_in.partition(":")
    found: ResourceType = getattr(importlib.import_module(module), name)
    return found


class TypeRegistry:
    """The types that a node knows. Raises ValueError if two have one name, which is a bug."""

    def __init__(self, types: Iterable[ResourceType]) -> None:
        self._types = tuple(types)
        self._written: dict[str, ResourceType] = {}
        self._words: dict[str, ResourceType] = {}
        for type_ in self._types:
            self._claim(self._written, {type_.name, type_.uri, type_.own_uri, *type_.uris}, type_)
            self._claim(self._words, {word.lower() for word in (type_.name, type_.plural, *type_.aliases)}, type_)

    def __iter__(self) -> Iterator[ResourceType]:
        return iter(self._types)

    @property
    def acting(self) -> tuple[ResourceType, ...]:
        """The types that a manifest can have."""
        return tuple(type_ for type_ in self._types if type_.spec is not None and not type_.is_derived)

    def find_schema(self, schema: str) -> ResourceType:
        """Returns a type by its ``$schema``: the short name, or the URI with or without ``.json``. Raises Invalid."""
        found = self._written.get(schema) or self._written.get(schema.removesuffix(SUFFIX))
        if found is None:
            short = schema.removesuffix(SUFFIX).rpartition("/")[2]
            raise Invalid(f"unknown type {schema[:120]!r}", rule="unknown-type", hint=self._near(schema, short))
        if found.spec is None:
            raise Invalid(
                f"{found.name} is a type that this node does not act on yet",
                rule="type-without-effect",
                hint=found.instead or f"leave it out; types that act are {self._names()}",
            )
        if found.is_derived:
            text = f"{a(found.name)} is made by {found.made_by}, and not by a manifest"
            raise Invalid(text, rule="derived-type", hint=found.instead)
        return found

    def get(self, name: str) -> ResourceType:
        """Returns a type that is known by its short name. Raises KeyError."""
        return self._written[name]

    def word(self, word: str) -> ResourceType | None:
        """Returns a type by short name, plural or alias, ignoring case."""
        return self._words.get(word.lower())

    def find_served(self, word: str) -> ResourceType:
        """Returns a type that has resources, by a word. Raises NotFound."""
        found = self.word(word)
        if found is None or found.spec is None:
            raise NotFound(f"there is no type {word[:80]!r}", rule="unknown-type", hint="odfctl types lists them")
        return found

    def at(self, path: str) -> ResourceType | None:
        """Returns a type by the path of its schema, or a former one."""
        end = f"/{path.removesuffix(SUFFIX)}"
        return next(
            (type_ for type_ in self._types if any(uri.endswith(end) for uri in (type_.uri, *type_.uris))), None
        )

    def _near(self, schema: str, short: str) -> str:
        """Suggests a type by the last part of a URI, since its base or case may be wrong too."""
        if short == VIEW:
            return "RFC-018, Resource: it is the form of answers, and names no type; write the type's own $schema"
        near = difflib.get_close_matches(short[:80].lower(), self._words, n=1)
        if not near:
            return f"known are {self._names()}"
        meant = self._words[near[0]]
        return f"did you mean {meant.uri if '/' in schema else meant.name!r}?"

    def _names(self) -> str:
        return ", ".join(each.name for each in self.acting)

    def _claim(self, names: dict[str, ResourceType], wanted: Iterable[str], by: ResourceType) -> None:
        for name in wanted:
            if name in names:
                raise ValueError(f"{name} is both {names[name].uri} and {by.uri}")
            names[name] = by


def annotation_uris(context: str, key: str) -> tuple[str, str]:
    """Returns the long name of an annotation that types of a context understand, and the one that it had before."""
    path = f"{context}/{VERSION}/{key[:1].upper()}{key[1:]}"
    return f"{OURS}/{path}", f"{ODF}/{path}"


def annotation_of(annotations: Mapping[str, Any], context: str, key: str) -> Any:
    """Returns the value of an annotation under whichever of its names it stands; ``None`` if it does not."""
    return next((annotations[each] for each in (key, *annotation_uris(context, key)) if each in annotations), None)


def _has_own(kind: Kind, value: Any, own_kinds: frozenset[str]) -> bool:
    """Whether a value has what the format has no field for, or lacks what its schema requires."""
    if not _may_have_own(kind, own_kinds):
        return False
    match kind:
        case Table(of):
            return _struct_has_own(of, value, own_kinds)
        case Union(variants):
            cls = next((variant for variant in variants if variant.__struct_config__.tag == value[TAG]), None)
            return value[TAG] in own_kinds or cls is None or _struct_has_own(cls, value, own_kinds)
        case Vector(item):
            return any(_has_own(item, each, own_kinds) for each in value)
        case _:
            return False


@functools.cache
def _may_have_own(kind: Kind, own_kinds: frozenset[str]) -> bool:
    """Whether a value of a layout may have such, so that long lists of events are not looked through in vain."""
    return any(
        each.__struct_config__.tag in own_kinds
        or any(note.get(IS_OWN) or note.get(NEEDED_BY_ODF) for note in notes_of(each).values())
        for each in _within(kind, set())
    )


def _within(kind: Kind, seen: set[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """Adds the classes of a layout, and of all within it, to those that were seen."""
    match kind:
        case Table(of):
            members: tuple[type[msgspec.Struct], ...] = (of,)
        case Union(variants):
            members = variants
        case Vector(item):
            return _within(item, seen)
        case _:
            members = ()
    for cls in set(members) - seen:
        seen.add(cls)
        for each in layout.fields_of(cls):
            _within(each.kind, seen)
    return seen


def _struct_has_own(cls: type[msgspec.Struct], value: Mapping[str, Any], own_kinds: frozenset[str]) -> bool:
    notes = notes_of(cls)
    for each in layout.fields_of(cls):
        child, note = value.get(each.key), notes.get(each.name, {})
        if child is None and note.get(NEEDED_BY_ODF):
            return True
        is_own = note.get(IS_OWN, False)
        if child is not None and (
            is_own is True or (is_own and child in is_own) or _has_own(each.kind, child, own_kinds)
        ):
            return True
    return False


@functools.cache
def notes_of(cls: type[msgspec.Struct]) -> Mapping[str, JsonSchema]:
    """Returns additions to the types of fields: descriptions, and parts of schemas."""
    notes: dict[str, JsonSchema] = {}
    for field in msgspec.structs.fields(cls):
        members = (
            typing.get_args(field.type) if typing.get_origin(field.type) is not typing.Annotated else (field.type,)
        )
        for member in members:
            for mark in getattr(member, "__metadata__", ()):
                if isinstance(mark, msgspec.Meta):
                    about_it = {} if mark.description is None else {"description": mark.description}
                    notes[field.name] = notes.get(field.name, {}) | about_it | (mark.extra_json_schema or {})
    return notes
