"""Values about datasets, their blocks and rows, and requests on them: apply, ingest, pull, export, import."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from odfd.control.wire.portals import PortalFacts
from odfd.control.wire.queries import HoldView
from odfd.control.wire.value import Problem, Request, Value


class Reliance(Value, frozen=True, kw_only=True):
    """How far a dataset may be relied on for use: blocks ``0 .. blocks-1``, and by which fact."""

    blocks: int
    fact: str = ""
    """``data``, ``attested 2/3``, ``observed 1/2 to #40``, ``refuted at #7``."""


DatasetState = Literal["fresh", "stale", "syncing", "unsigned", "refuted", "accused", "forked", "damaged"]


class Frontiers(Value, frozen=True, kw_only=True):
    """The times at which a dataset can be read, as a collection with one shard."""

    since: str | None = None
    """From it on what is read is whole; ``None``: from the beginning."""
    upper: str | None = None
    """Earlier times are complete: no block of them will ever follow. ``None``: all times are (``sealed``)."""
    sealed: bool = False
    """Whether it takes no block more."""


class DatasetView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl get datasets``."""

    name: str
    id: str
    kind: Literal["root", "derivative"]
    blocks: int
    records: int | None = None
    bytes: int | None = None
    """Of all slices that its chain names; ``None``: not summed yet."""
    watermark: str | None = None
    head: str | None = None
    state: DatasetState = "fresh"
    owner: bool = False
    """This node holds the key that signs its heads."""
    rely_on: Reliance | None = None
    peers: int | None = None
    """Connected peers that say they serve it; so in every answer about datasets."""
    published: bool = False
    """Whether anything of it is said or given to others."""
    shared_with: tuple[str, ...] = ()
    """Peers that get it though it is private."""
    conditions: tuple[str, ...] = ()
    """What is so beside the state: ``Withheld``, ``Stale``, ``Forked``, ``Abandoned``, ``Tainted`` (by an input)."""
    labels: dict[str, Any] = msgspec.field(default_factory=dict)
    """Of its resource."""
    frontiers: Frontiers | None = None
    """``None``: its last block cannot be read, or it is not in a node's store."""
    shards: tuple[str, ...] = ()
    """Ids of the chains that its rows are in, where there are several; ``records`` counts all, the rest the first."""


class SkippedFile(Value, frozen=True, kw_only=True):
    name: str
    reason: str


class RowCounts(Value, frozen=True, kw_only=True):
    """Counts rows that were read, by what became of them. ``None``: not counted."""

    read: int | None
    """Records of the files that were taken; of a transform, rows of the new blocks of its inputs."""
    shaped: int | None
    """Rows that were to be merged: what ``preprocess`` made of those read, or these themselves."""
    appended: int | None
    corrected: int | None
    retracted: int | None
    unchanged: int | None
    """Rows that say what the dataset says already."""
    conflicting: int | None
    """Of a ledger: rows with a known key and other values. The first that came stays."""
    superseded: int | None
    """Of an upsert stream: rows that a later row of their key in the same batch took the place of."""
    late: int | None
    """Rows behind the watermark: an ingest keeps them, a transform drops them unless its query says otherwise."""
    untimed: int | None
    """Rows without an event time of their own: an ingest gave them that of the source, a transform left them out."""
    quarantined: int | None
    skipped: tuple[SkippedFile, ...] = ()
    """Files of which nothing was taken, a hundred at the most."""
    remarks: tuple[str, ...] = ()
    """What was passed over or taken for granted within those that were, twenty at the most."""


class RowTotals(Value, frozen=True, kw_only=True):
    """The sum over this node's transactions since one that left ``since_block`` at the head."""

    since_block: int
    transactions: int
    rows: RowCounts
    last: RowCounts
    """Of the newest transaction, or of all since the head that appended nothing."""


