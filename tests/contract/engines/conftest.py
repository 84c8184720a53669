"""A service around a scripted handler, in this process, on a unix socket; no Spark."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import OffsetInterval
from chain.model.source import SqlQueryStep, TransformSql
from engines.client import GrpcEngine
from engines.contract import (
    EngineIdentity,
    InputBlock,
    ProvenanceAbsence,
    ProvenancePath,
    ProvenanceRow,
    ProvenanceStep,
    ProvenanceSuccess,
    RawQuerySuccess,
    RecordProvenance,
    SessionState,
    Success,
    TransformRequest,
    TransformRequestInput,
    ValidateResponse,
    Vocab,
)
from engines.io_plan import SandboxView
from engines.request_control import CallLimits, RequestControl
from engines.service import EngineServer, ServiceLimits, serve
from engines.staging import Staging

IDENTITY = EngineIdentity(name="scripted", version="1", digest="sha256:00", sandbox="none", platform="linux/amd64")
SQL = TransformSql(engine="spark", queries=(SqlQueryStep(query="select * from x"),))


class Scripted:
    """Does what the test says; by default joins the bytes of all inputs into the output."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.act: Callable[[Any, RequestControl], Any] = self.concatenate

    def identity(self) -> EngineIdentity:
        return IDENTITY

    def session(self, request: Any) -> SessionState:
        self.seen.append(request)
        return SessionState(state="ready" if request.starts else "stopped")

    def validate(self, request: Any) -> ValidateResponse:
        self.seen.append(request)
        return ValidateResponse(ok=True, mode="log", changelog=False, determinism="strict")

    def transform(self, request: Any, control: RequestControl) -> Any:
        self.seen.append(request)
        return self.act(request, control)

    def ingest(self, request: Any, control: RequestControl) -> Any:
        self.seen.append(request)
        return self.act(request, control)

    def migrate(self, request: Any, control: RequestControl) -> Any:
        self.seen.append(request)
        return self.act(request, control)

    def raw_query(self, request: Any, control: RequestControl) -> Any:
        self.seen.append(request)
        if self.act is not self.concatenate:
            return self.act(request, control)
        Path(request.output_data_path).write_bytes(b"rows")
        return RawQuerySuccess(num_records=4)

    def derive_provenance(self, request: Any, control: RequestControl) -> Any:
        self.seen.append(request)
        row = ProvenanceRow(input=0, offset=7, role="value", path=0, cause=True)
        record = RecordProvenance(
            offset=request.offsets[0], op=3, rows=(row,), count=9, absences=(ProvenanceAbsence(path=1),)
        )
        step = ProvenanceStep(number=4, operator="where", detail="v > 1", line=2, column=3)
        paths = (ProvenancePath(input=0, steps=(step,)), ProvenancePath(input=0))
        return ProvenanceSuccess(mode="table", paths=paths, records=(record,))

    @staticmethod
    def concatenate(request: TransformRequest, _: RequestControl) -> Success:
        paths = [path for each in request.query_inputs for path in each.data_paths]
        Path(request.new_data_path).write_bytes(b"".join(Path(path).read_bytes() for path in paths))
        Path(request.new_checkpoint_path).write_bytes(b"checkpoint")
        return Success(new_offset_interval=OffsetInterval(start=request.next_offset, end=request.next_offset + 9))


class Bench:
    """Everything a test of the contract needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.handler = Scripted()
        self.staging = Staging(folder / "scratch")
        self.staging.sweep()
        self.view = SandboxView(PurePosixPath(self.staging.inputs), PurePosixPath(self.staging.outputs))
        self.server: EngineServer = serve(
            self.handler, f"unix:{folder}/s", ServiceLimits(jobs=2, waiting=4, heartbeat=0.05, remembered=4)
        )
        self.engines: list[GrpcEngine] = []

    def engine(self, **limits: Any) -> GrpcEngine:
        self.engines.append(GrpcEngine(self.server.address, self.staging, self.view, CallLimits(**limits)))
        return self.engines[-1]

    def file(self, name: str, content: bytes) -> str:
        path = self.folder / "objects" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(content)
        return str(path)

    def request(self, transaction: str | None = "t1", dataset: bytes = b"a", **more: Any) -> TransformRequest:
        one, two = self.file("one", b"1"), self.file("two", b"2")
        each = TransformRequestInput(
            dataset_id=DatasetId.from_public_key(b"i" * 32),
            dataset_alias="in",
            query_alias="x",
            vocab=Vocab(),
            data_paths=(one, two),
            blocks=(InputBlock(data_path=one), InputBlock(data_path=None), InputBlock(data_path=two)),
        )
        return TransformRequest(
            dataset_id=DatasetId.from_public_key(dataset * 32),
            dataset_alias="out",
            system_time=Instant(5),
            vocab=Vocab(),
            transform=SQL,
            query_inputs=(each,),
            next_offset=more.pop("next_offset", 3),
            new_checkpoint_path=str(self.folder / "new-checkpoint"),
            new_data_path=str(self.folder / "new-data"),
            transaction_id=transaction,
            **more,
        )

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self.server.stop()


@pytest.fixture
def bench() -> Iterator[Bench]:
    # Not tmp_path: the path of a socket has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="eng-") as folder:
        bench = Bench(Path(folder))
        yield bench
        bench.close()
