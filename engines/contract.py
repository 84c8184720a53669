"""Declares the engine contract: a coordinator's requests to an engine, and the possible responses.

``TransformRequest``, ``RawQueryRequest`` and their answers are the tables of the Open Data Fabric schema (service
``engine.Engine``), field for field, so that a foreign coordinator or a foreign engine can take either side. What the
schema lacks follows after its last field, where FlatBuffers readers that do not know it pass over it. Requests that ODF
does not have are tables of our own in the service ``odfd.Engine``. Paths are as the engine sees them. No data travels.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

from chain.ids import DatasetId
from chain.model.events import OffsetInterval
from chain.model.schema import DataSchema
from chain.model.source import MergeStrategy, ReadStep, Transform
from chain.model.wire import U64, Time
from engines.faults import Diagnostic
from engines.faults import InternalError as InternalError
from engines.faults import InvalidQuery as InvalidQuery
from engines.progress import OnProgress as OnProgress
from engines.progress import Progress as Progress
from engines.progress import ignored as ignored
from engines.tables import Table, Variant


class Vocabulary(Table, frozen=True, kw_only=True):
    """Names of the system columns (ODF table DatasetVocabulary)."""

    offset_column: str = "offset"
    operation_type_column: str = "op"
    system_time_column: str = "system_time"
    event_time_column: str = "event_time"


class Watermark(Table, frozen=True, kw_only=True):
    """A block made at ``system_time`` stated ``event_time`` as watermark."""

    system_time: Time
    event_time: Time


class InputBlock(Table, frozen=True, kw_only=True):
    """One data block of an input, in chain order. Extension: lateness is judged by the block's own chain."""

    data_path: str | None = None
    """Its slice; ``None`` for a block that only moved the watermark."""
    watermark_before: Time | None = None
    watermark_after: Time | None = None
    block_hash: bytes = b""
    reopened: bool | None = None
    """True: consumed by an earlier transaction and given again because the checkpoint keeps it open."""


class TransformInput(Table, frozen=True, kw_only=True):
    """ODF table TransformRequestInput, then ours."""

    dataset_id: DatasetId
    dataset_alias: str
    query_alias: str
    vocab: Vocabulary
    offset_interval: OffsetInterval | None = None
    data_paths: tuple[str, ...] = ()
    schema_file: str = ""
    explicit_watermarks: tuple[Watermark, ...] = ()
    blocks: tuple[InputBlock, ...] | None = None
    """Extension: the same slices block by block, with those that the checkpoint keeps open first."""
    changelog: bool | None = None
    """Extension: rows of this input can be retracted and corrected, by its chain's word. ``None``: not known."""
    by_time: bool | None = None
    """Extension: event time ranks the rows of a key although they can be, as in a ledger that was corrected."""


class TransformRequest(Table, frozen=True, kw_only=True):
    """ODF table TransformRequest, then ours."""

    dataset_id: DatasetId
    dataset_alias: str
    system_time: Time
    vocab: Vocabulary
    transform: Transform
    query_inputs: tuple[TransformInput, ...]
    next_offset: U64
    prev_checkpoint_path: str | None = None
    new_checkpoint_path: str
    new_data_path: str
    transaction_id: str | None = None
    """Extension: the same id gives the same answer without doing it twice."""
    output_schema: DataSchema | None = None
    """Extension: the schema in force; the result is cast to it exactly. ``None``: first transaction."""
    emission_limit: Time | None = None
    """Extension: settle no output of this time or later, though more could be; what waits is settled next time."""
    reads_extensions: bool | None = None
    """Extension: the caller reads the parts of an InvalidQuery, so its ``message`` need not repeat them."""


class SkippedFile(Table, frozen=True, kw_only=True):
    """A file of a source of which no row was taken."""

    name: str
    reason: str