class CountRange(Value, frozen=True, kw_only=True):
    """A range of an inexactly known count; both ends are possible."""

    at_least: int
    at_most: int


class ColumnProfile(Value, frozen=True, kw_only=True):
    """A column, with statistics of its files. ``None``: unknown."""

    name: str
    type: str
    optional: bool = True
    comment: str = ""
    nulls: int | None = None
    minimum: Any = None
    """Values as JSON; a text of more than 256 characters is cut and ends in an ellipsis."""
    maximum: Any = None
    distinct: CountRange | None = None


class Growth(Value, frozen=True, kw_only=True):
    """The growth between the system times of the first and the last inspected slice."""

    since: str
    until: str
    records_per_day: float
    bytes_per_day: float


class DataProfile(Value, frozen=True, kw_only=True):
    """A profile of the newest slices from their files' statistics, without reading rows."""

    columns: tuple[ColumnProfile, ...] = ()
    slices: int = 0
    """That were looked at."""
    unread: int = 0
    """Of these, whose files are damaged or not here: what they hold is in no column."""
    is_whole: bool = True
    """No other slice is in the chain."""
    records: int = 0
    """Of the slices that were looked at."""
    bytes: int = 0
    growth: Growth | None = None
    message: str = ""
    """Why something is not known."""


class License(Value, frozen=True, kw_only=True):
    short_name: str
    name: str
    spdx_id: str | None = None
    website_url: str


class Attachment(Value, frozen=True, kw_only=True):
    path: str
    content: str


class DatasetDetail(Value, frozen=True, kw_only=True):
    dataset: DatasetView
    description: str | None = None
    keywords: tuple[str, ...] = ()
    source: dict[str, Any] | None = None
    """The polling or push source in force, as its manifest."""
    transform: dict[str, Any] | None = None
    inputs: tuple[str, ...] = ()
    """``name (did)`` of each input, in order."""
    outputs: tuple[str, ...] = ()
    """Names of datasets here that are derived from it."""
    created_at: str | None = None
    updated_at: str | None = None
    rows: RowTotals | None = None
    """``None``: this node read no rows for it, as of a mirror or an import."""
    changelog: bool | None = None
    """Whether its rows can be corrected and retracted; ``None``: its chain does not say."""
    license: License | None = None
    attachments: tuple[Attachment, ...] = ()
    """Files that its chain holds, such as ``README.md``."""
    profile: DataProfile | None = None
    """``None``: it was not asked for."""
    holds: tuple[HoldView, ...] = ()
    """Of readers, for whom its history stays as it is."""
    portal: PortalFacts | None = None
    """``None``: it is no portal."""


class BlockView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl log``."""

    sequence_number: int
    hash: str
    system_time: str
    event: str
    """Name of the event: ``AddData``."""
    summary: str = ""
    """What it says, in one line: ``28,834 records, watermark 2013-02-28``."""
    size: int = 0
    records: int | None = None
    """Of the data that it brings; ``None``: it brings none, as for the next two."""
    data_size: int | None = None
    """Bytes of its slice."""
    watermark: str | None = None
    """That holds from it on."""
    rows: RowCounts | None = None
    """Of the transaction that ends with this block. ``None``: it did not read rows, or another node made it."""


class BlockDetail(Value, frozen=True, kw_only=True):
    """The result of ``block show``: the MetadataBlock manifest, and its attachments."""

    hash: str
    manifest_version: int
    size: int
    manifest: dict[str, Any]
    """Of an event of a newer schema only its number and variant."""
    unknown_fields: tuple[str, ...] = ()
    """What a newer schema wrote, and the manifest cannot say."""
    former_epoch: int | None = None
    """The epoch whose history it is of, where a later one gave it up."""


class Column(Value, frozen=True, kw_only=True):
    name: str
    type: str
    """ODF spelling: ``Int64``, ``Timestamp(Millisecond, UTC)``."""
    optional: bool = True
    comment: str = ""
    """What the schema says of it: ODF's attribute ``opendatafabric.org/description``."""


