"""Declares the engine contract: the requests that a coordinator sends to an engine, and the possible responses.

``TransformRequest``, ``RawQueryRequest`` and their answers are the tables of the Open Data Fabric schema (service
``engine.Engine``), field for field, so that a foreign coordinator or a foreign engine can take either side. Fields that
the schema lacks follow after its last field, where FlatBuffers readers that do not know them skip them. Requests that
ODF does not have are tables of our own in the service ``odfd.Engine``. Paths are as the engine sees them. Messages name
files and never hold rows.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Annotated, Final, Protocol, TypeAlias

import msgspec

from chain.errors import Fault
from chain.ids import DatasetId
from chain.model.events import OffsetInterval
from chain.model.events import Vocab as Vocab
from chain.model.schema import DataSchema
from chain.model.source import MergeStrategy, ReadStep, Transform
from chain.model.wire import U64, Scalar, Time
from chain.wording import plural


class ContractTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Base of a table of the contract."""


class Variant(ContractTable, frozen=True, kw_only=True, tag_field="kind"):
    """Base of an alternative in a response."""


STARTING: Final = "starting"
"""Stage reported by whoever starts engine processes, while the engine does not run yet."""
STAGES: Final = (STARTING, "planning", "reading", "computing", "writing")
"""Stages of a request, in this order; not every request has all of them."""


class EngineProgress(Variant, frozen=True, kw_only=True, tag="Progress"):
    """A progress report, sent at least every few seconds. Unknown values are absent."""

    bytes_read: U64 | None = None
    """Extension: bytes parsed so far of an ingest's files."""
    bytes_total: U64 | None = None
    """Extension: bytes of all of an ingest's files."""
    stage: str | None = None
    """Extension: the current stage, one of ``STAGES``; a reader takes unknown ones for ``computing``."""
    tasks_done: U64 | None = None
    """Extension: tasks finished for this request, of a cluster or of threads."""
    tasks_total: U64 | None = None
    """Extension: tasks known so far; each step of a query adds its own when it begins."""
    rows_read: U64 | None = None
    """Extension: rows that these tasks read from slices; rows read twice count twice."""


OnProgress: TypeAlias = Callable[[EngineProgress], None]


def ignore_progress(_: EngineProgress) -> None:
    """Drops a report of progress."""


class Severity(enum.Enum):
    ERROR = "error"
    WARNING = "warning"


class Diagnostic(ContractTable, frozen=True, kw_only=True):
    """One fault of a query, with its place in the text and a remedy."""

    code: str
    """Stable, documented name of the fault: ``float-aggregate``, ``join-unbounded``, …"""
    severity: Annotated[Severity, Scalar("int32")]
    message: str
    query: U64 = 0
    line: U64 | None = None
    column: U64 | None = None
    replace: str | None = None


class InvalidQuery(Variant, frozen=True, kw_only=True, tag="InvalidQuery"):
    """Reports a fault of the query or of its data, in parts: ``message`` repeats nothing of the other fields.

    A coordinator that knows only ODF's table reads ``message`` alone. So an engine's server puts all parts into the
    message (``whole``) for a caller that does not set ``reads_extensions``; our coordinator sets it in each request.
    Methods of ``odfd.Engine`` have no other callers and always answer in parts.
    """

    message: str
    rule: str | None = None
    """Extension: name of the rule that was broken."""
    hint: str | None = None
    """Extension: what the user should do next."""
    place: str | None = None
    """Extension: place in the data or the query, as ``data.csv:3`` or ``line 2, column 8``."""

    @classmethod
    def of(cls, fault: Fault) -> InvalidQuery:
        return cls(message=fault.message, rule=fault.rule or None, hint=fault.hint or None, place=fault.place or None)

    def __str__(self) -> str:
        here = f"{self.place}: " if self.place else ""
        rule = f" [{self.rule}]" if self.rule else ""
        hint = f" ({self.hint})" if self.hint else ""
        return f"{here}{self.message}{rule}{hint}"

    @property
    def whole(self) -> InvalidQuery:
        """Returns the same fault with all parts in the message; the rule stays as a name for programs."""
        return InvalidQuery(message=str(self), rule=self.rule)


