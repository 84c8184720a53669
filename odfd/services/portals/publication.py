"""Takes rows of a private dataset into its portal: those not taken yet, as one block, if the rule permits.

A plan is a function of both chains, the rule and the salt: after a crash the same rows are taken, and none is taken
twice, since each block says how far the private dataset was read. Rows are sorted by all their columns, so their order
does not tell in which order they came. No engine takes part.

Its chain says of the private input only hashes with a secret salt, which only auditors get. Without the salt of 256
bits a hash tells nothing, not even whether two portals have the same input. Anybody who has the salt and the input can
tell that it is that dataset, and how much of it each block was made from. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from chain.data.arrow_schema import to_arrow
from chain.data.evolution import as_in_force
from chain.data.object_links import link_columns
from chain.data.operations import APPEND
from chain.data.parquet import SliceWriter, open_slice
from chain.errors import Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant, to_millis
from chain.libraries import np, pa, pc
from chain.model.block import Block
from chain.model.changelog import says_changelog, with_changelog
from chain.model.events import (
    AddData,
    DatasetKind,
    DataSlice,
    ExecuteTransform,
    MetadataEvent,
    SetDataSchema,
    SourceState,
    Vocab,
)
from chain.model.portal import PORTAL, RULE, PortalRule, portal_rule, with_portal_rule
from chain.model.schema import DataField, DataSchema
from chain.multihash import Multihash
from chain.state import ChainState
from chain.statements.keys import SigningKey
from chain.store.base import ChainReader, ObjectReader
from chain.store.objects import sound_path
from chain.walk import newest_first
from odfd.ingest.driver import IngestDependencies
from odfd.ingest.plan import schema_in_force
from odfd.ingest.slices import keep_slice
from odfd.portals.rule import Breach, Earlier, breaches, check_columns, filter_rows
from odfd.runtime.filesystem import check_room

MARK: Final = b"odfd-portal\n"
"""Prefix of the text that the node's key signs to derive salts. It signs nothing else with this prefix.

The signature never leaves the node.
"""
DATA: Final = ("AddData", "ExecuteTransform")
OPENING: Final = "https://w3id.org/odfd/portal-opening/v1"
_SALT: Final = 32
MAX_OPENING: Final = 4096


class Opening(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All that an auditor needs beside the input.

    Its holder, with the input, can tell which rows were made from which.
    """

    type: str
    portal: str
    input: str
    salt: str


def salt_of(node: SigningKey, portal: DatasetId) -> bytes:
    """Derives the salt of a portal from its node's key, so that it needs no storage and every backup has it."""
    return hashlib.sha3_256(node.sign(MARK + bytes(portal))).digest()


def input_hash(salt: bytes, dataset: DatasetId) -> str:
    """Returns the hash that stands for the private dataset in the rule."""
    return str(Multihash.sha3_256(b"odfd portal input\n" + salt + bytes(dataset)))


def cut_hash(salt: bytes, dataset: DatasetId, block: Block) -> str:
    """Returns the hash that a block of the portal has of the private dataset, which was read up to this block."""
    number = block.sequence_number.to_bytes(8)
    return str(Multihash.sha3_256(b"odfd portal cut\n" + salt + bytes(dataset) + number + bytes(block.hash)))


def state_at(salt: bytes, dataset: DatasetId, block: Block) -> SourceState:
    return SourceState(source_name="portal", kind=PORTAL, value=cut_hash(salt, dataset, block))


def cut_of(event: object) -> str | None:
    """Returns the hash in a portal's block of how far the private dataset was read; ``None`` if it has none."""
    state = event.new_source_state if isinstance(event, AddData) else None
    return state.value if state is not None and state.kind == PORTAL else None


def blocks_since(salt: bytes, dataset: DatasetId, chain: ChainReader, cut: str | None) -> Iterator[Block]:
    """Yields the blocks of data after the cut, newest first, reading only these.

    Raises Invalid if the cut is missing.
    """
    for block in newest_first(chain, DATA):
        if cut is not None and cut_hash(salt, dataset, block) == cut:
            return
        yield block
    if cut is not None:
        raise Invalid(
            "the private dataset has no block any more that the last one of the portal was made of",
            rule="portal-history",
            hint="its history was rewritten, or the portal was begun by another node: begin another portal",
        )


