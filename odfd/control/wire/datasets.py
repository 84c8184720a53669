"""Defines values about datasets, their blocks and rows, and requests: apply, ingest, pull."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from odfd.control.wire.cards import CardWords
from odfd.control.wire.pins import UnheldPin
from odfd.control.wire.portals import PortalFacts
from odfd.control.wire.queries import HoldView
from odfd.control.wire.value import Problem, Request, Value


class Reliance(Value, frozen=True, kw_only=True):
    """The reach of a dataset for use: blocks ``0 .. blocks-1``, and the fact on which it rests."""

    blocks: int
    fact: str = ""
    """The fact that it rests on: ``data``, ``attested 2/3``, ``observed 1/2 to #40``, ``refuted at #7``."""


DatasetStanding = Literal["fresh", "stale", "syncing", "refused", "unsigned", "refuted", "accused", "forked", "damaged"]


class Frontiers(Value, frozen=True, kw_only=True):
    """The times at which a dataset can be read, as a collection with one shard."""

    since: str | None = None
    """Time from which on it can be read: earlier ones are of renditions that are not here. ``None``: all times."""
    upper: str | None = None
    """Earlier times are complete: no block of them will ever follow. ``None``: all times are (``sealed``)."""
    sealed: bool = False
    """Whether it accepts no further block."""
    held_by: tuple[str, ...] = ()
    """Names of the shards that hold ``upper`` back, while others are farther: only of a mirror."""


class DatasetState(Value, frozen=True, kw_only=True):
    """The state of a dataset: all that its resource does not say, and the running node knows."""

    kind: Literal["root", "derivative"]
    blocks: int
    records: int | None = None
    bytes: int | None = None
    """Bytes of all slices that its chain names; ``None``: not computed yet."""
    watermark: str | None = None
    head: str | None = None
    state: DatasetStanding = "fresh"
    refused_by: str = ""
    """Rule by which its newest signed blocks are refused; its state is then ``refused``."""
    owner: bool = False
    """Whether this node holds the key that signs its heads."""
    rely_on: Reliance | None = None
    peers: int | None = None
    """Number of connected peers that say they serve it; the same in every answer about datasets."""
    published: bool = False
    """Whether anything of it is announced or served to others."""
    published_in: tuple[str, ...] = ()
    """The only networks in which it is; empty: in all, or not published."""
    shared_with: tuple[str, ...] = ()
    """Peers that get it although it is private."""
    withdrawn_at: str | None = None
    """Time at which its publisher signed that it shows it no more; the copy stays. ``None``: it did not, or it is
    this node's own."""
    conditions: tuple[str, ...] = ()
    """Conditions beside the state: ``Withheld``, ``Stale``, ``Ahead`` (signed at a time ahead of this clock),
    ``Forked``, ``Abandoned``, ``Tainted`` (by an input), ``Withdrawn``, ``Blocked`` (``engine`` is not here,
    so nothing is appended)."""
    engine: str | None = None
    """Digest of the engine that its transform pins; ``None``: it has none, or it pins none."""
    unheld: tuple[UnheldPin, ...] = ()
    """Its blocks whose engine is not here, newest first; empty also where this node has no engine."""
    frontiers: Frontiers | None = None
    """``None``: its last block cannot be read, or it is not in a node's store."""
    shards: tuple[str, ...] = ()
    """Ids of the chains with its rows, if several; ``head`` is of the first, and the state is the worst of all."""


class DatasetView(DatasetState, frozen=True, kw_only=True):
    """A dataset, or a chain inside it, in answers about it: its state with its name and its id."""

    name: str
    id: str


class SkippedFile(Value, frozen=True, kw_only=True):
    name: str
    reason: str


class RowCounts(Value, frozen=True, kw_only=True):
    """Counts rows that were read, by what became of them. ``None``: not counted."""

    read: int | None
    """Records of the accepted files; for a transform, rows of the new blocks of its inputs."""
    shaped: int | None
    """Rows to be merged: the result of ``preprocess``, or the rows read."""
    appended: int | None
    corrected: int | None
    retracted: int | None
    unchanged: int | None
    """Rows that the dataset has already."""
    conflicting: int | None
    """For a ledger: rows with a known key and other values. The first one of a key stays."""
    superseded: int | None
    """For an upsert stream: rows replaced by a later row of the same key in the batch."""
    late: int | None
    """Rows behind the watermark: an ingest keeps them, a transform drops them unless its query says otherwise."""
    untimed: int | None
    """Rows without an event time: an ingest gives them that of the source, a transform drops them."""
    quarantined: int | None
    skipped: tuple[SkippedFile, ...] = ()
    """Files from which nothing was taken, a hundred at most."""
    remarks: tuple[str, ...] = ()
    """Remarks on what was ignored or assumed in accepted files, twenty at most."""


