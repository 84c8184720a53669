"""The JSON of the API only ever grows: what ``api.json`` promises is still there, with the same type.

After adding to the wire, write the promise and ``module_of_name.py`` anew:  python tests/contract/odfd/test_wire.py
"""

from __future__ import annotations

import ast
import importlib
import json
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfd.control import wire
from odfd.control.wire.value import Request, Value

INDENT = " " * 8
PROMISE = Path(__file__).with_name("api.json")
MODULE_OF_NAME = Path(wire.__file__).with_name("module_of_name.py")
MODULES = sorted(set(Path(wire.__file__).parent.glob("*.py")) - {Path(wire.__file__), MODULE_OF_NAME})
WIRE = {f"{wire.__name__}.{path.stem}" for path in MODULES}
FOUND = [
    value
    for module in sorted(WIRE)
    for value in vars(importlib.import_module(module)).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value not in (Value, Request)
]
VALUES = list(dict.fromkeys(FOUND))


def test_a_value_is_declared_once() -> None:
    """The package takes all from its modules: of two with one name, one would be lost."""
    assert MODULE_OF_NAME.read_text() == render_module_of_name(), "write it anew (see the head of this file)"
    assert all(getattr(wire, value.__name__) is value for value in VALUES)
    with pytest.raises(AttributeError, match="Records2"):
        wire.Records2  # type: ignore[attr-defined]  # noqa: B018
    declared = [value for value in all_below(wire.Value) | all_below(wire.Request) if value.__module__ in WIRE]
    assert len({value.__name__ for value in declared}) == len(declared) > 80
    assert set(declared) | {wire.Problem} == set(VALUES)


def render_module_of_name() -> str:
    names = {path.stem: sorted(public_names(path)) for path in MODULES}
    assert len({name for module in names.values() for name in module}) == sum(map(len, names.values()))
    rows = "".join(
        f'    "{module}": """\n{textwrap.fill(" ".join(found), 112, initial_indent=INDENT, subsequent_indent=INDENT)}\n'
        f'    """,\n'
        for module, found in names.items()
    )
    return (
        '"""Names the module of each name of the package. Made by tests/contract/odfd/test_wire.py."""\n\n'
        "from typing import Final\n\n"
        f"_NAMES: Final = {{\n{rows}}}\n"
        "MODULE_OF_NAME: Final = {name: module for module, names in _NAMES.items() for name in names.split()}\n"
    )


def public_names(path: Path) -> set[str]:
    found = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=targets):
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in found if not name.startswith("_")}


def all_below(base: type) -> set[type]:
    return {each for below in base.__subclasses__() for each in (below, *all_below(below))}


@cache
def current() -> dict[str, Any]:
    """Name of a value to its fields, each with the JSON Schema of its type, and those that must be there."""
    _, components = msgspec.json.schema_components(VALUES, ref_template="{name}")
    shapes = {}
    for name, schema in sorted(components.items()):
        fields = {field: _bare(shape) for field, shape in schema["properties"].items()}
        shapes[name] = {"fields": fields, "required": sorted(schema.get("required", []))}
    return shapes


def _bare(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {key: _bare(value) for key, value in shape.items() if key not in ("description", "title", "default")}
    return [_bare(one) for one in shape] if isinstance(shape, list) else shape


@cache
def promised_values() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(PROMISE.read_text()) if PROMISE.exists() else {}
    return found


@pytest.mark.parametrize("name", sorted(promised_values()))
def test_what_was_promised_is_kept(name: str) -> None:
    promised, now = promised_values()[name], current()[name]
    for field, shape in promised["fields"].items():
        assert now["fields"][field] == shape, f"{name}.{field}"
    more = set(now["required"]) - set(promised["required"])
    assert not more, f"another version, which sends {name}, does not send {sorted(more)}: give a default"


def test_the_promise_speaks_of_every_field() -> None:
    promised = json.loads(PROMISE.read_text())
    for name, shape in current().items():
        unsaid = set(shape["fields"]) - set(promised.get(name, {"fields": {}})["fields"])
        assert not unsaid, f"{name}: {sorted(unsaid)}: write api.json anew (see the head of this file)"


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["refs", "all", "manifests", "text", "source", "x"]), inner,
                                      max_size=4)))  # fmt: skip
def test_any_json_is_a_request_or_a_told_mistake(value: object) -> None:
    data = msgspec.json.encode(value) if _encodable(value) else b"{"
    for kind in (wire.PullRequest, wire.ApplyRequest, wire.MirrorRequest, wire.VerifyRequest):
        try:
            request: object = msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError:
            continue
        assert isinstance(request, kind)


def _encodable(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except (OverflowError, UnicodeEncodeError):
        return False
    return True


if __name__ == "__main__":
    MODULE_OF_NAME.write_text(render_module_of_name())
    PROMISE.write_text(json.dumps(current(), indent=1, sort_keys=True) + "\n")
