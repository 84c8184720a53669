"""Serves the smart protocol beside a site: ``/NAME/pull`` and ``/NAME/push`` as web sockets, and uploads by PUT.

Public datasets are pulled without a token. With a token, its account pulls and reads what it may read, and pushes what
it may change. A token is accepted only over a connection from this machine, since the site has no TLS: to serve others,
a proxy with TLS is put in front of it. Machines decide (``pull``, ``push``); this module handles sockets and threads.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

import trio

from chain.errors import Conflict, Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from odfd.errors import PROBLEM_JSON, http_status, sole_faults, to_problem, told_to_others
from odfd.published.signed import COLLECTION, MAX_COLLECTION
from odfd.runtime.http import UPGRADE, Application, Message, Receive, Send
from odfd.runtime.supervision import Logger
from odfd.runtime.websocket import SocketClosed, StreamBytes, WebSocket, accept_key
from odfd.site.requests import TRANSFERS, read_body
from odfd.site.server import PAY, VISITOR
from odfd.smart import plans, push
from odfd.smart.batches import MAX_TEXT, PULLED, PUSHED, Unpacker, pack
from odfd.smart.messages import VERSION, VERSION_HEADER
from odfd.smart.ports import ChainLibrary, PushSession, SmartBackend, VisitorLibrary
from odfd.smart.pull import Fail, GiveBlocks, PullServer, Resolve, Say, TakeBlocks
from odfd.smart.push import PushServer
from p2p.budget.connection_slots import SilentConnections
from p2p.budget.work import SITE_PACK

Args = TypeVarTuple("Args")
T = TypeVar("T")
THREADS: Final = 4
"""Calls of the library at once, for all transfers."""
SESSIONS: Final = 32
"""Transfers at a time; further ones are refused."""
IDLE: Final = 16
"""Pulls at a time, of these, whose other side reads objects over other connections: a new one replaces the oldest."""
IDLE_SECONDS: Final = 6 * 3600.0
"""Seconds for it to read all objects."""
_HOST: Final = re.compile(r"(?:[A-Za-z0-9.-]{1,255}|\[[0-9a-fA-F:.]{2,45}\])(?::[0-9]{1,5})?\Z")
_KEY: Final = re.compile(r"[A-Za-z0-9+/]{22}==\Z")
_OBJECT: Final = re.compile(r"(data|checkpoints)/([^/]{1,160})\Z")
PACKING: Final = SITE_PACK / 8
"""Microseconds of a core to read and pack blocks for one piece of a message."""
PLANNING: Final = 50.0
"""Microseconds of a core to look at one block that is counted."""
UNPACKING: Final = SITE_PACK / 8
"""Microseconds of a core to unpack one piece of a message."""


class SmartApplication:
    """The ASGI application. ``site`` answers all other requests: for public datasets, or those of a given library."""

    def __init__(
        self,
        library: VisitorLibrary,
        site: Callable[[VisitorLibrary], Application],
        logger: Logger,
        backend: Callable[[], SmartBackend],
        *,
        takes_pushes: bool,
    ) -> None:
        self._backend = backend
        self._library, self._site_of, self._site, self._logger = library, site, site(library), logger
        self._takes_pushes = takes_pushes
        self._threads = trio.CapacityLimiter(THREADS)
        self._idle = SilentConnections(IDLE)
        self._sessions = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        ref, _, file = scope["path"].strip("/").partition("/")
        call = _Call(scope, headers, ref, file)
        if file not in TRANSFERS and scope["method"] != "PUT" and call.token is None:
            return await self._site(scope, receive, send)
        try:
            with sole_faults():
                await self._answer(call, receive, send)
        except Fault as fault:
            await _refuse(send, self._to_fault(fault, call))

    async def _answer(self, call: _Call, receive: Receive, send: Send) -> None:
        token = self._token(call)
        if call.scope["method"] == "PUT":
            await (self._unite if call.file == COLLECTION else self._upload)(call, token, receive)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            return await send({"type": "http.response.body", "body": b""})
        if call.file == "push":
            return await self._push(call, token)
        library = self._library if token is None else await self._ask(self.backend.library, token)
        if call.file == "pull":
            return await self._pull(call, library)
        return await self._site_of(library)(call.scope, receive, send)

    # Pull.

    async def _pull(self, call: _Call, library: ChainLibrary) -> None:
        accept = _handshake(call)
        dataset = await self._ask(library.find, call.ref)
        if dataset is None or not await self._ask(library.size, dataset):
            raise NotFound(
                f"there is no {call.scope['path'][:300]} here", rule="site-missing", hint="GET / lists the datasets"
            )
        machine = PullServer(call.url, call.passed_on)
        async with self._open(call, accept) as socket:
            try:
                with sole_faults():
                    await self._giving(machine, socket, library, dataset, call)
            except SocketClosed:
                return
            except Fault as fault:
                await self._fail(socket, machine.failure(self._to_fault(fault, call)))

    async def _giving(
        self, machine: PullServer, socket: WebSocket, library: ChainLibrary, dataset: DatasetId, call: _Call
    ) -> None:
        interval: plans.BlockInterval | plans.NoInterval | None = None
        while True:
            match machine.receive(await self._next(machine, socket, call)):
                case Say(text):
                    await socket.send(text)
                case Resolve() as asked:
                    interval = await self._ask(plans.resolve, library, dataset, asked)
                    if isinstance(interval, plans.NoInterval):
                        return await socket.send(machine.no_interval(*interval).text)
                    await call.pay(PLANNING * interval.plan.num_blocks)
                    await socket.send(machine.answer_plan(interval.plan).text)
                case GiveBlocks():
                    assert isinstance(interval, plans.BlockInterval)
                    blocks = plans.named_blocks(library, dataset, interval)
                    packed = pack(PULLED, interval.plan.num_blocks, blocks)
                    async with aclosing(self._iterate_in_worker(packed, call)) as pieces:
                        await socket.send_pieces(pieces)
                    machine.end_metadata()

    async def _next(self, machine: PullServer, socket: WebSocket, call: _Call) -> str:
        if not machine.is_idle:
            return await socket.receive(machine.limit)
        leaving = trio.CancelScope()
        with leaving, self._idle.silent(call.visitor, leaving):
            return await socket.receive(machine.limit, IDLE_SECONDS)
        raise Refused("the transfer was idle, and others wait for its slot", rule="smart-busy")

    # Push.

    async def _push(self, call: _Call, token: str | None) -> None:
        backend, accept = self._pushing_backend(token), _handshake(call)
        session = await self._ask(backend.push, token or "", call.ref)
        machine = PushServer(call.url, call.passed_on)
        try:
            async with self._open(call, accept) as socket:
                try:
                    with sole_faults():
                        async with trio.open_nursery() as nursery:
                            nursery.start_soon(_ticking, machine, socket)
                            await self._taking(machine, socket, session, call)
                            nursery.cancel_scope.cancel()
                except SocketClosed:
                    return
                except Fault as fault:
                    await self._fail(socket, machine.failure(self._to_fault(fault, call)))
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(session.close)

    async def _taking(self, machine: PushServer, socket: WebSocket, session: PushSession, call: _Call) -> None:
        while not machine.is_over:
            effects: list[push.ServerEffect] = [machine.receive(await socket.receive(machine.limit))]
            for effect in effects:
                match effect:
                    case Say(text):
                        await socket.send(text)
                    case push.CheckHead(_, is_forced):
                        if is_forced:
                            raise Refused(
                                "no history is overwritten here", rule="smart-force", hint="push without force"
                            )
                        effects += machine.head_is(await self._ask(session.head))
                    case TakeBlocks():
                        effects.append(machine.note_taken(await self._stage(socket, session, call)))
                    case push.Negotiate(files):
                        effects.append(machine.lacking(await self._ask(session.lacking, files)))
                    case push.CommitStaged():
                        await session.commit()
                        effects.append(machine.note_commit())
                    case push.Wait():
                        pass

    async def _stage(self, socket: WebSocket, session: PushSession, call: _Call) -> int:
        unpacker = Unpacker(PUSHED)
        async with aclosing(socket.receive_pieces(MAX_TEXT)) as pieces:
            async for piece in pieces:
                await call.pay(UNPACKING)
                if blocks := await self._ask(unpacker.feed, piece):
                    await self._ask(session.stage, blocks)
        return unpacker.finish()

    async def _unite(self, call: _Call, token: str | None, receive: Receive) -> None:
        backend = self._pushing_backend(token)
        body = await read_body(receive, MAX_COLLECTION)
        if isinstance(body, int):
            raise Invalid(f"{COLLECTION} did not come as a whole", rule="smart-length", hint="push again")
        await backend.unite(token or "", call.ref, body)

    async def _upload(self, call: _Call, token: str | None, receive: Receive) -> None:
        found = _OBJECT.match(call.file)
        length = call.headers.get("content-length", "")
        if found is None:
            raise Refused("PUT is for objects of a push", rule="site-method", hint="odfctl push")
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise Invalid("an upload says how long it is", rule="smart-length", hint="send Content-Length")
        backend, name = self._pushing_backend(token), Multihash.parse(found[2])
        incoming = await self._ask(backend.upload, token or "", call.ref, name, int(length))
        try:
            more = True
            while more:
                message = await receive()
                more = message.get("more_body", False)
                if incoming is not None and (body := message.get("body", b"")):
                    await self._ask(incoming.write, body)
            if incoming is not None:
                await self._ask(incoming.finish)
        finally:
            if incoming is not None:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(incoming.close)

    # Common.

    def _token(self, call: _Call) -> str | None:
        """Returns the token of a request. Raises Refused if it came unencrypted from another machine."""
        given = call.token
        if given is None:
            return None
        if not ipaddress.ip_address(call.visitor.partition("%")[0]).is_loopback:
            text = "a token was sent unencrypted over the network: it is refused, and should be revoked"
            hint = "put a proxy with TLS in front of http.listen, on this machine; odfctl token revoke ID"
            raise Refused(text, rule="smart-clear", hint=hint)
        return given

    @property
    def backend(self) -> SmartBackend:
        """Decides what tokens permit."""
        return self._backend()

    def _pushing_backend(self, token: str | None) -> SmartBackend:
        if not self._takes_pushes:
            hint = "its owner sets http.push; datasets are pulled all the same"
            raise Refused("this node takes no pushes over HTTP", rule="smart-push-off", hint=hint)
        if token is None:
            raise _no_token()
        return self.backend

    @asynccontextmanager
    async def _open(self, call: _Call, accept: bytes) -> AsyncIterator[WebSocket]:
        """Switches to the web socket, and closes it at the end."""
        if self._sessions >= SESSIONS:
            raise Environment(f"{SESSIONS} transfers are under way", rule="smart-busy", hint="try again later")
        self._sessions += 1
        try:
            headers = [(b"Upgrade", b"websocket"), (b"Connection", b"Upgrade"), (b"Sec-WebSocket-Accept", accept)]
            upgraded = await call.scope[UPGRADE](headers)
            socket = WebSocket(StreamBytes(upgraded.stream), is_client=False, came=upgraded.came)
            yield socket
            await socket.close()
        finally:
            self._sessions -= 1

    async def _fail(self, socket: WebSocket, told: Say | Fail) -> None:
        try:
            if isinstance(told, Say):
                await socket.send(told.text)
            else:
                await socket.close(told.code, told.reason)
        except Fault:
            return

    def _to_fault(self, fault: Fault, call: _Call) -> Fault:
        if isinstance(fault, Environment):
            self._logger.error("a transfer failed", path=call.scope["path"][:300], fault=str(fault), rule=fault.rule)
        return fault if isinstance(fault, Conflict | Refused) else told_to_others(fault)

    async def _iterate_in_worker(self, pieces: Iterator[str], call: _Call) -> AsyncGenerator[str, None]:
        while (piece := await self._ask(next, pieces, None)) is not None:
            await call.pay(PACKING)
            yield piece

    async def _ask(self, call: Callable[[*Args], T], *args: *Args) -> T:
        return await trio.to_thread.run_sync(call, *args, limiter=self._threads)


class _Call(NamedTuple):
    """The parts of a request."""

    scope: Message
    headers: dict[str, str]
    ref: str
    file: str

    @property
    def visitor(self) -> str:
        return str(self.scope.get(VISITOR, "127.0.0.1"))

    @property
    def token(self) -> str | None:
        """The bearer token; ``None`` for other kinds of authorization, which are meant for a proxy in front of us."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else None

    @property
    def url(self) -> str:
        """The dataset's URL as the visitor sees it, with its last slash. Raises Invalid."""
        host = self.headers.get("host", "")
        if not _HOST.match(host):
            raise Invalid("a request names its host", rule="smart-host", hint="send the header Host")
        is_secure = self.headers.get("x-forwarded-proto", "").lower() == "https"
        raw = self.scope["raw_path"].decode("latin-1")
        return f"http{'s' if is_secure else ''}://{host}{raw.rstrip('/').rpartition('/')[0]}/"

    async def pay(self, cost: float) -> None:
        """Charges the visitor for work. Raises Refused if the visitor causes too much."""
        if (pay := self.scope.get(PAY)) is not None:
            await pay(cost)

    @property
    def passed_on(self) -> dict[str, str]:
        """Returns the headers that the visitor is to send with each object."""
        token = self.token
        return {VERSION_HEADER: str(VERSION)} | ({} if token is None else {"authorization": f"Bearer {token}"})