class Records(Value, frozen=True, kw_only=True):
    """Rows as JSON values; decimals and 64-bit numbers beyond 2^53 as text."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    dataset: DatasetView | None = None
    """Whose they are, with how far it may be relied on."""


class Schema(Value, frozen=True, kw_only=True):
    ref: str
    fields: tuple[Column, ...]
    manifest: dict[str, Any] | None = None
    """The DataSchema as a manifest."""


class RenameRequest(Request, frozen=True, kw_only=True):
    name: str
    """The local name that the dataset has from now on."""


class ManifestText(Request, frozen=True, kw_only=True):
    """A YAML stream of manifests, and its name for messages."""

    source: str
    text: str
    base: str = ""
    """Folder that relative paths in it start from; absolute. Empty: there is none, so they are refused."""


class ApplyRequest(Request, frozen=True, kw_only=True):
    manifests: tuple[ManifestText, ...]
    dry_run: bool = False
    prune: str | None = None
    """Labels: sets and flows that have them and that no manifest names are deleted."""
    generation: int | None = None
    """Of the one resource that is changed, as its reader saw it: where it is another now, nothing is done."""
    manager: str | None = None
    """Who applies: labels and annotations of other managers stay as they are. ``None``: as ``odfctl apply``."""
    force: bool = False
    """Change also what another resource made."""
    on_error: Literal["atomic", "skip"] = "atomic"
    """``skip``: what cannot be applied is left out, and the others are applied; else none is."""


class ApplyItem(Value, frozen=True, kw_only=True):
    kind: str
    name: str
    action: Literal["created", "updated", "unchanged", "adopted", "failed", "skipped", "deleted"]
    """``skipped``: it could be done, and was not, since another of the same apply cannot be."""
    id: str | None = None
    """Of a dataset its did; of other resources their id on this node."""
    changes: tuple[str, ...] = ()
    """What differs, one line each."""
    warnings: tuple[str, ...] = ()
    fault: Problem | None = None


class ApplyResult(Value, frozen=True, kw_only=True):
    """Result of the task ``apply``. ``dry_run``: nothing was changed."""

    items: tuple[ApplyItem, ...]
    dry_run: bool = False


class Upload(Value, frozen=True, kw_only=True):
    """Bytes that a client brought and the daemon keeps until they are ingested, or for a while."""

    id: str
    name: str
    size: int


class IngestRequest(Request, frozen=True, kw_only=True):
    uploads: tuple[str, ...]
    """Ids of uploads, in order."""
    format: str | None = None
    """``csv``, ``ndjson``, ``json``, ``parquet``, ``geojson``, ``ndgeojson``; ``None``: as the push source says.

    One that the push source does not read is refused."""
    event_time: str | None = None
    source: str | None = None
    """Name of the push source; ``None``: the only one."""
    id: str | None = None
    """Of this push: one with the same id is answered as the first time. ``None``: made of the content of the files."""
    again: bool = False
    """Take it in although it was before."""


class WatermarkRequest(Request, frozen=True, kw_only=True):
    time: str
    """To which the watermark of a root moves."""
    ahead: bool = False
    """Also when that is more than a day ahead of the clock."""


class CorrectRequest(Request, frozen=True, kw_only=True):
    """A row of a ledger to be changed or retracted. Values are texts, parsed as their columns' types."""

    key: dict[str, str]
    """Of all columns of the primary key; of others too, where several rows have the key."""
    values: dict[str, str | None] = msgspec.field(default_factory=dict)
    """By column what it shall say; null is no value."""
    retract: bool = False
    """Take the row back; then there are no ``values``."""
    ahead: bool = False
    """The event time may be more than a day ahead of the clock."""
    dry_run: bool = False