class RowTotals(Value, frozen=True, kw_only=True):
    """The sum over this node's transactions since one that left ``since_block`` at the head."""

    since_block: int
    transactions: int
    rows: RowCounts
    last: RowCounts
    """Counts of the newest transaction, or of all that appended nothing since the head."""


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
    """Least value as JSON; a text of more than 256 characters is cut and ends in an ellipsis."""
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
    """Number of slices that were examined."""
    unread: int = 0
    """Number of these whose files are damaged or not here, and so are in no column's statistics."""
    is_whole: bool = True
    """Whether they are all slices of the dataset."""
    records: int = 0
    """Records of the examined slices."""
    bytes: int = 0
    growth: Growth | None = None
    message: str = ""
    """Reason why something is not known."""


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
    labels: dict[str, Any] = msgspec.field(default_factory=dict)
    """Labels of its resource."""
    description: str | None = None
    keywords: tuple[str, ...] = ()
    source: dict[str, Any] | None = None
    """The current polling or push source, as its manifest."""
    transform: dict[str, Any] | None = None
    inputs: tuple[str, ...] = ()
    """``name (did)`` of each input, in order."""
    input_ids: tuple[str, ...] = ()
    """The did of each input, in order."""
    outputs: tuple[str, ...] = ()
    """Names of local datasets that are derived from it."""
    created_at: str | None = None
    updated_at: str | None = None
    rows: RowTotals | None = None
    """``None``: this node read no rows for it, as for a mirror or an import."""
    changelog: bool | None = None
    """Whether its rows can be corrected and retracted; ``None``: its chain does not say."""
    license: License | None = None
    attachments: tuple[Attachment, ...] = ()
    """Files that its chain holds, such as ``README.md``."""
    profile: DataProfile | None = None
    """Statistics of the newest slices; ``None``: not requested."""
    holds: tuple[HoldView, ...] = ()
    """Holds of readers, which keep its history unchanged."""
    keeps_raw: bool = False
    """Whether the bytes of its source are kept."""
    portal: PortalFacts | None = None
    """``None``: it is not a portal."""
    sample: int = 0
    """Most rows of it that its card shows to those who do not have it."""
    words: CardWords = CardWords()


class BlockView(Value, frozen=True, kw_only=True):
    """A row of ``odfctl log``."""

    sequence_number: int
    hash: str
    system_time: str
    event: str
    """Name of the event: ``AddData``."""
    summary: str = ""
    """Content of the event, in one line: ``28,834 records, watermark 2013-02-28``."""
    size: int = 0
    records: int | None = None
    """Number of records added. ``None``, as in the next two fields: the event adds no data."""
    data_size: int | None = None
    """Bytes of its slice."""
    watermark: str | None = None
    """Watermark from this block on."""
    rows: RowCounts | None = None
    """Counts of the transaction that ends with this block. ``None``: it read no rows, or another node made it."""
    shard: str | None = None
    """The name of the shard that has the block. ``None``: the dataset has one chain."""


class BlockDetail(Value, frozen=True, kw_only=True):
    """The result of ``block show``: the MetadataBlock manifest, and its attachments."""

    hash: str
    manifest_version: int
    size: int
    manifest: dict[str, Any]
    """The manifest; for an unknown event only its number and variant."""
    unknown_fields: tuple[str, ...] = ()
    """Fields of a newer schema, which a manifest cannot express."""
    former_epoch: int | None = None
    """The former epoch that it belongs to, if a later one dropped it; else ``None``."""
    shard: str | None = None
    """The name of the shard that has the block. ``None``: one chain was asked."""


class Column(Value, frozen=True, kw_only=True):
    name: str
    type: str
    """Type as ODF writes it: ``Int64``, ``Timestamp(Millisecond, UTC)``."""
    optional: bool = True
    comment: str = ""
    """Description in the schema: ODF's attribute ``opendatafabric.org/description``."""


