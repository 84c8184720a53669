"""Transcripts of the smart transfer protocol: made from what passed between two programs, and read again by tests.

A transcript is a list of steps, each a JSON object, in the order in which they began:

* ``{"ask": "GET /NAME/refs/head", "headers": …, "body": …, "status": …, "answer": …}``: a request over HTTP;
* ``{"open": "/NAME/pull", "headers": …, "status": 101}``: a web socket, of which there is one at a time;
* ``{"client": MESSAGE}``, ``{"server": MESSAGE}``, ``{"client ends": [CODE, REASON]}``: what was said on it.

Requests between two of these messages are sorted, since several go at once. Masked are: the server's address
(``HOST``), the token (``TOKEN``), and headers that say nothing of the protocol. A body of the golden dataset is named
by its path.
"""

from __future__ import annotations

import base64
import json
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import h11
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, TextMessage
from wsproto.frame_protocol import CloseReason

from chain.codec.blocks import decode_block
from chain.model.block import objects_of
from chain.multihash import Multihash
from chain.store.layout import BLOCKS, DATA, HEAD, DirectoryChain
from odfd.smart.batches import PULLED, PUSHED, Unpacker
from worlds.between import Line

Step = dict[str, Any]
KEPT: Final = ("authorization", "x-odf-smtp-version", "content-type", "content-length", "range")
"""Headers of requests that stay: those that mean something to either side."""


class Mask(NamedTuple):
    """What is replaced in a transcript."""

    host: str
    token: str

    def hide(self, text: str) -> str:
        hidden = text.replace(self.token, "TOKEN") if self.token else text
        return hidden.replace(self.host, "HOST")

    def show(self, text: str) -> str:
        return text.replace("TOKEN", self.token).replace("HOST", self.host)


def steps_of(lines: Iterable[Line], since: int, mask: Mask, golden: Path) -> list[Step]:
    """The transcript of what passed on these lines since a mark; of a line that is older, the rest."""
    found: list[tuple[int, Step]] = []
    for line in lines:
        found += [each for each in _Parser(mask, golden).run(line) if each[0] >= since]
    found.sort(key=lambda each: each[0])
    steps: list[Step] = []
    waiting: list[Step] = []
    for _, step in found:
        if "ask" in step:
            waiting.append(step)
            continue
        steps += [*sorted(waiting, key=_key), step]
        waiting = []
    return steps + sorted(waiting, key=_key)


def _key(step: Step) -> str:
    return str(step["ask"])


def text_of(message: Any, mask: Mask) -> str:
    """The text of a message, as it was on the line but for what is masked."""
    if (batch := _batch(message)) and "payload" in batch:
        payload = list(base64.b64decode(batch["payload"]["base64"]))
        member = next(iter(message))
        message = {member: {**batch, "payload": payload}}
    return mask.show(_compact(message))


def message_of(text: str, mask: Mask) -> Any:
    """The message of a text. A batch's bytes are kept in fewer characters."""
    message = json.loads(text)
    if batch := _batch(message):
        packed = {"base64": base64.b64encode(bytes(batch["payload"])).decode()}
        return {next(iter(message)): {**batch, "payload": packed}}
    return json.loads(mask.hide(text))


def same(message: Any) -> Any:
    """A message in a form that two writers of it share: blocks as they are unpacked, objects in one order."""
    if batch := _batch(message):
        member = next(iter(message))
        unpacker = Unpacker(member)
        blocks = unpacker.feed(text_of(message, Mask("", "")))
        unpacker.finish()
        rest = {name: value for name, value in batch.items() if name != "payload"}
        return {member: {**rest, "blocks": [(str(name), raw) for name, raw in blocks]}}
    return _ordered(message)


def comparable(steps: Sequence[Step]) -> list[Step]:
    """Steps in a form in which two recordings are equal. Who ends first when all is said is a matter of chance."""
    return [_comparable(step) for step in steps]


def _comparable(step: Step) -> Step:
    if ended := step.get("client ends") or step.get("server ends"):
        return {"ends": int(ended[0])} if ended[0] == CloseReason.NORMAL_CLOSURE else step
    return {name: same(value) if name in ("client", "server") else value for name, value in step.items()}


def _ordered(message: Any) -> Any:
    if isinstance(message, dict):
        return {name: _ordered(value) for name, value in message.items()}
    if isinstance(message, list):
        return sorted(map(_ordered, message), key=_compact)
    return message


def body_of(body: Any, golden: Path) -> bytes:
    """The bytes of a body of a transcript."""
    if isinstance(body, str):
        return body.encode()
    if "golden" in body:
        return Path(golden, body["golden"]).read_bytes()
    return base64.b64decode(body["base64"])


def read(path: Path) -> dict[str, list[Step]]:
    """The sessions of a file of transcripts."""
    found: dict[str, list[Step]] = json.loads(path.read_text())["sessions"]
    return found


def write(path: Path, made_by: str, sessions: dict[str, Sequence[Step]]) -> None:
    lines = []
    for name, steps in sessions.items():
        told = ",\n".join(json.dumps(step) for step in steps)
        lines.append(f"{json.dumps(name)}: [\n{told}\n]")
    path.write_text(f'{{"made by": {json.dumps(made_by)}, "sessions": {{\n{",".join(lines)}\n}}}}\n')


def _batch(message: Any) -> Any:
    if isinstance(message, dict) and len(message) == 1 and next(iter(message)) in (PULLED, PUSHED):
        return next(iter(message.values()))
    return None


