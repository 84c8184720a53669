"""Declares an operation of the API once, on the method that performs it: its verb, its path, and who may call it.

The signature of the method says the rest: parameters that the path names are parts of it, one that is a ``Request`` of
``wire`` is the body, those with a ``Parameter`` are the query, and what it returns is the answer. An operation without
a path is called by the endpoints of ``odfd.api`` that read more of a request than this.
"""

from __future__ import annotations

import enum
import inspect
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from starlette.requests import Request

from odfd.access.relations import Action
from odfd.control import wire
from odfd.control.responses import flag, number
from odfd.resources.registry import VERSION

Kind: TypeAlias = Literal["text", "texts", "flag", "number"]
F = TypeVar("F", bound=Callable[..., Any])
NODE_PATH: Final = f"/node/{VERSION}"
DATASET_PATH: Final = f"/dataset/{VERSION}/datasets/{{ref}}"
SOURCE_PATH: Final = f"/source/{VERSION}/sources/{{name}}"
MIRROR_PATH: Final = f"/net/{VERSION}/mirrors/{{ref}}"
FLOW_PATH: Final = f"/flow/{VERSION}/flows/{{name}}"
RESOURCE_PATH: Final = f"/resource/{VERSION}"
_DECLARED: Final = "__operation__"
_PART: Final = re.compile(r"\{(\w+)(?::path)?\}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query string. One of the kind ``texts`` may be given several times."""

    name: str
    kind: Kind
    about: str
    least: int = 0
    most: int = 2**63 - 1
    default: int | None = None

    def number(self, request: Request) -> int | None:
        return number(request, self.name, self.default, self.least, self.most)

    def read(self, request: Request) -> Any:
        """Returns what a request says; ``None`` if it does not say it. Raises Usage."""
        match self.kind:
            case "flag":
                return flag(request, self.name)
            case "number":
                return self.number(request)
            case "texts":
                return request.query_params.getlist(self.name)
            case "text":
                return request.query_params.get(self.name)


MAX_ROWS: Final = 10_000
"""Most blocks, records or lines in one answer."""
DEFAULT_ROWS: Final = 20
KINDS: Final = Parameter("kind", "texts", "A kind; given several times, several kinds.")


@dataclass(frozen=True, slots=True)
class NumberPart:
    """A part of a path that is a number. ``of``: the thing that it counts, for messages."""

    of: str
    hint: str


class Owner(enum.Enum):
    """The reason why the node's owner alone may call an operation, and no right on a resource allows it."""

    MACHINE = "shows the machine, the settings and other nodes, which no right on a dataset covers"
    POLICY = "decides for the node which keys it trusts, for all datasets"
    KEYS = "uses keys of the node, with which a holder speaks as its owner to other nodes"
    NETWORK = (
        "connects the node to other nodes, or receives and serves data in its name, as far as its disk and network go"
    )
    FILES = "reads or writes files with the rights of the node's user"
    DISK = "reserves or frees disk space, which all accounts share"
    PORTALS = "shows the private input of a portal, and signs the finding in the node's name"
    SOURCES = "is of sources that the node reads with the rights of its owner, and of bytes that were no rows yet"
    UNMANAGED = "is of datasets that are deleted, on which no account has rights any more"


class Permission(enum.Enum):
    """How an operation is judged whose first argument names no dataset."""

    FREE = "any client may call it: it shows nothing of the node's data"
    BY_RULE = "a function of ``odfd.api.access`` judges it (``restricts``)"


@dataclass(frozen=True, slots=True)
class EachOf:
    """The action that must be allowed on each dataset in ``refs`` of the request."""

    action: Action


Needs: TypeAlias = Action | EachOf | Owner | Permission
"""What a caller needs. An ``Action`` is one on the dataset that the first argument names."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The declaration of an operation on its method."""

    needs: Needs
    method: str = ""
    path: str = ""
    also: tuple[str, ...] = ()
    """Further paths, of which some parts are left out."""
    is_watched: bool = False
    """Whether the rule judges an administrator too, whose watch ends with the rights."""


def operation(
    method: str = "", path: str = "", *, needs: Needs, also: tuple[str, ...] = (), is_watched: bool = False
) -> Callable[[F], F]:
    """Declares that a method is an operation. See ``Operation``; without a path it has no endpoint of its own."""

    def declare(function: F) -> F:
        setattr(function, _DECLARED, Operation(needs, method, path, also, is_watched))
        return function

    return declare


def operation_of(function: Callable[..., Any]) -> Operation | None:
    found: Operation | None = getattr(function, _DECLARED, None)
    return found


class PathPart(NamedTuple):
    """A part of the path, which may have to be a number."""

    name: str
    number: NumberPart | None


class RequestBody(NamedTuple):
    """The body of a request: the JSON of a ``kind``."""

    kind: Any


class Given(NamedTuple):
    """A parameter of a method, with the part of a request that it is given."""

    parameter: str
    source: PathPart | RequestBody | Parameter
    default: Any
    """What is given in place of a part of the query that is not there."""
    is_keyword: bool


class Signature(NamedTuple):
    """The parameters that a request gives to an operation, and the type of its answer."""

    given: Sequence[Given]
    answers: Any


def signature_of(function: Callable[..., Any], path: str) -> Signature:
    """Reads the signature of an operation: its first parameters are the parts of the path, in their order.

    A parameter that is neither a part, the body nor in the query has a default, which holds.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    parts, given = _PART.findall(path), []
    for name, each in list(inspect.signature(function).parameters.items())[1:]:
        extras = {type(extra): extra for extra in getattr(hints[name], "__metadata__", ())}
        source: PathPart | RequestBody | Parameter
        if Parameter in extras:
            source = extras[Parameter]
        elif isinstance(hints[name], type) and issubclass(hints[name], wire.Request):
            source = RequestBody(hints[name])
        elif parts:
            source = PathPart(parts.pop(0), extras.get(NumberPart))
        elif each.default is not inspect.Parameter.empty:
            continue
        else:
            raise TypeError(f"{function.__qualname__}: no request has its {name}")
        default = None if each.default is inspect.Parameter.empty else each.default
        given.append(Given(name, source, default, each.kind is inspect.Parameter.KEYWORD_ONLY))
    return Signature(given, hints["return"])