class EngineInternalError(Variant, frozen=True, kw_only=True, tag="InternalError"):
    """Reports a fault of the engine itself, not of the query."""

    message: str
    backtrace: str | None = None
    rule: str | None = None
    """Extension: the limit exceeded, or that the JVM ended (``engines.errors``); ``None`` for a bug."""


class Watermark(ContractTable, frozen=True, kw_only=True):
    """Says that a block made at ``system_time`` stated ``event_time`` as watermark."""

    system_time: Time
    event_time: Time


class InputBlock(ContractTable, frozen=True, kw_only=True):
    """One block of an input, in chain order. Extension: lateness of its rows is judged by the block's own chain."""

    data_path: str | None = None
    """Path of its slice; ``None`` for a block that only moved the watermark."""
    watermark_before: Time | None = None
    watermark_after: Time | None = None
    block_hash: bytes = b""
    reopened: bool | None = None
    """True: consumed by an earlier transaction and given again because the checkpoint keeps it open."""


class TransformRequestInput(ContractTable, frozen=True, kw_only=True):
    """One input of a transform: ODF table TransformRequestInput, then fields of ours."""

    dataset_id: DatasetId
    dataset_alias: str
    query_alias: str
    vocab: Vocab
    offset_interval: OffsetInterval | None = None
    data_paths: tuple[str, ...] = ()
    schema_file: str = ""
    explicit_watermarks: tuple[Watermark, ...] = ()
    blocks: tuple[InputBlock, ...] | None = None
    """Extension: the same slices block by block, with those that the checkpoint keeps open first."""
    changelog: bool | None = None
    """Extension: whether rows of this input can be retracted or corrected, as its chain states. ``None``: not known."""
    by_time: bool | None = None
    """Extension: event time ranks the rows of a key although they can change, as in a ledger that was corrected."""


class TransformRequest(ContractTable, frozen=True, kw_only=True):
    """Requests one transaction of a transform: ODF table TransformRequest, then fields of ours."""

    dataset_id: DatasetId
    dataset_alias: str
    system_time: Time
    vocab: Vocab
    transform: Transform
    query_inputs: tuple[TransformRequestInput, ...]
    next_offset: U64
    prev_checkpoint_path: str | None = None
    new_checkpoint_path: str
    new_data_path: str
    transaction_id: str | None = None
    """Extension: the same id gives the same answer without doing the work twice."""
    output_schema: DataSchema | None = None
    """Extension: the schema in force; the result is cast to it exactly. ``None``: first transaction."""
    emission_limit: Time | None = None
    """Extension: settle no output at or after this time, even if it could be; the rest is settled next time."""
    reads_extensions: bool | None = None
    """Extension: the caller reads the parts of an InvalidQuery, so its ``message`` need not repeat them."""


class SkippedFile(ContractTable, frozen=True, kw_only=True):
    """A file of a source from which no row was taken, and why."""

    name: str
    reason: str


class RowCounts(ContractTable, frozen=True, kw_only=True):
    """Counts the rows that a transaction read, by what became of them. ``None``: not counted.

    In an ingest without a ``preprocess`` query, ``read`` = ``shaped`` + ``quarantined``; and ``shaped`` is the rows
    written for this batch plus ``unchanged``, ``conflicting`` and ``superseded``.
    """

    read: U64 | None = None
    """In an ingest: records of the files that hold data. In a transform: rows of the inputs' new blocks."""
    shaped: U64 | None = None
    """Rows that were to be merged: the output of ``preprocess``, or the rows that were read if there is none."""
    appended: U64 | None = None
    corrected: U64 | None = None
    """Rows that replaced another row of the same key: two records each, or one in a changelog that omits one."""
    retracted: U64 | None = None
    unchanged: U64 | None = None
    """Rows that equal what the dataset has already, so nothing was written."""
    conflicting: U64 | None = None
    """In a ledger: rows with a known key and other values. The first row of the key stays."""
    superseded: U64 | None = None
    """In an upsert stream: rows that were replaced by a later row of the same key in the same batch."""
    late: U64 | None = None
    """Rows behind the watermark: an ingest keeps them, a transform treats them as its query declares."""
    untimed: U64 | None = None
    """Rows without an event time of their own: an ingest gave them that of the source, a transform left them out."""
    quarantined: U64 | None = None
    """Records that were set aside because they could not be read."""
    skipped: tuple[SkippedFile, ...] = ()
    """The first ``MAX_SKIPPED`` skipped files; the last entry counts those beyond (``engines.contract``)."""
    remarks: tuple[str, ...] = ()
    """Remarks in words on what was passed over or assumed within the files; the first ``MAX_REMARKS``."""


