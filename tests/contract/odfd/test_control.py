"""Server and client keep the contract together, over a real socket."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused, Remote
from odfd.api.routes import OPERATIONS
from odfd.control import calls, wire
from odfd.control.client import Answer
from odfd.control.endpoint import Caller, Gate
from odfd.errors import Bug, Unreachable, Usage
from odfd.resources import registry
from odfd.runtime import http_server
from worlds.eventually import PATIENCE

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
