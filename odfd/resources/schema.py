"""Makes JSON Schemas of resources from the classes that manifests are read into. Pure.

The dialect is 2020-12. Members of a union are told apart by ``kind``; what they share is stated once, in ``$defs``. The
schemas describe the long spellings; manifests may also write a union member without fields as its ``kind`` alone, and
kinds in any case. Rules between fields are checked when a manifest is applied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

import msgspec

from chain.codec import layout
from chain.codec.bind import TAG
from chain.codec.layout import Choice, Flag, JsonObject, Kind, Moment, Number, Octets, Table, Text, Union, Vector
from chain.codec.short_forms import ON_ERROR, READ_STEPS
from chain.model import fetch_options, read_options
from chain.model.read_options import ReadOptions, options_of
from chain.model.source import FetchUrl, ReadCsv
from odfd.resources.manifest import ResourceHeaders
from odfd.resources.types import JsonSchema, ResourceType, notes_of

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DEFS: Final = "#/$defs/"
_ON_ERROR_SCHEMA: Final = {"description": "fail (default), or quarantine, which may have limits (odfctl docs reading)."}


def schema_of(kind: ResourceType) -> JsonSchema:
    """Builds the schema of a whole manifest of an acting type."""
    assert kind.spec is not None
    making = _Making()
    headers, spec = making.ref(ResourceHeaders), making.of(kind.layout)
    names = [kind.name, kind.uri, *({kind.own_uri} - {kind.uri})]
    known = {
        key: making.of(kind.annotation_layout(key)) | ({"description": marks[0].description} if marks else {})
        for key, said in sorted(kind.annotations.items())
        for marks in [getattr(said, "__metadata__", ())]
    }
    if known:
        annotations = making.defs[ResourceHeaders.__name__]["properties"]["annotations"]
        annotations["properties"] = known
    return {
        "$schema": DIALECT,
        "$id": kind.own_uri,
        "title": kind.name,
        "description": kind.about,
        "type": "object",
        "properties": {
            "$schema": {"enum": names, "description": "The type of the resource."},
            "headers": headers,
            "spec": spec,
            "status": {"type": "object", "description": "Written by the node; ignored when the manifest is applied."},
        },
        "required": ["$schema", "headers", "spec"],
        "additionalProperties": False,
        "$defs": dict(sorted(making.defs.items())),
    }


def part_of(schema: JsonSchema, path: str) -> JsonSchema | None:
    """Returns the schema of a part, such as ``spec.triggers``, through lists and unions; ``None`` if there is none."""
    return _part(schema, schema, path.split(".") if path else [])


def fields_of(schema: JsonSchema, part: JsonSchema) -> dict[str, tuple[JsonSchema, bool]]:
    """Returns the fields of a part by name, for a union those of all members, each with whether it is required."""
    found: dict[str, tuple[JsonSchema, bool]] = {}
    members = _members(schema, part)
    if len(members) > 1:
        kinds = [member["properties"][TAG]["const"] for member in members]
        found[TAG] = {"enum": kinds, "description": "Which of them it is."}, True
    for member in members:
        for name, child in member.get("properties", {}).items():
            found.setdefault(name, ({**_resolve(schema, child), **_beside(child)}, name in member.get("required", ())))
    return found


def type_text(schema: JsonSchema, part: JsonSchema) -> str:
    """Describes the type of a value in a few words."""
    part = {**_resolve(schema, part), **_beside(part)}
    if "oneOf" in part:
        return " | ".join(str(_resolve(schema, each)["properties"][TAG]["const"]) for each in part["oneOf"])
    if "enum" in part:
        return " | ".join(map(str, part["enum"]))
    if "const" in part:
        return str(part["const"])
    if part.get("type") == "array":
        return f"list of {type_text(schema, part['items'])}"
    kind = part.get("type", "any")
    return str(part.get("format") or (kind if isinstance(kind, str) else " or ".join(kind)))


def _part(schema: JsonSchema, part: JsonSchema, names: list[str]) -> JsonSchema | None:
    if not names:
        return part
    child = fields_of(schema, part).get(names[0].partition("[")[0])
    return None if child is None else _part(schema, child[0], names[1:])


def _members(schema: JsonSchema, part: JsonSchema) -> list[JsonSchema]:
    """Returns the schemas of the objects that a value, or an item of it, may be."""
    part = _resolve(schema, part)
    if part.get("type") == "array":
        return _members(schema, part["items"])
    if "oneOf" in part:
        return [_resolve(schema, each) for each in part["oneOf"]]
    return [part]


def _resolve(schema: JsonSchema, part: JsonSchema) -> JsonSchema:
    ref = part.get("$ref")
    found: JsonSchema = part if ref is None else schema["$defs"][ref.removeprefix(_DEFS)]
    return found


def _beside(part: JsonSchema) -> JsonSchema:
    """Returns the description of a field, which replaces the description of the type that it refers to."""
    return {"description": part["description"]} if "description" in part else {}


class _Making:
    """Collects the definitions that the schema of one type refers to. Lives while one is made."""

    def __init__(self) -> None:
        self.defs: dict[str, JsonSchema] = {}

    def ref(self, cls: type[msgspec.Struct]) -> JsonSchema:
        name = cls.__name__.lstrip("_")
        if name not in self.defs:
            self.defs[name] = {}  # reserved first, since it may refer to itself
            self.defs[name] = self._object(cls)
        return {"$ref": _DEFS + name}

    def _object(self, cls: type[msgspec.Struct]) -> JsonSchema:
        tag = cls.__struct_config__.tag
        properties: JsonSchema = {} if tag is None else {TAG: {"const": tag}}
        notes, required = notes_of(cls), [] if tag is None else [TAG]
        for each in layout.fields_of(cls):
            properties[each.key] = self.of(each.kind) | notes.get(each.name, {})
            required += [each.key] if each.required else []
        if tag is not None:
            properties |= self._options(cls, str(tag))
        about = cls.__dict__.get("__doc__")
        about_it = {} if about is None else {"description": " ".join(about.partition("\n\n")[0].split())}
        return about_it | {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _options(self, cls: type[msgspec.Struct], kind: str) -> JsonSchema:
        """Returns the schemas of options that manifests write beside a step's fields (``chain.codec.short_forms``)."""
        if cls in READ_STEPS:
            return {ON_ERROR: _ON_ERROR_SCHEMA} | self._of_options(ReadOptions, options_of(kind))
        more: JsonSchema = {}
        for each in fetch_options.BESIDE.get(kind, ()):
            more |= self._of_options(fetch_options.options_of(each), fetch_options.names(each))
        return more

    def _more_kinds(self, variants: tuple[type[msgspec.Struct], ...]) -> Iterator[JsonSchema]:
        """Yields schemas of kinds that the format does not know, with the fields of the step that stands for each."""
        steps = {str(variant.__struct_config__.tag): variant for variant in variants}
        if FetchUrl in variants:
            for kind, options in fetch_options.KINDS.items():
                more = self._of_options(options, fetch_options.names(kind))
                made = self._standing(f"Fetch{kind}", FetchUrl, kind, more)
                needed = [field.encode_name for field in msgspec.structs.fields(options) if field.required]
                self.defs[f"Fetch{kind}"]["required"] += needed
                yield made
        if ReadCsv in variants:
            for kind, step in read_options.KINDS.items():
                yield self._standing(f"Read{kind}", steps[step], kind, self._options(steps[step], kind))

    def _standing(self, name: str, step: type[msgspec.Struct], kind: str, more: JsonSchema) -> JsonSchema:
        made = self._object(step)
        plain = {key: made["properties"][key] for key in (each.key for each in layout.fields_of(step))}
        self.defs[name] = made | {"properties": {TAG: {"const": kind}, **plain, **more}}
        self.defs[name].pop("description", None)
        return {"$ref": _DEFS + name}

    def _of_options(self, cls: type[msgspec.Struct], names: Collection[str]) -> JsonSchema:
        (_,), made = msgspec.json.schema_components((cls,), ref_template=_DEFS + "{name}")
        properties = made.pop(cls.__name__)["properties"]
        for name, other in made.items():
            self.defs[name] = other | {"properties": {key: _plain(each) for key, each in other["properties"].items()}}
        return {key: _plain(each) for key, each in properties.items() if key in names}

    def of(self, kind: Kind) -> JsonSchema:
        """Returns the schema of a layout."""
        match kind:
            case Table(of):
                return self.ref(of)
            case Union(variants):
                return {"oneOf": [*map(self.ref, variants), *self._more_kinds(variants)]}
            case Vector(item):
                return {"type": "array", "items": self.of(item)}
            case Number():
                return {"type": "integer", "minimum": kind.low, "maximum": kind.high}
            case Flag():
                return {"type": "boolean"}
            case Choice(options):
                return {"type": "string", "enum": [option.value for option in options]}
            case Moment():
                return {"type": "string", "format": "date-time"}
            case Octets(of):
                return {"type": "string"} | ({"contentEncoding": "base64"} if of is bytes else {})
            case Text():
                return {"type": "string"}
            case JsonObject():
                return {"type": "object"}


def _plain(part: JsonSchema) -> JsonSchema:
    """Removes the null that stands for a missing field, and which types of other fields do not name."""
    kept = [each for each in part.get("anyOf", ()) if each != {"type": "null"}]
    alone = kept[0] if len(kept) == 1 else part
    return {key: value for key, value in alone.items() if key not in ("default", "title")}
