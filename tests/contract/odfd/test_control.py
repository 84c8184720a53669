"""Server and client keep the contract together, over a real socket: each act once, and the page's address."""

from __future__ import annotations

import io
import json
import stat
import webbrowser
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlparse

import msgspec
import pytest
import structlog
import trio

from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant
from chain.store.database import open_database
from odfd.api.idempotency import GRACE, WITHOUT
from odfd.api.routes import OPERATIONS, application
from odfd.cli.main import main
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.control.endpoint import Caller, Gate
from odfd.errors import Bug, Unreachable, Usage
from odfd.resources import registry
from odfd.runtime import http_server
from odfd.runtime.http import Application, Message
from odfd.store import idempotency
from odfd.store.idempotency import KEPT_FOR, MAX_ANSWER, AnswerStore, KeptAnswer
from worlds.clock import FixedClock
from worlds.eventually import PATIENCE

# Server and client keep the contract together, over a real socket.


Serve = Callable[..., Any]


async def test_answers_are_camel_case_json(serve: Serve) -> None:
    async with serve() as served:
        answer = await served.do(calls.datasets_describe("nyc.flights"))
        view, sent = answer.value.dataset, answer.sent["dataset"]
        assert sent["relyOn"] == {"blocks": 15, "fact": "data"}
        assert view.rely_on == wire.Reliance(blocks=15, fact="data")
        assert view.head.startswith("f1620")
        assert (await served.do(calls.about_status())).sent["nodeId"] == "did:key:z6MkfakeNode"


class Elder(wire.Value, frozen=True, kw_only=True):
    """What a version of the client knew that is older than the daemon."""

    node_id: str


class Younger(Elder, frozen=True, kw_only=True):
    """And one that asks for what this daemon does not say yet."""

    mood: str = "unsaid"


async def test_a_client_of_another_version_reads_what_it_knows_and_keeps_the_rest(serve: Serve) -> None:
    async with serve() as served:
        answer = await served.ask("GET", "/node/v1alpha1/status", Elder)
        assert answer.value == Elder(node_id="did:key:z6MkfakeNode")
        assert answer.sent["version"] == "0.1.0"
        assert (await served.ask("GET", "/node/v1alpha1/status", Younger)).value.mood == "unsaid"


async def test_an_answer_of_another_type_is_told_and_not_guessed(serve: Serve) -> None:
    async with serve() as served:
        with pytest.raises(Bug, match="not of the type TaskRef: Object missing required field `id`") as caught:
            await served.ask("GET", "/node/v1alpha1/status", wire.TaskRef)
        assert "odfctl --version" in caught.value.hint


def test_what_was_not_asked_for_is_not_sent() -> None:
    """An older daemon refuses a field that it does not know."""
    assert json.loads(msgspec.json.encode(wire.MirrorRequest(source="x", keep="30d"))) == {"source": "x", "keep": "30d"}


def test_a_fault_inside_an_answer_is_the_fault_that_it_was() -> None:
    fault = Invalid("bad", rule="r", hint="h", place="p:1")
    fault.__cause__ = ValueError("deep")
    again = Answer.of(json.loads(msgspec.json.encode(wire.Problem.of(fault))), wire.Problem).value.fault()
    assert type(again) is Invalid
    assert (again.message, again.rule, again.hint, again.place) == ("bad", "r", "h", "p:1")
    assert str(again.__cause__) == "ValueError: deep"


@pytest.mark.parametrize(
    ("name", "family"),
    [("invalid", Invalid), ("refused", Refused), ("remote", Remote), ("environment", Environment),
     ("conflict", Conflict), ("bug", Bug), ("group", Remote)],
)  # fmt: skip
async def test_a_fault_arrives_as_the_fault_it_was(serve: Serve, name: str, family: type[Fault]) -> None:
    async with serve() as served:
        with pytest.raises(family) as caught:
            await served.do(calls.datasets_describe(f"fault-{name}"))
        if name == "invalid":
            fault = caught.value
            assert (fault.message, fault.rule, fault.hint, fault.place) == ("bad", "r", "h", "p:1")
        assert (await served.do(calls.about_status())).value.name == "alice"