MAX_SKIPPED: Final = 100
"""Most skipped files reported of one transaction; a folder may hold any number of files that are passed over."""
MAX_REMARKS: Final = 20


class Success(Variant, frozen=True, kw_only=True, tag="Success"):
    """A finished transaction: ``new_data_path`` has a slice iff there is an interval; a checkpoint is at its path."""

    new_offset_interval: OffsetInterval | None = None
    new_watermark: Time | None = None
    schema: DataSchema | None = None
    """Extension: schema of the output, system columns included."""
    late: U64 | None = None
    """Extension: rows dropped as late in this transaction."""
    rows: RowCounts | None = None
    """Extension: counts of all rows that were read. Rows written can be counted in the slice."""
    prev_data_bounds_hash: str | None = None
    """Extension: as in the IngestBatchRequest, from an engine that used that file to rule out slices not given."""


TransformResponse: TypeAlias = EngineProgress | Success | InvalidQuery | EngineInternalError


class TransformResponseRoot(ContractTable, frozen=True, kw_only=True):
    value: TransformResponse


class RawQueryView(ContractTable, frozen=True, kw_only=True):
    """Files of one schema, which a raw query reads as a view."""

    name: str
    data_paths: tuple[str, ...]


class RawQueryRequest(ContractTable, frozen=True, kw_only=True):
    """Runs queries over the union of the input files as the view ``input``; writes the result."""

    input_data_paths: tuple[str, ...]
    transform: Transform
    output_data_path: str
    reads_extensions: bool | None = None
    """Extension: as in the TransformRequest."""
    views: tuple[RawQueryView, ...] | None = None
    """Extension: the views that the queries read, in place of ``input``."""


class RawQuerySuccess(Variant, frozen=True, kw_only=True, tag="RawQuerySuccess"):
    num_records: U64


RawQueryResponse: TypeAlias = EngineProgress | RawQuerySuccess | InvalidQuery | EngineInternalError


class RawQueryResponseRoot(ContractTable, frozen=True, kw_only=True):
    value: RawQueryResponse


class QuarantineTarget(ContractTable, frozen=True, kw_only=True):
    """The next slice of the quarantine dataset: unreadable records found after block ``follows`` of this dataset."""

    path: str
    next_offset: U64
    follows: str


class IngestBatchRequest(ContractTable, frozen=True, kw_only=True):
    """Requests to parse, shape and merge one batch of source files into the next slice of a source dataset."""

    dataset_id: DatasetId
    system_time: Time
    vocab: Vocab
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
    """Names by which messages call the source files, in the order of ``source_paths``; if empty, the file names."""
    prev_data_hashes: tuple[str, ...] = ()
    """Physical hashes of ``prev_data_paths``; files that are read must match. Empty: the files are not checked."""
    fills_event_time: bool = False
    """Rows without event time take ``source_event_time``, or else the block's; if false, such a row is an error."""
    needs_event_time: bool = False
    """Earlier rows have event times, so a file whose columns are guessed and that has no event time is an error."""
    quarantine: QuarantineTarget | None = None
    """File for the records that ``read`` says are set aside (``RowCounts.quarantined``); ``None``: only count."""
    prev_data_bounds: str | None = None
    """For a ledger: path of a file that says which keys the slices older than ``prev_data_paths`` may hold
    (``engines.footers``). ``None``: all earlier slices are given."""
    prev_data_bounds_hash: str | None = None
    """Hash of the file ``prev_data_bounds``. An engine that knows its meaning repeats it in Success."""
    allows_null_keys: bool = False
    """For an observer that repeats another node's ingest: rows without a value in the primary key are written, as the
    reference does; if false they are an error. Has no effect where ``read`` sets records aside."""
    max_source_bytes: U64 | None = None
    """Most bytes of one source file after unpacking; ``None``: the engine's default."""
    max_unpack_ratio: U64 | None = None
    """Largest ratio of a source file's unpacked to its packed bytes; ``None``: the engine's default."""
    max_record_bytes: U64 | None = None
    """Most bytes of one record of a text; ``None``: the engine's default."""


