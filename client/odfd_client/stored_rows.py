"""Reads rows of a repository from slices that were hashed, at a cut of a chain that was hashed."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import pyarrow as pa

from odfd_client.answer_stream import Answer
from odfd_client.arrow_predicates import expression
from odfd_client.chain_blocks import Notice
from odfd_client.errors import Invalid, NotFound, Refused
from odfd_client.folding import standing
from odfd_client.relations import CLAUSES, Selection
from odfd_client.stored_chains import Cut, StoredChain
from odfd_client.stored_collections import StoredCollection
from odfd_client.stored_slices import CheckedObjects, StoredSlices
from odfd_client.subscription import Source
from odfd_client.transport import Transport
from odfd_client.values import NodeMetadata, Pin, Position, ReadStanding, moment

UNSIGNED: Final = "unsigned"
"""Standing of what a repository says: all is hashed from its head, whose signatures were not checked."""
_AS_OF, _AT_BLOCK, _AS_AT = CLAUSES


class Chains(Protocol):
    """The chains of a repository."""

    shown: str
    objects: CheckedObjects

    def chain(self, ref: str, time: int | None = None) -> StoredChain:
        """Returns the chain of a dataset: of a name, that of the rendition which is active, at ``time`` (in
        nanoseconds) or now. Raises NotFound."""

    def collection(self, ref: str) -> StoredCollection | None:
        """Returns the shards that a name, or the id of the first of them, means; ``None``: it means one chain."""

    def upper(self, ref: str) -> int | None:
        """Returns the time in milliseconds before which a dataset is complete; ``None``: sealed."""

    def succession(self, dataset: str) -> list[Notice]:
        """Returns the handovers after a rendition, also those to what is not in the repository."""


class NoNode(Transport):
    """Stands in the place of a connection: all requests are refused."""

    def __init__(self, shown: str) -> None:
        super().__init__(shown)

    @property
    def is_remote(self) -> bool:
        return True

    def ask(self, *_: Any, **__: Any) -> Any:
        raise refusal("this", "ask a node: connect()")


def refusal(what: str, hint: str) -> Refused:
    return Refused(f"{what} needs a node, and this is a repository", rule="repository-node", hint=hint)


def together(objects: CheckedObjects, cuts: Sequence[Cut], metadata: NodeMetadata) -> list[StoredSlices]:
    """Returns the slices of each shard, all with the columns of all. Raises NotFound if none has rows."""
    found = [StoredSlices(objects, cut, metadata) for cut in cuts if len(cuts) == 1 or cut.last_offset() >= 0]
    found = found or [StoredSlices(objects, cuts[0], metadata)]
    if len(found) > 1:
        try:
            schema = pa.unify_schemas([each.schema for each in found])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            hint = "a node reads columns whose types changed"
            raise Invalid(f"the shards have different columns: {error}", rule="repository-slice", hint=hint) from error
        for each in found:
            each.schema = schema
    return found


def rows_of_all(
    cuts: Sequence[Cut], slices: Sequence[StoredSlices], asked: Selection, *, none: bool = False
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Returns the rows of a selection of all shards, shard by shard: rows that fold together are in one."""
    of = {slice_.folder: slice_ for slice_ in slices}
    parts = [(cut, of[cut.chain.folder]) for cut in cuts if cut.chain.folder in of]
    whole = replace(asked, limit=None) if len(parts) > 1 else asked
    shown, _ = rows_of(*parts[0], whole, none=True)
    rows = (batch for part in parts for batch in rows_of(*part, whole, none=none)[1])
    return shown, rows if asked.limit is None else _limit(rows, asked.limit)


