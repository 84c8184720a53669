"""Judges manifests by JSON Schemas: the format's own, of which there are copies, or those of this node's own types.

A manifest says by ``$schema`` what it is valid by. One with ``status`` is a canonical view, which has a schema of its
own whatever the type; what people may write of it is judged by the type as well.
"""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema
from referencing import Registry
from referencing.jsonschema import DRAFT202012

ROOT: Final = Path(__file__).parents[2]
COPIES: Final = tuple(ROOT / "tests" / "golden" / each / "schemas" for each in ("rfc018", "rfc019"))
OWN: Final = ROOT / "docs" / "schemas"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ODF: Final = "https://opendatafabric.org/schemas/"
OURS: Final = "https://w3id.org/odfd/schemas/"
CANONICAL: Final = ODF + "resource/v1alpha1/Resource"
_DEEP: Final = 8
_OFTEN: Final = 0.35
"""Share of the optional fields that a manifest has."""
GIVEN: Final = ("generation", "createdAt", "updatedAt", "deletedAt")
"""Headers of a canonical view that nobody writes."""


def mistakes(manifest: dict[str, Any]) -> list[str]:
    """Returns what a schema finds wrong with a manifest, each with its place; none for a valid one."""
    schema = manifest["$schema"]
    if "status" not in manifest:
        return list(_found(schema, manifest))
    written = {key: value for key, value in manifest["headers"].items() if key not in GIVEN}
    inner = {key: value for key, value in manifest.items() if key != "status"} | {"headers": written}
    return [*_found(CANONICAL, manifest), *(() if schema == CANONICAL else _found(schema, inner))]


def _found(uri: str, value: Any) -> Iterator[str]:
    for each in _validator(uri).iter_errors(value):
        yield f"{each.json_path}: {each.message[:300]}"


@functools.cache
def _validator(uri: str) -> jsonschema.Draft202012Validator:
    assert uri in schemas(), f"nobody declared {uri}"
    return jsonschema.Draft202012Validator({"$schema": DIALECT, "$ref": uri}, registry=_registry())


@functools.cache
def _registry() -> Registry[Any]:
    """Returns all schemas, searched once for what they name: as ``$defs`` they would be for each reference again."""
    return Registry[Any]().with_contents(schemas().items(), default_specification=DRAFT202012).crawl()


@functools.cache
def schemas() -> dict[str, dict[str, Any]]:
    """Returns all schemas by their ``$id``."""
    found = {}
    for path in [each for folder in (OWN, *COPIES) for each in folder.rglob("*.json")]:
        schema = json.loads(path.read_text())
        found[schema["$id"]] = schema | {"$schema": DIALECT}  # the format's metaschemas only say what has headers
    return found


_TEXTS: Final[dict[str, tuple[str, ...]]] = {
    "uri": ("https://a.example/x", "https://a.example:8443/${{ config.k }}", "ftp://a.example/x"),
    "email": ("a@example.org", "not an address"),
    "duration": ("10min", "1h", "PT1H", "soon"),
    "byte-size": ("10Gi", "100MiB", "much"),
    "date-time": ("2026-01-01T00:00:00Z",),
    "resource-id": ("6767a4ee-d74d-436e-84f9-709407869a26",),
    "resource-name": ("a", "b.c", "d/e"),
    "account-name": ("alice",),
    "account-id": ("did:odf:fed01bb", "alice"),
    "dataset-ref": ("a", "Dataset:a", "acme/a", "did:odf:fed01"),
    "regex": ("(.*)", "("),
    "type-ref": ("Dataset", "Account", "SecretSet", ODF + "config/v1alpha1/SecretSet"),
}
"""Texts of the formats that only the descriptions of schemas specify: right ones, and such that a node may refuse."""
_TEXT: Final = ("a", "b.c", "SecretSet:a#k", "Dataset:acme/a", "spark", "duckdb", "select a from input", "1", "")
_ANY: Final[tuple[Any, ...]] = (None, True, 1, "x", [], {}, {"a": [1]})


def some_manifest(uri: str, rng: random.Random) -> dict[str, Any]:
    """Returns a manifest that is valid by a schema, with any of the fields that it permits.

    It is drawn without hypothesis, whose strategies of schemas as deep as these take seconds for each manifest.
    """
    while True:
        made: dict[str, Any] = _some(schemas()[uri], uri, rng)
        if not mistakes(made):
            return made


def _some(schema: dict[str, Any], base: str, rng: random.Random, depth: int = 0) -> Any:
    """Returns a value of a schema. ``base``: the ``$id`` that it is part of."""
    if "$ref" in schema:
        name, _, part = schema["$ref"].partition("#/$defs/")
        inner = schemas()[name or base]
        return _some(inner["$defs"][part] if part else inner, name or base, rng, depth)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "allOf" in schema:
        parts = [_some(each, base, rng, depth) for each in schema["allOf"]]
        return {key: value for each in parts for key, value in each.items()}
    if "oneOf" in schema:
        return _some(rng.choice(schema["oneOf"][: 1 if depth > _DEEP else None]), base, rng, depth)
    match schema.get("type", "object" if "properties" in schema else None):
        case "object" if "properties" not in schema:
            inner = next(iter(schema.get("patternProperties", {"": {}}).values()))
            keys = rng.sample(("a", "env", "apiKey"), rng.randrange(3))
            return {key: _some(inner, base, rng, depth + 1) for key in keys}
        case "object":
            needed = schema.get("required", ())
            kept = {key for key in schema["properties"] if key in needed or (depth <= _DEEP and rng.random() < _OFTEN)}
            return {key: _some(schema["properties"][key], base, rng, depth + 1) for key in sorted(kept)}
        case "array":
            return [
                _some(schema["items"], base, rng, depth + 1) for _ in range(rng.randrange(3) if depth < _DEEP else 0)
            ]
        case "string":
            return rng.choice(_TEXTS.get(schema.get("format", ""), _TEXT))
        case "integer":
            return rng.choice((0, 1, 6, 8080, 2**31 - 1))
        case "boolean":
            return rng.random() < 0.5
        case _:
            return rng.choice(_ANY)