def rows_of(block: Block) -> AddData | ExecuteTransform | None:
    """Returns the event of a block if it brings rows, else ``None``."""
    event = block.event
    return event if isinstance(event, AddData | ExecuteTransform) and event.new_data is not None else None


def opening_text(portal: DatasetId, dataset: DatasetId, salt: bytes) -> bytes:
    found = Opening(type=OPENING, portal=str(portal), input=str(dataset), salt=salt.hex())
    return msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"


def read_opening(text: bytes, portal: DatasetId) -> tuple[DatasetId, bytes]:
    """Decodes an opening: returns the private dataset and the salt. Raises Invalid."""
    try:
        found = msgspec.json.decode(text[: MAX_OPENING + 1], type=Opening)
        salt = bytes.fromhex(found.salt)
    except (msgspec.MsgspecError, ValueError):
        raise _bad("it cannot be read") from None
    if len(text) > MAX_OPENING or found.type != OPENING or len(salt) != _SALT:
        raise _bad("it is not an opening, or one of another version")
    if DatasetId.parse(found.portal) != portal:
        raise _bad("it is of another portal")
    return DatasetId.parse(found.input), salt


def _bad(why: str) -> Invalid:
    return Invalid(f"the opening: {why}", rule="portal-opening", hint="its owner writes it: odfctl portal open NAME")


MAX_TAKE: Final = 4_000_000
"""Most rows of a block of a portal, since they are sorted in memory; further rows make the next block."""


class PortalInput(NamedTuple):
    """The private dataset of a portal, with the present state of its chain."""

    dataset: DatasetId
    chain: ChainReader
    state: ChainState
    salt: bytes


class PortalTake(NamedTuple):
    """The next block of a portal, or why there is none."""

    events: tuple[MetadataEvent, ...]
    objects: tuple[Multihash, ...]
    rows: int
    left_out: int
    """Number of rows that the rule leaves out."""
    withheld: tuple[Breach, ...] = ()
    """Why nothing is taken although there are rows."""
    more: bool = False
    """Whether rows are left for another block."""


NOTHING: Final = PortalTake((), (), 0, 0)


def check_portal_chain(name: str, state: ChainState, rule: PortalRule) -> None:
    """Raises Refused for a dataset that cannot be the portal of this rule."""
    if state.kind is not DatasetKind.ROOT or state.polling_source is not None or state.active_push_sources:
        hint = "declare another for it: kind: Root, without SetPollingSource and AddPushSource"
        raise Refused(f"{name} is not a source dataset (kind: Root) without a source", rule="portal-dataset", hint=hint)
    declared = schema_in_force(state)
    if declared is None:
        return
    held = portal_rule(declared)
    if held is None:
        hint = "declare a new source dataset for the portal"
        raise Refused(f"{name} has rows that no portal gave", rule="portal-dataset", hint=hint)
    if held != rule:
        said = "takes from another dataset" if held.input != rule.input else "has another rule"
        text = f"{name} was begun as a portal that {said}: rows that are published were chosen by it"
        raise Refused(
            text, rule=RULE, hint="declare a new source dataset for this one, or give the Portal its former spec"
        )


