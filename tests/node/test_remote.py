"""The control API over TCP: by TLS and tokens, with the rights of their account, and at little cost for all others."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import structlog
import trio
from structlog.testing import capture_logs

import odfd_client
from chain.errors import Environment, Fault, Invalid, Refused
from config.check import cross
from config.model import Api, Settings
from odfd.access.tokens import token_of
from odfd.api.routes import application
from odfd.control import calls, remote, wire
from odfd.control.client import ControlClient
from odfd.control.endpoint import CALLER, Caller
from odfd.control.remote import LIMITS, RemoteApplication, RemoteServer
from odfd.control.remote_node import remote_node
from odfd.node.assembly import access_of
from odfd.runtime.supervision import Life
from odfd.store.idempotency import AnswerStore
from odfd_client.flight_transport import FlightTransport
from worlds.called_services import CalledServices
from worlds.certificates import certified
from worlds.eventually import PATIENCE
from worlds.manifests import HOOKED
from worlds.node_world import Node, World, until

ACCOUNT = "$schema: Account\nheaders: {{name: {name}}}\nspec: {{email: {name}@example.com}}\n"
DATASET = """$schema: Dataset
headers: {{name: {name}{more}}}
spec:
  kind: Root
  metadata:
  - kind: AddPushSource
    sourceName: default
    read: {{kind: NdJson, schema: {{fields: [{{name: x, type: Int64}}]}}}}
    merge: {{kind: Append}}
"""


class Remote:
    """A node with accounts alice and bob, a dataset of alice and one of its owner, asked over TLS."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        self.access = access_of(node.features, node.services)
        self.certificate, self.key = certified(folder)
        self.tokens = node.parts.tokens
        settings = Api(listen=("127.0.0.1:0",), certificate=str(self.certificate), key=str(self.key))
        self.server = RemoteServer(settings, self.tokens.admit, structlog.get_logger())
        answers = AnswerStore(node.home.database, node.clock.now)
        api = application(node.services, structlog.get_logger(), answers, self.access)
        self.run = partial(self.server.run, api, node.api.endpoints.signed_push)

    @property
    def port(self) -> int:
        return int(self.server.urls[0].rpartition(":")[2])

    async def token(self, name: str, **said: Any) -> str:
        """Makes one as the account does at the socket."""
        subject = await self.access.subject({"headers": [(b"odfd-account", name.encode())], CALLER: Caller(1, 0, 0)})
        services = CalledServices.of(self.access.dispatcher(self.node.services, subject))
        view = await services.accounts.create_token(wire.TokenRequest(**said))
        return str(view.token)

    def connected(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.certificate)
        plain = socket.create_connection(("127.0.0.1", self.port), PATIENCE)
        return context.wrap_socket(plain, server_hostname="localhost")

    def asked(
        self, method: str, path: str, token: str | None, body: object = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        context = ssl.create_default_context(cafile=self.certificate)
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=PATIENCE, context=context)
        more = {} if token is None else {"Authorization": f"Bearer {token}"}
        data = None if body is None else json.dumps(body)
        try:
            connection.request(
                method, path, data, {**more, **{name.replace("_", "-"): headers[name] for name in headers}}
            )
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"null"), answer.headers
        finally:
            connection.close()

    def called(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any]:
        context = ssl.create_default_context(cafile=self.certificate)
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=PATIENCE, context=context)
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    async def ask(
        self, method: str, path: str, token: str | None, body: object = None, **headers: str
    ) -> tuple[int, Any]:
        status, said, _ = await trio.to_thread.run_sync(lambda: self.asked(method, path, token, body, **headers))
        return status, said

    async def names(self, token: str) -> list[str]:
        status, said = await self.ask("GET", "/dataset/v1alpha1/datasets", token)
        assert status == 200, said
        return [each["headers"]["name"] for each in said["items"]]

    def client(self, token: str) -> ControlClient:
        file = self.folder / "token"
        file.touch(mode=0o600)
        file.write_text(token + "\n")
        url = self.server.urls[0]
        return ControlClient(Path("/nowhere"), remote=remote_node(url, str(file), str(self.certificate)))


