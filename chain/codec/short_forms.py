"""Replaces the short forms of manifests, which the format has no field for, by attributes of columns.

Works on the tree before a manifest is bound, so that each mistake has its line. Specs: docs/reference/reading.md,
docs/reference/sources.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from chain.codec.bind import Mistake, known_names, plain
from chain.codec.layout import fields_of
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model import fetch_options, read_options
from chain.model.read_options import (
    FAIL,
    KINDS,
    NAMES,
    READ,
    RULE,
    check_kind,
    declared_options,
    declared_quarantine,
)
from chain.model.source import (
    FetchContainer,
    FetchFilesGlob,
    FetchUrl,
    ReadCsv,
    ReadEsriShapefile,
    ReadGeoJson,
    ReadJson,
    ReadNdGeoJson,
    ReadNdJson,
    ReadParquet,
)

ON_ERROR: Final = "onError"
"""The field of a read step that says how rows that cannot be read are handled."""
MORE_KINDS: Final[Mapping[type[msgspec.Struct], Iterable[str]]] = {
    FetchUrl: tuple(fetch_options.KINDS),
    ReadCsv: tuple(read_options.KINDS),
}
"""Kinds that manifests accept beyond the format's, by one variant of the union in which they are written."""
READ_STEPS: Final = (ReadCsv, ReadJson, ReadNdJson, ReadGeoJson, ReadNdGeoJson, ReadEsriShapefile, ReadParquet)
MORE_FIELDS: Final[Mapping[type[msgspec.Struct], Iterable[str]]] = {
    **dict.fromkeys(READ_STEPS, (ON_ERROR, *NAMES)),
    FetchFilesGlob: sorted(fetch_options.names_beside("FilesGlob")),
    FetchUrl: sorted(fetch_options.names_beside("Url")),
    FetchContainer: sorted(fetch_options.names_beside("Container")),
}
_OF_URL: Final = frozenset(each.key for each in fields_of(FetchUrl))


def carrying_read_options(content: Node, mistakes: list[Mistake]) -> Node:
    """Returns the content of a snapshot or event without short forms in its read steps. Adds to ``mistakes``.

    Fields that people write in a read step and the format does not have (``onError`` and options) become attributes of
    the step's columns. A step whose columns are not written out (``ddlSchema``, or none) gets a schema without fields
    that holds the attributes alone; the fields are added when events are made of the manifest. Kinds of file that the
    format does not know become the step that stands for them.
    """
    fields = content.value
    if not isinstance(fields, dict):
        return content
    events = fields.get("metadata")
    if events is None or not isinstance(events.value, list):
        return _event(content, "", mistakes)
    made = [_event(each, f"metadata[{number}].", mistakes) for number, each in enumerate(events.value)]
    return Node(content.line, {**fields, "metadata": Node(events.line, made)})


def _event(event: Node, path: str, mistakes: list[Mistake]) -> Node:
    if not isinstance(event.value, dict):
        return event
    read = event.value.get("read")
    if read is None or not isinstance(read.value, dict):
        return Node(event.line, _without_kind_of_source(event.value, path, mistakes))
    fields = _without_options(_without_on_error(read.value, path, mistakes), read.line, path, mistakes)
    changed = {**event.value, "read": Node(read.line, fields)}
    return Node(event.line, _without_kind_of_source(changed, path, mistakes))


def _without_kind_of_source(event: dict[str, Node], path: str, mistakes: list[Mistake]) -> dict[str, Node]:
    """Replaces a kind of source that the format does not know by the step that stands for it, with an attribute.

    A source without columns stays as it is: the missing columns are reported elsewhere, and could hold no attribute.
    """
    fetch, read = event.get("fetch"), event.get("read")
    kind = fetch.value.get("kind") if fetch is not None and isinstance(fetch.value, dict) else None
    if fetch is None or not isinstance(fetch.value, dict) or kind is None:
        return event
    named = _known_kind(kind, fetch_options.KINDS)
    stands, step = named, "Url"
    beside = _known_kind(kind, fetch_options.BESIDE)
    for each in fetch_options.BESIDE.get(beside or "", ()):
        if stands is None and fetch.value.keys() & fetch_options.names(each):
            stands, step = each, str(beside)
    if stands is None:
        return event
    own = fetch_options.names(stands)
    given = {key: child for key, child in fetch.value.items() if key in own} | {"kind": Node(kind.line, stands)}
    others = {key: child for key, child in fetch.value.items() if key not in given} | {"kind": Node(kind.line, step)}
    if named is not None:
        _note_unknown(others, own, f"{path}fetch", mistakes)
    url = others.get("url")
    if url is not None and isinstance(url.value, str):
        others["url"] = Node(url.line, fetch_options.in_chain(stands, url.value))
    changed = {**event, "fetch": Node(fetch.line, others)}
    if read is None or not isinstance(read.value, dict):
        return changed
    try:
        fetch_options.declared_fetch({key: plain(child) for key, child in given.items()})
    except Invalid as fault:
        mistakes.append(Mistake(f"{path}fetch", fetch.line, fault.message, fault.rule, fault.hint))
    if _has_attribute(read.value, fetch_options.FETCH):
        twice = f"options of {stands} and the attribute {fetch_options.FETCH} of the schema are both given"
        mistakes.append(Mistake(f"{path}fetch", fetch.line, twice, fetch_options.RULE, "keep one of them"))
    attributed = _with_attribute(read.value.get("schema"), fetch_options.FETCH, Node(fetch.line, given))
    columns = Node(read.line, {**read.value, "schema": attributed})
    return {**changed, "read": columns}