async def _ticking(machine: PushServer, socket: WebSocket) -> None:
    """Asks for progress while the other side uploads. When cancelled, a question is sent whole or not at all."""
    while True:
        await trio.sleep(push.TICK_SECONDS)
        if machine.is_asking:
            with trio.CancelScope(shield=True):
                await socket.send(machine.tick().text)


def _handshake(call: _Call) -> bytes:
    """Returns the value that accepts the web socket.
    Raises Invalid for a request that asks for none, or another version."""
    headers = call.headers
    key = headers.get("sec-websocket-key", "")
    is_asked = headers.get("upgrade", "").lower() == "websocket" and UPGRADE in call.scope
    if call.scope["method"] != "GET" or not is_asked or not _KEY.match(key):
        hint = "odfctl pull odf+http://…, or kamu pull, speaks it"
        raise Invalid(f"/{call.file} is a web socket of the smart transfer protocol", rule="smart-upgrade", hint=hint)
    if headers.get("sec-websocket-version") != "13":
        raise Invalid("version 13 of web sockets is spoken here", rule="smart-upgrade")
    if headers.get(VERSION_HEADER) != str(VERSION):
        text = f"version {VERSION} of the smart transfer protocol is spoken here"
        raise Invalid(text, rule="smart-version", hint=f"send the header {VERSION_HEADER}: {VERSION}")
    return accept_key(key.encode())


def _no_token() -> Refused:
    hint = "send Authorization: Bearer TOKEN; at the node odfctl token create makes one"
    return Refused("a token is needed for this", rule="access-token", hint=hint)


_STATUS: Final = {
    "smart-upgrade": 426,
    "smart-version": 400,
    "smart-length": 411,
    "site-method": 405,
    "smart-push-off": 501,
}


async def _refuse(send: Send, fault: Fault) -> None:
    """Answers with the fault, and closes: the rest of the request is not read."""
    status = _STATUS.get(fault.rule, http_status(fault))
    body = json.dumps(to_problem(fault) | {"status": status}).encode()
    headers = [
        (b"content-type", PROBLEM_JSON.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