@asynccontextmanager
async def served(world: World, folder: Path) -> AsyncIterator[Remote]:
    async with world.running("node", private=True) as node:
        await node.apply(ACCOUNT.format(name="alice"), ACCOUNT.format(name="bob"))
        await node.apply(DATASET.format(name="hers", more=", account: alice"), DATASET.format(name="theirs", more=""))
        there, life = Remote(node, folder), Life()
        with trio.fail_after(PATIENCE):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(there.run, life)
                await life.wait_ready()
                yield there
                life.stopping.set()
                nursery.cancel_scope.cancel()


async def test_a_token_gives_the_rights_of_its_account_over_tls(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as there:
        alice, bob = await there.token("alice"), await there.token("bob")
        assert there.server.urls[0].startswith("https://localhost:")
        assert (await there.names(alice), await there.names(bob)) == (["hers"], [])
        for path in ("/dataset/v1alpha1/datasets/theirs/detail", "/dataset/v1alpha1/dataset/theirs"):
            assert (await there.ask("GET", path, alice))[0] == 404
        status, problem = await there.ask("GET", "/node/v1alpha1/settings", alice)
        assert (status, problem["rule"]) == (403, "access-owner")
        status, said = await there.ask("POST", "/graphql", alice, {"query": "{datasets {items {name}}}"})
        assert [each["name"] for each in said["data"]["datasets"]["items"]] == ["hers"]
        # A token is of one account, whatever the request says.
        status, problem = await there.ask("GET", "/dataset/v1alpha1/datasets", bob, odfd_account="alice")
        assert (status, problem["rule"]) == (403, "access-account")
        # As odfctl asks.
        client = there.client(alice)
        view = await trio.to_thread.run_sync(client.do, calls.accounts_me())
        assert (view.value.name, view.value.node_owner) == ("alice", False)


async def test_a_token_reaches_no_further_than_it_says(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-02: a token that is found with its user, to gain more rights.

    Defence: it has at most the role for which it was created, also for administrators; it creates no token and revokes
    only itself.
    """
    async with served(world, tmp_path) as there:
        reader = await there.token("alice", role="reader")
        assert await there.names(reader) == ["hers"]
        new = {"$schema": "Dataset", "headers": {"name": "new"}, "spec": {"kind": "Root", "metadata": []}}
        for method, path, body in (
            ("POST", "/dataset/v1alpha1/datasets/hers/rename", {"name": "other"}),
            ("DELETE", "/dataset/v1alpha1/datasets/hers", None),
            ("POST", "/node/v1alpha1/publish", {"refs": ["hers"]}),
            ("POST", "/resource/v1alpha1/apply", new),
            ("POST", "/node/v1alpha1/uploads?name=x", None),
        ):
            status, problem = await there.ask(method, path, reader, body)
            assert (status, problem["rule"]) == (403, "access-role"), path
            assert "your token has at most the role reader" in problem["detail"]
        # Of an administrator, too.
        admins = (
            '$schema: Relations\nheaders: {name: admins}\nspec: {attributes: [{object: "Account:alice", name: admin, '
            "value: true}]}\n"
        )
        await there.node.apply(admins)
        whole = await there.token("bob")
        assert sorted(await there.names(reader)) == ["hers", "theirs"]
        assert (await there.ask("GET", "/node/v1alpha1/settings", reader))[0] == 403
        assert await there.names(whole) == []


async def test_a_token_makes_no_other_and_revokes_itself_alone(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as there:
        one, other = await there.token("alice", note="one"), await there.token("alice", note="other")
        ids = {each.note: each.id for each in there.tokens.list()}
        status, listed = await there.ask("GET", "/auth/v1alpha1/tokens", one)
        assert [each["note"] for each in listed] == ["one", "other"]
        assert not any(each.get("token") for each in listed)
        for method, path in (("POST", "/auth/v1alpha1/tokens"), ("DELETE", f"/auth/v1alpha1/tokens/{ids['other']}")):
            status, problem = await there.ask(method, path, one)
            assert (status, problem["rule"]) == (403, "token-by-token")
        assert (await there.ask("DELETE", f"/auth/v1alpha1/tokens/{ids['one']}", one))[0] == 200
        status, problem = await there.ask("GET", "/dataset/v1alpha1/datasets", one)
        assert (status, problem["rule"]) == (401, "access-token")
        assert await there.names(other) == ["hers"]


async def test_a_token_ends_with_its_account(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-02: a token that outlives its account, whose name is used again.

    Defence: it is bound to the account's id.
    """
    async with served(world, tmp_path) as there:
        token = await there.token("bob")
        assert await there.names(token) == []
        await there.node.api.declarations.delete("account", "bob")
        assert (await there.ask("GET", "/dataset/v1alpha1/datasets", token))[0] == 401
        await there.node.apply(ACCOUNT.format(name="bob"))
        assert (await there.ask("GET", "/dataset/v1alpha1/datasets", token))[0] == 401


async def test_without_a_good_token_nothing_is_answered(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-02: requests over TCP without a token, or with one that is wrong, expired, revoked, or of a deleted
    account.

    Defence: all are answered 401 with the same words, before more than a head is read; digests are compared in constant
    time.
    """
    async with served(world, tmp_path) as there:
        good = await there.token("alice")
        mistyped = good[:-1] + ("1" if good.endswith("0") else "0")
        for wrong in (None, "x", mistyped, token_of(bytes(8), bytes(32)), f"{good} {good}"):
            for path in ("/dataset/v1alpha1/datasets", "/openapi.json", "/nothing", "/auth/v1alpha1/self"):
                if path != "/dataset/v1alpha1/datasets" and wrong is not None:
                    continue
                status, problem, headers = await trio.to_thread.run_sync(there.asked, "GET", path, wrong)
                assert (status, problem["rule"]) == (401, "access-token")
                assert headers["www-authenticate"] == "Bearer"
        assert (await there.ask("GET", "/dataset/v1alpha1/datasets", good, host="evil.example"))[0] == 403
        assert (await there.ask("GET", "/dataset/v1alpha1/datasets", good, origin="https://evil.example"))[0] == 403
        assert await there.names(good) == ["hers"]


async def test_a_flood_of_wrong_tokens_is_refused_and_a_right_one_is_not(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-02: a flood of wrong tokens, to guess one, use the node's time or fill its log.

    Defence: a token has 256 random bits; an address has twenty attempts, then one in five seconds, and no line of the
    log; right tokens are answered meanwhile.
    """
    async with served(world, tmp_path) as there:
        good = await there.token("alice")
        with capture_logs() as logs:
            answered = [(await there.ask("GET", "/dataset/v1alpha1/datasets", "wrong"))[0] for _ in range(30)]
        assert answered[:20] == [401] * 20
        assert set(answered[24:]) == {429}
        assert len([each for each in logs if each["event"] == "api refused"]) < 30
        _, _, headers = await trio.to_thread.run_sync(there.asked, "GET", "/dataset/v1alpha1/datasets", "wrong")
        assert int(headers["retry-after"]) > 0
        assert await there.names(good) == ["hers"]


async def test_the_node_keeps_no_token_and_tells_none(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-02: a token that is read in a log, an answer, the database, a stored answer or a backup.

    Defence: the node stores digests, shows a token once, stores no answer that contains one, and logs none; a test
    searches everywhere for a canary.

    A canary, used rightly and wrongly, through every way: no answer, log line or file has it.
    """
    async with served(world, tmp_path) as there:
        with capture_logs() as logs:
            token = await there.token("alice", note="canary")
            id_ = there.tokens.list()[0].id
            said: list[Any] = [await there.ask("GET", path, token) for path in (
                "/dataset/v1alpha1/datasets", "/auth/v1alpha1/self", "/auth/v1alpha1/tokens",
                "/resource/v1alpha1/resources", "/flow/v1alpha1/tasks", "/node/v1alpha1/nothing",
            )]  # fmt: skip
            said.append(await there.ask("GET", "/dataset/v1alpha1/datasets", token + "0"))
            kept = {"idempotency_key": "k1"}
            status, problem = await there.ask("POST", "/auth/v1alpha1/tokens", token, {}, **kept)
            assert (status, problem["rule"]) == (400, "idempotency-key")
            said.append(await there.ask("POST", "/node/v1alpha1/publish", token, {"refs": ["hers"]}, **kept))
            said += [await there.node.api.accounts.tokens(), await there.node.api.events.kept(())]
            await there.node.api.accounts.revoke_token(id_)
            said.append(await there.ask("GET", "/dataset/v1alpha1/datasets", token))
        secret = token.split("_")[2]
        assert secret not in repr(said)
        assert secret not in repr(logs)
        files = [path for path in there.node.home.directory.rglob("*") if path.is_file()]
        assert files
        assert not [path for path in files if secret.encode() in path.read_bytes()]


async def test_an_answer_that_is_kept_is_of_the_token_that_asked(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as there:
        alice, bob = await there.token("alice"), await there.token("bob")
        kept = {"idempotency_key": "k1"}
        assert (await there.ask("POST", "/node/v1alpha1/publish", alice, {"refs": ["hers"]}, **kept))[0] == 200
        assert (await there.ask("POST", "/node/v1alpha1/publish", bob, {"refs": ["hers"]}, **kept))[0] != 200


async def test_files_are_not_given_over_tcp(world: World, tmp_path: Path) -> None:
    admins = (
        '$schema: Relations\nheaders: {name: admins}\nspec: {attributes: [{object: "Account:alice", name: admin, '
        "value: true}]}\n"
    )
    async with served(world, tmp_path) as there:
        await there.node.apply(admins)
        token = await there.token("bob")
        status, problem = await there.ask("POST", "/node/v1alpha1/slices", token, {"sql": "select 1"})
        assert (status, problem["rule"]) == (403, "query-slices")


async def test_who_sends_no_more_than_a_head_is_left_and_others_are_answered(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-01: connections to the API that are silent, end amid TLS or a head, or announce a body.

    Defence: silent ones are closed for newcomers; without a token the node waits at most two seconds for a body.

    Silence before and after TLS, a head that never ends, and a body that never comes keep nobody out.
    """
    async with served(world, tmp_path) as there:
        good = await there.token("alice")
        waiting: list[Any] = []
        heads = (
            b"",
            b"GET / HTTP/1.1\r\n",
            b"POST /node/v1alpha1/uploads HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n",
        )

        def crowd() -> None:
            for number in range(150):
                if number % 3 == 0:
                    waiting.append(socket.create_connection(("127.0.0.1", there.port), PATIENCE))
                    continue
                waiting.append(there.connected())
                with suppress(OSError):
                    waiting[-1].send(heads[number % len(heads)])

        await trio.to_thread.run_sync(crowd)
        try:
            assert await there.names(good) == ["hers"]
            assert there.server.server.connections <= 256
        finally:
            for each in waiting:
                each.close()
    assert LIMITS.head_seconds <= 10
    assert LIMITS.drain_seconds <= 2


async def test_a_huge_head_is_refused_before_anything_is_looked_at(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-01: a request to the API with a head of any size.

    Defence: at most 16 KiB are read, within ten seconds.
    """
    async with served(world, tmp_path) as there:
        good = await there.token("alice")

        def asked() -> bytes:
            with there.connected() as connection:
                with suppress(OSError):
                    connection.sendall(b"GET /dataset/v1alpha1/datasets HTTP/1.1\r\n" + b"x-a: " + b"a" * 200_000)
                said = b""
                with suppress(OSError):
                    while data := connection.recv(65536):
                        said += data
                return said

        said = await trio.to_thread.run_sync(asked)
        assert said[9:10] in (b"4", b""), said[:100]
        assert await there.names(good) == ["hers"]


async def test_an_account_has_a_part_of_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-HTTP-01: an account that occupies all connections of the API.

    Defence: it has at most 64 requests at a time.
    """
    monkeypatch.setattr(remote, "AT_ONCE", 2)
    begun, go = [], trio.Event()

    async def api(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope[remote.GRANT].account)
        await go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def admit(token: str) -> Any:
        return type("Grant", (), {"account": token})()

    door = RemoteApplication(api, admit, frozenset({"h"}), structlog.get_logger(), lambda: 0.0)
    statuses: list[int] = []

    async def ask(account: str) -> None:
        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        headers = [(b"host", b"h"), (b"authorization", f"Bearer {account}".encode())]
        await door.of("192.0.2.1")({"headers": headers}, None, send)  # type: ignore[arg-type]

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            for account in ("a", "a", "b"):
                nursery.start_soon(ask, account)
            while len(begun) < 3:
                await trio.lowlevel.checkpoint()
            await ask("a")
            assert statuses == [429]
            go.set()
        await ask("a")
    assert statuses == [429, 200, 200, 200, 200]


@pytest.mark.parametrize("address", ["0.0.0.0:7465", "[::]:7465", "192.0.2.1:7465"])
def test_beyond_this_machine_it_needs_tls(address: str) -> None:
    assert not cross(Settings(), {})
    (problem,) = cross(Settings(api=Api(listen=(address,))), {})
    assert "unencrypted" in str(problem)
    assert not cross(Settings(api=Api(listen=(address,), certificate="c", key="k")), {})
    assert not cross(Settings(api=Api(listen=("127.0.0.1:7465",))), {})
    (problem,) = cross(Settings(api=Api(listen=("localhost:1",))), {})
    assert "not an IP address" in str(problem)
    (problem,) = cross(Settings(api=Api(certificate="c")), {})
    assert "its key" in str(problem)


MISTAKES: list[tuple[Callable[[Path], tuple[str, str, str]], str]] = [
    (lambda _: ("ftp://node", "", ""), "node-url"),
    (lambda _: ("http://node.example:1", "", ""), "node-url"),
    (lambda _: ("https://u:p@node:1", "", ""), "node-url"),
    (lambda _: ("https://node:1/x", "", ""), "node-url"),
    (lambda _: ("https://node:1", "", ""), "token-file"),
    (lambda folder: ("https://node:1", str(folder / "none"), ""), "token-file"),
    (lambda folder: ("https://node:1", str(folder / "open"), ""), "token-file"),
    (lambda folder: ("https://node:1", str(folder / "empty"), ""), "token-file"),
]


@pytest.mark.parametrize("mistake", range(len(MISTAKES)))
def test_a_node_that_cannot_be_asked_is_told_of_before_it_is(mistake: int, tmp_path: Path) -> None:
    for name, mode in (("open", 0o644), ("empty", 0o600)):
        (tmp_path / name).touch(mode=mode)
    words, rule = MISTAKES[mistake]
    with pytest.raises((Invalid, Environment)) as caught:
        remote_node(*words(tmp_path))
    assert caught.value.rule == rule
    assert caught.value.hint


async def test_odfctl_tells_a_certificate_that_it_does_not_know(world: World, tmp_path: Path) -> None:
    """Attack T-HTTP-02: a token intercepted on the line.

    Defence: addresses beyond this machine need TLS; odfctl and the client never send a token there unencrypted, and
    check the certificate.
    """
    async with served(world, tmp_path) as there:
        client = there.client(await there.token("alice"))
        assert (await trio.to_thread.run_sync(client.ask, calls.accounts_me()))["name"] == "alice"
        other = tmp_path / "other"
        other.mkdir()
        node = remote_node(there.server.urls[0], str(tmp_path / "token"), str(certified(other)[0]))
        with pytest.raises(Refused) as refused:
            await trio.to_thread.run_sync(ControlClient(Path("/nowhere"), remote=node).ask, calls.accounts_me())
        assert refused.value.rule == "certificate"
        plain = remote_node(there.server.urls[0].replace("https", "http"), str(tmp_path / "token"), "")
        with pytest.raises(Fault):
            await trio.to_thread.run_sync(ControlClient(Path("/nowhere"), remote=plain).ask, calls.accounts_me())


async def test_the_client_for_python_asks_by_a_token(world: World, tmp_path: Path) -> None:
    async with served(world, tmp_path) as there:
        url, token = there.server.urls[0], await there.token("alice")

        def asked() -> list[str]:
            client = odfd_client.connect(url, token=token, ca_file=there.certificate)
            return [each.name for each in client.datasets()]

        assert await trio.to_thread.run_sync(asked) == ["hers"]
        for wrong in ("", "wrong"):
            with pytest.raises(odfd_client.Refused):
                await trio.to_thread.run_sync(
                    lambda given: odfd_client.connect(url, token=given, ca_file=there.certificate), wrong
                )
    with pytest.raises(odfd_client.Invalid, match="unencrypted"):
        odfd_client.connect("http://node.example:7465", token=token)
    with pytest.raises(odfd_client.Invalid, match="for a URL"):
        odfd_client.connect("/nowhere", token=token)


async def test_the_client_for_python_appends_with_the_rights_of_its_account(world: World, tmp_path: Path) -> None:
    rows = pyarrow.table({"x": pyarrow.array([1, 2], pyarrow.int64())})
    async with served(world, tmp_path) as there:
        url, token, other = there.server.urls[0], await there.token("alice"), await there.token("bob")

        def appended(token: str, ref: str) -> object:
            client = odfd_client.connect(url, token=token, ca_file=there.certificate)
            point = client.commit_point(ref)
            return client.append(ref, rows, id="a", after=point), client.commit_point(ref)

        for given, ref in ((other, "hers"), (token, "theirs")):
            with pytest.raises((odfd_client.NotFound, odfd_client.Refused)):
                await trio.to_thread.run_sync(appended, given, ref)
        with pytest.raises(odfd_client.Refused) as refused:
            await trio.to_thread.run_sync(appended, token, "hers")
        assert refused.value.rule == "push-format", "its source reads lines of JSON"
    with pytest.raises(odfd_client.Refused) as refused:
        odfd_client.Client(FlightTransport("grpc://127.0.0.1:1")).append("hers", rows)
    assert refused.value.rule == "flight-question"


async def test_a_signed_call_needs_no_token_and_another_learns_of_no_source(world: World, tmp_path: Path) -> None:
    """Attack T-SOURCE-06: an unauthorised caller that pushes rows through a webhook, or looks for names of Sources.

    Defence: a call counts only by the HMAC of its body; every other call gets one answer, whether a Source exists or
    not, and its address is refused after some attempts.
    """
    async with served(world, tmp_path) as there:
        await there.node.apply(HOOKED)

        async def call(name: str, body: bytes, key: bytes, **more: str) -> tuple[int, Any]:
            said = "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()
            headers = {"X-Hub-Signature-256": said, **{each.replace("_", "-"): more[each] for each in more}}
            return await trio.to_thread.run_sync(lambda: there.called(f"/hooks/{name}", body, headers))

        key = b"sesame-open-sesame-open-sesame"
        status, said = await call("hooked", b'{"x": 1}', key, x_delivery="one")
        assert (status, said["number"], said["records"], said["repeated"]) == (201, 1, 1, False)
        status, said = await call("hooked", b'{"x": 1}', key, x_delivery="one")
        assert (status, said["repeated"]) == (201, True)
        refused = {
            json.dumps(await call(name, b'{"x": 2}', each))
            for name, each in (("hooked", b"another"), ("closed", key), ("nowhere", key), ("hooked/../closed", key))
        }
        assert len(refused) == 1, "the same answer, whatever there is"
        (status, problem) = json.loads(refused.pop())
        assert (status, problem["rule"]) == (401, "webhook-signature")
        status, problem = await call("hooked", b'{"x"', key)
        assert (status, problem["rule"]) == (422, "push-format")
        status, problem = await call("hooked", b" " * (1 << 20) + b"1", key)
        assert (status, problem["rule"]) == (422, "push-size")
        assert (await there.node.api.endpoints.show("hooked")).pushes == 1
        for _ in range(30):
            status, problem = await call("hooked", b"{}", b"wrong")
            if status == 429:
                break
        assert problem["rule"] == "access-token-limit"
        assert (await call("hooked", b'{"x": 3}', key))[0] == 201, "whoever signs right is never refused for it"


async def test_queries_of_an_account_leave_a_place_to_the_owner(world: World, tmp_path: Path) -> None:
    """Four readers: an account that asks six times at once has three."""
    async with served(world, tmp_path) as there:
        token, queries = await there.token("alice"), there.node.api.queries
        callers, over = list[str](), trio.Event()

        async def stuck(_: object, asked: tuple[Any, ...], __: object) -> None:
            callers.append(asked[1].caller.crowd.name)
            await over.wait()
            raise Refused("it is over", rule="over")

        async def ask_as_owner() -> None:
            with pytest.raises(Refused, match="it is over"):
                await queries.answer(wire.QueryRequest(sql="select 1"), None)

        queries._answer = stuck
        asking = {"sql": "select 1"}
        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(there.ask, "POST", "/node/v1alpha1/query", token, asking)
            await until(lambda: len(callers) == 3 and queries.turns.waiting == 3)
            nursery.start_soon(ask_as_owner)
            await until(lambda: len(callers) > 3)
            assert callers == ["ACCOUNTS"] * 3 + ["OWNER"]
            over.set()
