"""Writes ``odfd/control/calls.py``, by which ``odfctl`` calls operations: a function for each, with its types.

When run as a module it writes the file anew. An operation whose answer is a stream, or bytes, is not among them.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

from odfd.api import actions, operations, services
from odfd.api.endpoints import JSON, Endpoint
from odfd.control import client

MODULE: Final = Path(client.__file__).with_name("calls.py")
_HEAD: Final = '''\
"""Makes the calls of the API's operations, each with the types of its body and its answer (``Client.do``).

Written by ``python -m odfd.api.calls``, from the methods that declare them; ``openapi.json`` says what each does.
"""

# fmt: off
# ruff: noqa: E501, E704, I001
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from odfd.control import wire
from odfd.control.client import ApiCall, part

'''
_PART: Final = re.compile(r"\{(\w+)(?::path)?\}")
_KINDS: Final = {"text": "str", "texts": "Sequence[str]", "flag": "bool", "number": "int"}


def text() -> str:
    """Returns the module as it is checked in."""
    return _HEAD + "".join(sorted(_calls()))


def _calls() -> Iterator[str]:
    named = {each.function: each for each in services.declared()}
    for method, path, endpoint in (*operations.endpoints(), *actions.TABLE):
        operation = endpoint.operation
        if operation is not None and endpoint.stream is None and endpoint.media_type == JSON:
            declared = named[operation]
            if path not in declared.operation.also:
                yield _call(f"{declared.service}_{operation.__name__.strip('_')}", method, path, endpoint)


def _call(name: str, method: str, path: str, endpoint: Endpoint) -> str:
    """Writes the function of one call."""
    hints = typing.get_type_hints(endpoint.operation)
    answers = _name_of(hints["return"] if endpoint.answers is None else endpoint.answers)
    parts = {each: f"{each}_" if each == "id" else each for each in _PART.findall(path)}
    where = _PART.sub(lambda found: f"{{part({parts[found[1]]})}}", path)
    given = [f"{each}: str" for each in parts.values()]
    sent = [f'"{method}"', f'{"f" if parts else ""}"{where}"', f"lambda: {answers}"]
    if endpoint.takes is not None:
        given.append(f"request: {_name_of(endpoint.takes)}")
        sent.append("request")
    if endpoint.query:
        given += ["*", *(f"{each.name}: {_KINDS[each.kind]} | None = None" for each in endpoint.query)]
        sent.append("query={" + ", ".join(f'"{each.name}": {each.name}' for each in endpoint.query) + "}")
    return f"def {name}({', '.join(given)}) -> ApiCall[{answers}]: return ApiCall({', '.join(sent)})\n"


def _name_of(kind: Any) -> str:
    """Returns the text of a type of ``wire``; one of several values is a list, as JSON has it."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _name_of(get_args(kind)[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_name_of, get_args(kind)))
    if origin is None:
        return "None" if kind is type(None) else f"wire.{kind.__name__}" if "wire" in kind.__module__ else kind.__name__
    if issubclass(origin, dict):
        return f"dict[{', '.join(map(_name_of, get_args(kind)))}]"
    return f"list[{_name_of(get_args(kind)[0])}]"


if __name__ == "__main__":
    MODULE.write_text(text())
