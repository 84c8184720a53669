"""Answers one query over folders in the ODF layout, without a daemon: in a temporary state directory."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from chain.errors import NotFound
from chain.libraries import pa
from engines.query.frames import END, ROWS, AnswerFrameReader
from engines.query.reader import QueryLimits, QueryProcesses
from engines.sandbox.base import SandboxLevel
from engines.sandbox.probe import choose
from odfd.cli.offline import files
from odfd.control import wire
from odfd.errors import sole_faults
from odfd.queries.inputs import QueryInputs
from odfd.queries.planning import Planner
from odfd.runtime.clock import SystemClock
from odfd.services.queries.answer_proofs import Signer
from odfd.services.queries.service import QueryService
from odfd.store.catalog import Catalog, DatasetEntry
from odfd.store.directory import STAGING, StateDirectory, open_state_directory
from odfd.transfer.folders import import_dataset

if TYPE_CHECKING:
    from odfd.trust.judgement.trust_evaluator import TrustEvaluator


def ask_folders(request: wire.QueryRequest, folders: Sequence[str], place: Path) -> tuple[Any, pa.Table]:
    """Queries folders. Returns the answer's statement and rows. Raises the faults of the folders or the query."""
    with open_state_directory(place / "state") as home:
        for folder in folders:
            _take(home, files.dataset(folder))
        for pin in request.pins:
            _check(home, pin)
        with sole_faults():
            frames = trio.run(_answer, home, request)
    end = msgspec.json.decode(frames[-1][1], type=wire.QueryEnd)
    data = b"".join(content for kind, content in frames if kind == ROWS)
    return end.proof, pa.ipc.open_stream(data).read_all()


def _take(home: StateDirectory, folder: Path) -> None:
    """Imports a folder's dataset, which verifies all of it."""
    done = import_dataset(folder, home.chains, home.objects)
    with home.database.write() as connection:
        catalog = Catalog(connection)
        if catalog.find(done.dataset) is None:
            catalog.add(f"d{secrets.token_hex(8)}", done.dataset, SystemClock().now())


def _check(home: StateDirectory, pin: wire.Pin) -> None:
    with home.catalog() as catalog:
        if all(str(entry.id) != pin.id for entry in catalog.entries()):
            raise NotFound(
                f"{pin.name} ({pin.id[:24]}…) is in none of the folders",
                rule="query-dataset",
                hint="--from DIR names more",
            )


def _opened_view(entry: DatasetEntry) -> wire.DatasetView:
    return wire.DatasetView(name=entry.name, id=str(entry.id), kind="root", blocks=0)


async def _answer(home: StateDirectory, request: wire.QueryRequest) -> list[tuple[bytes, bytes]]:
    clock = SystemClock()
    limits = QueryLimits()
    evaluator: TrustEvaluator = None  # type: ignore[assignment]  # nothing is required of what is read
    processes = QueryProcesses(home.folder("readers"), lambda: choose(SandboxLevel.NONE), limits)
    inputs = QueryInputs(home)
    signer = Signer(home.keys.node_key, clock.now, home.folder(STAGING), limits.temporary)
    queries = QueryService(Planner(home, _opened_view, evaluator), processes, inputs, signer)
    answer = bytearray()

    async def take(data: bytes | memoryview) -> None:
        answer.extend(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(processes.run)
        await processes.serving.wait()
        await queries.answer(request, take)
        nursery.cancel_scope.cancel()
    frames = list(AnswerFrameReader().feed(bytes(answer)))
    assert frames[-1][0] == END
    return frames