def rows_of(
    cut: Cut, slices: StoredSlices, asked: Selection, *, none: bool = False
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Returns the rows of a selection, and their schema; ``none``: no rows."""
    import pyarrow.compute as pc

    schema = slices.schema
    check_there(asked.columns, schema)
    wanted = list(asked.columns) or schema.names
    until = _until(cut, asked, schema)
    where = expression(asked.where, schema)
    shown = pa.schema([schema.field(name) for name in wanted])
    if none or asked.limit == 0:
        return shown, iter(())
    among = until if where is None else where if until is None else until & where
    if asked.current:
        kept = _standing(cut, slices, until)
        if kept is not None:
            stands = pc.field(cut.vocabulary()[0]).isin(kept)
            among = stands if where is None else stands & where
    batches = (each for each in slices.scan(wanted, among) if each.num_rows)
    return shown, batches if asked.limit is None else _limit(batches, asked.limit)


def _standing(cut: Cut, slices: StoredSlices, until: Any) -> Any:
    """Returns the offsets of the rows that stand; ``None``: all do."""
    offset, op, time, _ = cut.vocabulary()
    if op not in slices.schema.names:
        return None
    key = cut.key()
    same = [name for name in slices.schema.names if name not in (offset, op, time)] if key is None else list(key)
    wanted = [offset, op, *same]
    schema = pa.schema([slices.schema.field(name) for name in wanted])
    batches = slices.scan(wanted, until)
    return standing(pa.Table.from_batches(batches, schema), offset, op, by_key=key is not None)


def _until(cut: Cut, asked: Selection, schema: pa.Schema) -> Any:
    """Returns the expression for the rows valid at the time that was asked for; ``None``: no time was."""
    import pyarrow.compute as pc

    said = next((each for words, each in asked.clauses if words == _AS_AT), None)
    if said is None:
        return None
    event_time = cut.vocabulary()[3]
    if event_time not in schema.names:
        raise _no_column(event_time, schema)
    kind = schema.field(event_time).type
    unit = kind.tz if pa.types.is_timestamp(kind) else None
    moment = pa.scalar(to_nanos(said) // 1000, pa.timestamp("us", unit))
    return pc.field(event_time).cast(pa.timestamp("us", unit)) <= moment


def _limit(batches: Iterator[pa.RecordBatch], most: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if most <= 0:
            return
        yield batch[:most]
        most -= batch.num_rows


class StoredAnswer(Answer):
    """Rows that are read from a repository, once."""

    def __init__(self, metadata: NodeMetadata, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
        self.told, self.schema, self._found = metadata, schema, batches

    def close(self) -> None: ...

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._found

    @property
    def proof(self) -> None:
        return None


class StoredLog(Source):
    """The log of a dataset of a repository as the source of a listener."""

    def __init__(self, chains: Chains, selection: Selection) -> None:
        super().__init__(NoNode(chains.shown), selection.name, always=False, whole=selection.where is None)
        self._chains, self._selection = chains, selection

    def describe_dataset(self, ref: str) -> dict[str, Any]:
        collection = self._chains.collection(ref) if self.together else None
        if collection is not None:
            return {"id": collection.ids[0], "name": collection.name, "shards": collection.ids}
        chain = self._chains.chain(ref)
        return {"id": chain.id(), "name": ref}

    def upper(self, dataset: str) -> str | None:
        found = self._chains.upper(dataset) if self.together else self._chains.chain(dataset).upper()
        return None if found is None else moment(found)

    def newest(self, dataset: str) -> str:
        return self._chains.chain(dataset).head().hash

    def holds(self, position: Position) -> bool:
        chain = self._chains.chain(position.id)
        found = chain.at(position.sequence_number, chain.head())
        return found is not None and found.hash == position.block

    def has_ended(self, dataset: str) -> bool:
        after = self._chains.succession(dataset)
        return bool(after) and after[-1].to != dataset

    def was_before(self, former: str, dataset: str) -> bool:
        try:
            return dataset in {each.to for each in self._chains.succession(former)}
        except NotFound:
            return False

    def cut(self, name: str) -> tuple[Pin, ...]:
        collection = self._chains.collection(name)
        if collection is not None:
            return describe_answer(collection.cuts(), name, "").pins
        chain = self._chains.chain(name)
        return describe_answer([Cut(chain, chain.head())], name, "").pins

    def after(self, dataset: str, offset: int, mark: str, pin: Pin | None = None) -> Answer:
        import pyarrow.compute as pc

        chain = self._chains.chain(dataset)
        cut = Cut(chain, chain.head() if pin is None else chain.block(pin.block))
        metadata = describe_answer([cut], dataset, "")
        if cut.last_offset() <= offset:
            return StoredAnswer(metadata, pa.schema([]), iter(()))
        slices = StoredSlices(self._chains.objects, cut, metadata, offset)
        shown, _ = rows_of(cut, slices, self._selection, none=True)
        where = expression(self._selection.where, slices.schema)
        place = cut.vocabulary()[0]
        later = pc.field(place) > offset
        columns = {name: pc.field(name) for name in shown.names} | {mark: pc.field(place).cast(pa.int64())}
        rows = slices.scan(columns, later if where is None else later & where)
        return StoredAnswer(metadata, shown.append(pa.field(mark, pa.int64())), rows)


def describe_answer(cuts: Sequence[Cut], name: str, clauses: str) -> NodeMetadata:
    """Describes an answer: its pins, and that only hashes speak for it."""
    pins = tuple(Pin(name, cut.dataset, cut.head.hash, cut.head.number, clauses) for cut in cuts)
    standings = tuple(ReadStanding(name, UNSIGNED, 0, cut.head.number + 1) for cut in cuts)
    return NodeMetadata(pins, UNSIGNED, standings, ())


def find_block(chain: StoredChain, head: Any, said: str) -> Any:
    """Finds a block by its number (``#12``) or hash. Raises NotFound."""
    if said.startswith("#") and said[1:].isdecimal():
        found = chain.at(int(said[1:]), head)
    else:
        found = next((each for each in chain.back_to(0, head) if each.hash == said), None)
    if found is None:
        raise NotFound(f"{chain.shown} has no block {said}", rule="query-block", hint="a number, or a whole hash")
    return found


def to_nanos(said: str) -> int:
    """Parses a time: a day, or RFC 3339; without a zone in UTC. Raises Invalid."""
    try:
        found = datetime.datetime.fromisoformat(said)
    except ValueError as error:
        raise Invalid(f"not a time: {said!r}", rule="query-time", hint="2024-05-01, or 2024-05-01T12:00:00Z") from error
    since = (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)) - datetime.datetime.fromtimestamp(
        0, datetime.UTC
    )
    return since // datetime.timedelta(microseconds=1) * 1000


def check_there(names: Sequence[str], schema: pa.Schema) -> None:
    there = set(schema.names)
    for name in names:
        if name not in there:
            raise _no_column(name, schema)


def _no_column(name: str, schema: pa.Schema) -> Invalid:
    return Invalid(f"there is no column {name}", rule="columns", hint=f"columns are {', '.join(schema.names)}")