async def test_any_text_can_be_a_name(serve: Serve) -> None:
    async with serve() as served:
        with pytest.raises(NotFound, match="did:odf:é %2F"):
            await served.do(calls.datasets_describe("did:odf:é %2F"))


class Misspelt(wire.Request, frozen=True, kw_only=True):
    reff: tuple[str, ...]


async def test_unknown_paths_methods_and_fields_are_told(serve: Serve) -> None:
    async with serve() as served:
        with pytest.raises(NotFound, match="nothing at /nowhere"):
            await served.ask("GET", "/nowhere", wire.Status)
        with pytest.raises(Fault, match="does not take PUT"):
            await served.ask("PUT", "/node/v1alpha1/status", wire.Status)
        with pytest.raises(Invalid, match=r"unknown field `reff`"):
            await served.ask("POST", "/node/v1alpha1/pull", wire.TaskRef, Misspelt(reff=("x",)))
        with pytest.raises(Invalid, match=r"\$.all: Expected `bool`, got `int`"):
            await served.do(calls.flow_pull(wire.PullRequest(all=1)))  # type: ignore[arg-type]
        with pytest.raises(Fault, match="limit is a whole number from 1 to 10000"):
            await served.do(calls.datasets_log("nyc.flights", limit=0))


async def test_queries_arrive(serve: Serve) -> None:
    async with serve() as served:
        await served.do(calls.datasets_log("x", kind=["AddData", "Seed"], limit=7, before="9"))
        assert served.node.asked == [("x", ["AddData", "Seed"], 7, "9")]


async def followed(served: Any, ref: Answer[wire.TaskRef]) -> list[wire.TaskState]:
    """Snapshots of a task until it has ended."""
    snapshots = served.client.stream(calls.tasks_follow(ref.value.id))
    return [each.value for each in await trio.to_thread.run_sync(list, snapshots)]


async def test_rows_arrive_in_frames_and_what_breaks_is_told(serve: Serve) -> None:
    async with serve() as served:

        def asked(sql: str) -> list[tuple[bytes, bytes]]:
            with served.client.frames(calls.queries_answer(wire.QueryRequest(sql=sql))) as frames:
                return list(frames)

        with trio.fail_after(PATIENCE):
            assert [kind for kind, _ in await trio.to_thread.run_sync(asked, "select")] == [b"H", b"A", b"E"]
            for sql, family in (("fault-invalid", Invalid), ("late", Environment), ("cut off", Unreachable)):
                with pytest.raises(family):
                    await trio.to_thread.run_sync(asked, sql)


async def test_a_rewrite_and_a_collection_are_tasks(serve: Serve) -> None:
    async with serve() as served:
        signature = wire.SignatureText(key="k", signature="cw==")
        request = wire.RewriteRequest(action="compact", max_slice_rows=5, signatures=(signature,))
        ref = await served.do(calls.rewriting_rewrite("nyc.flights", request))
        last = (await followed(served, ref))[-1]
        assert (last.kind, last.target) == ("compact", "nyc.flights")
        assert {name: last.result[name] for name in ("outcome", "kept", "before", "blocks", "draft")} == {
            "outcome": "rewritten", "kept": 2, "before": 5, "blocks": 3, "draft": None,
        }  # fmt: skip
        (request,) = served.node.asked
        assert (request.max_slice_rows, request.max_slice_bytes, request.dry_run) == (5, None, False)
        assert request.signatures[0].signature == "cw=="
        forget = wire.RewriteRequest(action="forget")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match=r"\$.action"):
            await served.do(calls.rewriting_rewrite("nyc.flights", forget))
        ref = await served.do(calls.collection_collect(wire.CollectRequest(dry_run=True)))
        last = (await followed(served, ref))[-1]
        assert (last.result["bytes"], last.result["waitingBytes"], last.result["dryRun"]) == (7, 9, True)


async def test_keys_without_journals_sign_again_by_a_persons_word_only(serve: Serve) -> None:
    async with serve() as served:
        with pytest.raises(Refused, match="no peer could be asked") as caught:
            await served.do(calls.journal_recovery_sign_again(wire.SignRequest()))
        assert (caught.value.rule, caught.value.hint) == ("trust.journal", "--alone")
        told = await served.do(calls.journal_recovery_sign_again(wire.SignRequest(alone=True)))
        assert told.sent == {"begun": [{"key": "did:key:z6Mk", "dataset": None, "said": 3}], "peers": 0}
        wrong = wire.SignRequest(alone="yes")  # type: ignore[arg-type]
        with pytest.raises(Invalid, match=r"\$.alone"):
            await served.do(calls.journal_recovery_sign_again(wrong))


