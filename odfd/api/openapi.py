"""Makes the OpenAPI 3.1 document of the control API from its tables of endpoints and the types of ``wire``.

When run as a module it writes ``openapi.json`` beside it, which the node serves: nothing is generated at run time. It
is also what clients may rely on: a document that takes back what the former promised is written with ``--break`` alone.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from odfd.api import routes
from odfd.api.endpoints import IF_MATCH, IF_NONE_MATCH, JSON, Endpoint
from odfd.api.idempotency import REPLAYED
from odfd.control import wire
from odfd.control.operations import Parameter
from odfd.control.responses import EVENT_STREAM, NDJSON
from odfd.control.wire.module_of_name import MODULE_OF_NAME
from odfd.errors import PROBLEM_JSON
from odfd.store.idempotency import HEADER

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_PROBLEMS: Final = {
    400: ("Usage", "The request is malformed: a parameter, a path or a header."),
    403: ("Refused", "Policy forbids it, or the caller may not speak to this node."),
    404: ("NotFound", "There is no such thing."),
    409: ("Conflict", "Something changed meanwhile, or is there already."),
    410: ("Gone", "The version is of another log, or too old: list again."),
    412: ("Changed", "The resource has another generation than the request states."),
    422: ("Invalid", "The body, or a name, breaks a rule; `place` states where."),
    429: ("TooMany", "Too many watches are open."),
    500: ("Bug", "A fault of this program; its log has the trace."),
    502: ("Remote", "Another party failed: a peer, a server, an engine."),
    503: ("Environment", "This machine lacks something: disk, Java, a key; or the node stops."),
}
_PROBLEM_CONTENT: Final = {"schema": {"$ref": "#/components/schemas/Problem"}}
_PARTS: Final = re.compile(r"\{(\w+)(?::\w+)?\}")


def document() -> dict[str, Any]:
    """Makes the OpenAPI document."""
    described = [_describe(each) for each in routes.OPERATIONS]
    kinds = list(dict.fromkeys(kind for each in described for kind in each.kinds() if kind is not bytes))
    schemas, components = msgspec.json.schema_components(
        [*kinds, *values()], ref_template="#/components/schemas/{name}"
    )
    shapes = {repr(kind): shape for kind, shape in zip([*kinds, *values()], schemas, strict=True)}
    shapes[repr(bytes)] = {"type": "string", "contentMediaType": "application/octet-stream"}
    paths: dict[str, dict[str, Any]] = {}
    for each in described:
        path = _PARTS.sub(r"{\1}", each.row.path)
        paths.setdefault(path, {})[each.row.method.lower()] = each.operation(shapes)
    return {
        "openapi": "3.1.1",
        "jsonSchemaDialect": _DIALECT,
        "info": {"title": "odfd control API", "version": "1", "description": _ABOUT},
        "servers": [{"url": "http://odfd", "description": "Over the control socket; any host does."}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": dict(sorted(components.items())), "responses": _problem_responses(), "headers": _HEADERS,
        },
    }  # fmt: skip


def values() -> list[type[msgspec.Struct]]:
    """Returns all values of ``wire``: also results of tasks, lines of streams, and what these hold."""
    found = [getattr(wire, name) for name in MODULE_OF_NAME]
    bases = (wire.Value, wire.Request)
    return [each for each in found if isinstance(each, type) and issubclass(each, msgspec.Struct) and each not in bases]


def broken_promises(promised: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yields what clients of the document ``promised`` may rely on, and ``now`` does not say: values and fields."""
    before, after = (_shapes(document["components"]["schemas"]) for document in (promised, now))
    for name, (fields, required) in before.items():
        if name not in after:
            yield f"{name} is gone"
            continue
        present, needed = after[name]
        for field, shape in fields.items():
            if field not in present:
                yield f"{name}.{field} is gone"
            elif present[field] != shape:
                yield f"{name}.{field} has another type"
        for field in sorted(needed - required):
            yield f"{name}.{field} has no default, and another version that sends {name} does not send it"


def _shapes(components: Mapping[str, Any]) -> dict[str, tuple[dict[str, Any], set[str]]]:
    """Returns of each value its fields, each with the schema of its type, and the names of those that must be there."""
    return {
        name: (
            {field: _bare(shape) for field, shape in schema["properties"].items()},
            set(schema.get("required", ())),
        )
        for name, schema in components.items()
    }


