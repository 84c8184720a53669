"""Defines the requests in kamu's format: parameters and bodies of ``/query``, ``tail`` and ``metadata``. Pure.

Names of formats are accepted as kamu's nodes do, in any case and with hyphens; an unknown one is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final, TypeVar, cast
from urllib.parse import parse_qsl

import msgspec

from chain.errors import Invalid
from chain.ids import DatasetId
from chain.multihash import Multihash
from engines.query.requests import Layout, RowSelection
from odfd.control import wire
from odfd.kamu.schemas import FORMATS
from odfd.queries.askers import Bound

MAX_BODY: Final = 1 << 20
"""Most bytes of a request's body."""
MOST_ROWS: Final = 100_000_000
USUAL_ROWS: Final = 100
_LAYOUTS: Final = ("JsonAoS", "JsonSoA", "JsonAoA")
_INCLUDED: Final = ("Input", "Proof", "Schema")
_PARTS: Final = ("Attachments", "Info", "License", "Refs", "Schema", "Seed", "Vocab")
_DIALECTS: Final = ("SqlDataFusion", "SqlDuckDb")
"""Accepted dialects, the first by default as programs for kamu expect; DuckDB answers both."""
T = TypeVar("T")
_Rows = Annotated[int, msgspec.Meta(ge=0, le=MOST_ROWS)]
_MAX_FIELDS: Final = 64