class HistoryNeeded(Variant, frozen=True, kw_only=True, tag="HistoryNeeded"):
    """Says that keys of the batch may be in earlier slices that were not given: repeat the request with these too."""

    hashes: tuple[str, ...]
    """Hashes of the slices, as ``prev_data_bounds`` names them."""


IngestResponse: TypeAlias = EngineProgress | Success | InvalidQuery | EngineInternalError | HistoryNeeded


class IngestResponseRoot(ContractTable, frozen=True, kw_only=True):
    value: IngestResponse


class MigrateRequest(ContractTable, frozen=True, kw_only=True):
    """Requests to move a dataset from one transform to the next, at the cut of the old one's checkpoint."""

    dataset_id: DatasetId
    system_time: Time
    vocab: Vocab
    old_transform: Transform
    old_inputs: tuple[TransformRequestInput, ...]
    """The old transform's inputs: names and schemas, no slices."""
    transform: Transform
    query_inputs: tuple[TransformRequestInput, ...]
    """The new transform's inputs, with every block up to the cut, oldest first."""
    output_schema: DataSchema
    next_offset: U64
    prev_checkpoint_path: str = ""
    new_checkpoint_path: str = ""
    new_data_path: str = ""
    """Path for the rows by which the new table differs from the old one."""
    judge_only: bool = False
    """Only judge whether the migration is possible: nothing is read, and nothing written."""


class DerivationNeeded(Variant, frozen=True, kw_only=True, tag="DerivationNeeded"):
    """The new transform cannot continue where the old one stopped; its result has to be derived from the beginning."""

    message: str


MigrateResponse: TypeAlias = EngineProgress | Success | DerivationNeeded | InvalidQuery | EngineInternalError


class MigrateResponseRoot(ContractTable, frozen=True, kw_only=True):
    value: MigrateResponse


class ValidateInput(ContractTable, frozen=True, kw_only=True):
    query_alias: str
    dataset_id: DatasetId
    schema: DataSchema
    vocab: Vocab
    changelog: bool
    unsaid: bool | None = None
    """True: the chain does not state whether the input is a changelog."""

    @property
    def changes(self) -> bool | None:
        return None if self.unsaid else self.changelog


class ValidateRequest(ContractTable, frozen=True, kw_only=True):
    """Asks whether the engine runs a transform, and in which mode."""

    transform: Transform
    inputs: tuple[ValidateInput, ...]
    vocab: Vocab
    preprocess: bool = False
    """Judge the query as a source's ``preprocess``, whose one input has the columns that are read; gives no mode."""


class ValidateResponse(ContractTable, frozen=True, kw_only=True):
    ok: bool
    mode: str | None = None
    """Mode of the query, ``log``, ``final`` or ``table``; ``None`` when refused."""
    schema: DataSchema | None = None
    changelog: bool = False
    determinism: str = "unknown"
    """Whether the query always gives the same rows: ``strict`` (yes), ``no`` or ``unknown``."""
    diagnostics: tuple[Diagnostic, ...] = ()


class IdentityRequest(ContractTable, frozen=True, kw_only=True):
    """Requests an EngineIdentity; has no fields."""


