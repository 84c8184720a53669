"""Ingests files that clients push: each push once, however often it is sent.

A push is known by an id: its client's, or one made of its content (the bytes and names of the files, the source as it
is declared, the event time). A push that was taken in before is answered as the first time and appends nothing. Where
a later repetition has a meaning of its own (another snapshot, an update that goes back), an id made of content counts
only while no other push came after it. Each file of a snapshot source is a transaction, for each is a snapshot; other
strategies take all files as one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final, Protocol

import msgspec
import trio

from chain.errors import Environment, Refused
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import MetadataEvent
from chain.model.source import ReadStep, traits
from chain.state import ChainState
from chain.store.base import Head
from odfd.datasets.counting import NOTHING_READ
from odfd.datasets.pushes import Push, PushOutcome
from odfd.ingest.driver import IngestDependencies, IngestTotals, PullOutcome, Report, load, quiet, transact
from odfd.ingest.fetch.base import file_identity
from odfd.ingest.plan import Batch, SourceInForce, pushed

MAX_ID: Final = 200
"""Characters of a client's id of a push."""
_OF_CONTENT: Final = "content:"


class PushLog(Protocol):
    """The pushes that were taken in; ``odfd.datasets.pushes`` over a database. Synchronous."""

    def find(self, dataset: DatasetId, push_id: str) -> Push | None: ...

    def newest(self, dataset: DatasetId) -> Push | None: ...


class PushTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says beside the files."""

    source: str | None = None
    """Name of the push source; ``None``: the only one."""
    read: ReadStep | None = None
    """How the client says that files are to be read: by the source that there is, or by one that is made of it."""
    event_time: Instant | None = None
    id: str | None = None
    again: bool = False
    """Take it in although it was before."""

    def choose(self, state: ChainState) -> tuple[SourceInForce, tuple[MetadataEvent, ...]]:
        """Raises Refused, Invalid."""
        return pushed(state, self.source, self.read)


async def push_files(
    deps: IngestDependencies,
    dataset: DatasetId,
    files: Sequence[Path],
    terms: PushTerms = PushTerms(),  # noqa: B008  it is frozen
    log: PushLog | None = None,
    report: Report = quiet,
) -> PullOutcome:
    """Ingest local files through a push source. ``log``: ``None`` takes in whatever comes.

    Nobody else may push into the dataset meanwhile. Raises as ``driver.pull_root``; Refused also for an id that was of
    another push. What was committed before a fault stays committed, and is not repeated by the next attempt.
    """
    if terms.id is not None and not 0 < len(terms.id) <= MAX_ID:
        raise Refused(f"an id of {len(terms.id)} characters", rule="push-id", hint=f"1 to {MAX_ID} characters")
    state = await trio.to_thread.run_sync(load, deps, dataset)
    source, _ = terms.choose(state)
    groups = [[file] for file in files] if traits(source.merge).whole_state else [list(files)]
    tally = IngestTotals()
    for number, group in enumerate(groups):
        push = await trio.to_thread.run_sync(partial(_identified, group, source, terms, number if number else None))
        known = None if log is None or terms.again else await _known(log, dataset, push, source, terms)
        if known is not None:
            tally.repeat(await trio.to_thread.run_sync(_head_at, deps, dataset, known.sequence), known)
        else:
            await transact(deps, dataset, terms.choose, _batch(group, terms), tally, report, push)
        tally.files += len(group)
    return tally.outcome("nothing-new")


def _identified(files: Sequence[Path], source: SourceInForce, terms: PushTerms, part: int | None) -> Push:
    """Reads the files. ``part``: which of several transactions of one push it is, beyond the first."""
    digest = hashlib.sha256(msgspec.json.encode((source, terms.event_time), order="deterministic"))
    for file in files:
        try:
            with file.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").digest()
        except OSError as error:
            raise Environment(f"cannot read {error.filename}: {error.strerror}", rule="source-file") from error
        digest.update(msgspec.msgpack.encode((file.name, content)))
    named = None if terms.id is None else terms.id + ("" if part is None else f" ({part + 1})")
    return Push(
        id=named or _OF_CONTENT + digest.hexdigest(),
        source=source.name,
        content=digest.digest(),
        answer=PushOutcome(blocks=0, records=0, counts=NOTHING_READ),
    )


async def _known(log: PushLog, dataset: DatasetId, push: Push, source: SourceInForce, terms: PushTerms) -> Push | None:
    """The push as it was taken in, if this is a repetition. Raises Refused: the id was of another one."""
    found = await trio.to_thread.run_sync(log.find, dataset, push.id)
    if found is None:
        return None
    if found.content != push.content:
        raise Refused(
            f"the id {terms.id!r} was of a push of other files, or through another source",
            rule="push-id",
            hint="give each push an id of its own; --again replaces what the id stands for",
        )
    if terms.id is None and not traits(source.merge).only_adds:
        newest = await trio.to_thread.run_sync(log.newest, dataset)
        return found if newest is not None and _is_last(found, newest) else None
    return found


def _is_last(push: Push, newest: Push) -> bool:
    """Whether nothing was appended since, ``newest`` being the last push that something was appended for."""
    return push.id == newest.id or (not push.answer.blocks and push.sequence >= newest.sequence)


def _head_at(deps: IngestDependencies, dataset: DatasetId, sequence: int) -> Head:
    return Head(deps.store.chain(dataset).block_at(sequence).hash, sequence)


def _batch(files: Sequence[Path], terms: PushTerms) -> Batch:
    return Batch(
        paths=tuple(files),
        names=tuple(file.name for file in files),
        identity="\n".join(map(file_identity, files)),
        event_time=terms.event_time,
        fills_event_time=terms.event_time is not None,
    )