class BoundDataset(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """A dataset in a query: its id, its alias, and the last block to read."""

    id: str
    alias: str
    block_hash: str | None = None

    def bound(self) -> Bound:
        """Returns the id and the last block to read. Raises Invalid."""
        return Bound(DatasetId.parse(self.id), None if self.block_hash is None else Multihash.parse(self.block_hash))


class SqlQuestion(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The body of ``/query``. The last three members are odfd's own."""

    query: str
    query_dialect: str = _DIALECTS[0]
    data_format: str = _LAYOUTS[0]
    include: tuple[str, ...] = ()
    schema_format: str | None = None
    datasets: tuple[BoundDataset, ...] | None = None
    skip: _Rows = 0
    limit: _Rows = USUAL_ROWS
    parameters: dict[str, Any] | list[Any] | None = None
    require: str | None = None
    cut: bool = False

    def checked(self) -> SqlQuestion:
        """Returns the request with normalised names. Raises Invalid."""
        schema_format = self.schema_format and named(self.schema_format, FORMATS, "schemaFormat")
        included = {named(each, _INCLUDED, "include") for each in self.include}
        if schema_format:
            included.add("Schema")
        if "Proof" in included and (self.require or self.cut):
            raise Invalid(
                "reliance depends on the asking node and cannot be proven", rule="request", hint="leave it out"
            )
        return msgspec.structs.replace(
            self,
            query_dialect=named(self.query_dialect, _DIALECTS, "queryDialect"),
            data_format=named(self.data_format, _LAYOUTS, "dataFormat"),
            include=tuple(sorted(included)),
            schema_format=(schema_format or "ArrowJson") if "Schema" in included else None,
        )

    def request(self) -> wire.QueryRequest:
        return wire.QueryRequest(sql=self.query, parameters=self.parameters, require=self.require, cut=self.cut)

    def rows(self) -> RowSelection:
        return RowSelection(layout=layout(self.data_format), skip=self.skip, limit=self.limit)

    def bound(self) -> dict[str, Bound]:
        """Returns the dataset of each name. Raises Invalid."""
        if self.datasets is not None and len({dataset.alias.lower() for dataset in self.datasets}) < len(self.datasets):
            raise Invalid("two datasets have one alias", rule="query-datasets")
        return {dataset.alias.lower(): dataset.bound() for dataset in self.datasets or ()}

    def said(self, pins: Collection[wire.Pin]) -> dict[str, Any]:
        """Returns the request that reproduces the answer, with the blocks that were read."""
        newest: dict[str, wire.Pin] = {}
        for pin in sorted(pins, key=lambda pin: pin.sequence_number):
            newest[pin.id] = pin
        aliases = {dataset.id: dataset.alias for dataset in self.datasets or ()}
        read = [
            {"id": pin.id, "alias": aliases.get(pin.id, pin.name), "blockHash": pin.block} for pin in newest.values()
        ]
        members = {name: value for name, value in msgspec.to_builtins(self).items() if value is not None}
        for ours, unsaid in (("require", None), ("parameters", None), ("cut", False)):
            if members.get(ours) == unsaid:
                members.pop(ours, None)
        return members | {"datasets": read}


class Tail(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The parameters of ``tail``."""

    skip: _Rows = 0
    limit: _Rows = USUAL_ROWS
    data_format: str = _LAYOUTS[0]
    schema_format: str | None = None


def question_of(body: bytes) -> SqlQuestion:
    """Decodes the body of ``/query``. Raises Invalid."""
    try:
        return msgspec.json.decode(body, type=SqlQuestion).checked()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_understood(error) from error


def question_again(given: dict[str, Any]) -> SqlQuestion:
    """Decodes the input of a proven answer, which states the blocks that were read. Raises Invalid."""
    question = _convert(given, SqlQuestion).checked()
    unbound = [dataset.alias for dataset in question.datasets or () if dataset.block_hash is None]
    if question.datasets is None or unbound:
        raise Invalid("the input does not say which blocks were read", rule="request", hint="datasets with blockHash")
    return question


def own_question_of(body: bytes) -> wire.QueryRequest:
    """Decodes a request of our client. Raises Invalid."""
    try:
        return msgspec.json.decode(body, type=wire.QueryRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_understood(error) from error


def question_in(query: str) -> SqlQuestion:
    """Decodes the query string of ``/query``. Raises Invalid."""
    fields = _fields(query)
    if "format" in fields:
        fields["dataFormat"] = fields.pop("format")
    included = [each for each in fields.pop("include", "").split(",") if each]
    return _convert(fields | {"include": included}, SqlQuestion).checked()


def tail_in(query: str) -> Tail:
    """Decodes the parameters of ``tail``. Raises Invalid."""
    asked = _convert(_fields(query), Tail)
    return msgspec.structs.replace(
        asked,
        data_format=named(asked.data_format, _LAYOUTS, "dataFormat"),
        schema_format=asked.schema_format and named(asked.schema_format, FORMATS, "schemaFormat"),
    )


def parts_in(query: str) -> tuple[frozenset[str], str]:
    """Decodes which metadata is requested, and the format of schemas. Raises Invalid."""
    fields = _fields(query)
    parts = [each for each in fields.pop("include", "Seed").split(",") if each]
    form = named(fields.pop("schemaFormat", "ArrowJson"), FORMATS, "schemaFormat")
    if fields:
        raise Invalid(f"there is no parameter {min(fields)[:40]!r}", rule="request", hint="include, schemaFormat")
    return frozenset(named(part, _PARTS, "include") for part in parts), form


def layout(name: str) -> Layout:
    """Returns a layout by its normalised name."""
    return cast("Layout", name)


def named(text: str, known: Collection[str], what: str) -> str:
    """Returns the known name that a text means, in any case and with hyphens. Raises Invalid."""
    plain = text.replace("-", "").lower()
    found = next((each for each in known if each.lower() == plain), None)
    if found is None:
        raise Invalid(f"there is no {what} {text[:40]!r} here", rule="request", hint=f"one of {', '.join(known)}")
    return found


def _fields(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise Invalid("the query string is not understood", rule="request", hint="percent-encode its values") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise Invalid("a parameter is said twice", rule="request")
    return fields


def _convert(fields: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _not_understood(error) from error


def _not_understood(error: Exception) -> Invalid:
    message, _, place = str(error).partition(" - at ")
    return Invalid(message, rule="request", place=place.strip("`"))
