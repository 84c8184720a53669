"""Defines the values that a node sends besides rows."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from odfd_client.errors import Bug, Invalid


@dataclass(frozen=True, slots=True)
class Pin:
    """The cut of a dataset for an answer. A query with this pin gives the same rows."""

    name: str
    id: str
    block: str
    """Hash of the last block that was read."""
    sequence_number: int
    at: str = ""
    """The clause of time for this dataset in the query, if any."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Pin:
        """Decodes a pin. Raises Invalid."""
        try:
            number = fields["sequenceNumber"]
            texts = [fields["name"], fields["id"], fields["block"], fields.get("at", "")]
        except (KeyError, TypeError, AttributeError) as error:
            raise Invalid(f"not a pin: {error} is missing", rule="query-pin") from error
        if type(number) is not int or not all(isinstance(text, str) for text in texts):
            raise Invalid("not a pin: a member has another type", rule="query-pin")
        name, dataset, block, at = texts
        return cls(name, dataset, block, number, at)

    def said(self) -> dict[str, Any]:
        """Encodes a pin as JSON, also for ``odfctl sql --pin``."""
        values = asdict(self)
        values["sequenceNumber"] = values.pop("sequence_number")
        return values


@dataclass(frozen=True, slots=True)
class ReadStanding:
    """How far the data read of a dataset may be relied on: ``blocks`` of ``of`` blocks, by ``fact``."""

    name: str
    fact: str
    blocks: int
    of: int


@dataclass(frozen=True, slots=True)
class NodeMetadata:
    """The metadata before the rows of an answer."""

    pins: tuple[Pin, ...]
    standing: str
    standings: tuple[ReadStanding, ...]
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> NodeMetadata:
        """Decodes the metadata. Raises Bug for an invalid one."""
        try:
            return cls(
                pins=tuple(Pin.of(field) for field in fields["pins"]),
                standing=str(fields["standing"]),
                standings=tuple(
                    ReadStanding(str(field["name"]), str(field["fact"]), int(field["blocks"]), int(field["of"]))
                    for field in fields["standings"]
                ),
                remarks=tuple(map(str, fields.get("remarks", ()))),
            )
        except (KeyError, TypeError, ValueError, Invalid) as error:
            raise Bug(f"what the node says of its answer is not understood: {error}", rule="answer") from error


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """A dataset of the node, as ``odfctl get datasets`` shows it."""

    name: str
    id: str
    kind: str
    blocks: int
    records: int | None
    bytes: int | None
    watermark: str | None
    head: str | None
    state: str
    owner: bool
    rely_on: str
    """The fact by which the dataset may be relied on; empty: none is known."""
    upper: str | None = None
    """The frontier: earlier times are complete. ``None``: it is sealed, or the node does not say."""

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> DatasetInfo:
        """Decodes a dataset. Raises Bug for an invalid one."""
        try:
            return cls(
                name=fields["name"],
                id=fields["id"],
                kind=fields["kind"],
                blocks=fields["blocks"],
                records=fields.get("records"),
                bytes=fields.get("bytes"),
                watermark=fields.get("watermark"),
                head=fields.get("head"),
                state=fields.get("state", ""),
                owner=bool(fields.get("owner")),
                rely_on=str((fields.get("relyOn") or {}).get("fact", "")),
                upper=(fields.get("frontiers") or {}).get("upper"),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise Bug(f"what the node says of a dataset is not understood: {error}", rule="answer") from error


@dataclass(frozen=True, slots=True)
class Position:
    """The progress of a listener. ``str`` formats it as one line of JSON, which ``parse`` reads."""

    id: str
    """Id of the dataset."""
    offset: int
    """Offset of the last row that was delivered; -1: none."""
    block: str
    """Hash of the last block that was read; later blocks must follow it."""
    sequence_number: int
    shards: tuple[Position, ...] = ()
    """Positions in each shard of a collection with several, including the first."""

    @property
    def parts(self) -> tuple[Position, ...]:
        """The position in each chain."""
        return self.shards or (self,)

    @classmethod
    def of(cls, parts: Sequence[Position]) -> Position:
        """Joins the positions in all shards."""
        first = parts[0]
        return first if len(parts) == 1 else replace(first, shards=tuple(parts))

    def said(self) -> dict[str, Any]:
        """Encodes a position as JSON."""
        values = asdict(self)
        del values["shards"]
        return values | ({"shards": [shard.said() for shard in self.shards]} if self.shards else {})

    def __str__(self) -> str:
        return json.dumps(self.said())

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parses the text of a position. Raises Invalid."""
        try:
            values = dict(json.loads(text))
            shards = tuple(cls(**dict(each)) for each in values.pop("shards", ()))
            found = cls(**values)
        except (ValueError, TypeError) as error:
            raise Invalid(
                "not the position of a listener", rule="position", hint="save str(update.position)"
            ) from error
        if not all(map(_is_sound, (found, *shards))) or (shards and shards[0] != found):
            raise Invalid("not the position of a listener", rule="position", hint="save str(update.position)")
        return cls.of(shards or (found,))


def _is_sound(found: Position) -> bool:
    whole = type(found.offset) is int and type(found.sequence_number) is int and found.offset >= -1
    return whole and isinstance(found.id, str) and isinstance(found.block, str) and found.shards == ()


def moment(millis: int) -> str:
    """Formats a time in milliseconds since 1970: ``2024-05-01T00:00:00.000Z``."""
    at = datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=millis)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
