"""Lists the types of resources that this node knows, serves their JSON Schemas, and explains them field by field.

They are ODF's types and the node's own, both those that have an effect and those that have none yet.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Annotated, Final

from chain.errors import NotFound
from odfd.control import wire
from odfd.control.operations import RESOURCE_PATH, Parameter, Permission, operation
from odfd.resources import registry
from odfd.resources.schema import fields_of, part_of, schema_of, type_text
from odfd.resources.types import JsonSchema, ResourceType, TypeRegistry, load

TYPES: Final = TypeRegistry(map(load, registry.ALL))


_FIELD: Final = Parameter("path", "text", "Of a field: spec.read.")


class SchemaService:
    """The API service for types of resources."""

    def __init__(self, registry: TypeRegistry = TYPES) -> None:
        self._registry = registry

    @operation("GET", RESOURCE_PATH + "/types", needs=Permission.FREE)
    def types(self) -> Sequence[wire.TypeView]:
        """Lists the types of resources: those that act first, the others in their order."""
        ordered = sorted(self._registry, key=lambda each: each not in self._registry.acting)
        return [_type_view(each) for each in ordered]

    @operation("GET", "/schemas/{path:path}", needs=Permission.FREE)
    def schema(self, path: str) -> JsonSchema:
        """Returns the JSON Schema of a type by its path, ``context/version/Name``. Raises NotFound."""
        found = self._registry.at(path)
        if found is None or found.spec is None:
            raise NotFound(f"there is no schema {path[:120]!r}", rule="unknown-type", hint="odfctl types lists them")
        return schema_of(found)

    @operation("GET", RESOURCE_PATH + "/types/{word}", needs=Permission.FREE)
    def explain(self, word: str, path: Annotated[str, _FIELD] = "") -> wire.Explanation:
        """Explains a type, or one field of it. Raises NotFound.

        ``word``: a name, plural, alias or URI of a type. ``path``: the field, with dots; empty for the type.
        """
        kind = self._find(word)
        if kind.spec is None:
            return wire.Explanation(
                name=kind.name, uri=kind.uri, path="", type="", fields=(),
                description=f"{kind.about} This node does not act on it yet; instead: {kind.instead}",
            )  # fmt: skip
        schema = schema_of(kind)
        part = part_of(schema, path)
        if part is None:
            raise NotFound(f"{kind.name} has no field {path[:120]!r}", rule="unknown-field", hint=_near(schema, path))
        return wire.Explanation(
            name=kind.name,
            uri=kind.uri,
            path=path,
            type=type_text(schema, part),
            description=str(part.get("description", "")),
            fields=tuple(
                wire.FieldView(
                    name=name,
                    type=type_text(schema, child),
                    required=required,
                    description=str(child.get("description", "")),
                )
                for name, (child, required) in fields_of(schema, part).items()
            ),
            example="" if path else kind.example,
        )

    def _find(self, word: str) -> ResourceType:
        named = (each for each in self._registry if word in (each.uri, each.own_uri))
        found = self._registry.word(word) or next(named, None)
        if found is None:
            names = {each.name.lower(): each.name for each in self._registry}
            near = difflib.get_close_matches(word[:80].lower(), names, n=1)
            hint = f"did you mean {names[near[0]]}?" if near else "odfctl types lists them"
            raise NotFound(f"there is no type {word[:80]!r}", rule="unknown-type", hint=hint)
        return found


def _near(schema: JsonSchema, path: str) -> str:
    """Suggests a field near to the one that was not found."""
    names = path.split(".")
    while names:
        last = names.pop()
        around = part_of(schema, ".".join(names))
        if around is not None:
            known = fields_of(schema, around)
            near = difflib.get_close_matches(last, known, n=1)
            return f"did you mean {'.'.join([*names, near[0]])}?" if near else f"known are {', '.join(known) or 'none'}"
    return ""


def _type_view(kind: ResourceType) -> wire.TypeView:
    return wire.TypeView(
        name=kind.name, uri=kind.uri, plural=kind.plural, aliases=kind.aliases,
        acts=kind.spec is not None and not kind.is_derived, about=kind.about, instead=kind.instead,
    )  # fmt: skip
