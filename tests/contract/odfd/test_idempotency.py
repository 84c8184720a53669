"""POSTs with an ``Idempotency-Key``: they act once, over lost connections and restarts, under limits."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio

from chain.errors import Conflict, Environment, Invalid, Remote
from chain.instant import SECOND, Instant
from chain.store.database import open_database
from odfd.api.idempotency import GRACE, WITHOUT
from odfd.api.routes import OPERATIONS, application
from odfd.control import wire
from odfd.errors import Usage
from odfd.runtime.http import Application, Message
from odfd.store import idempotency
from odfd.store.idempotency import KEPT_FOR, MAX_ANSWER, AnswerStore, KeptAnswer
from worlds.clock import FixedClock

Answer = tuple[int, dict[str, str], Any]
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


async def post(app: Application, body: Any, key: str | None, path: str = "/node/v1alpha1/mirrors") -> Answer:
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
