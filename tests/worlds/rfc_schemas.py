"""Judges manifests by JSON Schemas: the format's own, of which there are copies, or those of this node's own types.

A manifest says by ``$schema`` what it is valid by. One with ``status`` is a canonical view, which has a schema of its
own whatever the type; what people may write of it is judged by the type as well.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema

ROOT: Final = Path(__file__).parents[2]
COPIES: Final = ROOT / "tests" / "golden" / "rfc018" / "schemas"
OWN: Final = ROOT / "docs" / "schemas"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
ODF: Final = "https://opendatafabric.org/schemas/"
OURS: Final = "https://w3id.org/odfd/schemas/"
CANONICAL: Final = ODF + "resource/v1alpha1/Resource"
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
    return jsonschema.Draft202012Validator({"$schema": DIALECT, "$ref": uri, "$defs": schemas()})


@functools.cache
def schemas() -> dict[str, dict[str, Any]]:
    """Returns all schemas by their ``$id``."""
    found = {}
    for path in [*OWN.rglob("*.json"), *COPIES.rglob("*.json")]:
        schema = json.loads(path.read_text())
        found[schema["$id"]] = schema | {"$schema": DIALECT}  # the format's metaschemas only say what has headers
    return found