class RowCounts(Table, frozen=True, kw_only=True):
    """Counts the rows that a transaction read, by what became of them. ``None``: not counted.

    Of an ingest, ``read`` is ``shaped`` and ``quarantined`` together where no query stands between; and ``shaped`` is
    what was written for rows of the batch, ``unchanged``, ``conflicting`` and ``superseded`` together.
    """

    read: U64 | None = None
    """Records of the files that hold data; of a transform, rows of the new blocks of its inputs."""
    shaped: U64 | None = None
    """Rows that were to be merged: what ``preprocess`` made of those read, or these themselves."""
    appended: U64 | None = None
    corrected: U64 | None = None
    """Rows that took the place of another of the same key: two records each, but one in a changelog that omits one."""
    retracted: U64 | None = None
    unchanged: U64 | None = None
    """Rows that say what the dataset says already."""
    conflicting: U64 | None = None
    """Of a ledger: rows with a known key and other values. The first that came stays."""
    superseded: U64 | None = None
    """Of an upsert stream: rows that a later row of their key in the same batch took the place of."""
    late: U64 | None = None
    """Rows behind the watermark: an ingest keeps them, a transform says what it does with them."""
    untimed: U64 | None = None
    """Rows without an event time of their own: an ingest gave them that of the source, a transform left them out."""
    quarantined: U64 | None = None
    """Records that were set aside because they could not be read."""
    skipped: tuple[SkippedFile, ...] = ()
    """The first ``MAX_SKIPPED`` of them; of more, the last entry says how many (``engines.skipped``)."""
    remarks: tuple[str, ...] = ()
    """What was passed over or taken for granted within the files, in words. The first ``MAX_REMARKS``."""


MAX_SKIPPED: Final = 100
"""Files told of one transaction; a folder may hold any number that are passed over."""
MAX_REMARKS: Final = 20


class Success(Variant, frozen=True, kw_only=True, tag="Success"):
    """``new_data_path`` holds the slice iff there is an interval; the checkpoint, if any, is at its path."""

    new_offset_interval: OffsetInterval | None = None
    new_watermark: Time | None = None
    schema: DataSchema | None = None
    """Extension: schema of the output, system columns included."""
    late: U64 | None = None
    """Extension: rows dropped as late in this transaction."""
    rows: RowCounts | None = None
    """Extension: what became of all rows that were read. What was written can be counted in the slice."""
    prev_data_bounds_hash: str | None = None
    """Extension: as in the IngestRequest, by an engine that looked there for slices that were not given."""


TransformResponse: TypeAlias = Progress | Success | InvalidQuery | InternalError


class TransformResponseRoot(Table, frozen=True, kw_only=True):
    value: TransformResponse


class RawQueryView(Table, frozen=True, kw_only=True):
    """Files of one schema, as a view."""

    name: str
    data_paths: tuple[str, ...]


class RawQueryRequest(Table, frozen=True, kw_only=True):
    """Runs queries over the union of the input files as the view ``input``; writes the result."""

    input_data_paths: tuple[str, ...]
    transform: Transform
    output_data_path: str
    reads_extensions: bool | None = None
    """Extension: as in the TransformRequest."""
    views: tuple[RawQueryView, ...] | None = None
    """Extension: what the queries read, in place of ``input``."""


class RawQuerySuccess(Variant, frozen=True, kw_only=True, tag="RawQuerySuccess"):
    num_records: U64


RawQueryResponse: TypeAlias = Progress | RawQuerySuccess | InvalidQuery | InternalError


class RawQueryResponseRoot(Table, frozen=True, kw_only=True):
    value: RawQueryResponse


class QuarantineTarget(Table, frozen=True, kw_only=True):
    """The next slice of the quarantine dataset: unreadable records after block ``follows`` of this dataset."""

    path: str
    next_offset: U64
    follows: str


class IngestRequest(Table, frozen=True, kw_only=True):
    """Parse, shape and merge one batch of source files into the next slice of a root dataset."""

    dataset_id: DatasetId
    system_time: Time
    vocab: Vocabulary
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy
    source_paths: tuple[str, ...]
    source_event_time: Time | None = None
    """Event time for rows that have no event time column."""
    schema: DataSchema | None = None
    """The schema in force, system columns included; ``None`` before the first data."""
    prev_data_paths: tuple[str, ...] = ()
    """Earlier slices, oldest first. An engine may skip those that statistics prove irrelevant."""
    prev_watermark: Time | None = None
    next_offset: U64
    new_data_path: str
    transaction_id: str | None = None
    source_names: tuple[str, ...] = ()
    """What messages call the source files, in the order of ``source_paths``; file names when empty."""
    prev_data_hashes: tuple[str, ...] = ()
    """Physical hashes of ``prev_data_paths``, held against those that are read. Empty: they are believed."""
    fills_event_time: bool = False
    """Rows without event time take ``source_event_time``, or that of the block; else they are an error."""
    needs_event_time: bool = False
    """Earlier rows have event times: a file whose columns are guessed, and that has none, is an error."""
    quarantine: QuarantineTarget | None = None
    """For the ``RowCounts.quarantined`` that ``read`` says are set aside; ``None``: they are only counted."""
    prev_data_bounds: str | None = None
    """Of a ledger: a file that says of slices older than those at ``prev_data_paths`` which keys they may hold
    (``engines.key_bounds``). ``None``: all earlier slices are given."""
    prev_data_bounds_hash: str | None = None
    """Hash of that file. A Success repeats it; else the engine did not know what it was for."""
    allows_null_keys: bool = False
    """For an observer of what another wrote: rows without a value in the primary key are written, as the reference
    does; else they are an error. Where ``read`` sets records aside it has no effect."""
    max_source_bytes: U64 | None = None
    """Of one source file unpacked; ``None``: as the engine has it."""
    max_unpack_ratio: U64 | None = None
    """Of these bytes to those that it was packed in; ``None``: as the engine has it."""


