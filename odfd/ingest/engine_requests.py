"""Asks an engine to ingest: with the slices that most batches need, and with more when it says which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio

from chain.multihash import Multihash
from engines.contract import Engine, HistoryNeeded, IngestAnswer, IngestRequest, Success
from odfd.ingest.plan import EarlierSlices


async def asked(engine: Engine, request: IngestRequest, earlier: EarlierSlices) -> IngestAnswer:
    """The engine's answer, which is given more of the earlier slices once it has said which. Raises EngineFault."""
    answer = await engine.ingest(request)
    if earlier.bounds is None:
        return answer
    if isinstance(answer, HistoryNeeded):
        more = await trio.to_thread.run_sync(earlier.older, frozenset(answer.hashes))
        answer = await engine.ingest(_with_slices(request, [*more, *earlier.files]))
    unaware = isinstance(answer, Success) and answer.prev_data_bounds_hash != request.prev_data_bounds_hash
    if unaware or isinstance(answer, HistoryNeeded):
        # An engine of another make knows nothing of bounds: it took the slices that it was given for all there are.
        more = await trio.to_thread.run_sync(earlier.older, None)
        all_ = _with_slices(request, [*more, *earlier.files])
        answer = await engine.ingest(msgspec.structs.replace(all_, prev_data_bounds=None, prev_data_bounds_hash=None))
    return answer


def _with_slices(request: IngestRequest, slices: Sequence[tuple[Multihash, Path]]) -> IngestRequest:
    return msgspec.structs.replace(
        request,
        prev_data_paths=tuple(str(path) for _, path in slices),
        prev_data_hashes=tuple(str(name) for name, _ in slices),
    )