def _compact(message: Any) -> str:
    return json.dumps(message, separators=(",", ":"), ensure_ascii=False)


class _Parser:
    """Reads one line."""

    def __init__(self, mask: Mask, golden: Path) -> None:
        self._mask, self._golden = mask, golden
        self._http = {True: h11.Connection(h11.SERVER), False: h11.Connection(h11.CLIENT)}
        self._sockets: dict[bool, Connection] = {}
        self._texts = {True: "", False: ""}
        self._step: Step = {}
        self._bodies = {True: b"", False: b""}
        self._found: list[tuple[int, Step]] = []
        self._is_over = False

    def run(self, line: Line) -> list[tuple[int, Step]]:
        for number, is_client, data in line.passed:
            if self._sockets:
                self._frames(number, is_client, data)
            else:
                self._messages(number, is_client, data)
        return self._found

    def _messages(self, number: int, is_client: bool, data: bytes) -> None:
        machine = self._http[is_client]
        machine.receive_data(data)
        while True:
            event = machine.next_event()
            if event in (h11.NEED_DATA, h11.PAUSED) or isinstance(event, h11.ConnectionClosed):
                return
            match event:
                case h11.Request():
                    self._asked(number, event)
                case h11.InformationalResponse(status_code=101):
                    self._switched()
                    if rest := machine.trailing_data[0]:
                        self._frames(number, False, rest)
                    return
                case h11.Response():
                    self._answered(event)
                case h11.Data():
                    self._bodies[is_client] += event.data
                case h11.EndOfMessage() if is_client:
                    self._http[False].send(h11.EndOfMessage())
                    if self._bodies[True]:
                        self._step["body"] = self._kept(self._bodies[True])
                case h11.EndOfMessage():
                    self._ended()
                    return

    def _asked(self, number: int, event: h11.Request) -> None:
        method, target = event.method.decode(), event.target.decode()
        headers = {name.decode(): value.decode() for name, value in event.headers}
        kept = {name: self._mask.hide(headers[name]) for name in KEPT if name in headers}
        is_socket = headers.get("upgrade", "").lower() == "websocket"
        self._step = {"open": target} if is_socket else {"ask": f"{method} {target}"}
        self._step |= {"headers": kept} if kept else {}
        self._bodies = {True: b"", False: b""}
        self._found.append((number, self._step))
        # What comes back is read by rules that depend on what was asked; bodies of any length may follow here.
        plain = [
            (name, value) for name, value in event.headers if name not in (b"content-length", b"transfer-encoding")
        ]
        plain += [(b"content-length", b"0")] if method in ("PUT", "POST") else []
        self._http[False].send(h11.Request(method=method, target=target, headers=plain))

    def _answered(self, event: h11.Response) -> None:
        self._step["status"] = event.status_code

    def _ended(self) -> None:
        """An answer is complete: the line is ready for the next request."""
        if self._bodies[False]:
            self._step["answer"] = self._kept(self._bodies[False])
        server = self._http[True]
        if server.their_state is h11.DONE:
            server.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
            server.send(h11.EndOfMessage())
        for machine in self._http.values():
            if machine.our_state is h11.DONE and machine.their_state is h11.DONE:
                machine.start_next_cycle()

    def _switched(self) -> None:
        self._step["status"] = 101
        self._sockets = {True: Connection(ConnectionType.SERVER), False: Connection(ConnectionType.CLIENT)}

    def _frames(self, number: int, is_client: bool, data: bytes) -> None:
        socket = self._sockets[is_client]
        socket.receive_data(data)
        for event in socket.events():
            if isinstance(event, TextMessage):
                self._texts[is_client] += event.data
                if event.message_finished:
                    self._said(number, is_client, self._texts[is_client])
                    self._texts[is_client] = ""
            elif isinstance(event, CloseConnection) and not self._is_over:
                self._is_over = True
                who = "client" if is_client else "server"
                self._found.append((number, {f"{who} ends": [event.code, event.reason or ""]}))

    def _said(self, number: int, is_client: bool, text: str) -> None:
        message = message_of(text, self._mask)
        if text_of(message, self._mask) != text:
            raise AssertionError(f"a message that is not kept as it was: {text[:500]}")
        self._found.append((number, {"client" if is_client else "server": message}))

    def _kept(self, body: bytes) -> Any:
        path = re.search(r"/((?:data|checkpoints|blocks)/\w+)$", str(self._step.get("ask", "")))
        if path is not None and (self._golden / path[1]).is_file():
            assert (self._golden / path[1]).read_bytes() == body
            return {"golden": path[1]}
        try:
            return self._mask.hide(body.decode())
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(body).decode()}


def shorter(golden: Path, folder: Path, size: int) -> str:
    """Copies a dataset as it was when it had ``size`` blocks. Returns its head."""
    raws = list(DirectoryChain(golden).raw_blocks(0, size))
    head = str(Multihash.sha3_256(raws[-1]))
    for part in (BLOCKS, DATA, "refs"):
        (folder / part).mkdir(parents=True)
    (folder / HEAD).write_text(head)
    for raw in raws:
        (folder / BLOCKS / str(Multihash.sha3_256(raw))).write_bytes(raw)
        for name, _ in objects_of(decode_block(raw)):
            shutil.copy(golden / DATA / str(name), folder / DATA)
    return head
