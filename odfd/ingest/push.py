"""Ingests files that clients push: each push once, even if repeated.

A push has an id: its client's, or one made of its content (the bytes and names of the files, the source as it is
declared, the event time). A push that was taken in before gets the same answer again and appends nothing. If a later
repetition has a meaning of its own (another snapshot, an update that goes back), an id made of content counts only
while no other push came after it. Each file of a snapshot source is a transaction, since each is a whole snapshot;
other strategies take all files in one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import trio

from chain import instant
from chain.errors import Conflict, Environment, Invalid, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import MetadataEvent
from chain.model.source import (
    ReadCsv,
    ReadGeoJson,
    ReadJson,
    ReadNdGeoJson,
    ReadNdJson,
    ReadParquet,
    ReadStep,
    traits,
)
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader, Head
from odfd.ingest.driver import IngestDependencies, IngestTotals, PullOutcome, load, transact
from odfd.ingest.fetch.source import file_identity
from odfd.ingest.plan import Batch, SourceInForce, find_push_source
from odfd.ingest.progress import Report, quiet
from odfd.store.pushes import Push, PushOutcome
from odfd.store.row_counts import NOTHING_READ

FORMATS: Final[dict[str, ReadStep]] = {
    "csv": ReadCsv(header=True, infer_schema=True),
    "ndjson": ReadNdJson(),
    "json": ReadJson(),
    "parquet": ReadParquet(),
    "geojson": ReadGeoJson(),
    "ndgeojson": ReadNdGeoJson(),
}
"""Read steps by format, for files pushed through a push source that does not exist yet."""
MAX_ID: Final = 200
"""Characters of a client's id of a push."""
_OF_CONTENT: Final = "content:"


def given_id(push: Push) -> str | None:
    """Returns the id that the client gave; ``None``: it gave none."""
    return None if push.id.startswith(_OF_CONTENT) else push.id


class PushLog(Protocol):
    """The port of the log of ingested pushes; ``odfd.store.pushes`` implements it on a database. Synchronous."""

    def find(self, dataset: DatasetId, push_id: str) -> Push | None: ...

    def newest(self, dataset: DatasetId) -> Push | None: ...


class PushTerms(msgspec.Struct, frozen=True, kw_only=True):
    """A client's parameters of a push."""

    source: str | None = None
    """Name of the push source; ``None``: the only one."""
    read: ReadStep | None = None
    """The client's read step: it has to fit the existing source, or a source is made with it."""
    event_time: Instant | None = None
    id: str | None = None
    again: bool = False
    """Whether to ingest the push even if it was ingested before."""
    after: Multihash | None = None
    """The block that the push has to follow; ``None``: whatever is the last one."""

    @classmethod
    def parse(cls, form: str | None, event_time: str | None, after: str | None, **others: Any) -> PushTerms:
        """Parses texts; ``form`` is a key of FORMATS. Raises Invalid."""
        if form is not None and form not in FORMATS:
            raise Invalid(f"no format {form!r}", rule="format", hint=f"one of {', '.join(FORMATS)}")
        return cls(
            read=None if form is None else FORMATS[form],
            event_time=instant.parse(event_time) if event_time else None,
            after=Multihash.parse(after) if after else None,
            **others,
        )

    def choose(self, state: ChainState) -> tuple[SourceInForce, tuple[MetadataEvent, ...]]:
        """Returns the push source to use, and the event that creates it, if needed. Raises Refused, Invalid."""
        return find_push_source(state, self.source, self.read)

    def check_after(self, chains: Sequence[ChainReader]) -> None:
        """Raises Conflict unless the last block of the shards is the one to be followed."""
        if self.after is not None and (last := commit_point(chains)).hash != self.after:
            raise Conflict(
                f"block #{last.sequence_number} {last.hash.short} is the last one: the push would not follow"
                f" {self.after}",
                rule="append-after",
                hint="read what was appended, and push after the block that is last now",
            )


def commit_point(chains: Sequence[ChainReader]) -> Head:
    """Returns where a dataset ends: the last block of its last transaction, in the first shard that got one.

    Shards are written together, at times that grow strictly, so this block is another one after each transaction.
    """
    heads = [(chain, head) for chain in chains if (head := chain.head()) is not None]
    if len(heads) == 1:
        return heads[0][1]
    return max(heads, key=lambda each: each[0].block_at(each[1].sequence_number).system_time)[1]


