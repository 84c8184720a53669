"""Targets that are called when datasets come, move and go."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
import pytest
import trio

from chain.errors import Invalid
from chain.instant import SECOND
from config.model import Webhooks
from odfd.control import wire
from odfd.flows.plan import Outcome
from odfd.resources.store import ResourceStore
from odfd.resources.tables import convert_webhooks
from odfd.services.webhooks.webhook_deliveries import FAILING
from odfd.store.webhook_delivery import GIVEN_UP_AFTER
from worlds.eventually import PATIENCE, became
from worlds.flow_world import flow_of
from worlds.http_served import HttpServer, serving
from worlds.manifests import ROOT
from worlds.node_world import Node, World

KEY = b"thirty-two bytes for a test only"
INSIDE = {"webhooks": Webhooks(inside=("127.0.0.0/8",))}


class Receiver(HttpServer):
    """Keeps what it was called with, and answers as it is told."""

    status = 204
    is_post_only = False
    """Whether the connection of another request ends without an answer."""
    wants_signature = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(Handler, port)
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """Ids and bodies."""

    def events(self) -> list[str]:
        return [f"{body['type'].removeprefix('dataset.')} {body['data']['dataset']['name']}" for _, body in self.calls]


class Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_HEAD(self) -> None:
        self.close_connection = True
        if not self.server.is_post_only:
            self.send_error(405)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        name, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        mac = base64.b64encode(hmac.digest(KEY, f"{name}.{at}.".encode() + body, hashlib.sha256)).decode()
        is_right = self.headers["webhook-signature"] == (f"v1,{mac}" if self.server.wants_signature else None)
        self.server.calls.append((name, json.loads(body)))
        self.send_response(self.server.status if is_right else 401)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with serving(Receiver()) as made:
        yield made


SECRET = f"$schema: SecretSet\nheaders: {{name: hooks}}\nspec: {{secrets: {{key: {KEY.decode()}}}}}\n"


def target(receiver: Receiver, policy: str = "{}", url: str = "") -> str:
    url = url or f"http://127.0.0.1:{receiver.server_address[1]}/hook"
    headers = f"{{name: hook, annotations: {{webhookPolicy: {policy}}}}}"
    return f"$schema: WebhookTarget\nheaders: {headers}\nspec: {{url: '{url}', secretRef: 'SecretSet:hooks#key'}}\n"


def dataset(name: str, about: str = "") -> str:
    events = f"[{{kind: SetInfo, description: {about}}}]" if about else "[]"
    return f"$schema: Dataset\nheaders: {{name: {name}}}\nspec: {{kind: Root, metadata: {events}}}\n"


async def status(node: Node) -> dict[str, Any]:
    with trio.fail_after(PATIENCE):
        await node.parts.reconciler.wait_settled()
    found: dict[str, Any] = (await node.api.declarations.get("webhook", "hook")).status
    return found


def now(node: Node, world: World, nanoseconds: int = 0) -> None:
    """What waits for a time is looked at; so much later."""
    world.clock.instant += nanoseconds
    node.parts.webhooks.loop.poke()


async def test_a_target_is_told_once_of_what_comes_moves_and_goes(world: World, receiver: Receiver) -> None:
    """And of nothing that was there, or that it does not want."""
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(dataset("old"))
        policy = "{datasets: [o%], events: [dataset.created, dataset.ref.updated, dataset.deleted]}"
        await alice.apply(SECRET, target(receiver, policy))
        assert (await status(alice))["phase"] == "Ready"
        before = str(alice.home.chains.chain(alice.dataset("old")).head().hash)
        await alice.apply(dataset("one"), dataset("two"), dataset("old", "news"))
        await became(lambda: len(receiver.calls) == 2)
        assert sorted(receiver.events()) == ["created one", "ref.updated old"]
        (moved,) = (body["data"] for _, body in receiver.calls if body["type"] == "dataset.ref.updated")
        head = alice.home.chains.chain(alice.dataset("old")).head()
        assert moved["dataset"]["id"] == str(alice.dataset("old"))
        assert moved["oldRef"] == {"hash": before, "sequenceNumber": 0}
        assert moved["newRef"] == {"hash": str(head.hash), "sequenceNumber": head.sequence_number}
        await alice.api.declarations.delete("Dataset", "one")
        await became(lambda: len(receiver.calls) == 3)
        assert receiver.events()[-1] == "deleted one"
        await alice.apply(dataset("one"))
        await became(lambda: len(receiver.calls) == 4)
        assert receiver.events()[-1] == "created one"
        assert len({name for name, _ in receiver.calls}) == 4
        await became(lambda: not alice.parts.webhooks._at_work)  # else the last comes again after the start
    async with world.running("alice", **INSIDE) as alice:
        now(alice, world)
        await alice.apply(dataset("other"))
        await became(lambda: len(receiver.calls) == 5)
        assert receiver.events()[-1] == "created other"
        await alice.api.declarations.delete("webhook", "hook")
        await alice.parts.reconciler.wait_settled()
        with alice.home.database.read() as connection:
            assert connection.execute("SELECT count(*) FROM webhook_told").fetchone() == (0,)


async def test_a_target_is_told_of_datasets_that_its_labels_select(world: World, receiver: Receiver) -> None:
    policy = "{datasets: [{name: '%', labels: {env: prod, $not: {old: yes}}}, 'seen.%'], events: [dataset.created]}"
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(SECRET, target(receiver, policy))
        await status(alice)
        held = await alice.api.declarations.get("webhook", "hook")
        selected = '% {"$not":{"old":"yes"},"env":"prod"}'
        assert held.headers["annotations"]["webhookPolicy"]["datasets"] == [selected, "seen.%"]
        assert {each.action for each in (await alice.apply(target(receiver, policy))).items} == {"unchanged"}
        labelled = dataset("one").replace("name: one", "name: one, labels: {env: prod}")
        await alice.apply(labelled, dataset("seen.two"), dataset("three"))
        await became(lambda: len(receiver.calls) == 2)
        assert sorted(receiver.events()) == ["created one", "created seen.two"]
        await alice.api.declarations.label("dataset", "three", wire.LabelRequest(labels={"env": "prod"}))
        await became(lambda: len(receiver.calls) == 3)
        assert receiver.events()[-1] == "created three"


async def test_a_target_is_told_of_a_handover_as_a_move_and_of_nothing_inside(world: World, receiver: Receiver) -> None:
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(ROOT)
        await alice.api.visibility.unpublish(wire.VisibilityRequest(refs=("cities",)))
        await alice.keep_raw("cities")
        world.write("alice", "a.csv", "2024-01-01T00:00:00Z,Graz,1")
        await alice.pull("cities")
        await alice.apply(SECRET, target(receiver, "{events: [dataset.created, dataset.ref.updated, dataset.deleted]}"))
        assert (await status(alice))["phase"] == "Ready"
        before = str(alice.home.chains.chain(alice.dataset("cities")).head().hash)
        for origin in ("raw", "snapshot"):
            made = wire.RenditionRequest(origin=origin)
            await alice.done(alice.api.renditions.create("cities", made))
        await alice.api.renditions.abandon("cities", 2)
        await alice.done(alice.api.renditions.hand_over("cities", 1, wire.HandoverRequest(difference=True)))
        assert alice.home.name_of(alice.dataset("cities.h1")) == "cities.h1"
        await became(lambda: len(receiver.calls) == 1)
        (_, body) = receiver.calls[0]
        head = alice.home.chains.chain(alice.dataset("cities")).head()
        assert body["type"] == "dataset.ref.updated"
        assert body["data"]["dataset"] == {"id": str(alice.dataset("cities")), "name": "cities"}
        assert (body["data"]["oldRef"]["hash"], body["data"]["newRef"]["hash"]) == (before, str(head.hash))
        await alice.apply(dataset("other"))
        await became(lambda: len(receiver.calls) == 2)
        assert receiver.events()[-1] == "created other", "and of nothing in between"


async def test_what_fails_comes_again_under_its_id_and_joins_what_came_meanwhile(
    world: World, receiver: Receiver
) -> None:
    """Attack T-SOURCE-06: a receiver that does not answer, or fails for ever.

    Defence: 10 seconds a call, four at a time, one while it fails; one delivery a dataset, which collects later
    changes; given up after a day, counted.

    Also over a restart, after which nothing of it is lost.
    """
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(SECRET, target(receiver), dataset("a"))
        await status(alice)
        receiver.status = 302
        await alice.apply(dataset("a", "one"))
        for count in range(1, FAILING):
            await became(lambda count=count: len(receiver.calls) >= count)
            await became(lambda: not alice.parts.webhooks._at_work)
            now(alice, world, 3600 * SECOND)
        await alice.apply(dataset("a", "two"))
        await alice.apply(dataset("a", "three"))
        await became(lambda: len(receiver.calls) >= FAILING)
        await became(lambda: not alice.parts.webhooks._at_work)
        failed = await status(alice)
        assert (failed["phase"], failed["code"]) == ("Failed", "webhook-failed")
        assert failed["message"] == "it answered 302; 1 delivery waits"
    before = len(receiver.calls)
    async with world.running("alice", **INSIDE) as alice:
        receiver.status = 200
        now(alice, world, 3600 * SECOND)
        await became(lambda: len(receiver.calls) == before + 2)
        assert len({name for name, _ in receiver.calls[:-1]}) == 1
        first, last = (body["data"] for _, body in receiver.calls[-2:])
        assert first["newRef"] == last["oldRef"]
        assert last["newRef"]["sequenceNumber"] == first["newRef"]["sequenceNumber"] + 2
        assert receiver.calls[0][1] == receiver.calls[-2][1]
        await became(lambda: not alice.parts.webhooks._at_work)
        assert (await status(alice))["phase"] == "Ready"


async def test_a_call_that_is_repeated_is_told_before_it_counts_as_a_failure(world: World, receiver: Receiver) -> None:
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(SECRET, target(receiver), dataset("a"))
        await status(alice)
        receiver.status = 503
        await alice.apply(dataset("a", "one"))
        await became(lambda: "webhook.retried" in alice.kinds())
        told = await status(alice)
        (answers,) = told["conditions"].values()
        assert (told["phase"], answers["value"]) == ("Ready", True)
        assert answers["message"] == "a call failed, and is repeated: it answered 503"
        receiver.status = 200
        now(alice, world, 3600 * SECOND)
        await became(lambda: "webhook.answered" in alice.kinds())
        (answers,) = (await status(alice))["conditions"].values()
        assert "message" not in answers


async def test_a_target_that_answers_calls_alone_is_ready_and_believed_after_one(
    world: World, receiver: Receiver
) -> None:
    """As is one with another URL, of which nothing is known."""
    receiver.is_post_only = True
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(SECRET, target(receiver), dataset("a"))
        for path in ("hook", "other"):
            await alice.apply(target(receiver, url=f"http://127.0.0.1:{receiver.server_address[1]}/{path}"))
            told = await status(alice)
            (answers,) = told["conditions"].values()
            assert (told["phase"], answers["value"]) == ("Ready", "Unknown")
            assert answers["message"].startswith(
                "it accepted the connection, but did not answer HEAD: Server disconnected"
            )
            seen = alice.kinds().count("webhook.answered")
            await alice.apply(dataset("a", path))
            await became(lambda seen=seen: alice.kinds().count("webhook.answered") > seen)
            (answers,) = (await status(alice))["conditions"].values()
            assert answers["value"]
            assert "message" not in answers


async def test_a_target_without_a_server_is_called_all_the_same_and_ready_at_its_first_answer(
    world: World, receiver: Receiver
) -> None:
    async with world.running("alice", **INSIDE) as alice:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            port = unused.getsockname()[1]
        await alice.apply(SECRET, target(receiver, url=f"http://127.0.0.1:{port}/hook"), dataset("a"))
        told = await status(alice)
        assert (told["phase"], told["code"]) == ("Failed", "webhook-unreachable")
        await alice.apply(dataset("a", "one"))
        await became(lambda: "webhook.retried" in alice.kinds())
        assert (await status(alice))["phase"] == "Failed"
        with serving(Receiver(port)) as late:
            now(alice, world, 3600 * SECOND)
            await became(lambda: "webhook.answered" in alice.kinds())
            assert len(late.calls) == 1
            assert (await status(alice))["phase"] == "Ready"


async def test_a_secret_that_is_too_short_waits_for_another(world: World, receiver: Receiver) -> None:
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(SECRET.replace(KEY.decode(), "short"), target(receiver))
        told = await status(alice)
        assert (told["phase"], told["code"], told.get("retryAt")) == ("Failed", "webhook-secret", None)
        await alice.apply(SECRET)
        assert (await status(alice))["phase"] == "Ready"


async def test_a_delivery_that_fails_for_a_day_is_given_up_and_counted(world: World, receiver: Receiver) -> None:
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(SECRET, target(receiver), dataset("a"))
        await status(alice)
        receiver.status = 500
        await alice.apply(dataset("a", "one"))
        for count in range(1, 9):
            await became(lambda count=count: len(receiver.calls) >= count)
            await became(lambda: not alice.parts.webhooks._at_work)
            now(alice, world, GIVEN_UP_AFTER)
        assert "webhook.given-up" in {each.kind for each in alice.events.list_kept()}
        receiver.status = 200
        await alice.apply(dataset("a", "two"))
        await became(lambda: len(receiver.calls) == 9)
        first, last = (body["data"] for _, body in receiver.calls[-2:])
        assert first["newRef"] == last["oldRef"]
        await became(lambda: not alice.parts.webhooks._at_work)
        said = await status(alice)
        (answers,) = [value for key, value in said["conditions"].items() if key.endswith("/Answers")]
        assert (said["phase"], answers["value"], answers["message"]) == ("Ready", True, "1 delivery given up")


async def test_no_webhook_leads_into_our_own_house(world: World, receiver: Receiver) -> None:
    """Attack T-SOURCE-05: a webhook that leads into our own network, by its name, its address or a redirect.

    Defence: dialled only on the Internet, over TLS, and in networks that `webhooks.inside` names; resolved once; no
    redirect, no proxy; the body of the answer is not read.

    Where nobody named a network of it.
    """
    async with world.running("alice") as alice:
        await alice.apply(SECRET, target(receiver), dataset("a"))
        await status(alice)
        with trio.fail_after(PATIENCE):
            for change in count():
                await alice.apply(dataset("a", f"change {change}"))
                now(alice, world, 60 * SECOND)
                if any(each.kind == "webhook.failed" for each in alice.events.list_kept()):
                    break
        assert (await status(alice))["message"].startswith("127.0.0.1 is where no webhook is called")
        assert not receiver.calls


async def test_a_target_waits_for_its_secret(world: World, receiver: Receiver) -> None:
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(target(receiver), dataset("a"))
        assert ((said := await status(alice))["phase"], said["code"]) == ("Failed", "unresolved-reference")
        await alice.apply(SECRET)
        await became(lambda: alice.parts.reconciler.queue.is_idle)
        assert (await status(alice))["phase"] == "Ready"
        await alice.apply(dataset("a", "one"))
        await became(lambda: receiver.events() == ["ref.updated a"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("spec: {url: 'ftp://a/b', secretRef: 'SecretSet:a#b'}", 3),
        ("spec: {url: 'https://me:pw@a/b', secretRef: 'SecretSet:a#b'}", 3),
        ("spec: {url: 'https://a/b#c', secretRef: 'SecretSet:a#b'}", 3),
        ("spec: {url: 'https://a:99999/b', secretRef: 'SecretSet:a#b'}", 3),
        ("spec: {url: 'https://a/b', secret: swordfish}", 3),
        ("spec: {url: 'https://a/b', secret: 'VariableSet:a#b'}", 3),
    ],
)
async def test_what_is_no_target_is_refused_at_its_line(world: World, text: str, place: int) -> None:
    """Attack T-SOURCE-06: credentials in the URL of a webhook, which is shown with its resource.

    Defence: a user or a password in it is refused; credentials in path or query cannot be recognised, and the
    documentation warns.
    """
    async with world.running("alice") as alice:
        with pytest.raises(Invalid) as caught:
            await alice.apply(f"$schema: WebhookTarget\nheaders: {{name: hook}}\n{text}")
        assert caught.value.place == f"m0.yaml:{place}"
        assert caught.value.rule in ("webhook-url", "webhook-secret", "reference-type")
        assert "pw@" not in str(caught.value)


async def test_a_secret_of_the_target_itself_is_sealed_and_signs_and_without_one_nothing_is_signed(
    world: World, receiver: Receiver
) -> None:
    async with world.running("alice", **INSIDE) as alice:
        own = target(receiver).replace("secretRef: 'SecretSet:hooks#key'", f"secret: {KEY.decode()}")
        await alice.apply(own, dataset("a"))
        assert (await status(alice))["phase"] == "Ready"
        sealed = (await alice.api.declarations.get("webhook", "hook")).spec["secret"]
        assert (sealed.keys(), sealed["contentEncoding"]) == ({"value", "contentEncoding"}, "jwe")
        assert not any(KEY in each.read_bytes() for each in alice.home.directory.glob("state.db*"))
        (again,) = (await alice.apply(own)).items
        assert again.action == "unchanged"
        assert (await alice.api.declarations.rotate_secrets()).values == 1
        renewed = (await alice.api.declarations.get("webhook", "hook")).spec["secret"]
        assert renewed != sealed
        await alice.apply(dataset("a", "news"))
        await became(lambda: "webhook.answered" in alice.kinds())
        with pytest.raises(Invalid, match="shorter than 24 bytes"):
            await alice.apply(own.replace(KEY.decode(), "sesame"))
        receiver.wants_signature = False
        await alice.apply(own.replace(f", secret: {KEY.decode()}", ""))
        seen = alice.kinds().count("webhook.answered")
        await alice.apply(dataset("a", "more"))
        await became(lambda: alice.kinds().count("webhook.answered") > seen)


async def test_a_reference_as_secret_is_read_as_before_and_told(world: World, receiver: Receiver) -> None:
    told = "spec.secret is read as secretRef: a secret is the value, and not a reference"
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(SECRET, target(receiver))
        for former in ("secret: 'SecretSet:hooks#key'", "secret: {type: SecretSet, name: hooks, path: key}"):
            (item,) = (await alice.apply(target(receiver).replace("secretRef: 'SecretSet:hooks#key'", former))).items
            assert (item.action, item.warnings) == ("unchanged", (told,))
        with alice.home.database.write() as connection:
            store = ResourceStore(connection)
            (held,) = store.all("WebhookTarget")
            former_spec = {"url": held.spec["url"], "secret": held.spec["secretRef"]}
            store.rewrite(msgspec.structs.replace(held, spec=former_spec), held.updated_at)
            (line,) = convert_webhooks(connection)
            assert line.startswith("WebhookTarget hook has its secret as secretRef")
            assert (store.all("WebhookTarget"), convert_webhooks(connection)) == ([held], [])


CALLING = """$schema: Flow
headers: {{name: told, annotations: {{flowPolicy: {{cooldown: 0s, retry: {{minDelay: 1s, maxDelay: 1s}}}}}}}}
spec:
  target: Dataset:{target}
  triggers: [{trigger}]
  tasks: [{{kind: WebhookCall, endpoint: hook{payload}}}]