class EngineIdentity(ContractTable, frozen=True, kw_only=True):
    """Identifies all that affects an engine's results; recorded in SetTransform's ``version`` and attestations."""

    name: str
    version: str
    digest: str
    """``sha256:…`` of the image, or of the manifest of everything that runs on the host."""
    sandbox: str
    """Isolation of the engine: ``image``, ``host`` (bubblewrap over the host runtime) or ``none``."""
    platform: str
    """Operating system and architecture, like ``linux/amd64``."""


MAX_QUESTIONS: Final = 64
"""Most records in one ProvenanceRequest."""
MAX_WITNESSES: Final = 10_000
"""Most rows reported for one record, whatever the requested limit: the answer has to fit into a message."""


class ProvenanceRecord(ContractTable, frozen=True, kw_only=True):
    offset: U64


class ProvenanceRequest(ContractTable, frozen=True, kw_only=True):
    """Asks which input rows some output rows of a transform were made from, and why these."""

    dataset_id: DatasetId
    vocab: Vocab
    transform: Transform
    query_inputs: tuple[TransformRequestInput, ...]
    """Inputs as of the rows' transaction: ``blocks`` up to its cut; ``reopened`` ones were consumed before."""
    data_path: str
    """The slice that holds the rows."""
    records: tuple[ProvenanceRecord, ...]
    """The records asked about, 1 to ``MAX_QUESTIONS``."""
    column: str | None = None
    """If given, only the origin of this column's values is reported."""
    limit: U64
    """Most rows reported for each record."""
    watermark_before: Time | None = None
    """Watermark of the output before the transaction: how far they had come, where output was held back."""
    watermark_after: Time | None = None
    transaction_id: str | None = None
    """Distinguishes two questions about the same rows that are worked on at the same time."""

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(record.offset for record in self.records)


class ProvenanceStep(ContractTable, frozen=True, kw_only=True):
    """One operator between an input and the result, with its condition and the place of the condition in the text."""

    number: U64
    """Number of the operator; paths that go through the same operator have the same number."""
    operator: str
    """``where``, ``group by``, ``left outer join``, ``over``, ``explode``, ``distinct``, ``union all``, …"""
    detail: str
    query: U64 = 0
    line: U64 | None = None
    column: U64 | None = None
    hides: bool = False
    """Rows that this operator removed below an aggregate affect the record too, but are not listed."""


class ProvenancePath(ContractTable, frozen=True, kw_only=True):
    """One occurrence of an input in the query; a self-join has two of one input."""

    input: U64
    """Index in ``query_inputs``."""
    steps: tuple[ProvenanceStep, ...] = ()
    """Operators on the path, starting at the input."""


class ProvenanceRow(ContractTable, frozen=True, kw_only=True):
    """A row of an input that contributed to a record."""

    input: U64
    offset: U64
    role: str
    """How the row contributed. ``value``: its values are in the record. ``decides``: it was compared, as a row ranked
    before or one that a semi join found. ``change``: a retraction or correction that caused the record to be written.
    """
    path: U64 | None = None
    """Index of its path; ``None`` for a retraction, which flows through no path."""
    cause: bool = False
    """In table mode: the arrival of this row caused the record to be written when it was."""


class ProvenanceAbsence(ContractTable, frozen=True, kw_only=True):
    """A path that gave no row for a record, and the reason why the record exists, or is as it is, without one."""

    path: U64


class RecordProvenance(ContractTable, frozen=True, kw_only=True):
    """The contributing rows of one record."""

    offset: U64
    op: U64
    rows: tuple[ProvenanceRow, ...] = ()
    """Contributing rows, ordered by input, offset and path."""
    count: U64
    """Number of contributing rows, whether reported or not."""
    absences: tuple[ProvenanceAbsence, ...] = ()

    @property
    def absent(self) -> tuple[int, ...]:
        return tuple(absence.path for absence in self.absences)

    @property
    def truncated(self) -> bool:
        return self.count > len(self.rows)