def plan_take(
    deps: IngestDependencies,
    source: PortalInput,
    chain: ChainReader,
    state: ChainState,
    rule: PortalRule,
    time: Instant,
) -> PortalTake:
    """Plans the next block of a portal; ``chain`` and ``state`` are the portal's own.

    Raises Refused for rows that a portal cannot publish, Invalid (``portal-history``), NotFound, ObjectDamaged,
    Environment.
    """
    since = list(blocks_since(source.salt, source.dataset, source.chain, cut_of(state.last_data)))
    private = schema_in_force(source.state)
    if not since or private is None:
        return NOTHING
    _check_publishable(private, source.state)
    declared = schema_in_force(state)
    schema = declared or _schema(private, source.state.vocab, state.vocab, rule)
    form = to_arrow(schema).remove_metadata()
    check_columns(rule, form)
    blocks, more = _some(since)
    rows = rows_taken(deps.objects, blocks, source.state, form, state.vocab)
    published = filter_rows(rule, rows)
    earlier = _earlier(deps, chain, rule, form, state.vocab, published)
    withheld = tuple(breaches(rule, published, earlier))
    left_out = rows.num_rows - published.num_rows
    if withheld:
        return PortalTake((), (), 0, left_out, withheld)
    cut = blocks[-1]
    watermark = getattr(cut.event, "new_watermark", None) or state.watermark
    if not published.num_rows and watermark == state.watermark and not more:
        return PortalTake((), (), 0, left_out)
    data = _write_slice(deps, schema, published, state, time)
    said = AddData(
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        prev_offset=state.last_offset,
        new_data=data,
        new_checkpoint=state.checkpoint,
        new_watermark=watermark,
        new_source_state=state_at(source.salt, source.dataset, cut),
    )
    events: tuple[MetadataEvent, ...] = (said,) if declared is not None else (SetDataSchema(schema=schema), said)
    return PortalTake(events, () if data is None else (data.physical_hash,), published.num_rows, left_out, more=more)


def rows_taken(
    objects: ObjectReader, blocks: Iterable[Block], state: ChainState, form: pa.Schema, vocab: Vocab
) -> pa.Table:
    """Returns the rows of blocks of a private dataset in the form of its portal, sorted, before any are left out.

    ``state``: of the private dataset; ``form`` and ``vocab``: of the portal. System columns other than the event time
    are not among them. Raises Refused for a row that is not an appended one, NotFound, ObjectDamaged.
    """
    private = schema_in_force(state)
    assert private is not None, "rows follow their schema"
    whole = to_arrow(private).remove_metadata()
    names = {vocab.event_time: state.vocab.event_time}
    columns = [name for name in form.names if name not in system_columns(vocab)]
    parts = []
    for block in blocks:
        event = rows_of(block)
        if event is None or event.new_data is None:
            continue
        with open_slice(sound_path(objects, event.new_data.physical_hash)) as file:
            for batch in file.batches():
                rows = as_in_force(pa.Table.from_batches([batch]).replace_schema_metadata(None), whole)
                _check_appended(rows.column(state.vocab.operation_type))
                parts.append(pa.table([rows.column(names.get(name, name)) for name in columns], names=columns))
    wanted = pa.schema([form.field(name) for name in columns])
    table = pa.concat_tables(parts).cast(wanted) if parts else wanted.empty_table()
    return sorted_rows(table)


def sorted_rows(rows: pa.Table) -> pa.Table:
    """Returns rows sorted by all columns that have an order."""
    keys = [
        (field.name, "ascending")
        for field in rows.schema
        if not (pa.types.is_nested(field.type) or pa.types.is_null(field.type) or pa.types.is_float16(field.type))
    ]
    return rows.sort_by(keys) if keys and rows.num_rows else rows


def system_columns(vocab: Vocab) -> tuple[str, str, str]:
    """Returns the names of the system columns that a portal's rows have of their own."""
    return vocab.offset, vocab.operation_type, vocab.system_time


def _check_appended(operations: pa.ChunkedArray) -> None:
    if pc.any(pc.not_equal(operations, APPEND)).as_py():
        raise _changelog()


def _changelog() -> Refused:
    return Refused(
        "rows of the private dataset are corrected or retracted: two versions of one row would reveal a difference",
        rule="portal-changelog",
        hint="derive what is final from it: a query with windows appends rows and changes none",
    )


