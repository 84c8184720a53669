"""Declares the sources of a root dataset: where data is fetched, how it is prepared, read, shaped and merged."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from chain.model.schema import DataSchema
from chain.model.wire import I32, U64, Scalar


class _Table(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A plain table of the format."""


class _Variant(_Table, frozen=True, kw_only=True, tag_field="kind"):
    """A table that is one alternative of a union; manifests name it by ``kind``."""


class SourceOrdering(enum.Enum):
    BY_EVENT_TIME = "ByEventTime"
    BY_NAME = "ByName"


class CompressionFormat(enum.Enum):
    GZIP = "Gzip"
    ZIP = "Zip"


class MqttQos(enum.Enum):
    AT_MOST_ONCE = "AtMostOnce"
    AT_LEAST_ONCE = "AtLeastOnce"
    EXACTLY_ONCE = "ExactlyOnce"


class FromMetadata(_Variant, frozen=True, kw_only=True, tag="FromMetadata"): ...


class FromPath(_Variant, frozen=True, kw_only=True, tag="FromPath"):
    pattern: str
    timestamp_format: str | None = None


class FromSystemTime(_Variant, frozen=True, kw_only=True, tag="FromSystemTime"): ...


EventTimeSource: TypeAlias = FromMetadata | FromPath | FromSystemTime


class Forever(_Variant, frozen=True, kw_only=True, tag="Forever"): ...


SourceCaching: TypeAlias = Forever


class RequestHeader(_Table, frozen=True, kw_only=True):
    name: str
    value: str


class EnvVar(_Table, frozen=True, kw_only=True):
    name: str
    value: str | None = None


class MqttTopicSubscription(_Table, frozen=True, kw_only=True):
    path: str
    qos: Annotated[MqttQos, Scalar("int32")] | None = None


class FetchUrl(_Variant, frozen=True, kw_only=True, tag="Url"):
    url: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    headers: tuple[RequestHeader, ...] | None = None


class FetchFilesGlob(_Variant, frozen=True, kw_only=True, tag="FilesGlob"):
    path: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    order: Annotated[SourceOrdering, Scalar("int32")] | None = None


class FetchContainer(_Variant, frozen=True, kw_only=True, tag="Container"):
    image: str
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None


class FetchMqtt(_Variant, frozen=True, kw_only=True, tag="Mqtt"):
    host: str
    port: I32
    username: str | None = None
    password: str | None = None
    topics: tuple[MqttTopicSubscription, ...]


class FetchEthereumLogs(_Variant, frozen=True, kw_only=True, tag="EthereumLogs"):
    chain_id: U64 | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None


FetchStep: TypeAlias = FetchUrl | FetchFilesGlob | FetchContainer | FetchMqtt | FetchEthereumLogs


class Decompress(_Variant, frozen=True, kw_only=True, tag="Decompress"):
    format: Annotated[CompressionFormat, Scalar("int32")]
    sub_path: str | None = None


class Pipe(_Variant, frozen=True, kw_only=True, tag="Pipe"):
    command: tuple[str, ...]


PrepStep: TypeAlias = Decompress | Pipe


class ReadCsv(_Variant, frozen=True, kw_only=True, tag="Csv"):
    """A CSV read step; defaults: ``,`` utf8 ``"`` ``\\`` no header, no inference, empty is null, rfc3339 times."""

    ddl_schema: tuple[str, ...] | None = None
    separator: str | None = None
    encoding: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    infer_schema: bool | None = None
    null_value: str | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


class ReadGeoJson(_Variant, frozen=True, kw_only=True, tag="GeoJson"):
    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


class ReadEsriShapefile(_Variant, frozen=True, kw_only=True, tag="EsriShapefile"):
    ddl_schema: tuple[str, ...] | None = None
    sub_path: str | None = None
    schema: DataSchema | None = None


class ReadParquet(_Variant, frozen=True, kw_only=True, tag="Parquet"):
    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


class ReadJson(_Variant, frozen=True, kw_only=True, tag="Json"):
    sub_path: str | None = None
    ddl_schema: tuple[str, ...] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


class ReadNdJson(_Variant, frozen=True, kw_only=True, tag="NdJson"):
    ddl_schema: tuple[str, ...] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


class ReadNdGeoJson(_Variant, frozen=True, kw_only=True, tag="NdGeoJson"):
    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


ReadStep: TypeAlias = ReadCsv | ReadGeoJson | ReadEsriShapefile | ReadParquet | ReadJson | ReadNdJson | ReadNdGeoJson


class SqlQueryStep(_Table, frozen=True, kw_only=True):
    alias: str | None = None
    query: str


class TemporalTable(_Table, frozen=True, kw_only=True):
    name: str
    primary_key: tuple[str, ...]


class TransformSql(_Variant, frozen=True, kw_only=True, tag="Sql"):
    """``query`` is a shorthand for people; a chain holds only ``queries``, the last without alias."""

    engine: str
    version: str | None = None
    query: str | None = None
    queries: tuple[SqlQueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Transform: TypeAlias = TransformSql


class MergeAppend(_Variant, frozen=True, kw_only=True, tag="Append"): ...


class MergeLedger(_Variant, frozen=True, kw_only=True, tag="Ledger"):
    primary_key: tuple[str, ...]


class MergeSnapshot(_Variant, frozen=True, kw_only=True, tag="Snapshot"):
    primary_key: tuple[str, ...]
    compare_columns: tuple[str, ...] | None = None


class MergeChangelogStream(_Variant, frozen=True, kw_only=True, tag="ChangelogStream"):
    primary_key: tuple[str, ...]


class MergeUpsertStream(_Variant, frozen=True, kw_only=True, tag="UpsertStream"):
    primary_key: tuple[str, ...]


MergeStrategy: TypeAlias = MergeAppend | MergeLedger | MergeSnapshot | MergeChangelogStream | MergeUpsertStream


class MergeTraits(NamedTuple):
    """Properties of a merge strategy that matter to callers which do not merge."""

    asks_history: bool = False
    """Whether rows already in the dataset decide which rows of a batch are new."""
    newest_of_key: bool = False
    """Whether, of those rows, only the newest of each key count."""
    whole_state: bool = False
    """Whether a batch is the whole state, so that rows missing from it were removed."""
    carries_op: bool = False
    """Whether the input may state the operation of each row."""
    only_adds: bool = False
    """Whether rows of sources are never retracted, so that the order of batches does not change the meaning."""


TRAITS: Final[Mapping[type[MergeStrategy], MergeTraits]] = {
    MergeAppend: MergeTraits(only_adds=True),
    MergeLedger: MergeTraits(asks_history=True, only_adds=True),
    MergeSnapshot: MergeTraits(asks_history=True, newest_of_key=True, whole_state=True),
    MergeChangelogStream: MergeTraits(carries_op=True),
    MergeUpsertStream: MergeTraits(asks_history=True, newest_of_key=True, carries_op=True),
}


def traits(merge: MergeStrategy) -> MergeTraits:
    return TRAITS[type(merge)]


def primary_key(merge: MergeStrategy) -> tuple[str, ...]:
    """Returns the columns of the primary key; empty if the strategy has none."""
    return () if isinstance(merge, MergeAppend) else merge.primary_key