def _note_unknown(fields: dict[str, Node], own: Iterable[str], path: str, mistakes: list[Mistake]) -> None:
    """Removes and reports fields that neither the kind nor its step has: binding would only know of the step's."""
    for key in [field for field in fields if field not in _OF_URL and field != "kind"]:
        hint = known_names(key, sorted({*own, *_OF_URL}))
        mistakes.append(Mistake(f"{path}.{key}", fields.pop(key).line, f"unknown field {key!r}", "unknown-field", hint))


def _without_on_error(fields: dict[str, Node], path: str, mistakes: list[Mistake]) -> dict[str, Node]:
    if ON_ERROR not in fields:
        return fields
    given = fields[ON_ERROR]
    place = f"{path}read.{ON_ERROR}"
    try:
        declared_quarantine(plain(given))
    except Invalid as fault:
        mistakes.append(Mistake(place, given.line, fault.message, fault.rule, fault.hint))
    if _has_attribute(fields, read_options.ON_ERROR):
        twice = f"onError and the attribute {read_options.ON_ERROR} of the schema are both given"
        mistakes.append(Mistake(place, given.line, twice, "on-error", "keep one of them"))
    others = {key: child for key, child in fields.items() if key != ON_ERROR}
    if plain(given) != FAIL:
        others["schema"] = _with_attribute(others.get("schema"), read_options.ON_ERROR, given)
    return others


def _without_options(fields: dict[str, Node], line: int, path: str, mistakes: list[Mistake]) -> dict[str, Node]:
    kind = fields.get("kind")
    named = None if kind is None else _known_kind(kind, KINDS)
    given = {key: child for key, child in fields.items() if key in NAMES}
    if not given and named is None:
        return fields
    others = {key: child for key, child in fields.items() if key not in NAMES}
    if kind is not None and named is not None:
        given["format"] = Node(kind.line, named)
        others["kind"] = Node(kind.line, KINDS[named])
    first = next(iter(given))
    place = f"{path}read.{first}"
    try:
        options = declared_options({key: plain(child) for key, child in given.items()})
        kind = others.get("kind")
        if kind is not None and isinstance(kind.value, str):
            check_kind(options, kind.value)
    except Invalid as fault:
        mistakes.append(Mistake(place, given[first].line, fault.message, fault.rule, fault.hint))
    if _has_attribute(others, READ):
        twice = f"options and the attribute {READ} of the schema are both given"
        mistakes.append(Mistake(place, given[first].line, twice, RULE, "keep one of them"))
    others["schema"] = _with_attribute(others.get("schema"), READ, Node(line, given))
    return others


def _known_kind(kind: Node, known: Iterable[str]) -> str | None:
    """Returns our spelling of one of our kinds, whose capitals do not matter; ``None`` if it is not one."""
    written = kind.value.casefold() if isinstance(kind.value, str) else ""
    return next((each for each in known if each.casefold() == written), None)


def _has_attribute(fields: Mapping[str, Node], name: str) -> bool:
    schema = fields.get("schema")
    extra = schema.value.get("extra") if schema is not None and isinstance(schema.value, dict) else None
    return extra is not None and isinstance(extra.value, dict) and name in extra.value


def _with_attribute(schema: Node | None, name: str, given: Node) -> Node:
    """Returns the schema with the attribute added; a node that is no schema stays, as binding reports it."""
    if schema is None or schema.value is None:
        schema = Node(given.line, {"fields": Node(given.line, [])})
    if not isinstance(schema.value, dict):
        return schema
    extra = schema.value.get("extra")
    others = extra.value if extra is not None and isinstance(extra.value, dict) else {}
    return Node(schema.line, {**schema.value, "extra": Node(given.line, {**others, name: given})})
