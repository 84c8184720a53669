"""Declares the thirteen events that a block can carry, as the schema of the format does (spec 0.39, Metadata).

Field order is wire order; the FlatBuffers codec and the manifest codec are both derived from these classes.
"""

from __future__ import annotations

import enum
from typing import Annotated, TypeAlias

import msgspec

from chain.ids import DatasetId
from chain.model.schema import DataSchema
from chain.model.source import FetchStep, MergeStrategy, PrepStep, ReadStep, Transform
from chain.model.wire import DATASET_REF, U64, WRAPPED, Extra, Scalar, Time
from chain.multihash import Multihash


class _Table(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """A plain table of the format."""


class _Event(_Table, frozen=True, kw_only=True, tag_field="kind"):
    """An event: a table in a block's field ``event``; manifests name it by ``kind``."""


class DatasetKind(enum.Enum):
    ROOT = "Root"
    DERIVATIVE = "Derivative"


Kind = Annotated[DatasetKind, Scalar("int32")]


class OffsetInterval(_Table, frozen=True, kw_only=True):
    """Closed on both sides: ``end - start + 1`` rows."""

    start: U64
    end: U64


class DataSlice(_Table, frozen=True, kw_only=True):
    logical_hash: Multihash
    physical_hash: Multihash
    offset_interval: OffsetInterval
    size: U64


class Checkpoint(_Table, frozen=True, kw_only=True):
    physical_hash: Multihash
    size: U64


class SourceState(_Table, frozen=True, kw_only=True):
    source_name: str
    kind: str
    value: str


class AddData(_Event, frozen=True, kw_only=True, tag="AddData"):
    prev_checkpoint: Multihash | None = None
    prev_offset: U64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Time | None = None
    new_source_state: SourceState | None = None
    extra: Extra | None = None


class ExecuteTransformInput(_Table, frozen=True, kw_only=True):
    dataset_id: DatasetId
    prev_block_hash: Multihash | None = None
    new_block_hash: Multihash | None = None
    prev_offset: U64 | None = None
    new_offset: U64 | None = None


class ExecuteTransform(_Event, frozen=True, kw_only=True, tag="ExecuteTransform"):
    query_inputs: tuple[ExecuteTransformInput, ...]
    prev_checkpoint: Multihash | None = None
    prev_offset: U64 | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Time | None = None


class Seed(_Event, frozen=True, kw_only=True, tag="Seed"):
    dataset_id: DatasetId
    dataset_kind: Kind


class SetPollingSource(_Event, frozen=True, kw_only=True, tag="SetPollingSource"):
    fetch: FetchStep
    prepare: Annotated[tuple[PrepStep, ...], WRAPPED] | None = None
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


class TransformInput(_Table, frozen=True, kw_only=True):
    """``dataset_ref`` is a ``did:odf:…`` in a chain; a person may write a name."""

    dataset_ref: DATASET_REF
    alias: str | None = None


class SetTransform(_Event, frozen=True, kw_only=True, tag="SetTransform"):
    inputs: tuple[TransformInput, ...]
    transform: Transform


class SetVocab(_Event, frozen=True, kw_only=True, tag="SetVocab"):
    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


class Vocab(msgspec.Struct, frozen=True, kw_only=True):
    """The current names of the system columns."""

    offset: str = "offset"
    operation_type: str = "op"
    system_time: str = "system_time"
    event_time: str = "event_time"


class AttachmentEmbedded(_Table, frozen=True, kw_only=True):
    path: str
    content: str


class AttachmentsEmbedded(_Table, frozen=True, kw_only=True, tag_field="kind", tag="Embedded"):
    items: tuple[AttachmentEmbedded, ...]


Attachments: TypeAlias = AttachmentsEmbedded


class SetAttachments(_Event, frozen=True, kw_only=True, tag="SetAttachments"):
    attachments: Attachments


class SetInfo(_Event, frozen=True, kw_only=True, tag="SetInfo"):
    description: str | None = None
    keywords: tuple[str, ...] | None = None


class SetLicense(_Event, frozen=True, kw_only=True, tag="SetLicense"):
    short_name: str
    name: str
    spdx_id: str | None = None
    website_url: str


class SetDataSchema(_Event, frozen=True, kw_only=True, tag="SetDataSchema"):
    """``raw_arrow_schema`` is the legacy form: an Arrow IPC schema message."""

    raw_arrow_schema: bytes | None = None
    schema: DataSchema | None = None


class AddPushSource(_Event, frozen=True, kw_only=True, tag="AddPushSource"):
    source_name: str
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


class DisablePushSource(_Event, frozen=True, kw_only=True, tag="DisablePushSource"):
    source_name: str


class DisablePollingSource(_Event, frozen=True, kw_only=True, tag="DisablePollingSource"): ...


MetadataEvent: TypeAlias = (
    AddData
    | ExecuteTransform
    | Seed
    | SetPollingSource
    | SetTransform
    | SetVocab
    | SetAttachments
    | SetInfo
    | SetLicense
    | SetDataSchema
    | AddPushSource
    | DisablePushSource
    | DisablePollingSource
)
"""Any event, in wire order."""

DataEvent: TypeAlias = AddData | ExecuteTransform
"""The two events that move data, watermark or checkpoint."""


class DatasetSnapshot(_Table, frozen=True, kw_only=True):
    """The manifest of a dataset: its name, its kind and the events with which it begins."""

    name: str
    kind: Kind
    metadata: tuple[MetadataEvent, ...]