class HistoryNeeded(Variant, frozen=True, kw_only=True, tag="HistoryNeeded"):
    """Keys of the batch may be in earlier slices that were not given: ask again with these too."""

    hashes: tuple[str, ...]
    """As ``prev_data_bounds`` names them."""


IngestResponse: TypeAlias = Progress | Success | InvalidQuery | InternalError | HistoryNeeded


class IngestResponseRoot(Table, frozen=True, kw_only=True):
    value: IngestResponse


class MigrateRequest(Table, frozen=True, kw_only=True):
    """Migrates a dataset from one transform to the next, at the cut that the old one's checkpoint represents."""

    dataset_id: DatasetId
    system_time: Time
    vocab: Vocabulary
    old_transform: Transform
    old_inputs: tuple[TransformInput, ...]
    """Names and schemas as the old transform knew them; no slices."""
    transform: Transform
    query_inputs: tuple[TransformInput, ...]
    """As the new one knows them, with every block up to the cut, oldest first."""
    output_schema: DataSchema
    next_offset: U64
    prev_checkpoint_path: str = ""
    new_checkpoint_path: str = ""
    new_data_path: str = ""
    """For what the new table says otherwise than the old one."""
    judge_only: bool = False
    """Only ask whether it can be done: nothing is read, and nothing written."""


class DerivationNeeded(Variant, frozen=True, kw_only=True, tag="DerivationNeeded"):
    """The new transform cannot continue where the old one stopped; its result has to be derived from the beginning."""

    message: str


MigrateResponse: TypeAlias = Progress | Success | DerivationNeeded | InvalidQuery | InternalError


class MigrateResponseRoot(Table, frozen=True, kw_only=True):
    value: MigrateResponse


class ValidateInput(Table, frozen=True, kw_only=True):
    query_alias: str
    dataset_id: DatasetId
    schema: DataSchema
    vocab: Vocabulary
    changelog: bool
    unsaid: bool | None = None
    """True: whether it is a changelog is not stated."""

    @property
    def changes(self) -> bool | None:
        return None if self.unsaid else self.changelog


class ValidateRequest(Table, frozen=True, kw_only=True):
    transform: Transform
    inputs: tuple[ValidateInput, ...]
    vocab: Vocabulary
    preprocess: bool = False
    """Judged as a source's ``preprocess`` over its one input, the columns that are read; no mode is told then."""


class ValidateResponse(Table, frozen=True, kw_only=True):
    ok: bool
    mode: str | None = None
    """``log``, ``final`` or ``table``; ``None`` when refused."""
    schema: DataSchema | None = None
    changelog: bool = False
    determinism: str = "unknown"
    """``strict``, ``no`` or ``unknown``."""
    diagnostics: tuple[Diagnostic, ...] = ()


class IdentityRequest(Table, frozen=True, kw_only=True):
    """Requests an EngineIdentity; has no fields."""


class EngineIdentity(Table, frozen=True, kw_only=True):
    """The identity of all that affects an engine's results, in SetTransform's ``version`` and in attestations."""

    name: str
    version: str
    digest: str
    """``sha256:…`` of the image, or of the manifest of all that runs on the host."""
    sandbox: str
    """``image``, ``host`` (bubblewrap over the host runtime) or ``none``."""
    platform: str
    """``linux/amd64``."""


MAX_QUESTIONS: Final = 64
"""Records of one ProvenanceRequest."""
MAX_WITNESSES: Final = 10_000
"""Rows told of one record, whatever the limit asked for: the answer has to fit into a message."""


class ProvenanceRecord(Table, frozen=True, kw_only=True):
    offset: U64