async def push_files(
    deps: IngestDependencies,
    dataset: DatasetId,
    files: Sequence[Path],
    terms: PushTerms = PushTerms(),  # noqa: B008  it is frozen
    log: PushLog | None = None,
    report: Report = quiet,
) -> PullOutcome:
    """Ingests local files through a push source. Without a ``log`` every push is accepted as new.

    Nobody else may push into the dataset meanwhile. Raises as ``driver.pull_root`` does; Refused also if the id was
    used for another push, Conflict if it does not follow the block of ``terms``. Transactions committed before a fault
    stay committed, and the next attempt does not repeat them.
    """
    if terms.id is not None and not 0 < len(terms.id) <= MAX_ID:
        raise Refused(f"an id of {len(terms.id)} characters", rule="push-id", hint=f"1 to {MAX_ID} characters")
    state = await trio.to_thread.run_sync(load, deps, dataset)
    source, _ = terms.choose(state)
    groups = [[file] for file in files] if traits(source.merge).whole_state else [list(files)]
    if terms.after is not None and len(groups) > 1:
        text = f"{len(groups)} snapshots are {len(groups)} transactions, and only one can follow a block"
        raise Invalid(text, rule="append-after", hint="push one file at a time")
    parts = await trio.to_thread.run_sync(_identify, groups, source, terms)
    known: list[Push | None] = []
    if log is not None and not terms.again:
        known = await trio.to_thread.run_sync(_find_earlier, log, dataset, parts, source, terms)
    tally = IngestTotals()

    def choose_after(state: ChainState) -> tuple[SourceInForce, tuple[MetadataEvent, ...]]:
        terms.check_after([deps.store.chain(shard) for shard in deps.shards(dataset)])
        return terms.choose(state)

    for number, (group, part) in enumerate(zip(groups, parts, strict=True)):
        if number >= len(known):
            await transact(deps, state, choose_after, _batch(group, terms), tally, report, part)
        elif (found := known[number]) is not None:
            tally.repeat(await trio.to_thread.run_sync(_head_of, deps, dataset, found), found)
        tally.files += len(group)
    return tally.outcome("nothing-new")


def _identify(groups: Sequence[Sequence[Path]], source: SourceInForce, terms: PushTerms) -> list[Push]:
    """Returns the transactions of one push, with their ids. Reads the files."""
    parts: list[Push] = []
    before = hashlib.sha256(msgspec.json.encode((source, terms.event_time), order="deterministic"))
    for number, files in enumerate(groups):
        for file in files:
            try:
                with file.open("rb") as opened:
                    content = hashlib.file_digest(opened, "sha256").digest()
            except OSError as error:
                raise Environment(f"cannot read {error.filename}: {error.strerror}", rule="source-file") from error
            before.update(msgspec.msgpack.encode((file.name, content)))
        named = None if terms.id is None else terms.id + (f" ({number + 1})" if number else "")
        parts.append(
            Push(
                id=named or _OF_CONTENT + before.hexdigest(),
                source=source.name,
                content=before.digest(),
                answer=PushOutcome(blocks=0, records=0, counts=NOTHING_READ),
            )
        )
    return parts


def _find_earlier(
    log: PushLog, dataset: DatasetId, parts: Sequence[Push], source: SourceInForce, terms: PushTerms
) -> list[Push | None]:
    """Returns the earlier record of each leading part of a push that this repeats; ``None``: that part had no effect.

    Raises Refused if the id was used for another push.
    """
    found = [log.find(dataset, part.id) for part in parts]
    if any(there is not None and there.content != part.content for there, part in zip(found, parts, strict=True)):
        raise Refused(
            f"the id {terms.id!r} was used for a push of other files, or through another source",
            rule="push-id",
            hint="give each push its own id; --again ingests under the same id again",
        )
    if terms.id is None and not traits(source.merge).only_adds:
        newest = log.newest(dataset)
        stands = [there is not None and newest is not None and _is_last(there, newest) for there in found]
    else:
        stands = [there is not None for there in found]
    return found[: max((number + 1 for number, is_there in enumerate(stands) if is_there), default=0)]


def _is_last(push: Push, newest: Push) -> bool:
    """Whether nothing was appended since ``push``; ``newest`` is the last push that appended blocks."""
    return push.id == newest.id or (not push.answer.blocks and push.sequence >= newest.sequence)


def _head_of(deps: IngestDependencies, dataset: DatasetId, push: Push) -> Head:
    said = push.answer.block
    return Head(
        Multihash.parse(said) if said else deps.store.chain(dataset).block_at(push.sequence).hash, push.sequence
    )


def _batch(files: Sequence[Path], terms: PushTerms) -> Batch:
    return Batch(
        paths=tuple(files),
        names=tuple(file.name for file in files),
        identity="\n".join(map(file_identity, files)),
        event_time=terms.event_time,
        fills_event_time=terms.event_time is not None,
    )
