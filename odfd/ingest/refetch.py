"""Fetches the declared source of another node's dataset, and computes a block from it.

Nothing is committed and nothing is kept. Only sources that anybody may fetch are fetched, web pages without
credentials; commands and images of the manifest do not run on this machine. Spec: docs/spec/trust.md#observations.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Final

import msgspec
import trio

from chain.data.logical_hash import logical_hash_file
from chain.data.parquet import open_slice
from chain.errors import NotFound, Refused, Remote
from chain.instant import Instant
from chain.model.events import OffsetInterval, SourceState
from chain.model.source import traits
from chain.multihash import Multihash
from chain.state import ChainState
from chain.store.base import ChainReader
from engines.contract import EngineInternalError, InvalidQuery, Success
from engines.errors import EngineFault, engine_failed
from engines.spark.ingest.unpack import OF_LIMITS
from odfd.ingest.driver import IngestDependencies, prepare_batch
from odfd.ingest.fetch.dispatch import fetch, polled_source
from odfd.ingest.fetch.source import NOT_OPEN, Fetched, FetchJob
from odfd.ingest.file_writer import staged_folder
from odfd.ingest.plan import Batch, EarlierSlices, PlanTerms, SourceInForce, plan_ingest, polling
from odfd.ingest.settings import CHUNK, IngestSettings
from odfd.ingest.slices import SliceIndex, ingest
from odfd.ingest.trigger import asks_time
from odfd.runtime.slots import waiting
from p2p.ip import Allows

MAX_BYTES: Final = 256 << 20
"""Bytes of one document named by another node's manifest."""


class BlockRows(msgspec.Struct, frozen=True, kw_only=True):
    """The computed contents of a block."""

    logical_hash: Multihash | None
    offsets: OffsetInterval | None
    watermark: Instant | None


class Refetched(msgspec.Struct, frozen=True, kw_only=True):
    """A fetched document of another node's source, and the rows computed from it."""

    sha256: str
    """SHA-256 of the bytes as they came."""
    size: int
    state: SourceState | None
    """The version that the source reports."""
    rows: BlockRows | None
    """The rows; ``None``: the bytes cannot be read by the manifest's steps."""


def observing(deps: IngestDependencies, may_dial: Allows) -> IngestDependencies:
    """Returns the dependencies, restricted for sources that other nodes declared."""
    return dataclasses.replace(deps, settings=confine(deps.settings, may_dial), index=SliceIndex())


def confine(settings: IngestSettings, may_dial: Allows) -> IngestSettings:
    """Returns the settings, restricted for manifests of other nodes."""
    size = min(settings.max_source_bytes, MAX_BYTES)
    return msgspec.structs.replace(
        settings,
        max_source_bytes=size,
        pipe="never",
        container="never",
        variables={},
        base=None,
        may_dial=may_dial,
    )


async def refetch(deps: IngestDependencies, reader: ChainReader, state: ChainState, time: Instant) -> Refetched:
    """Fetches the source of ``state``, the chain before the checked block, whose system time is ``time``.

    Raises Remote (not reachable), Refused and Invalid (not for everybody to fetch), NotFound (a needed slice is not
    here), EngineFault, Environment.
    """
    polled, source = polling(state)
    polled_source(polled).check_open()
    if asks_time(polled.fetch, polled.read):
        raise Refused("its source is asked for a time", rule=NOT_OPEN, hint="other nodes do not know which")
    async with staged_folder(deps.settings.staging) as folder:
        job = FetchJob(state=None, now=time, folder=folder, settings=deps.settings)
        try:
            async with waiting():
                found = await fetch(polled.fetch, job)
        except NotFound as fault:
            # To the caller NotFound means a slice that is not here, and this is a page that is gone.
            raise Remote(fault.message, rule=fault.rule, hint=fault.hint) from fault
        assert isinstance(found, Fetched), "it was asked for whatever is there"
        digest, size = await trio.to_thread.run_sync(_digest, found.path)
        batch = await prepare_batch(deps, polled, found, folder)
        rows = await _rows(deps, reader, state, source, batch, time, folder / "rows")
    return Refetched(sha256=digest, size=size, state=found.state, rows=rows)


async def _rows(
    deps: IngestDependencies,
    reader: ChainReader,
    state: ChainState,
    source: SourceInForce,
    batch: Batch,
    time: Instant,
    out: Path,
) -> BlockRows | None:
    earlier = deps.index.parts(reader, state, deps.objects, source.merge) if traits(source.merge).asks_history else []
    terms = PlanTerms(
        output=out,
        settings=deps.settings,
        earlier=EarlierSlices(earlier),
        allows_null_keys=True,
        purpose="observe:",
    )
    answer = await ingest(deps.engine, plan_ingest(state, source, batch, time, terms).request)
    match answer:
        case InvalidQuery(message=message, rule=rule) if rule in OF_LIMITS:
            raise Refused(message, rule=rule or "", hint="it is larger than this node accepts from other nodes")
        case InvalidQuery():
            return None
        case EngineInternalError(message=message):
            raise engine_failed(message)
        case Success():
            return await trio.to_thread.run_sync(_read_rows, answer, out)
    raise EngineFault(f"the engine sent an answer of an unknown kind: {type(answer).__name__}", rule="engine")


def _read_rows(answer: Success, out: Path) -> BlockRows:
    logical = None
    if answer.new_offset_interval is not None:
        with open_slice(out):
            logical = logical_hash_file(out)
    return BlockRows(logical_hash=logical, offsets=answer.new_offset_interval, watermark=answer.new_watermark)


def _digest(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            digest.update(block)
            size += len(block)
    return digest.hexdigest(), size