def _check_publishable(private: DataSchema, state: ChainState) -> None:
    """Raises Refused for data that cannot be published: corrections, links to files, unknown events."""
    if says_changelog(private):
        raise _changelog()
    if linked := link_columns(private):
        text = f"column {linked[0]!r} links to files, which a portal would publish too"
        raise Refused(text, rule="portal-links", hint="leave it out of the derivation")
    if state.unknown is not None:
        raise Refused("the private dataset has an event of a newer version", rule="unknown-event", hint="update odfd")


def _schema(private: DataSchema, from_: Vocab, to: Vocab, rule: PortalRule) -> DataSchema:
    """Returns the portal's schema: the columns of the private dataset with their types, without further attributes."""
    renamed = {getattr(from_, name): getattr(to, name) for name in Vocab.__struct_fields__}
    fields = tuple(DataField(name=renamed.get(field.name, field.name), type=field.type) for field in private.fields)
    return with_portal_rule(with_changelog(DataSchema(fields=fields), False), rule)


def _some(since: Sequence[Block]) -> tuple[list[Block], bool]:
    """Returns the oldest of the blocks whose rows fit into one block, and whether there are more."""
    found: list[Block] = []
    rows = 0
    for block in reversed(since):
        event = rows_of(block)
        interval = None if event is None or event.new_data is None else event.new_data.offset_interval
        rows += 0 if interval is None else interval.end - interval.start + 1
        if found and rows > MAX_TAKE:
            return found, True
        found.append(block)
    return found, False


def _earlier(
    deps: IngestDependencies, chain: ChainReader, rule: PortalRule, form: pa.Schema, vocab: Vocab, rows: pa.Table
) -> Earlier:
    """Returns the groups that were published before, from slices whose event times overlap those of the new rows."""
    earlier = Earlier(rule)
    if not earlier.parts or not rows.num_rows:
        return earlier
    by_time = all(vocab.event_time in part.groups for part in earlier.parts)
    for path in (sound_path(deps.objects, each.physical_hash) for each in slices_of(chain)):
        with open_slice(path) as file:
            if by_time and not _may_meet(file.stats(vocab.offset, vocab.event_time).event_times, rows, vocab):
                continue
            for batch in file.batches(columns=earlier.columns):
                earlier.add(pa.Table.from_batches([batch]).cast(pa.schema([form.field(n) for n in batch.schema.names])))
    return earlier


def _may_meet(times: tuple[Instant, Instant] | None, rows: pa.Table, vocab: Vocab) -> bool:
    column = rows.column(vocab.event_time)
    ends = pc.min_max(column.cast(pa.timestamp("ns", "UTC")).cast(pa.int64()))
    if times is None or column.null_count or not ends["min"].is_valid:
        return True
    return bool(times[0] <= ends["max"].as_py() and ends["min"].as_py() <= times[1])


def slices_of(chain: ChainReader) -> list[DataSlice]:
    """Lists the slices of a chain, newest first."""
    found = (rows_of(block) for block in newest_first(chain, DATA))
    return [event.new_data for event in found if event is not None and event.new_data is not None]


def _write_slice(
    deps: IngestDependencies, schema: DataSchema, rows: pa.Table, state: ChainState, time: Instant
) -> DataSlice | None:
    if not rows.num_rows:
        return None
    check_room(deps.settings.staging, deps.settings.disk_reserve, rows.nbytes, "a slice is to be written")
    count, form, vocab = rows.num_rows, to_arrow(schema).remove_metadata(), state.vocab
    start = state.next_offset
    own = {
        vocab.offset: pa.array(np.arange(start, start + count)),
        vocab.operation_type: pa.array(np.full(count, APPEND)),
        vocab.system_time: pa.array(np.full(count, to_millis(time)), pa.int64()).cast(pa.timestamp("ms", "UTC")),
    }
    columns = [(own[field.name] if field.name in own else rows.column(field.name)).cast(field.type) for field in form]
    path = deps.objects.stage()
    try:
        with SliceWriter(path, form) as writer:
            writer.write(pa.table(columns, schema=form))
        return keep_slice(deps.objects, path, schema, vocab.offset)
    finally:
        path.unlink(missing_ok=True)