async def test_an_upload_streams_and_becomes_a_task(serve: Serve) -> None:
    data = bytes(range(256)) * 8192
    async with serve() as served:
        upload = await trio.to_thread.run_sync(
            served.client.send, calls.flow_stage(name="january.csv"), io.BytesIO(data)
        )
        assert upload.value == wire.Upload(id="january.csv", name="january.csv", size=len(data))
        assert served.node.uploads["january.csv"] == data
        request = wire.IngestRequest(uploads=("january.csv",))
        ref = await served.do(calls.flow_ingest("nyc.flights", request))
        last = (await followed(served, ref))[-1]
        assert last.state == "done"
        assert last.result["items"][0]["records"] == len(data)


async def test_a_task_is_followed_to_its_fault(serve: Serve) -> None:
    async with serve() as served:
        ref = await served.do(calls.flow_pull(wire.PullRequest(refs=("missing",))))

        def watch() -> list[Any]:
            seen = []
            for snapshot in served.client.stream(calls.tasks_follow(ref.value.id)):
                if not seen:
                    trio.from_thread.run_sync(served.node.release.set)
                seen.append(snapshot.value)
            return seen

        first, *_, last = await trio.to_thread.run_sync(watch)
        assert (first.state, first.done, first.total, first.unit) == ("running", 3, 10, "blocks")
        assert last.state == "failed"
        assert isinstance(last.fault.fault(), NotFound)


async def test_a_cancelled_task_is_cancelled(serve: Serve) -> None:
    async with serve() as served:
        ref = await served.do(calls.flow_pull(wire.PullRequest(refs=("a",))))
        gone = await served.do(calls.resources_delete(registry.TASK, ref.value.id))
        (problem,) = gone.value.status["conditions"].values()
        assert (gone.value.status["phase"], problem["code"]) == ("Failed", "cancelled")
        with pytest.raises(NotFound, match="no task 'nope'"):
            await served.ask("GET", "/node/v1alpha1/tasks/nope?follow=1", wire.TaskState)