class ProvenanceRequest(Table, frozen=True, kw_only=True):
    """Asks which rows of the inputs some rows of a transform's output were made of, and why these."""

    dataset_id: DatasetId
    vocab: Vocabulary
    transform: Transform
    query_inputs: tuple[TransformInput, ...]
    """As of the transaction of the rows: ``blocks`` up to its cut; ``reopened`` ones were consumed before."""
    data_path: str
    """The slice that holds the rows."""
    records: tuple[ProvenanceRecord, ...]
    """1 to ``MAX_QUESTIONS``."""
    column: str | None = None
    """Only what this column of the rows was made of."""
    limit: U64
    """Rows told of each record, at the most."""
    watermark_before: Time | None = None
    """Of the output, before the transaction: how far earlier ones had come, where they were held back."""
    watermark_after: Time | None = None
    transaction_id: str | None = None
    """Tells two questions about the same rows apart while both are worked on."""

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(each.offset for each in self.records)


class ProvenanceStep(Table, frozen=True, kw_only=True):
    """One operator between an input and the result, with its condition and the place of that in the text."""

    number: U64
    """Of the operator: paths that meet in one name it by the same number."""
    operator: str
    """``where``, ``group by``, ``left outer join``, ``over``, ``explode``, ``distinct``, ``union all``, …"""
    detail: str
    query: U64 = 0
    line: U64 | None = None
    column: U64 | None = None
    hides: bool = False
    """What it took away from an aggregate above it bears on the record too, and is not among the rows named."""


class ProvenancePath(Table, frozen=True, kw_only=True):
    """One occurrence of an input in the query; a self-join has two of one input."""

    input: U64
    """Place in ``query_inputs``."""
    steps: tuple[ProvenanceStep, ...] = ()
    """From the input up."""


class ProvenanceRow(Table, frozen=True, kw_only=True):
    """A row of an input that contributed to a record."""

    input: U64
    offset: U64
    role: str
    """``value``: its values are in the record. ``decides``: it was looked at, as one ranked before or one that a semi
    join found. ``change``: a retraction or correction that made the record be written."""
    path: U64 | None = None
    """``None`` for a statement that takes a row back: it flows nowhere."""
    cause: bool = False
    """Of a changing table: this row's coming made the record be written when it was."""


class ProvenanceAbsence(Table, frozen=True, kw_only=True):
    """A path without a row for a record, which exists, or is as it is, for that reason."""

    path: U64


class RecordProvenance(Table, frozen=True, kw_only=True):
    offset: U64
    op: U64
    rows: tuple[ProvenanceRow, ...] = ()
    """In order of input, offset and path."""
    count: U64
    """Rows that there are, told or not."""
    absences: tuple[ProvenanceAbsence, ...] = ()

    @property
    def absent(self) -> tuple[int, ...]:
        return tuple(each.path for each in self.absences)

    @property
    def truncated(self) -> bool:
        return self.count > len(self.rows)


class ProvenanceSuccess(Variant, frozen=True, kw_only=True, tag="ProvenanceSuccess"):
    mode: str
    """``log``, ``final`` or ``table``."""
    paths: tuple[ProvenancePath, ...]
    records: tuple[RecordProvenance, ...]
    """In the order in which they were asked for."""


ProvenanceResponse: TypeAlias = Progress | ProvenanceSuccess | InvalidQuery | InternalError


class ProvenanceResponseRoot(Table, frozen=True, kw_only=True):
    value: ProvenanceResponse


TransformOutcome: TypeAlias = Success | InvalidQuery | InternalError
IngestAnswer: TypeAlias = Success | InvalidQuery | InternalError | HistoryNeeded
MigrateOutcome: TypeAlias = Success | DerivationNeeded | InvalidQuery | InternalError
RawQueryOutcome: TypeAlias = RawQuerySuccess | InvalidQuery | InternalError
ProvenanceOutcome: TypeAlias = ProvenanceSuccess | InvalidQuery | InternalError


class Engine(Protocol):
    """The port of an engine for its coordinator. Paths are host paths; the adapter maps them into the sandbox.

    A dead or unreachable engine raises ``engines.errors.EngineLost`` (Environment); a request over its deadline or
    memory raises ``engines.errors.LimitExceeded``. A query's own faults are answers, not exceptions.
    """

    async def identity(self) -> EngineIdentity: ...

    async def validate(self, request: ValidateRequest) -> ValidateResponse: ...

    async def transform(self, request: TransformRequest, on_progress: OnProgress = ignored) -> TransformOutcome: ...

    async def ingest(self, request: IngestRequest, on_progress: OnProgress = ignored) -> IngestAnswer: ...

    async def raw_query(self, request: RawQueryRequest, on_progress: OnProgress = ignored) -> RawQueryOutcome: ...

    async def migrate(self, request: MigrateRequest, on_progress: OnProgress = ignored) -> MigrateOutcome: ...
    async def derive_provenance(
        self, request: ProvenanceRequest, on_progress: OnProgress = ignored
    ) -> ProvenanceOutcome: ...