class Records(Value, frozen=True, kw_only=True):
    """Rows as JSON values; decimals and 64-bit numbers beyond 2^53 as text."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    dataset: DatasetView | None = None
    """The dataset of the rows, with its reach for use."""


class Schema(Value, frozen=True, kw_only=True):
    ref: str
    fields: tuple[Column, ...]
    manifest: dict[str, Any] | None = None
    """The DataSchema as a manifest."""


class RenameRequest(Request, frozen=True, kw_only=True):
    name: str
    """The new local name of the dataset."""


class ManifestText(Request, frozen=True, kw_only=True):
    """A YAML stream of manifests, and its name for messages."""

    source: str
    text: str
    base: str = ""
    """Absolute folder from which relative paths start. Empty: there is none, and they are refused."""


class ApplyRequest(Request, frozen=True, kw_only=True):
    manifests: tuple[ManifestText, ...]
    dry_run: bool = False
    prune: str | None = None
    """Labels: sets and flows that have them and that no manifest names are deleted."""
    generation: int | None = None
    """Expected generation of the one resource to change: if it has another now, nothing is done."""
    manager: str | None = None
    """Name of the manager: labels and annotations of other managers stay. ``None``: ``odfctl apply``."""
    force: bool = False
    """Whether to change also parts made by another resource, and to pin an engine that is not here."""
    on_error: Literal["atomic", "skip"] = "atomic"
    """``skip``: applies the manifests that can be applied; ``atomic``: applies all or none."""


class ApplyItem(Value, frozen=True, kw_only=True):
    kind: str
    name: str
    action: Literal["created", "updated", "unchanged", "adopted", "failed", "skipped", "deleted"]
    """``skipped``: possible, but not done, as another manifest of the same apply is not possible."""
    id: str | None = None
    """The did of a dataset; the id of another resource on this node."""
    changes: tuple[str, ...] = ()
    """Differences, one line each."""
    warnings: tuple[str, ...] = ()
    course: Literal["evolves", "rewrites"] | None = None
    """Of a change of rows: whether it applies to those that come, or needs a rendition; ``course_text`` says more."""
    course_text: str = ""
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

    A format that the push source does not read is refused.
    """
    event_time: str | None = None
    source: str | None = None
    """Name of the push source; ``None``: the only one."""
    id: str | None = None
    """Id of this push: a repeated id gets the answer of the first. ``None``: a hash of the files."""
    again: bool = False
    """Whether to ingest it even if it was ingested before."""
    after: str | None = None
    """Hash of the block that the push has to follow: refused if another is the last one, unless its id was ingested."""


class CommitPointView(Value, frozen=True, kw_only=True):
    """The end of a dataset, for a program that appends to it."""

    id: str
    """The chain's."""
    block: str
    """Hash of the last block."""
    sequence_number: int
    push: str | None = None
    """Id that the last push was given which appended rows; ``None``: there is no push, or it was given none."""


class WatermarkRequest(Request, frozen=True, kw_only=True):
    time: str
    """The new watermark of a root."""
    ahead: bool = False
    """Whether it may be more than a day ahead of the clock."""


class CorrectRequest(Request, frozen=True, kw_only=True):
    """A row to change or retract, with the ledger strategy. Values are texts, parsed as their columns' types."""

    key: dict[str, str]
    """Values of all columns of the primary key; of others too, if several rows have the key."""
    values: dict[str, str | None] = msgspec.field(default_factory=dict)
    """New value by column; null means no value."""
    retract: bool = False
    """Whether to retract the row; then there are no ``values``."""
    ahead: bool = False
    """Whether the event time may be more than a day ahead of the clock."""
    dry_run: bool = False


class CorrectResult(Value, frozen=True, kw_only=True):
    """Result of the task ``correct``."""

    ref: str
    outcome: Literal["corrected", "retracted", "unchanged"]
    """``unchanged``: the row had these values already."""
    dry_run: bool = False
    """Whether nothing was written."""
    blocks: int = 0
    records: int = 0
    head: str | None = None
    before: dict[str, Any]
    """The row before, with its system columns."""
    after: dict[str, Any] | None = None
    """The row after; ``None``: it was retracted."""
    rows: RowCounts | None = None


class PullRequest(Request, frozen=True, kw_only=True):
    refs: tuple[str, ...] = ()
    all: bool = False
    recursive: bool = False
    repair: bool = False
    """Whether to check every object again and fetch damaged ones."""
    fetch_uncacheable: bool = False
    """Whether to fetch also from sources that were read before and cannot tell whether they changed."""
    as_name: str | None = None
    """Local name of the one dataset that is pulled from a repository."""
    source: str | None = None
    """Name or id of the Source of the one dataset; ``None``: that of its metadata."""
    time: str | None = None
    """Value of ``${{ trigger.time }}`` in its source, in RFC 3339; ``None``: the time of the pull."""


class PullItem(Value, frozen=True, kw_only=True):
    ref: str
    outcome: Literal["updated", "up-to-date", "blocked", "failed"]
    """``blocked``: not up to date, or no peer could confirm it, without a fault of this node."""
    message: str = ""
    blocks: int = 0
    """Number of blocks that were added."""
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
    """Its former name; empty if unknown."""
    deleted_at: str | None = None
    blocks: int
    bytes: int | None = None
    """Bytes of all slices."""
    owner: bool = False
    """Whether this node holds the key that signs its heads."""


class AdoptRequest(Request, frozen=True, kw_only=True):
    name: str | None = None
    """Its new name; ``None``: the former one."""


class AdoptedView(Value, frozen=True, kw_only=True):
    """A dataset that was taken back."""

    name: str
    id: str
