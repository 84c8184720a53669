"""Messages between the node and an engine, how it listens, and what its answers are measured by."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from chain.data.logical_hash import logical_hash_file
from chain.errors import Environment, Invalid, NotFound
from chain.ids import DatasetId
from chain.instant import Instant
from chain.model.events import OffsetInterval
from chain.model.schema import DataField, DataSchema, Int64, Option, String, Timestamp
from chain.model.source import MergeLedger, ReadCsv, SqlQueryStep, TransformSql
from chain.multihash import Multihash
from engines import codec, contract, output_check
from engines.contract import MAX_SKIPPED, Diagnostic, EngineIdentity, SessionState, Severity, SkippedFile, bounded_list
from engines.errors import BadFrame, EngineLost, LimitExceeded
from engines.identity import FileDigests, digest_of, identity_of
from engines.io_plan import CHECKPOINT, DATA, SandboxView, plan_ingest, plan_raw_query, plan_transform
from engines.listen_address import check_free, parse_address
from engines.output_check import both_hashes, measure_slice
from engines.provision.processes import EngineProcess
from engines.provision.settings import WarmSettings, WarmthLimits
from engines.sandbox.base import PlainProcess
from engines.staging import Staging

# Framing, file plans and identities: the pure parts of the contract's plumbing.

VIEW = SandboxView(PurePosixPath("/odf/in"), PurePosixPath("/odf/out"))
SQL = TransformSql(engine="spark", queries=(SqlQueryStep(query="select 1"), SqlQueryStep(alias="a", query="select 2")))
SCHEMA = DataSchema(
    fields=(DataField(name="t", type=Timestamp()), DataField(name="s", type=Option(inner=String()))), extra={"x": 1}
)
times = st.integers(-(2**45), 2**47).map(lambda millis: Instant(millis * 1_000_000))
hashes = st.binary(min_size=34, max_size=34)
paths = st.lists(st.sampled_from(["/a/x", "/b/x", "/b/y", "/c/d/x", "/c/d/z w", "/c/ü"]), max_size=8)
ids = st.binary(min_size=32, max_size=32).map(DatasetId.from_public_key)
blocks = st.builds(
    contract.InputBlock,
    data_path=st.none() | st.sampled_from(["/a/x", "/b/x"]),
    watermark_before=st.none() | times,
    watermark_after=st.none() | times,
    block_hash=hashes,
    reopened=st.none() | st.booleans(),
)
inputs = st.builds(
    contract.TransformRequestInput,
    dataset_id=ids,
    dataset_alias=st.text(max_size=10),
    query_alias=st.text(max_size=10),
    vocab=st.builds(contract.Vocab, offset=st.text(max_size=5)),
    offset_interval=st.none() | st.builds(OffsetInterval, start=st.integers(0, 9), end=st.integers(9, 2**63)),
    data_paths=paths.map(tuple),
    schema_file=st.sampled_from(["", "/s/schema"]),
    explicit_watermarks=st.lists(st.builds(contract.Watermark, system_time=times, event_time=times)).map(tuple),
    blocks=st.none() | st.lists(blocks, max_size=4).map(tuple),
)
requests = st.builds(
    contract.TransformRequest,
    dataset_id=ids,
    dataset_alias=st.text(max_size=10),
    system_time=times,
    vocab=st.just(contract.Vocab()),
    transform=st.just(SQL),
    query_inputs=st.lists(inputs, max_size=3).map(tuple),
    next_offset=st.integers(0, 2**64 - 1),
    prev_checkpoint_path=st.none() | st.just("/o/checkpoint"),
    new_checkpoint_path=st.just("/out/c"),
    new_data_path=st.just("/out/d"),
    transaction_id=st.none() | st.text(min_size=1, max_size=10),
    output_schema=st.none() | st.just(SCHEMA),
)
amounts = st.none() | st.integers(0, 2**64 - 1)
row_counts = st.builds(
    contract.RowCounts,
    **{name: amounts for name in contract.RowCounts.__struct_fields__ if name not in ("skipped", "remarks")},
    skipped=st.lists(st.builds(contract.SkippedFile, name=st.text(), reason=st.text()), max_size=3).map(tuple),
    remarks=st.lists(st.text(), max_size=3).map(tuple),
)
answers = st.one_of(
    st.builds(contract.EngineProgress, bytes_read=amounts, bytes_total=amounts),
    st.builds(
        contract.Success,
        new_offset_interval=st.none() | st.builds(OffsetInterval, start=st.integers(0, 9), end=st.integers(9, 99)),
        new_watermark=st.none() | times,
        schema=st.none() | st.just(SCHEMA),
        late=st.none() | st.integers(0, 2**40),
        rows=st.none() | row_counts,
    ),
    st.builds(
        contract.InvalidQuery,
        message=st.text(),
        rule=st.none() | st.text(),
        hint=st.none() | st.text(),
        place=st.none() | st.text(),
    ),
    st.builds(contract.EngineInternalError, message=st.text(), backtrace=st.none() | st.text()),
)


@pytest.mark.slow
@given(requests)
def test_requests_survive_the_wire(request: contract.TransformRequest) -> None:
    assert codec.TRANSFORM.decode_request(codec.TRANSFORM.encode_request(request)) == request


@pytest.mark.slow
@given(answers)
def test_answers_survive_the_wire(answer: contract.TransformResponse) -> None:
    root = contract.TransformResponseRoot(value=answer)
    assert codec.TRANSFORM.decode_response(codec.TRANSFORM.encode_response(root)) == root


def test_our_own_messages_survive_the_wire() -> None:
    ingest = contract.IngestBatchRequest(
        dataset_id=DatasetId.from_public_key(b"1" * 32),
        system_time=Instant(0),
        vocab=contract.Vocab(),
        read=ReadCsv(header=True, schema=SCHEMA),
        preprocess=SQL,
        merge=MergeLedger(primary_key=("a", "b")),
        source_paths=("/x",),
        schema=SCHEMA,
        next_offset=0,
        new_data_path="/d",
    )
    assert codec.INGEST.decode_request(codec.INGEST.encode_request(ingest)) == ingest
    bounded = msgspec.structs.replace(ingest, prev_data_bounds="/b", prev_data_bounds_hash="f1620")
    assert codec.INGEST.decode_request(codec.INGEST.encode_request(bounded)) == bounded
    more = contract.IngestResponseRoot(value=contract.HistoryNeeded(hashes=("f1620", "f1621")))
    assert codec.INGEST.decode_response(codec.INGEST.encode_response(more)) == more
    answer = contract.ValidateResponse(
        ok=False,
        mode="final",
        schema=DataSchema(fields=(DataField(name="a", type=Int64()),)),
        changelog=True,
        diagnostics=(
            Diagnostic(code="c", severity=Severity.WARNING, message="m", line=3, replace="r"),
            Diagnostic(code="d", severity=Severity.ERROR, message="", query=1, column=0),
        ),
    )
    assert codec.VALIDATE.decode_response(codec.VALIDATE.encode_response(answer)) == answer
    assert codec.IDENTITY.decode_request(codec.IDENTITY.encode_request(contract.IdentityRequest())) is not None


def test_questions_about_provenance_survive_the_wire() -> None:
    asked = contract.ProvenanceRequest(
        dataset_id=DatasetId.from_public_key(b"1" * 32),
        vocab=contract.Vocab(),
        transform=SQL,
        query_inputs=(),
        data_path="/d",
        records=(contract.ProvenanceRecord(offset=0), contract.ProvenanceRecord(offset=2**40)),
        limit=3,
    )
    assert codec.PROVENANCE.decode_request(codec.PROVENANCE.encode_request(asked)) == asked
    assert asked.offsets == (0, 2**40)
    step = contract.ProvenanceStep(number=0, operator="where", detail="", line=1, column=0)
    row = contract.ProvenanceRow(input=1, offset=2**50, role="change", cause=True)
    answer = contract.ProvenanceSuccess(
        mode="table",
        paths=(contract.ProvenancePath(input=0, steps=(step,)), contract.ProvenancePath(input=1)),
        records=(
            contract.RecordProvenance(
                offset=4, op=2, rows=(row,), count=2, absences=(contract.ProvenanceAbsence(path=0),)
            ),
        ),
    )
    root = contract.ProvenanceResponseRoot(value=answer)
    assert codec.PROVENANCE.decode_response(codec.PROVENANCE.encode_response(root)) == root


@given(st.binary(max_size=300))
def test_frames_hold_any_payload(payload: bytes) -> None:
    assert codec.unframe(codec.frame(payload)) == payload
    later_fields = b"\x10\x96\x01" + b"\x1a\x02hi" + b"\x21" + bytes(8) + b"\x2d" + bytes(4)
    assert codec.unframe(codec.frame(payload) + later_fields) == payload
    assert codec.unframe(later_fields + codec.frame(payload)) == payload


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_invalid(raw: bytes) -> None:
    try:
        codec.TRANSFORM.decode_request(raw)
    except Invalid:
        return


@pytest.mark.parametrize("raw", [b"\x0a", b"\x0a\x05abc", b"\x0b", b"\xff" * 12, b"\x08\x01", b"\x21\x00"])
def test_broken_frames_are_told(raw: bytes) -> None:
    with pytest.raises(BadFrame):
        codec.unframe(raw)


def test_too_long_is_refused_unread() -> None:
    with pytest.raises(BadFrame, match="message of"):
        codec.unframe(bytes(codec.MAX_MESSAGE + 1))


@pytest.mark.slow
@given(requests)
def test_a_plan_names_every_file_once_and_only_inside_the_view(request: contract.TransformRequest) -> None:
    plan = plan_transform(request, VIEW)
    wanted = {path for each in request.query_inputs for path in (*each.data_paths, each.schema_file) if path}
    wanted |= {block.data_path for each in request.query_inputs for block in each.blocks or () if block.data_path}
    wanted |= {request.prev_checkpoint_path} - {None}
    assert {link.host for link in plan.links} == wanted
    assert len({link.name for link in plan.links}) == len(plan.links)
    assert not any(one.name.startswith(other.name + "/") for one in plan.links for other in plan.links)
    inside = {str(VIEW.inputs / plan.folder / link.name): link.host for link in plan.links}
    for theirs, ours in zip(plan.request.query_inputs, request.query_inputs, strict=True):
        assert [inside[path] for path in theirs.data_paths] == list(ours.data_paths)
        assert [block.data_path and inside[block.data_path] for block in theirs.blocks or ()] == [
            block.data_path for block in ours.blocks or ()
        ]
    assert {output.name: output.host for output in plan.outputs} == {DATA: "/out/d", CHECKPOINT: "/out/c"}
    assert plan_transform(request, VIEW) == plan


def test_files_keep_their_names_and_messages_get_the_hosts() -> None:
    request = contract.IngestBatchRequest(
        dataset_id=DatasetId.from_public_key(b"1" * 32),
        system_time=Instant(0),
        vocab=contract.Vocab(),
        read=ReadCsv(),
        merge=MergeLedger(primary_key=("a",)),
        source_paths=("/home/ann/flights.csv", "/home/bob/flights.csv"),
        next_offset=0,
        new_data_path="/state/new",
    )
    plan = plan_ingest(request, VIEW)
    first, second = plan.request.source_paths
    assert first.endswith("/flights.csv")
    assert second.endswith("/flights.csv")
    assert first != second
    said = f"{second}:14: bad time; {first}:2 too; see {plan.request.new_data_path}"
    assert plan.in_host_terms(said) == "/home/bob/flights.csv:14: bad time; /home/ann/flights.csv:2 too; see /state/new"
    assert plan.in_host_terms("nothing of ours") == "nothing of ours"


def test_records_that_are_set_aside_come_out_at_a_place_of_their_own() -> None:
    request = contract.IngestBatchRequest(
        dataset_id=DatasetId.from_public_key(b"1" * 32),
        system_time=Instant(0),
        vocab=contract.Vocab(),
        read=ReadCsv(),
        merge=MergeLedger(primary_key=("a",)),
        source_paths=("/home/ann/flights.csv",),
        next_offset=0,
        new_data_path="/state/new",
        quarantine=contract.QuarantineTarget(path="/state/aside", next_offset=3, follows="f16"),
    )
    plan = plan_ingest(request, VIEW)
    assert plan.request.quarantine is not None
    assert (plan.request.quarantine.next_offset, plan.request.quarantine.follows) == (3, "f16")
    assert [output.host for output in plan.outputs] == ["/state/aside", "/state/new"]
    assert plan.in_host_terms(plan.request.quarantine.path) == "/state/aside"


def test_a_retry_finds_the_same_folder_and_another_transaction_another() -> None:
    query = contract.RawQueryRequest(input_data_paths=("/a",), transform=SQL, output_data_path="/o")
    assert plan_raw_query(query, VIEW).folder == plan_raw_query(query, VIEW).folder
    other = msgspec.structs.replace(query, output_data_path="/p")
    assert plan_raw_query(query, VIEW).folder != plan_raw_query(other, VIEW).folder


def test_laying_twice_is_laying_once_and_a_new_file_replaces_the_old(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "scratch")
    staging.sweep()
    source = tmp_path / "source"
    source.write_bytes(b"one")
    query = contract.RawQueryRequest(input_data_paths=(str(source),), transform=SQL, output_data_path="/o")
    plan = plan_raw_query(query, VIEW)
    staging.lay(plan)
    staging.lay(plan)
    seen = staging.inputs / plan.folder / "source"
    assert seen.samefile(source)
    source.unlink()
    source.write_bytes(b"two")
    staging.lay(plan)
    assert seen.read_bytes() == b"two"
    source.unlink()
    with pytest.raises(NotFound, match="source"):
        staging.lay(plan)
    staging.clear(plan)
    assert not any(staging.inputs.iterdir())


def test_digests_follow_the_bytes_and_survive_a_broken_memory(tmp_path: Path) -> None:
    file, memory = tmp_path / "jar", tmp_path / "cache" / "digests.json"
    file.write_bytes(b"one")
    digests = FileDigests(memory)
    one = digests.of(file)
    digests.save()
    assert FileDigests(memory).of(file) == one
    file.write_bytes(b"two!")
    assert FileDigests(memory).of(file) != one
    memory.write_bytes(b"{broken")
    assert FileDigests(memory).of(file) != one
    with pytest.raises(Environment, match="no-such"):
        digests.of(tmp_path / "no-such")


def test_a_remembered_digest_is_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, memory = tmp_path / "jar", tmp_path / "digests.json"
    file.write_bytes(b"one")
    digests = FileDigests(memory)
    one = digests.of(file)
    digests.save()

    def refuse(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("hashlib.file_digest", refuse)
    assert FileDigests(memory).of(file) == one
    own = FileDigests(tmp_path / "own.json", memory)
    assert own.of(file) == one, "a node that is new knows what was installed"
    own.save()
    assert not (tmp_path / "own.json").exists(), "and keeps no second copy of it"
    file.write_bytes(b"two")
    with pytest.raises(AssertionError, match="read again"):
        FileDigests(tmp_path / "no-such.json", memory).of(file)


def test_an_identity_depends_on_content_not_on_order_or_sandbox() -> None:
    manifest: dict[str, object] = {"engine": "spark", "pyspark": "4.3.0", "jars": {"a": "1", "b": "2"}}
    turned: dict[str, object] = {"jars": {"b": "2", "a": "1"}, "pyspark": "4.3.0", "engine": "spark"}
    assert digest_of(manifest) == digest_of(turned)
    assert identity_of(manifest, "host").digest == identity_of(manifest, "none").digest
    assert digest_of({**manifest, "jars": {"a": "1", "b": "3"}}) != digest_of(manifest)
    assert digest_of(manifest).startswith("sha256:")


# Where an engine may listen, and where it says that it cannot.


@pytest.mark.parametrize(
    ("text", "said", "local"),
    [
        (":2884", "127.0.0.1:2884", True),
        ("127.0.0.1:0", "127.0.0.1:0", True),
        ("127.9.9.9:1", "127.9.9.9:1", True),
        ("localhost:5", "localhost:5", True),
        ("[::1]:5", "[::1]:5", True),
        ("0.0.0.0:5", "0.0.0.0:5", False),
        ("[::]:5", "[::]:5", False),
        ("example.org:5", "example.org:5", False),
        ("unix:/run/x", "unix:/run/x", True),
    ],
)
def test_addresses(text: str, said: str, local: bool) -> None:
    address = parse_address(text)
    assert (str(address), address.is_local) == (said, local)


@pytest.mark.slow
@given(st.text(max_size=20))
def test_any_text_is_an_address_or_told_how_to_write_one(text: str) -> None:
    hint = ""
    try:
        address = parse_address(text)
    except Invalid as fault:
        hint = fault.hint
    assert "unix:PATH" in hint or parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", "5544", "host:", "host:99999", "unix:", "a b:5", "::1:5"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(Invalid, match="no address to listen"):
        parse_address(text)


def test_a_place_is_free_or_says_why_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Environment, match=f"127.0.0.1:{port}: .*in use"):
            check_free(parse_address(f":{port}"))
    check_free(parse_address(f":{port}"))
    with pytest.raises(Environment, match="no directory"):
        check_free(parse_address(f"unix:{tmp_path}/none/s"))
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(str(path))
        here.listen()
        with pytest.raises(Environment, match="in use"):
            check_free(parse_address(f"unix:{path}"))
    check_free(parse_address(f"unix:{path}"))  # nobody listens there any more
    path.unlink()
    path.touch()
    with pytest.raises(Environment, match="something else"):
        check_free(parse_address(f"unix:{path}"))


# A request whose caller has gone ends soon, or costs the engine its process; times are virtual.

LIMITS = WarmthLimits(cancelled=10, pulse=5)
SETTINGS = WarmSettings(
    name="fake",
    program=lambda listen, scratch: ("true",),
    sandbox=PlainProcess(),
    identity=EngineIdentity(name="fake", version="1", digest="", sandbox="", platform=""),
    scratch=Path("unused"),
    limits=LIMITS,
)


class Client:
    """An engine that answers ``session`` by the time since its start."""

    def __init__(self, answer: Callable[[float], Any]) -> None:
        self.answer, self.began, self.asked = answer, trio.current_time(), 0

    async def session(self, *, starts: bool) -> SessionState:
        assert not starts
        self.asked += 1
        found = self.answer(trio.current_time() - self.began)
        if found is None:
            await trio.sleep_forever()
        if isinstance(found, Exception):
            raise found
        return SessionState(state="ready", lingering=round(1000 * found))


def full_until(end: float, then: float) -> Callable[[float], Any]:
    return lambda now: LimitExceeded("full", rule="engine-limit") if now < end else then


CASES: dict[str, tuple[Callable[[float], Any], float | None]] = {
    "it ended": (lambda now: 0, None),
    "it works on": (lambda now: now, 10),
    "it ended, and a later one works on": (lambda now: now - 6, 16),
    "it ends late": (lambda now: 4 if now < 15 else 0, None),
    "nothing is answered": (lambda now: None, 15),
    "too many calls are in flight to ask": (full_until(25, 30), 30),
    "the process is gone": (lambda now: EngineLost("gone"), None),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_request_that_goes_on_without_its_caller_costs_its_process(
    case: str, autojump_clock: trio.testing.MockClock
) -> None:
    """Attack T-QUERY-02: a source or query that continues to work after its caller has cancelled it, to hold the
    engine.

    Defence: ten seconds later its process ends; requests of other callers in that process are repeated.
    """
    answer, expected = CASES[case]
    client: Any = Client(answer)
    process = EngineProcess(SETTINGS, Path("unused"), lambda name, facts: None)
    left: float | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process._leave_when_stuck, client)
        await trio.sleep(100)
        assert not client.asked, "nobody was cancelled"
        client.began = trio.current_time()
        process.note_cancelled()
        while left is None and trio.current_time() < client.began + 60:
            await trio.sleep(0.5)
            left = trio.current_time() - client.began if process.is_leaving else None
        nursery.cancel_scope.cancel()
    assert client.asked
    assert left is None if expected is None else left == pytest.approx(expected, abs=0.5)
    assert process.left == ("" if expected is None else "a cancelled request did not end")


@pytest.mark.parametrize(
    "said,lack",
    [
        ("terminate called after throwing an instance of 'std::bad_alloc'", "std::bad_alloc"),
        ("java.lang.OutOfMemoryError: Java heap space", "java.lang.OutOfMemoryError: Java heap space"),
        ("pyarrow.lib.ArrowMemoryError: malloc of size 629145600 failed", "MemoryError"),
        ("WARNING: Using incubator modules", ""),
    ],
)
async def test_a_lack_of_memory_is_told_by_its_name(said: str, lack: str) -> None:
    process = EngineProcess(SETTINGS, Path("unused"), lambda name, facts: None)
    process.note(said)
    process.note("and more")
    assert process.lack == lack


# What engines measure and count.

# What an engine's file really holds.


def written(path: Path, offsets: list[int]) -> Path:
    schema = pa.schema([pa.field("offset", pa.int64(), nullable=False), pa.field("text", pa.string())])
    pq.write_table(pa.table({"offset": offsets, "text": [str(each) for each in offsets]}, schema), path)
    return path


def test_a_slice_is_measured(tmp_path: Path) -> None:
    path = written(tmp_path / "slice", [7, 8, 9])
    found = measure_slice(path, None, "offset")
    assert found.offset_interval == OffsetInterval(start=7, end=9)
    assert found.size == path.stat().st_size
    assert (found.logical_hash, found.physical_hash) == (
        logical_hash_file(path),
        Multihash.sha3_256(path.read_bytes()),
    )


@pytest.mark.parametrize("offsets", [[], [1, 3], [1, 1]])
def test_gaps_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    with pytest.raises(Invalid, match="gaps") as refused:
        measure_slice(written(tmp_path / "slice", offsets), None, "offset")
    assert refused.value.rule == "engine-answer"


def test_what_is_no_slice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "slice").write_bytes(b"PAR1 but no more")
    with pytest.raises(Invalid):
        measure_slice(tmp_path / "slice", None, "offset")


@pytest.mark.slow
def test_threads_come_to_the_same_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "slice", list(range(200_000)))
    alone = both_hashes(path)
    monkeypatch.setattr(output_check, "LARGE", 0)
    assert both_hashes(path) == alone


# Lists of files that were passed over are bounded, and say of how many more they do not tell.


def files(*numbers: int) -> tuple[SkippedFile, ...]:
    return tuple(SkippedFile(name=f"{number}.csv", reason="it is empty") for number in numbers)


def test_all_are_told_as_long_as_there_is_room() -> None:
    assert bounded_list(files(*range(MAX_SKIPPED), 0)) == files(*range(MAX_SKIPPED))


@given(st.integers(1, 5000), st.integers(0, 300))
def test_what_is_not_told_is_counted_however_often_it_comes(more: int, common: int) -> None:
    told = bounded_list(files(*range(MAX_SKIPPED + more)))
    assert told[:-1] == files(*range(MAX_SKIPPED - 1))
    assert told[-1].name == (f"{more + 1:,} more files")
    assert bounded_list((*told, *told)) == told
    assert bounded_list((*told, *files(*range(min(common, MAX_SKIPPED - 1))))) == told
    assert bounded_list((*told, *files(-1)))[-1].name == f"{more + 2:,} more files"


def test_an_engine_that_says_odd_numbers_breaks_nothing() -> None:
    odd = SkippedFile(name="many", reason=bounded_list(files(*range(MAX_SKIPPED + 1)))[-1].reason)
    assert bounded_list((odd,)) == ()