@pytest.fixture
def short_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that its client left is noticed when something is sent, or at the end of the drain."""
    monkeypatch.setattr(http_server, "DRAIN_SECONDS", 0.05)


async def test_events_are_followed_from_a_number(serve: Serve, short_drain: None) -> None:
    async with serve() as served:
        for kind in ("dataset.appended", "peer.connected", "dataset.created"):
            served.node.log_.emit(kind, "x")

        def first_two() -> list[Any]:
            with closing(served.client.stream(calls.events_follow(since=0, kind=["dataset"]))) as stream:
                return [next(stream).value, next(stream).value]

        events = await trio.to_thread.run_sync(first_two)
        assert [(event.sequence, event.kind) for event in events] == [
            (1, "dataset.appended"),
            (3, "dataset.created"),
        ]


async def test_lines_of_the_log_are_listed_and_followed(serve: Serve, short_drain: None) -> None:
    async with serve() as served:
        task = (await served.do(calls.collection_collect(wire.CollectRequest()))).value.id
        for number in range(3):
            text = b'{"event":"line %d","timestamp":"2026-01-01T00:00:00Z","blocks":%d}' % (number, number)
            served.node.lines.add("warning" if number else "info", "odfd.mirrors", task if number > 1 else "", text)
        found = (await served.do(calls.log_lines_last(level="warning"))).value
        assert [(line.sequence, line.event, line.values) for line in found] == [
            (2, "line 1", {"blocks": 1}),
            (3, "line 2", {"blocks": 2}),
        ]
        (of_task,) = (await served.do(calls.log_lines_last(task=task))).value
        assert of_task.task == task

        def first_three() -> list[Any]:
            with closing(served.client.stream(calls.log_lines_follow(limit=2))) as stream:
                before = [next(stream).value, next(stream).value]
                trio.from_thread.run_sync(served.node.lines.add, "error", "p2p.host", "", b'{"event":"new"}')
                return [*before, next(stream).value]

        lines = await trio.to_thread.run_sync(first_three)
        assert [line.event for line in lines] == ["line 1", "line 2", "new"]
        with pytest.raises(NotFound, match="no task 'nope'"):
            await served.do(calls.log_lines_last(task="nope"))
        with pytest.raises(Usage, match="no level 'loud'"):
            await served.do(calls.log_lines_last(level="loud"))


class Nobody(Gate):
    """Also root is a stranger, or this could not be tried by root."""

    def admits(self, caller: Caller) -> bool:
        return False


async def test_a_stranger_is_refused_and_can_read_why(serve: Serve) -> None:
    async with serve(gate=Nobody(own_uid=-2)) as served:
        send = partial(served.client.send, calls.flow_stage(name="x"), io.BytesIO(b"x" * 500_000))
        for ask in (partial(served.client.do, calls.about_status()), send):
            with pytest.raises(Refused, match="may not speak to this daemon"):
                await trio.to_thread.run_sync(ask)
        assert served.node.uploads == {}


async def _raw(served: Any, *pieces: bytes) -> bytes:
    """Send bytes as they are and read to the end."""
    stream = await trio.open_unix_socket(str(served.path))
    async with stream:
        for piece in pieces:
            await stream.send_all(piece)
        answer = b""
        with trio.fail_after(PATIENCE):
            while chunk := await stream.receive_some(65536):
                answer += chunk
    return answer


async def test_requests_one_after_another_on_one_connection(serve: Serve) -> None:
    request = b"GET /node/v1alpha1/doctor HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /node/v1alpha1/status HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    async with serve() as served:
        answer = await _raw(served, request + request + last)
        assert answer.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize(
    "bad",
    [b"\x00\x01\x02\x03\r\n\r\n", b"GET / HTTP/x\r\n\r\n", b"GET / HTTP/1.1\r\n: x\r\n\r\n",
     b"POST /node/v1alpha1/pull HTTP/1.1\r\nHost: x\r\nContent-Length: -4\r\n\r\n",
     b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n"],
)  # fmt: skip
async def test_garbage_is_answered_or_dropped_and_the_server_lives(serve: Serve, bad: bytes) -> None:
    async with serve() as served:
        answer = await _raw(served, bad)
        assert answer == b"" or answer.split(b" ")[1][:1] == b"4"
        assert await served.do(calls.about_status())


async def test_an_unread_body_does_not_eat_the_answer(serve: Serve) -> None:
    body = b"x" * 300_000
    head = b"DELETE /v1/nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with serve() as served:
        answer = await _raw(served, head, body)
        assert b"404" in answer.split(b"\r\n")[0]
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["family"] == "NotFound"


async def test_a_body_over_the_limit_is_refused(serve: Serve) -> None:
    async with serve() as served:
        with pytest.raises(Invalid, match="larger than"):
            await served.ask(
                "POST", "/node/v1alpha1/pull", wire.TaskRef, wire.PullRequest(refs=("x" * (9 * 1024 * 1024),))
            )


async def test_a_client_that_leaves_cancels_its_request_but_not_the_task(serve: Serve) -> None:
    async with serve() as served:
        ref = await served.do(calls.flow_pull(wire.PullRequest(refs=("a",))))
        stream = await trio.open_unix_socket(str(served.path))
        await stream.send_all(f"GET /node/v1alpha1/tasks/{ref.value.id}?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await stream.receive_some(65536)
        await stream.aclose()
        assert (await served.do(calls.tasks_get(ref.value.id))).value.state == "running"
        served.node.release.set()
        view = served.node.board.get(ref.value.id)
        with trio.fail_after(PATIENCE):
            await view.finished.wait()
        assert view.state.value == "done"


async def test_a_silent_client_is_let_go(serve: Serve, autojump_clock: object) -> None:
    async with serve() as served:
        assert await _raw(served) == b""
        assert await _raw(served, b"GET /v1/st") == b""
        assert await _raw(served, b"POST /node/v1alpha1/pull HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{") == b""


def test_every_path_of_the_table_is_there_once() -> None:
    lines = [(method, path) for method, path, _ in OPERATIONS]
    assert len(lines) == len(set(lines))


# POSTs with an ``Idempotency-Key``: they act once, over lost connections and restarts, under limits.


Answered = tuple[int, dict[str, str], Any]
MIRROR = {"source": "did:odf:x"}


class Node:
    """Counts the mirrors that it was asked for; ``meet`` is awaited by each."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.meet: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.mirrors = self

    async def add(self, request: wire.MirrorRequest) -> wire.TaskRef:
        self.asked.append(request.source)
        await self.meet()
        return wire.TaskRef(id=f"t{len(self.asked)}", kind="sync", target=request.source)