class CorrectResult(Value, frozen=True, kw_only=True):
    """Result of the task ``correct``."""

    ref: str
    outcome: Literal["corrected", "retracted", "unchanged"]
    """``unchanged``: the row said so already."""
    dry_run: bool = False
    """Nothing was written."""
    blocks: int = 0
    records: int = 0
    head: str | None = None
    before: dict[str, Any]
    """The row as it stood, system columns and all."""
    after: dict[str, Any] | None = None
    """The same from now on; ``None``: taken back."""
    rows: RowCounts | None = None


class PullRequest(Request, frozen=True, kw_only=True):
    refs: tuple[str, ...] = ()
    all: bool = False
    recursive: bool = False
    repair: bool = False
    """Whether to check every object again and fetch the damaged ones."""
    fetch_uncacheable: bool = False
    """Fetch also from sources that were read before and cannot tell whether they changed."""
    as_name: str | None = None
    """Local name of the one dataset that is pulled from a repository."""
    source: str | None = None
    """The Source that the one dataset takes from, by name or id; that of its metadata."""
    time: str | None = None
    """What ``${{ trigger.time }}`` in its source stands for, in RFC 3339; the time of the pull."""


class PullItem(Value, frozen=True, kw_only=True):
    ref: str
    outcome: Literal["updated", "up-to-date", "blocked", "failed"]
    """``blocked``: no fault here, but not up to date, or no peer was there to confirm it."""
    message: str = ""
    blocks: int = 0
    """Blocks that came with it."""
    records: int = 0
    head: str | None = None
    rows: RowCounts | None = None
    """``None``: no rows were read here, as for a mirror."""
    fault: Problem | None = None


class PullResult(Value, frozen=True, kw_only=True):
    """Result of the tasks ``pull`` and ``ingest``."""

    items: tuple[PullItem, ...]


class UnmanagedView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl get unmanaged``: a dataset that was deleted and whose data is kept."""

    id: str
    name: str
    """The name that it had; empty where that is not known."""
    deleted_at: str | None = None
    blocks: int
    bytes: int | None = None
    """Of all slices."""
    owner: bool = False
    """This node holds the key that signs its heads."""


class AdoptRequest(Request, frozen=True, kw_only=True):
    name: str | None = None
    """Its name from now on; the one that it had."""


class AdoptedView(Value, frozen=True, kw_only=True):
    """A dataset that was taken back."""

    name: str
    id: str


class ExportRequest(Request, frozen=True, kw_only=True):
    to: str
    """Absolute path or URL, as the daemon sees it."""
    table: Literal["delta"] | None = None
    """A table format whose metadata is written beside the dataset."""


class PushRequest(Request, frozen=True, kw_only=True):
    refs: tuple[str, ...] = ()
    all: bool = False
    """Every dataset that is published."""
    to: str | None = None
    """REPOSITORY, or REPOSITORY/NAME for one dataset; the only repository there is."""
    private: bool = False
    """Also what is not published."""


class PushItem(Value, frozen=True, kw_only=True):
    ref: str
    outcome: Literal["pushed", "up-to-date", "private", "failed"]
    """``private``: it is not published, and all that are were asked for."""
    place: str = ""
    """REPOSITORY/NAME."""
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    """Of objects."""
    head: str | None = None
    fault: Problem | None = None


class PushResult(Value, frozen=True, kw_only=True):
    """Result of the task ``push``."""

    items: tuple[PushItem, ...]


class ImportRequest(Request, frozen=True, kw_only=True):
    source: str
    """Absolute path or URL, as the daemon sees it."""
    as_name: str | None = None


class TransferResult(Value, frozen=True, kw_only=True):
    """Result of the tasks ``export`` and ``import``."""

    ref: str
    place: str
    blocks: int
    objects: int
    bytes: int
    table_version: int | None = None
    """Of the table that an export wrote metadata for; null without one, or without rows."""
    compared: str | None = None
    """How far an import of a former format and what it was converted to say the same; null without one."""
