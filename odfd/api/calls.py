"""Writes ``odfd/control/calls.py``, by which ``odfctl`` calls operations: a function for each, with its types.

When run as a module it writes the file anew. An endpoint that also streams has a second function, named by the
operation that it follows, which sets the flag that asks for the stream. Functions of resources take the type.
"""

from __future__ import annotations

import keyword
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, get_args, get_origin

from odfd.api import actions, resource_protocol, services
from odfd.api.endpoints import WATCH, Endpoint, endpoints
from odfd.control import client

MODULE: Final = Path(client.__file__).with_name("calls.py")
_HEAD: Final = '''\
"""Makes the calls of the API's operations, each with the types of its body and its answer (``ControlClient``).

Written by ``python -m odfd.api.calls``, from the methods that declare them; ``openapi.json`` says what each does.
"""

# fmt: off
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odfd.control import wire
from odfd.control.client import ApiCall, part

if TYPE_CHECKING:
    from odfd.resources.registry import Registration

'''
_PART: Final = re.compile(r"\{(\w+)(:path)?\}")
_SWITCHES: Final = (WATCH, actions.FOLLOW)
"""Parameters of which a stream has one, and no other call."""
_KINDS: Final = {"text": "str", "texts": "Sequence[str]", "flag": "bool", "number": "int"}


def text() -> str:
    """Returns the module as it is checked in."""
    return _HEAD + "".join(sorted(_calls()))


def _calls() -> Iterator[str]:
    named = services.operations()
    for method, path, endpoint in (*endpoints(), *actions.TABLE):
        assert endpoint.operation is not None
        declared = named[endpoint.operation]
        name = declared.called + ("_all" if path in declared.operation.also else "")
        yield _call(name, method, path, endpoint, _answers(endpoint))
        if endpoint.follows is not None:
            yield _call(named[endpoint.follows].called, method, path, endpoint, endpoint.stream, streams=True)
    for method, path, endpoint in resource_protocol.TABLE:
        name = f"resources_{endpoint.ask.__name__.strip('_')}"
        yield _call(name, method, path, endpoint, _answers(endpoint))
        if endpoint.stream not in (None, endpoint.answers):
            yield _call(f"{name}_watch", method, path, endpoint, endpoint.stream, streams=True)


def _answers(endpoint: Endpoint) -> Any:
    return typing.get_type_hints(endpoint.operation)["return"] if endpoint.answers is None else endpoint.answers


def _call(name: str, method: str, path: str, endpoint: Endpoint, kind: Any, *, streams: bool = False) -> str:
    """Writes the function of one call, whose answer, or each line of it, is a ``kind``."""
    answers, given = _name_of(kind), []
    if path.startswith(resource_protocol.ALL):
        path = path.removeprefix(resource_protocol.ALL)
        given.append("type_: Registration")
    where = _PART.sub(lambda found: f"{{{_name(found[1])}}}" if found[2] else f"{{part({_name(found[1])})}}", path)
    where = "{type_.collection}" * len(given) + where
    given += [f"{_name(found[1])}: str" for found in _PART.finditer(path)]
    sent = [f'"{method}"', f'{"f" if given else ""}"{where}"', f"lambda: {answers}"]
    takes, media_type = next(((each, media) for media, each in endpoint.also_takes.items()), (endpoint.takes, ""))
    if takes not in (None, bytes):
        given.append(f"request: {_name_of(takes).replace('list[', 'Sequence[')}")
        sent.append("request")
    query = [each for each in endpoint.query if each not in _SWITCHES]
    asked = [f'"{each.name}": {_name(each.name)}' for each in query]
    asked += [f'"{each.name}": True' for each in endpoint.query if streams and each in _SWITCHES]
    if query:
        given += ["*", *(f"{_name(each.name)}: {_KINDS[each.kind]} | None = None" for each in query)]
    if asked:
        sent.append("query={" + ", ".join(asked) + "}")
    if media_type:
        sent.append(f'media_type="{media_type}"')
    return f"def {name}({', '.join(given)}) -> ApiCall[{answers}]: return ApiCall({', '.join(sent)})\n"


def _name(name: str) -> str:
    """Returns the name in Python of a part of a path or a query: ``dry_run`` of ``dryRun``."""
    name = re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)
    return f"{name}_" if name == "id" or keyword.iskeyword(name) else name


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
