"""Webhooks: what is told, how it is signed, and receivers that do not answer."""

from __future__ import annotations

import json
from functools import partial

import msgspec
import pytest
import trio

from chain.errors import Invalid, Remote
from chain.instant import SECOND, Instant
from odfd.services.webhooks import call
from odfd.services.webhooks.call import judge
from odfd.services.webhooks.flow_call import FlowRun, call_of
from odfd.store.webhook_delivery import (
    GIVEN_UP_AFTER,
    LEAST_ATTEMPTS,
    LONGEST_PAUSE,
    Delivery,
    NotifiedHead,
    event_of,
    is_dead,
    new_delivery,
    pause_after,
    signed_headers,
)
from odfd.store.webhook_target import WebhookPolicy, signing_key
from p2p.ip import anywhere, parse_ip
from p2p.peers.directory import networks
from worlds.eventually import PATIENCE

# Calls to receivers that do not answer, and what is asked before a call.


async def silent(stream: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def endless(stream: trio.SocketStream) -> None:
    """Headers that never end."""
    await stream.send_all(b"HTTP/1.1 200 OK\r\n")
    while True:
        await stream.send_all(b"X: y\r\n")
        await trio.sleep(0.01)


async def hasty(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.aclose()


async def stubborn(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 405 Method Not Allowed\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("serve", "said"),
    [(silent, "no answer in 1 seconds"), (hasty, "Server disconnected without sending a response."), (stubborn, "")],
)
async def test_a_server_that_takes_the_connection_is_there_whatever_it_says(
    serve: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "CALL_SECONDS", 2.0 if serve is silent else PATIENCE)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        assert await call.reach(f"http://127.0.0.1:{port}/", anywhere) == said
        nursery.cancel_scope.cancel()
    with pytest.raises(Remote) as none:
        await call.reach(f"http://127.0.0.1:{port}/", anywhere)
    assert none.value.rule == "webhook-unreachable"


@pytest.mark.parametrize("serve", [silent, endless])
async def test_a_receiver_that_does_not_answer_is_left(serve: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call, "CALL_SECONDS", 0.1)
    async with trio.open_nursery() as nursery:
        listen = partial(trio.serve_tcp, serve, 0, host="127.0.0.1")
        (listener,) = await nursery.start(listen)
        port = listener.socket.getsockname()[1]
        with pytest.raises(Remote, match="no answer in"):
            await call.call(f"http://127.0.0.1:{port}/", {}, b"{}", anywhere)
        nursery.cancel_scope.cancel()


# What a webhook is told, and how it is signed.

ONE, TWO = NotifiedHead("f1", 1), NotifiedHead("f2", 2)
MADE = Instant(1_614_265_330 * SECOND)


def delivery(body: str = "{}", attempts: int = 0, name: str = "msg_1") -> Delivery:
    return Delivery(id=name, body=body, head=ONE, name="a", made=MADE, attempts=attempts)


def test_a_call_is_signed_as_standard_webhooks_say() -> None:
    """Attack T-SOURCE-06: forged or replayed calls of a webhook.

    Defence: an HMAC over id, time and body with a secret of a SecretSet, of 24 bytes or more; a retry has a new time
    and the same id, so a receiver refuses old times and remembers ids.

    The example of their own libraries.
    """
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    told = delivery('{"test": 2432232314}', name="msg_p5jXN8AQM9LWM0D4loKWxJek")
    assert signed_headers(told, key, MADE) == {
        "Content-Type": "application/json",
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize("secret", ["", "swordfish", "whsec_c3dvcmRmaXNo", "whsec_" + "?" * 40])
def test_what_can_be_guessed_signs_nothing(secret: str) -> None:
    with pytest.raises(Invalid, match="shorter than 24 bytes"):
        signing_key(secret)


def test_what_is_told_is_the_way_from_head_to_head() -> None:
    cases = [(None, ONE, "created"), (ONE, TWO, "ref.updated"), (TWO, ONE, "ref.updated"), (ONE, None, "deleted")]
    for before, after, event in cases:
        assert event_of(before, after) == f"dataset.{event}"
    assert event_of(ONE, ONE) is event_of(None, None) is None
    body = json.loads(new_delivery("dataset.ref.updated", "did:odf:x", "a", (ONE, TWO), "9", MADE).body)
    assert body == {
        "type": "dataset.ref.updated",
        "timestamp": "2021-02-25T15:02:10Z",
        "data": {
            "dataset": {"id": "did:odf:x", "name": "a"},
            "oldRef": {"hash": "f1", "sequenceNumber": 1},
            "newRef": {"hash": "f2", "sequenceNumber": 2},
        },
    }


def test_pauses_grow_to_an_hour_and_differ() -> None:
    least = [pause_after(each, lambda _: 0) // SECOND for each in (1, 2, 3, 60)]
    most = [pause_after(each, lambda below: below - 1) // SECOND for each in (1, 2, 3, 60)]
    assert (least, most) == ([2, 5, 10, 1800], [4, 9, 19, 3599])
    assert pause_after(10_000, lambda below: below) <= LONGEST_PAUSE


def test_one_is_given_up_after_a_day_and_some_attempts() -> None:
    late = Instant(MADE + GIVEN_UP_AFTER)
    assert is_dead(delivery(attempts=LEAST_ATTEMPTS), late)
    assert not is_dead(delivery(attempts=LEAST_ATTEMPTS - 1), late)
    assert not is_dead(delivery(attempts=10_000), Instant(late - 1))


def test_a_policy_selects_datasets_and_names_events() -> None:
    def is_meant(policy: WebhookPolicy, name: str, labels: dict[str, str] | None = None, account: str = "") -> bool:
        return policy.means(name, lambda: (labels or {}, account or None))

    policy = WebhookPolicy(datasets=("food.%", "a%z", "x.y"), events=("dataset.created",))
    named = ["food.fx", "Food.", "abcz", "az", "x.y"]
    assert all(is_meant(policy, each) for each in named)
    assert not any(is_meant(policy, each) for each in ("food", "abcz.a", "xay", "seafood.x"))
    selecting = WebhookPolicy(datasets=('f% {"$or": [{"env": "prod"}, {"env": "test"}]}', "% env=old,!kept", "bob/%"))
    prod, old = {"env": "prod"}, {"env": "old"}
    assert is_meant(selecting, "food", prod)
    assert is_meant(selecting, "sales", old)
    assert is_meant(selecting, "sales", account="Bob")
    assert not is_meant(selecting, "sales", prod)
    assert not is_meant(selecting, "sales", old | {"kept": "1"}, "alice")
    assert not is_meant(WebhookPolicy(datasets=("not a (pattern",)), "not"), "one of before they were checked"
    assert policy.wants("dataset.created")
    assert not policy.wants("dataset.deleted")
    assert is_meant(WebhookPolicy(), "any")
    assert WebhookPolicy().wants("dataset.deleted")


def test_a_target_is_of_the_internet_over_tls_or_where_its_owner_says() -> None:
    inside = networks(("10.1.0.0/16",))
    for text, secure, clear in [("8.8.8.8", True, False), ("10.1.2.3", True, True), ("10.2.0.1", False, False)]:
        assert judge("https://a", inside)(parse_ip(text)) is secure
        assert judge("http://a", inside)(parse_ip(text)) is clear
    for text in ("127.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"):
        assert not judge("https://a", inside)(parse_ip(text))


# The calls that tasks of flows make.

RUN = FlowRun(
    id="one", flow="often", dataset="did:odf:a", name="a", time=Instant(1), is_update=False, before=None, head=None
)


def test_a_call_has_the_id_of_its_flow_and_of_what_it_is_about_alone() -> None:
    """Flows of two accounts may have one name, and call one target: neither is a repetition of the other."""
    same = msgspec.structs.replace(RUN, flow="renamed")
    assert call_of(RUN, "body", 0).id == call_of(same, "body", 0).id
    others = [{"id": "two"}, {"dataset": "did:odf:b"}, {"time": Instant(2)}]
    ids = {call_of(msgspec.structs.replace(RUN, **each), "body", 0).id for each in ({}, *others)}
    assert len(ids | {call_of(RUN, "body", 1).id}) == 5
