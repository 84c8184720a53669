"""What a coordinator may rely on, whatever engine stands behind the service, also one whose session starts late."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
import trio

from chain.errors import Environment
from chain.instant import Instant
from chain.model.source import MergeAppend, ReadCsv, SqlQueryStep, TransformSql
from engines import codec
from engines.contract import (
    STARTING,
    EngineInternalError,
    EngineProgress,
    IngestBatchRequest,
    InvalidQuery,
    ProvenanceRecord,
    ProvenanceRequest,
    ProvenanceSuccess,
    RawQueryRequest,
    SessionState,
    Success,
    TransformRequest,
    ValidateRequest,
    Vocab,
)
from engines.errors import SESSION, EngineFault, EngineLost, LimitExceeded
from engines.provision.warm import WarmEngine
from engines.request_control import RequestControl
from engines.sandbox.base import PlainProcess
from worlds.eventually import PATIENCE, became

from .test_warm_engine import Bed

# What a coordinator may rely on, whatever engine stands behind the service.


pytestmark = pytest.mark.slow


async def test_outputs_come_to_their_places_and_nothing_stays_behind(bench: Any) -> None:
    engine = bench.engine()
    outcome = await engine.transform(bench.request())
    assert isinstance(outcome, Success)
    assert outcome.new_offset_interval is not None
    assert (outcome.new_offset_interval.start, outcome.new_offset_interval.end) == (3, 12)
    assert (bench.folder / "new-data").read_bytes() == b"12"
    assert (bench.folder / "new-checkpoint").read_bytes() == b"checkpoint"
    assert not any(bench.staging.inputs.iterdir())
    assert not any(bench.staging.outputs.iterdir())


async def test_the_engine_sees_only_its_two_trees(bench: Any) -> None:
    await bench.engine().transform(bench.request())
    seen = bench.handler.seen[0]
    inside = [*seen.query_inputs[0].data_paths, *(b.data_path for b in seen.query_inputs[0].blocks if b.data_path)]
    assert all(path.startswith(str(bench.staging.inputs)) for path in inside)
    assert seen.new_data_path.startswith(str(bench.staging.outputs))
    assert seen.query_inputs[0].blocks[1].data_path is None


async def test_questions_are_answered(bench: Any) -> None:
    engine = bench.engine()
    assert (await engine.identity()).name == "scripted"
    request = ValidateRequest(transform=bench.request().transform, inputs=(), vocab=Vocab())
    answer = await engine.validate(request)
    assert (answer.ok, answer.mode, answer.determinism) == (True, "log", "strict")
    assert bench.handler.seen == [request]


async def test_raw_query(bench: Any) -> None:
    output = bench.folder / "rows"
    request = RawQueryRequest(
        input_data_paths=(bench.file("one", b"1"),), transform=bench.request().transform, output_data_path=str(output)
    )
    assert (await bench.engine().raw_query(request)).num_records == 4  # type: ignore[union-attr]
    assert output.read_bytes() == b"rows"


async def test_where_records_came_from(bench: Any) -> None:
    given = bench.request()
    slice_ = bench.file("slice", b"rows")
    request = ProvenanceRequest(
        dataset_id=given.dataset_id, vocab=Vocab(), transform=given.transform, query_inputs=given.query_inputs,
        data_path=slice_, records=(ProvenanceRecord(offset=5),), column="v", limit=1, transaction_id="q1",
    )  # fmt: skip
    answer = await bench.engine().derive_provenance(request)
    assert isinstance(answer, ProvenanceSuccess)
    (record,) = answer.records
    assert (record.offset, record.op, record.count, record.truncated, record.absent) == (5, 3, 9, True, (1,))
    assert [(row.offset, row.role, row.path, row.cause) for row in record.rows] == [(7, "value", 0, True)]
    assert [(step.operator, step.line, step.column) for step in answer.paths[0].steps] == [("where", 2, 3)]
    (seen,) = bench.handler.seen
    assert (seen.offsets, seen.column, seen.limit) == ((5,), "v", 1)
    inside = [seen.data_path, *(block.data_path for block in seen.query_inputs[0].blocks if block.data_path)]
    assert all(path.startswith(str(bench.staging.inputs)) for path in inside)
    assert not any(bench.staging.inputs.iterdir())


async def test_messages_name_the_hosts_paths(bench: Any) -> None:
    bench.handler.act = lambda request, _: InvalidQuery(message=f"{request.query_inputs[0].data_paths[1]}:3: no")
    outcome = await bench.engine().transform(bench.request())
    assert outcome == InvalidQuery(message=f"{bench.folder}/objects/two:3: no")


REFUSED = InvalidQuery(message="no such day", rule="no-day", hint="name another", place="line 2, column 8")


async def test_a_refusal_has_parts_for_who_reads_them_and_is_whole_for_others(bench: Any) -> None:
    """A foreign coordinator reads the message alone, and must not lose the hint; ours would show it twice."""
    bench.handler.act = lambda request, _: REFUSED
    engine = bench.engine()
    raw = RawQueryRequest(
        input_data_paths=(), transform=bench.request().transform, output_data_path=str(bench.folder / "rows")
    )
    assert await engine.transform(bench.request()) == REFUSED
    assert await engine.raw_query(raw) == REFUSED
    with grpc.insecure_channel(bench.server.address, options=(("grpc.default_authority", "localhost"),)) as channel:
        for method, request in ((codec.TRANSFORM, bench.request()), (codec.RAW_QUERY, raw)):
            call, asked = channel.unary_stream(method.path), method.encode_request(request)
            last = (await trio.to_thread.run_sync(lambda call=call, asked=asked: list(call(asked))))[-1]
            told = method.decode_response(last).value
            assert told.message == "line 2, column 8: no such day [no-day] (name another)"
            assert (told.hint, told.place) == (None, None)


async def test_hints_and_places_name_the_hosts_paths(bench: Any) -> None:
    def refuse(request: Any, _: Any) -> InvalidQuery:
        path = request.query_inputs[0].data_paths[1]
        return InvalidQuery(message="no", hint=f"look into {path}", place=f"{path}:3")

    bench.handler.act = refuse
    outcome = await bench.engine().transform(bench.request())
    path = f"{bench.folder}/objects/two"
    assert outcome == InvalidQuery(message="no", hint=f"look into {path}", place=f"{path}:3")


async def test_a_trace_of_java_is_not_what_is_said(bench: Any) -> None:
    """A worker that crashed was told in two hundred lines."""

    def fall(request: Any, control: Any) -> Any:
        trace = "\n".join(f"\tat org.apache.spark.Some.thing(Some.scala:{line})" for line in range(200))
        raise RuntimeError(
            f"An error occurred.\n: SparkException: awaiting\n{trace}\nCaused by: worker crashed\n{trace}"
        )

    bench.handler.act = fall
    outcome = await bench.engine().transform(bench.request())
    assert isinstance(outcome, EngineInternalError)
    assert outcome.message == "RuntimeError: An error occurred.\n: SparkException: awaiting\nCaused by: worker crashed"
    assert "Some.scala:199" in (outcome.backtrace or "")


async def test_an_exception_is_an_answer_and_the_engine_lives(bench: Any) -> None:
    def fall(request: Any, control: Any) -> Any:
        raise SystemExit("the handler wanted to leave")

    bench.handler.act = fall
    engine = bench.engine()
    outcome = await engine.transform(bench.request())
    assert isinstance(outcome, EngineInternalError)
    assert "wanted to leave" in outcome.message
    assert "in fall" in (outcome.backtrace or "")
    bench.handler.act = bench.handler.concatenate
    assert isinstance(await engine.transform(bench.request()), Success)


async def test_an_answer_that_cannot_be_said_is_the_handlers_fault(bench: Any) -> None:
    bench.handler.act = lambda request, control: Success(new_watermark=Instant(-(2**90)))
    outcome = await bench.engine().transform(bench.request())
    assert isinstance(outcome, EngineInternalError)
    assert "out of range" in outcome.message


async def test_an_exception_in_a_question_is_a_fault(bench: Any) -> None:
    bench.handler.identity = lambda: 1 // 0
    with pytest.raises(EngineFault, match="ZeroDivisionError") as told:
        await bench.engine().identity()
    # Who asked sees one line and where to look; the trace is apart, for the log.
    assert str(told.value) == "the engine failed: ZeroDivisionError: integer division or modulo by zero"
    assert "the daemon's log" in told.value.hint
    assert "in <lambda>" in told.value.backtrace
    assert told.value.__cause__ is None


async def test_a_long_backtrace_fits_into_the_status_of_a_call(bench: Any) -> None:
    def fall() -> Any:
        raise RuntimeError("deep\n" + "\tat org.apache.spark.Some.thing(Some.scala)\n" * 2_000)

    bench.handler.identity = fall
    with pytest.raises(EngineFault, match="the engine failed: RuntimeError: deep"):
        await bench.engine().identity()


async def test_the_same_transaction_is_done_once_while_its_outputs_exist(bench: Any) -> None:
    request = bench.request()
    method = codec.TRANSFORM
    channel = grpc.insecure_channel(bench.server.address, options=(("grpc.default_authority", "localhost"),))

    def call(value: Any) -> Any:
        return method.decode_response(list(channel.unary_stream(method.path)(method.encode_request(value)))[-1]).value

    with channel:
        first = await trio.to_thread.run_sync(call, request)
        assert await trio.to_thread.run_sync(call, request) == first
        assert len(bench.handler.seen) == 1
        (bench.folder / "new-data").unlink()
        assert await trio.to_thread.run_sync(call, request) == first
        assert len(bench.handler.seen) == 2
        other = bench.request(next_offset=7)
        assert await trio.to_thread.run_sync(call, other) != first
        assert len(bench.handler.seen) == 3


async def test_one_transaction_at_a_time_per_dataset_and_datasets_side_by_side(bench: Any) -> None:
    inside: list[bytes] = []
    crowd: list[tuple[bytes, ...]] = []
    both = threading.Barrier(2, timeout=PATIENCE)

    def act(request: Any, control: Any) -> Any:
        inside.append(bytes(request.dataset_id))
        crowd.append(tuple(inside))
        both.wait()  # passes only when two datasets are inside together
        inside.remove(bytes(request.dataset_id))
        return InvalidQuery(message="enough")

    bench.handler.act = act
    engine = bench.engine()
    async with trio.open_nursery() as nursery:
        for number in range(4):
            request = bench.request(f"t{number}", dataset=b"ab"[number % 2 : number % 2 + 1])
            nursery.start_soon(engine.transform, request)
    assert len(crowd) == 4
    assert all(len(set(each)) == len(each) for each in crowd)


async def test_progress_reaches_the_caller(bench: Any) -> None:
    seen = threading.Event()
    bench.handler.act = lambda request, control: InvalidQuery(
        message="x" if seen.wait(PATIENCE) else "nothing was seen"
    )
    answer = await bench.engine().transform(bench.request(), lambda _: seen.set())
    assert answer == InvalidQuery(message="x")


async def test_how_far_the_work_is_reaches_the_caller_and_only_while_it_is_known(bench: Any) -> None:
    told: list[EngineProgress] = []
    came = [threading.Event(), threading.Event()]
    sizes = iter(range(1000))

    def act(_request: Any, control: RequestControl) -> InvalidQuery:
        with control.measuring(lambda: EngineProgress(bytes_read=next(sizes), bytes_total=9_000_000_000)):
            came[0].wait(PATIENCE)
        came[1].wait(PATIENCE)
        return InvalidQuery(message="x")

    def show(progress: EngineProgress) -> None:
        told.append(progress)
        came[0 if progress.bytes_read is not None else 1].set()

    bench.handler.act = act
    assert await bench.engine().transform(bench.request(), show) == InvalidQuery(message="x")
    known = [each for each in told if each.bytes_read is not None]
    assert [each.bytes_read for each in known] == sorted(range(len(known)))
    assert {each.bytes_total for each in known} == {9_000_000_000}
    assert told[-1] == EngineProgress()


async def test_the_stage_and_its_tasks_reach_the_caller(bench: Any) -> None:
    told: list[EngineProgress] = []
    came = [threading.Event(), threading.Event()]
    tasks = EngineProgress(tasks_done=1, tasks_total=4, rows_read=2**40)
    measured = EngineProgress(bytes_read=1, bytes_total=2)

    def act(_request: Any, control: RequestControl) -> InvalidQuery:
        control.count_tasks(lambda: tasks)
        control.stage("computing")
        came[0].wait(PATIENCE)
        control.stage("reading")
        with control.measuring(lambda: measured):
            came[1].wait(PATIENCE)
        return InvalidQuery(message="x")

    def show(progress: EngineProgress) -> None:
        told.append(progress)
        if progress.stage == "computing":
            came[0].set()
        if progress.bytes_read:
            came[1].set()

    bench.handler.act = act
    await bench.engine().transform(bench.request(), show)
    assert msgspec.structs.replace(tasks, stage="computing") in told
    assert told[-1] == msgspec.structs.replace(measured, stage="reading")


async def test_cancelling_the_scope_cancels_the_work(bench: Any) -> None:
    began, stopped = threading.Event(), threading.Event()

    def act(request: Any, control: Any) -> Any:
        control.register_cancel(stopped.set)
        began.set()
        stopped.wait(PATIENCE)
        control.check()

    bench.handler.act = act
    engine = bench.engine()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.transform, bench.request())
            await trio.to_thread.run_sync(began.wait, PATIENCE)
            scope.cancel()
    assert scope.cancelled_caught
    assert await trio.to_thread.run_sync(stopped.wait, PATIENCE)
    bench.handler.act = bench.handler.concatenate
    assert isinstance(await engine.transform(bench.request("t2")), Success)


async def test_the_end_of_a_call_stops_nothing(bench: Any) -> None:
    """gRPC tells of it as of a cancellation, and to stop Spark's tasks holds the next request up until they are seen to
    have ended."""
    stopped, controls = threading.Event(), []

    def act(request: Any, control: Any) -> Any:
        control.register_cancel(stopped.set)
        controls.append(control)
        return bench.handler.concatenate(request, control)

    bench.handler.act = act
    assert isinstance(await bench.engine().transform(bench.request()), Success)
    assert await trio.to_thread.run_sync(controls[0].cancelled.wait, PATIENCE)
    await trio.to_thread.run_sync(bench.server.stop)
    assert not stopped.is_set()


async def test_a_deadline_is_a_limit_and_stops_the_work(bench: Any) -> None:
    stopped = threading.Event()

    def act(request: Any, control: Any) -> Any:
        control.register_cancel(stopped.set)
        stopped.wait(PATIENCE)
        return InvalidQuery(message="too late")

    bench.handler.act = act
    engine = bench.engine(work=1.0)
    await engine.identity()  # so that the time is not spent on the way
    with pytest.raises(LimitExceeded, match="in time"):
        await engine.transform(bench.request())
    assert await trio.to_thread.run_sync(stopped.wait, PATIENCE)


async def test_a_cancel_that_comes_before_the_callback_still_calls_it(bench: Any) -> None:
    control, called = RequestControl(), threading.Event()
    control.cancel()
    control.register_cancel(called.set)
    assert called.is_set()


async def test_nobody_there(bench: Any) -> None:
    engine = bench.engine()
    await trio.to_thread.run_sync(bench.server.stop)
    with pytest.raises(EngineLost, match="gone"):
        await engine.identity()


async def test_a_server_that_stops_cancels_what_runs(bench: Any) -> None:
    began = threading.Event()

    def act(request: Any, control: Any) -> Any:
        began.set()
        control.cancelled.wait(PATIENCE)
        return InvalidQuery(message="stopped")

    bench.handler.act = act
    engine = bench.engine()
    lost: list[EngineLost] = []

    async def run() -> None:
        try:
            await engine.transform(bench.request())
        except EngineLost as error:
            lost.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.to_thread.run_sync(began.wait, PATIENCE)
        await trio.to_thread.run_sync(bench.server.stop)
    assert len(lost) == 1


async def test_bytes_that_are_no_message_are_refused(bench: Any) -> None:
    def call(raw: bytes) -> grpc.StatusCode:
        options = (("grpc.default_authority", "localhost"),)
        with grpc.insecure_channel(bench.server.address, options=options) as channel:
            try:
                list(channel.unary_stream(codec.TRANSFORM.path)(raw))
            except grpc.RpcError as error:
                return error.code()
        raise AssertionError("accepted")

    for raw in (b"", b"\x0a", b"\x0a\x04abcd", b"\xff" * 20, b"\x08\x01"):
        assert await trio.to_thread.run_sync(call, raw) == grpc.StatusCode.INVALID_ARGUMENT, raw
    assert (await bench.engine().identity()).name == "scripted"


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "nothing"])
async def test_an_output_that_is_not_a_plain_file_is_the_engines_fault(bench: Any, kind: str) -> None:
    def act(request: Any, control: Any) -> Any:
        import os

        outcome = bench.handler.concatenate(request, control)
        path = Path(request.new_data_path)
        path.unlink()
        match kind:
            case "link":
                path.symlink_to("/etc/passwd")
            case "folder":
                path.mkdir()
            case "pipe":
                os.mkfifo(path)
        return outcome

    bench.handler.act = act
    with pytest.raises(EngineFault):
        await bench.engine().transform(bench.request())


async def test_what_the_disk_has_no_room_for_leaves_nothing_behind(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs from another file system are copied, and half a copy kept the disk full."""
    engine, link = bench.engine(), Path.hardlink_to

    def half(_source: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    def elsewhere(*_: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", elsewhere)
    monkeypatch.setattr(shutil, "copyfile", half)
    with pytest.raises(Environment, match=r"cannot give .*/one to the engine: No space left") as caught:
        await engine.transform(bench.request())
    assert caught.value.hint
    assert not any([*bench.staging.inputs.iterdir(), *bench.staging.outputs.iterdir()])

    monkeypatch.setattr(Path, "hardlink_to", link)
    with pytest.raises(Environment, match="cannot take the 2 bytes that the engine wrote: No space left"):
        await engine.transform(msgspec.structs.replace(bench.request("t2"), new_data_path="/dev/full"))
    assert not any([*bench.staging.inputs.iterdir(), *bench.staging.outputs.iterdir()])
    assert isinstance(await engine.transform(bench.request("t3")), Success)


async def test_too_many_requests_are_refused_not_queued_without_end(bench: Any) -> None:
    go = threading.Event()
    bench.handler.act = lambda request, control: (go.wait(PATIENCE), InvalidQuery(message="x"))[1]
    engine = bench.engine()
    refused: list[LimitExceeded] = []

    async def run(number: int) -> None:
        try:
            await engine.transform(bench.request(f"t{number}"))
        except LimitExceeded as error:
            refused.append(error)
            if len(refused) == 2:
                go.set()

    async with trio.open_nursery() as nursery:
        for number in range(8):  # two at work, four waiting, two too many
            nursery.start_soon(run, number)
    assert len(refused) == 2


async def test_an_engine_may_have_a_deadline_of_its_own(bench: Any) -> None:
    """Whatever the caller says: the work is stopped, the caller told, and the next request is served."""
    from engines.errors import DEADLINE
    from engines.service import ServiceLimits, serve

    stopped = threading.Event()

    def act(request: Any, control: Any) -> Any:
        control.register_cancel(stopped.set)
        stopped.wait(PATIENCE)
        return InvalidQuery(message="too late")

    bench.handler.act = act
    server = serve(bench.handler, f"unix:{bench.folder}/d", ServiceLimits(heartbeat=0.05, deadline=2.0))
    engine = bench.engine()
    engine._channel = grpc.insecure_channel(server.address, options=(("grpc.default_authority", "localhost"),))
    try:
        with pytest.raises(LimitExceeded, match=r"longer than 2 s") as caught:
            await engine.transform(bench.request())
        assert caught.value.rule == DEADLINE
        assert await trio.to_thread.run_sync(stopped.wait, PATIENCE)
        bench.handler.act = bench.handler.concatenate
        assert isinstance(await engine.transform(bench.request("t2")), Success)
    finally:
        engine.close()
        server.stop()


async def test_a_full_disk_on_the_engines_side_is_told_without_a_traceback(bench: Any) -> None:
    """Whatever was being written when it filled up."""

    def act(request: Any, control: Any) -> Any:
        try:
            Path("/dev/full").write_bytes(b"rows")
        except OSError as error:
            raise Environment("cannot write a slice", rule="slice-write") from error

    bench.handler.act = act
    with pytest.raises(LimitExceeded, match=r"^the disk of the engine is full; free some space") as caught:
        await bench.engine().transform(bench.request())
    assert caught.value.rule == "engine-disk"
    assert "Traceback" not in caught.value.message


@pytest.mark.parametrize("kind", ["memory", "disk", "jvm"])
async def test_limits_and_lost_machines_are_what_they_are_to_the_caller(bench: Any, kind: str) -> None:
    from engines.errors import DISK, JVM_LOST

    faults = {
        "memory": (MemoryError("64 MB"), LimitExceeded, "memory"),
        "disk": (LimitExceeded("the disk is full", rule=DISK, hint="less"), LimitExceeded, "full"),
        "jvm": (EngineLost("the JVM ended", rule=JVM_LOST, hint="more heap"), EngineLost, r"ended \(more heap\)"),
    }
    fault, seen, says = faults[kind]

    def act(request: Any, control: Any) -> Any:
        raise fault

    bench.handler.act = act
    with pytest.raises(seen, match=says):
        await bench.engine().transform(bench.request())
    assert not any(bench.staging.inputs.iterdir()), "nothing comes of a retry, so nothing stays for it"


# An engine whose session starts when a request needs it: ingests need none, and a failure harms none.


def ingest_of(bench: Any, *, preprocess: bool = False) -> IngestBatchRequest:
    transform = TransformSql(engine="scripted", queries=(SqlQueryStep(query="select 1"),))
    return IngestBatchRequest(
        dataset_id=bench.request().dataset_id,
        system_time=Instant(5),
        vocab=Vocab(),
        read=ReadCsv(),
        preprocess=transform if preprocess else None,
        merge=MergeAppend(),
        source_paths=(bench.file("rows.csv", b"a\n1\n"),),
        next_offset=0,
        new_data_path=str(bench.folder / "rows"),
    )


def joining(bench: Any) -> TransformRequest:
    transform = TransformSql(engine="scripted", queries=(SqlQueryStep(query="join"),))
    return msgspec.structs.replace(bench.request(), transform=transform, transaction_id=None)


def sessions(engine: WarmEngine) -> list[str]:
    return [each.session for each in engine.running()]


@pytest.mark.slow
async def test_an_ingest_starts_none_and_a_transform_starts_it_once(tmp_path: Path, bench: Any) -> None:
    bed = Bed(PlainProcess(), tmp_path)
    engine = bed.engine("lazy")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        assert isinstance(await engine.ingest(ingest_of(bench)), Success)
        assert (sessions(engine), (bench.folder / "rows").read_bytes()) == (["stopped"], b"stopped")
        told: list[EngineProgress] = []
        assert isinstance(await engine.transform(joining(bench), told.append), Success)
        assert [each.stage for each in told].count(STARTING) == 1
        assert sessions(engine) == ["ready"]
        await engine.transform(joining(bench))
        nursery.cancel_scope.cancel()
    states = [facts["state"] for name, facts in bed.events if name == "engine-session"]
    assert states == ["stopped", "starting", "ready"]
    assert len(bed.started()) == 1


@pytest.mark.slow
async def test_an_ingest_with_a_query_starts_it_first(tmp_path: Path, bench: Any) -> None:
    engine = Bed(PlainProcess(), tmp_path).engine("lazy")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.ingest(ingest_of(bench, preprocess=True))
        assert (bench.folder / "rows").read_bytes() == b"ready"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_failed_start_is_the_requests_error_and_ingests_go_on(tmp_path: Path, bench: Any) -> None:
    bed = Bed(PlainProcess(), tmp_path)
    engine = bed.engine("broken")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        for _ in range(2):
            with pytest.raises(EngineLost, match="no room for the heap") as lost:
                await engine.transform(joining(bench))
            assert (lost.value.rule, lost.value.at_work) == (SESSION, False)
            assert isinstance(await engine.ingest(ingest_of(bench)), Success)
        assert sessions(engine) == ["failed"]
        await engine.warm()  # nobody waits for it: the next request tells
        nursery.cancel_scope.cancel()
    assert len(bed.started()) == 1


@pytest.mark.slow
async def test_a_node_that_will_need_it_starts_it_before(tmp_path: Path, bench: Any) -> None:
    engine = Bed(PlainProcess(), tmp_path).engine("lazy")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.warm()
        assert sessions(engine) == ["ready"]
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_session_that_ingests_do_not_use_goes_and_they_stay(tmp_path: Path, bench: Any) -> None:
    """It holds a third of a gigabyte: a process without it takes its place."""
    bed = Bed(PlainProcess(), tmp_path)
    engine = bed.engine("lazy", idle=0.5)
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await engine.transform(joining(bench))

        async def ingest_until_it_goes() -> None:
            while "engine-leaving" not in bed.names():
                await engine.ingest(ingest_of(bench))

        with trio.fail_after(PATIENCE):
            await ingest_until_it_goes()
        await became(lambda: "engine-exited" in bed.names())
        await engine.ingest(ingest_of(bench))
        assert sessions(engine) == ["stopped"]
        nursery.cancel_scope.cancel()
    [why] = {facts["why"] for name, facts in bed.events if name == "engine-leaving"}
    assert why == "what it started for a query is idle"


async def test_an_engine_is_asked_what_it_has_started(bench: Any) -> None:
    engine = bench.engine()
    assert await engine.session(starts=False) == SessionState(state="stopped")
    assert await engine.session(starts=True) == SessionState(state="ready")