def _bare(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {key: _bare(value) for key, value in shape.items() if key not in ("description", "title", "default")}
    return [_bare(one) for one in shape] if isinstance(shape, list) else shape


_ABOUT: Final = (
    "Served on the control socket. A fault is problem+json (RFC 9457): `family`, `rule` and `hint` say what to do. "
    "An operation that takes long answers 202 with a task, which `/node/v1alpha1/tasks/{id}` shows; its result "
    "has a schema among the components. "
    "Fields are added in later versions and never changed: clients ignore those that they do not know."
)
_HEADERS: Final = {
    REPLAYED: {"description": "The answer was given before, to the same key.", "schema": {"const": "true"}},
    "etag": {"description": "Names this state of the resource.", "schema": {"type": "string"}},
    "allow": {"description": "Methods that the path takes.", "schema": {"type": "string"}},
}


class _Described(NamedTuple):
    """An operation, with what its declaration and the types of services say about it."""

    row: routes.ApiRoute
    endpoint: Endpoint
    answers: object
    summary: str

    def kinds(self) -> Iterable[Any]:
        """Yields the types of its body and its answers."""
        return (
            kind
            for kind in (
                self.endpoint.takes,
                *self.endpoint.also_takes.values(),
                self.answers,
                self.endpoint.stream,
                self.endpoint.events,
            )
            if kind is not None
        )

    def operation(self, shapes: Mapping[str, Any]) -> dict[str, Any]:
        path, method = self.row.path, self.row.method
        words = [word for word in re.split(r"\W+", _PARTS.sub(r"\1", path)) if word]
        parameters = [_path_parameter(name) for name in _PARTS.findall(path)]
        parameters += [_query_parameter(each) for each in self.endpoint.query]
        parameters += [_KEY] if self.row.repeats else []
        parameters += [_CONDITIONS[condition] for condition in self.endpoint.conditions(method)]
        made: dict[str, Any] = {
            "operationId": "_".join([method.lower(), *words]),
            "summary": self.summary,
            "tags": [words[0]],
            "responses": self._responses(shapes),
        }
        if parameters:
            made["parameters"] = parameters
        if self.endpoint.takes is not None:
            shape = shapes[repr(self.endpoint.takes)]
            content = {kind: {"schema": shape} for kind in self.endpoint.body_types}
            content |= {kind: {"schema": shapes[repr(each)]} for kind, each in self.endpoint.also_takes.items()}
            made["requestBody"] = {"content": content}
        return made

    def _responses(self, shapes: Mapping[str, Any]) -> dict[str, Any]:
        content = {self.endpoint.media_type: {"schema": shapes[repr(self.answers)]}}
        if self.endpoint.stream is not None:
            line = {"type": "string", "contentMediaType": JSON, "contentSchema": shapes[repr(self.endpoint.stream)]}
            about = 'One JSON value a line; a line `{"problem": …}` is the fault that ended the stream.'
            content[NDJSON] = {"schema": line | {"description": about}}
            content[EVENT_STREAM] = {"schema": line | {"description": "The same as events, if they are accepted."}}
        if self.endpoint.events is not None:
            event = {"type": "string", "contentMediaType": JSON, "contentSchema": shapes[repr(self.endpoint.events)]}
            content[EVENT_STREAM] = {"schema": event | {"description": "Events, if they are accepted."}}
        done: dict[str, Any] = {"description": "Done.", "content": content}
        if self.row.method == "GET" and self.endpoint.conditions("GET"):
            done["headers"] = {"etag": {"$ref": "#/components/headers/etag"}}
        if self.row.repeats:
            done["headers"] = {REPLAYED: {"$ref": f"#/components/headers/{REPLAYED}"}}
        statuses = self.endpoint.statuses or ((202,) if self.answers is wire.TaskRef else (200,))
        task = {"description": "A task does it.", "content": {JSON: {"schema": shapes[repr(wire.TaskRef)]}}}
        found = {
            str(status): task if status == 202 and self.answers is not wire.TaskRef else done for status in statuses
        }
        told = {str(each): {"$ref": f"#/components/responses/{name}"} for each, (name, _) in _PROBLEMS.items()}
        for each in set(found) & set(told):  # A refusal before the operation begins is a problem with the same status.
            found[each] = done | {"content": content | {PROBLEM_JSON: _PROBLEM_CONTENT}, "description": "Refused."}
        return dict(sorted({**told, **found}.items()))


_KEY: Final = {
    "name": HEADER,
    "in": "header",
    "description": "Names this request: sent again with it, it is answered as the first time, for a day.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}


_CONDITIONS: Final = {
    name: {"name": name, "in": "header", "description": about, "schema": {"type": "string"}}
    for name, about in (
        (
            IF_MATCH,
            "The ETag of the resource as it was read: where its generation is another now, nothing is done (412).",
        ),
        (IF_NONE_MATCH, "Of a GET: ETags that the client has (304). Of a PUT `*`: only if there is none yet."),
    )
}


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameter(each: Parameter) -> dict[str, Any]:
    schemas: dict[str, dict[str, Any]] = {
        "text": {"type": "string"},
        "texts": {"type": "array", "items": {"type": "string"}},
        "flag": {"type": "boolean", "default": False},
        "number": {"type": "integer", "minimum": each.least, "maximum": each.most},
    }
    schema = schemas[each.kind] | ({} if each.default is None else {"default": each.default})
    return {"name": each.name, "in": "query", "description": each.about, "schema": schema}


def _problem_responses() -> dict[str, Any]:
    return {
        name: {"description": about, "content": {PROBLEM_JSON: _PROBLEM_CONTENT}} for name, about in _PROBLEMS.values()
    }


def _describe(row: routes.ApiRoute) -> _Described:
    endpoint, answers = row.ask, row.ask.answers
    if answers is None and endpoint.operation is not None:
        answers = typing.get_type_hints(endpoint.operation)["return"]
    told = inspect.isfunction(endpoint.ask) and inspect.getdoc(endpoint.ask) is not None
    about = endpoint.ask if told or endpoint.operation is None else endpoint.operation
    return _Described(row, endpoint, answers, _summary(about))


def _summary(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function) or "Raises"
    if text.startswith("Raises"):
        text = function.__qualname__.replace("Service.", " ").strip("_").replace("_", " ").capitalize() + "."
    return " ".join(re.split(r"(?<=\.)\s|\n\n", text, maxsplit=1)[0].split()).replace("``", "`")


def text() -> str:
    """Returns the document as it is checked in."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    broken = [] if "--break" in sys.argv else list(broken_promises(json.loads(routes.DOCUMENT.read_text()), document()))
    if broken:
        sys.exit("\n".join([*broken, "nothing is written; if no release has promised it: make api BREAK=1"]))
    routes.DOCUMENT.write_text(text())
