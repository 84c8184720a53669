"""The JSON of the API only ever grows: what ``openapi.json`` promises is still there, with the same type."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfd.api import openapi, routes, wire_names
from odfd.control import wire
from odfd.control.wire.value import Request, Value

WIRE = {f"{wire.__name__}.{path.stem}" for path in wire_names.modules()}
FOUND = [
    value
    for module in sorted(WIRE)
    for value in vars(importlib.import_module(module)).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value not in (Value, Request)
]
VALUES = list(dict.fromkeys(FOUND))


def test_a_value_is_declared_once() -> None:
    """The package takes all from its modules: of two with one name, one would be lost."""
    assert wire_names.MODULE.read_text() == wire_names.text(), "write it anew: make api"
    assert all(getattr(wire, value.__name__) is value for value in VALUES)
    with pytest.raises(AttributeError, match="Records2"):
        wire.Records2  # type: ignore[attr-defined]  # noqa: B018
    declared = [value for value in all_below(wire.Value) | all_below(wire.Request) if value.__module__ in WIRE]
    assert len({value.__name__ for value in declared}) == len(declared) > 80
    assert set(declared) | {wire.Problem} == set(VALUES)


def all_below(base: type) -> set[type]:
    return {each for below in base.__subclasses__() for each in (below, *all_below(below))}


def test_what_was_promised_is_kept() -> None:
    """The document of a change is current (``tests/node/test_api.py``): it has every field."""
    document = openapi.document()
    assert {value.__name__ for value in VALUES} == set(document["components"]["schemas"])
    assert not list(openapi.broken_promises(json.loads(routes.DOCUMENT.read_text()), document))


def without_field(schema: dict[str, Any]) -> None:
    del schema["properties"]["ref"]


def of_another_type(schema: dict[str, Any]) -> None:
    schema["properties"]["ref"] = {"type": "integer"}


def with_what_must_be_there(schema: dict[str, Any]) -> None:
    schema["properties"]["more"] = {"type": "integer"}
    schema["required"] = [*schema["required"], "more"]


def with_other_words(schema: dict[str, Any]) -> None:
    schema["description"] = "Other words."
    schema["properties"]["ref"] |= {"description": "Other words."}
    schema["properties"]["more"] = {"type": "integer", "default": 0}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without_field, ["CorrectResult.ref is gone"]),
        (of_another_type, ["CorrectResult.ref has another type"]),
        (
            with_what_must_be_there,
            ["CorrectResult.more has no default, and another version that sends CorrectResult does not send it"],
        ),
        (with_other_words, []),
    ],
)
def test_a_broken_promise_is_told(change: Callable[[dict[str, Any]], None], told: list[str]) -> None:
    promised = json.loads(routes.DOCUMENT.read_text())
    now = json.loads(routes.DOCUMENT.read_text())
    change(now["components"]["schemas"]["CorrectResult"])
    assert list(openapi.broken_promises(promised, now)) == told
    del now["components"]["schemas"]["CorrectResult"]
    assert list(openapi.broken_promises(promised, now)) == ["CorrectResult is gone"]


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