"""
AT_NEWS = "{kind: Event, events: {type: dataset.ref.updated}}"
SILENT = "{events: []}"


def later(node: Node, world: World, seconds: int) -> None:
    now(node, world, seconds * SECOND)
    node.parts.flows.loop.poke()


async def test_a_flow_calls_a_target_of_new_blocks(world: World, receiver: Receiver) -> None:
    calling = CALLING.format(target="one", trigger=AT_NEWS, payload="").replace("cooldown: 0s, ", "")
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(dataset("one"), SECRET, target(receiver, SILENT))
        assert (await status(alice))["phase"] == "Ready"
        await alice.apply(calling)
        before = alice.home.chains.chain(alice.dataset("one")).head()
        await alice.apply(dataset("one", "news"))
        later(alice, world, 2)
        await became(lambda: len(receiver.calls) == 1)
        ((name, body),) = receiver.calls
        head = alice.home.chains.chain(alice.dataset("one")).head()
        assert (name[:4], body["type"], body["data"]["flow"]) == ("msg_", "dataset.ref.updated", "told")
        assert body["data"]["dataset"] == {"id": str(alice.dataset("one")), "name": "one"}
        assert body["data"]["oldRef"] == {"hash": str(before.hash), "sequenceNumber": before.sequence_number}
        assert body["data"]["newRef"] == {"hash": str(head.hash), "sequenceNumber": head.sequence_number}


async def test_a_target_that_a_flow_calls_is_told_of_a_change_once(world: World, receiver: Receiver) -> None:
    calling = CALLING.format(target="one", trigger=AT_NEWS, payload="").replace("cooldown: 0s, ", "")
    async with world.running("alice", **INSIDE) as alice:
        bare = target(receiver).replace(", annotations: {webhookPolicy: {}}", "")
        await alice.apply(dataset("one"), SECRET, bare, calling)
        assert (await status(alice))["phase"] == "Ready"
        await alice.apply(dataset("one", "news"))
        later(alice, world, 2)
        await became(lambda: len(receiver.calls) == 1)
        await alice.api.declarations.delete("Flow", "told")
        await alice.apply(dataset("one", "more news"))
        await became(lambda: len(receiver.calls) == 2)
        assert ["flow" in body["data"] for _, body in receiver.calls] == [True, False]


ONCE = """$schema: Task
headers: {name: told}
spec: {kind: WebhookCall, endpoint: hook}
"""


async def test_a_task_calls_a_target_once(world: World, receiver: Receiver) -> None:
    """It waits for a target that is not there; an answer that is none is the end of it."""
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(dataset("one"), ONCE)
        await alice.parts.reconciler.wait_settled()
        told = await alice.api.declarations.get("task", "told")
        assert (told.status["phase"], told.status["code"]) == ("Failed", "unresolved-reference")
        await alice.apply(SECRET, target(receiver, SILENT))
        await became(lambda: len(receiver.calls) == 1)
        ((_, body),) = receiver.calls
        assert (body["type"], body["data"]["flow"]) == ("flow.due", "told")
        await alice.board.get("told").finished.wait()
        await alice.parts.reconciler.wait_settled()
        told = await alice.api.declarations.get("task", "told")
        (outcome,) = [value for key, value in told.status["conditions"].items() if key.endswith("/TaskOutcome")]
        assert (told.status["phase"], outcome["kind"]) == ("Ready", "Success")
        receiver.status = 503
        await alice.apply(ONCE.replace("name: told", "name: again"))
        await became(lambda: len(receiver.calls) == 2)
        await alice.board.get("again").finished.wait()
        await alice.parts.reconciler.wait_settled()
        again = await alice.api.declarations.get("task", "again")
        assert again.status["phase"] == "Failed"
        assert "retryAt" not in again.status


async def test_a_call_of_a_flow_is_repeated_under_its_id_until_it_is_answered(world: World, receiver: Receiver) -> None:
    receiver.status = 503
    minutely, said = "{kind: Interval, interval: 1min}", ', payload: \'{"at": "${{ trigger.time }}"}\''
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(dataset("one"), SECRET, target(receiver, SILENT))
        await status(alice)
        await alice.apply(CALLING.format(target="one", trigger=minutely, payload=said))

        async def ran(times: int) -> Any:
            await became(lambda: next(iter(alice.parts.flows.scheduler.entries()))[1].record.runs == times)
            return await flow_of(alice, "told")

        async def ended(outcome: Outcome) -> None:
            """The record of one run may be read while the next is under way, by the chance in pauses."""
            entry = lambda: next(iter(alice.parts.flows.scheduler.entries()))[1]  # noqa: E731
            await became(lambda: entry().record.outcome is outcome or later(alice, world, 5))

        later(alice, world, 60)
        told = await ran(1)
        assert (told.outcome, told.message) == ("Failed", "WebhookTarget hook: it answered 503")
        receiver.status = 204
        await ended(Outcome.UPDATED)
        assert str(receiver.calls[0]) == str(receiver.calls[1]), "the same call"
        assert set(receiver.calls[0][1]) == {"at"}
        await alice.api.declarations.delete("webhook", "hook")
        with trio.fail_after(PATIENCE):
            await alice.parts.reconciler.wait_settled()
        waits = (await alice.api.declarations.get("flow", "told")).status
        assert (waits["code"], waits["message"]) == (
            "unresolved-reference", "the WebhookTarget 'hook' that was meant is gone"
        )  # fmt: skip
        assert not list(alice.parts.flows.scheduler.entries())


async def test_what_a_flow_sends_names_what_a_run_has(world: World, receiver: Receiver) -> None:
    """Attack T-SOURCE-06: a flow's payload with values that no receiver should have.

    Defence: `${{ }}` in it can name only the event and the time, no set of values and no environment.
    """
    async with world.running("alice", **INSIDE) as alice:
        wrong = CALLING.format(target="one", trigger=AT_NEWS, payload=", payload: '${{ env.HOME }}'")
        with pytest.raises(Invalid, match=r"unknown variable 'env.HOME'"):
            await alice.apply(dataset("one"), SECRET, target(receiver), wrong)


async def test_a_target_that_is_deleted_while_a_round_goes_on_leaves_nothing(world: World, receiver: Receiver) -> None:
    async with world.running("alice", **INSIDE) as alice:
        await alice.apply(SECRET, target(receiver), dataset("a"))
        await status(alice)
        deliveries = alice.parts.webhooks._deliveries
        read = deliveries.targets()
        await alice.api.declarations.delete("webhook", "hook")
        await alice.parts.reconciler.wait_settled()
        assert read
        assert deliveries.take(read, None, frozenset(), alice.home.clock.now()) == ([], None)
        with alice.home.database.read() as connection:
            assert connection.execute("SELECT count(*) FROM webhook_told").fetchone() == (0,)


async def test_a_target_that_is_declared_while_targets_are_read_is_called(
    world: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list that was read before does not count from then on."""
    async with world.running("alice", **INSIDE) as alice:
        worker, reading, declared = alice.parts.webhooks, threading.Event(), threading.Event()
        read = worker._deliveries.targets

        def slowly() -> Any:
            found = read()
            reading.set()
            declared.wait(PATIENCE)
            return found

        monkeypatch.setattr(worker._deliveries, "targets", slowly)
        worker.loop.poke()
        await became(reading.is_set)
        await alice.apply(SECRET, target(receiver), dataset("a"))
        await status(alice)
        declared.set()
        await alice.apply(dataset("a", "one"))
        await became(lambda: bool(receiver.calls))