@contextmanager
def opened(path: Path, clock: FixedClock) -> Iterator[AnswerStore]:
    with closing(open_database(path)) as database:
        database.migrate(idempotency.ROOM, idempotency.STEPS)
        yield AnswerStore(database, clock.now)


async def post(app: Application, body: Any, key: str | None, path: str = "/node/v1alpha1/mirrors") -> Answered:
    sent: list[Message] = []
    headers = [] if key is None else [(b"idempotency-key", key.encode())]
    scope = {
        "type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers, "root_path": "",
    }  # fmt: skip

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    data = b"".join(each.get("body", b"") for each in sent[1:])
    told = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], told, json.loads(data)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Any]:
    clock = FixedClock(Instant(10**18))
    with opened(tmp_path / "db", clock) as answers:
        node = Node()
        yield SimpleNamespace(
            node=node,
            answers=answers,
            clock=clock,
            app=application(node, structlog.get_logger(), answers),  # type: ignore[arg-type]
        )


async def test_a_repeated_request_acts_once_and_gets_the_first_answer(world: Any) -> None:
    first = await post(world.app, MIRROR, "k1")
    again = await post(world.app, MIRROR, "k1")
    assert (first[0], first[2]["id"]) == (202, "t1")
    assert (again[0], again[2], again[1]["content-type"]) == (202, first[2], first[1]["content-type"])
    assert (first[1].get("idempotency-replayed"), again[1]["idempotency-replayed"]) == (None, "true")
    assert (await post(world.app, MIRROR, "k2"))[2]["id"] == "t2"
    assert (await post(world.app, MIRROR, None))[2]["id"] == "t3"
    status, told, problem = await post(world.app, {"source": "did:odf:y"}, "k1")
    assert (status, told["content-type"], problem["rule"]) == (422, "application/problem+json", "idempotency-key")
    assert len(world.node.asked) == 3


async def test_a_refusal_is_an_answer_and_so_is_a_failure_whose_effect_is_not_known(world: Any) -> None:
    refused = await post(world.app, {"sauce": 1}, "k")
    assert refused[0] == 422
    assert (await post(world.app, {"sauce": 1}, "k"))[1]["idempotency-replayed"] == "true"

    async def fail() -> None:
        await trio.lowlevel.checkpoint()
        raise Remote("theirs")

    world.node.meet = fail
    failed = await post(world.app, MIRROR, "l")
    world.node.meet = trio.lowlevel.checkpoint
    again = await post(world.app, MIRROR, "l")
    assert (failed[0], again[0], again[1]["idempotency-replayed"], again[2]) == (502, 502, "true", failed[2])
    assert len(world.node.asked) == 1, "what it did before it failed is not done twice"
    assert (await post(world.app, MIRROR, "m"))[2]["id"] == "t2"


async def test_a_client_that_went_away_gets_the_answer_when_it_asks_again(world: Any, autojump_clock: Any) -> None:
    begun, go_on = trio.Event(), trio.Event()

    async def wait() -> None:
        begun.set()
        await go_on.wait()

    world.node.meet = wait
    async with trio.open_nursery() as nursery:
        gone = trio.CancelScope()

        async def ask() -> None:
            with gone:
                await post(world.app, MIRROR, "k")

        nursery.start_soon(ask)
        await begun.wait()
        assert (await post(world.app, MIRROR, "k"))[0] == 409
        gone.cancel()
        await trio.testing.wait_all_tasks_blocked()
        go_on.set()
    assert (await post(world.app, MIRROR, "k"))[2]["id"] == "t1"
    world.node.meet = trio.sleep_forever
    before = trio.current_time()
    with trio.move_on_after(1):
        await post(world.app, MIRROR, "hangs")
    assert trio.current_time() - before == pytest.approx(1 + GRACE)
    status, _, problem = await post(world.app, MIRROR, "hangs")
    assert (status, "begun before" in problem["title"] + problem.get("detail", "")) == (409, True)