class ProvenanceSuccess(Variant, frozen=True, kw_only=True, tag="ProvenanceSuccess"):
    mode: str
    """Mode of the query: ``log``, ``final`` or ``table``."""
    paths: tuple[ProvenancePath, ...]
    records: tuple[RecordProvenance, ...]
    """Answers in the order of the request's records."""


ProvenanceResponse: TypeAlias = EngineProgress | ProvenanceSuccess | InvalidQuery | EngineInternalError


class ProvenanceResponseRoot(ContractTable, frozen=True, kw_only=True):
    value: ProvenanceResponse


class SessionRequest(ContractTable, frozen=True, kw_only=True):
    """Asks what an engine has started beyond its process, which only some requests need: for Spark, Java."""

    starts: bool = False
    """Start it, and answer when it is ready or has failed."""


SESSION_STATES: Final = ("stopped", "starting", "ready", "failed")


class SessionState(ContractTable, frozen=True, kw_only=True):
    """Tells what an engine has started.

    If not ``ready``, requests without need of a session, as most ingests are, run at once, and others start one.
    ``failed``: the last start failed; a later request tries again.
    """

    state: str
    message: str = ""
    """Reason of a failure."""
    lingering: U64 = 0
    """Milliseconds for which the oldest request works on whose caller has gone; 0: there is none."""


NOT_NAMED: Final = f"only the first {MAX_SKIPPED - 1} are named"
"""Reason in the last entry, which stands for all files that are not listed."""


def bounded_list(files: Iterable[SkippedFile]) -> tuple[SkippedFile, ...]:
    """Lists each file once, the first ``MAX_SKIPPED``; if there are more, the last entry counts them.

    The given lists may have been cut already; then a file in several of them counts once.
    """
    unique = dict.fromkeys(files)
    named = tuple(each for each in unique if each.reason != NOT_NAMED)
    others = max((_number(each) for each in unique if each.reason == NOT_NAMED), default=0)
    if not others and len(named) <= MAX_SKIPPED:
        return named
    others += max(0, len(named) - MAX_SKIPPED + 1)
    return (*named[: MAX_SKIPPED - 1], SkippedFile(name=plural(others, "more file"), reason=NOT_NAMED))


def _number(entry: SkippedFile) -> int:
    digits = entry.name.partition(" ")[0].replace(",", "")
    return int(digits) if digits.isdecimal() and len(digits) < 20 else 0


TransformOutcome: TypeAlias = Success | InvalidQuery | EngineInternalError
IngestAnswer: TypeAlias = Success | InvalidQuery | EngineInternalError | HistoryNeeded
MigrateOutcome: TypeAlias = Success | DerivationNeeded | InvalidQuery | EngineInternalError
RawQueryOutcome: TypeAlias = RawQuerySuccess | InvalidQuery | EngineInternalError
ProvenanceOutcome: TypeAlias = ProvenanceSuccess | InvalidQuery | EngineInternalError


class Engine(Protocol):
    """The port of an engine for its coordinator. Paths are host paths; the adapter maps them into the sandbox.

    Raises ``engines.errors.EngineLost`` (Environment) if the engine is dead or unreachable, and
    ``engines.errors.LimitExceeded`` if a request exceeds its deadline or memory. Faults of a query are answers, not
    exceptions.
    """

    async def identity(self) -> EngineIdentity: ...

    async def validate(self, request: ValidateRequest) -> ValidateResponse: ...

    async def transform(
        self, request: TransformRequest, on_progress: OnProgress = ignore_progress
    ) -> TransformOutcome: ...

    async def ingest(self, request: IngestBatchRequest, on_progress: OnProgress = ignore_progress) -> IngestAnswer: ...

    async def raw_query(
        self, request: RawQueryRequest, on_progress: OnProgress = ignore_progress
    ) -> RawQueryOutcome: ...

    async def migrate(self, request: MigrateRequest, on_progress: OnProgress = ignore_progress) -> MigrateOutcome: ...
    async def derive_provenance(
        self, request: ProvenanceRequest, on_progress: OnProgress = ignore_progress
    ) -> ProvenanceOutcome: ...