async def test_streams_and_tokens_take_no_key(world: Any) -> None:
    assert {path for method, path, _ in OPERATIONS if method == "POST"} >= WITHOUT
    for path in WITHOUT:
        place = path.replace("{ref}", "a").replace("{name}", "a")
        status, _, problem = await post(world.app, {}, "k", place)
        assert (status, problem["rule"]) == (400, "idempotency-key")
    for key in ("", "a b", "x" * 256):
        assert (await post(world.app, MIRROR, key))[0] == 400
    without = application(world.node, structlog.get_logger())
    assert (await post(without, MIRROR, "k"))[0] == 400
    assert world.node.asked == []


ANSWER = KeptAnswer(status=200, media_type="application/json", body=b"{}")


def test_answers_outlive_restarts_for_a_day_and_what_was_cut_off_does_not_act_again(tmp_path: Path) -> None:
    clock = FixedClock(Instant(10**18))
    with opened(tmp_path / "db", clock) as answers:
        assert answers.claim("done", b"swordfish") is None
        answers.settle("done", b"swordfish", ANSWER)
        assert answers.claim("cut", b"x") is None
    with opened(tmp_path / "db", clock) as answers:
        assert answers.claim("done", b"swordfish") == ANSWER
        with pytest.raises(Conflict, match="begun before"):
            answers.claim("cut", b"x")
        with pytest.raises(Invalid, match="with another request"):
            answers.claim("cut", b"y")
        clock.advance(KEPT_FOR + SECOND)
        assert answers.claim("done", b"other") is None
    held = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"swordfish" not in held
    assert b"done" not in held


def test_answers_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_KEPT", 2)
    clock = FixedClock(Instant(10**18))
    with opened(tmp_path / "db", clock) as answers:
        assert answers.claim("a", b"") is None
        answers.settle("a", b"", KeptAnswer(status=200, media_type="", body=b"x" * (MAX_ANSWER + 1)))
        with pytest.raises(Conflict, match="too large"):
            answers.claim("a", b"")
        assert answers.claim("b", b"") is None
        with pytest.raises(Environment, match="2 answers are kept"):
            answers.claim("c", b"")
        clock.advance(KEPT_FOR + SECOND)
        assert answers.claim("c", b"") is None
        with pytest.raises(Usage):
            answers.claim("", b"")


# ``odfctl ui``: the address is told to whoever may use the socket, and to nobody beside.


ADDRESS = "http://127.0.0.1:7464/#token=secret&"


async def run(served: Any, *words: str) -> int:
    return await trio.to_thread.run_sync(main, ["--socket", str(served.path), "ui", *words])


async def test_it_prints_the_address(serve: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    async with serve() as served:
        assert await run(served) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{ADDRESS}\n"
    assert "good once, for 120 s" in printed.err


@pytest.mark.parametrize("variable", ["XDG_RUNTIME_DIR", "XDG_CACHE_HOME"])
async def test_no_word_that_others_see_holds_the_token(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Attack T-HTTP-02: another user of this machine who reads command lines.

    Defence: the browser gets a file that only its user can read.

    A browser is started with the name of a file, which only this user reads; the file before it is gone.
    """
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "mine"))
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    async with serve() as served:
        assert await run(served, "--open") == 0
        assert await run(served, "--open") == 0
    (place,) = {Path(unquote(urlparse(url).path)) for url in opened}
    assert "secret" not in "".join(opened)
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert 'url=http://127.0.0.1:7464/#token=secret&amp;"' in place.read_text()


async def test_without_a_browser_it_says_what_to_do(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda _: False)
    async with serve() as served:
        assert await run(served, "--open") == 7
    assert "open the printed address by hand" in capsys.readouterr().err


async def test_a_place_that_cannot_be_written_is_told(
    serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    async with serve() as served:
        assert await run(served, "--open") == 7
    assert "cannot write" in capsys.readouterr().err
