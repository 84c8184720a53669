"""Reads datasets at nodes: all blocks in one conversation of the smart protocol, or one by one without it.

A node that does not speak it is told from one that refuses. Both ways write the same folder, so that one continues
where the other was interrupted. Blocks are checked to hash to their names; the caller checks rules and signatures.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, TypeVarTuple

import trio

from chain.codec.blocks import decode_block
from chain.errors import Conflict, Refused, Remote
from chain.instant import Instant
from chain.model.block import objects_of
from chain.model.events import AddData, ExecuteTransform
from chain.multihash import Multihash
from chain.store.files import disk
from chain.store.layout import BLOCKS
from odfd.errors import sole_faults
from odfd.published.source import Take
from odfd.published.web import WebTransport
from odfd.runtime.websocket import SocketClosed, WebSocket
from odfd.smart.batches import MAX_TEXT, PULLED, NamedBlock, Unpacker
from odfd.smart.files import SmartFiles
from odfd.smart.messages import ObjectFile, PullStrategy
from odfd.smart.pull import FOLDERS, INTERVAL, Bye, NoBlocks, PullClient, ReadAt, Say, TakeBlocks
from p2p.web.transfer import NotSwitched, WebTransfers, leads_to

_NOT_SPOKEN: Final = (400, 404, 405, 426, 500, 501)
"""Statuses of servers that have no such path, or no web sockets there."""


class NotOffered(Remote):
    """The other side does not speak the smart protocol, or not for this dataset."""


class Conversation(NamedTuple):
    """An open web socket, and whether its server is in a private network."""

    socket: WebSocket
    is_inside: bool


@asynccontextmanager
async def conversation(web: WebTransfers, url: str, headers: Mapping[str, str]) -> AsyncIterator[Conversation]:
    """Yields an open web socket at ``url``, which ends with the block. Raises NotOffered, Refused, Remote."""
    key = base64.b64encode(os.urandom(16)).decode()
    asked = {
        **headers, "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Version": "13",
    }  # fmt: skip
    try:
        async with web.upgrade(url, asked) as stream:
            yield Conversation(WebSocket(stream, is_client=True), stream.is_inside)
    except NotSwitched as fault:
        raise _to_refusal(fault, url) from None


def _to_refusal(fault: NotSwitched, url: str) -> Remote | Refused:
    said = problem_in(fault.body).text
    told = f": {said}" if said else ""
    if fault.status in (401, 403):
        hint = "a token of an account there, in a SecretSet: odfctl repo add NAME URL --credentials SECRETSET"
        return Refused(f"{url} refuses this node ({fault.status}{told})", rule="smart-refused", hint=hint)
    text = f"{url} does not speak the smart transfer protocol ({fault.status}{told})"
    if fault.status in _NOT_SPOKEN:
        return NotOffered(text, rule="smart-not-offered", hint="leave odf+ out of the URL to read it over plain HTTP")
    return Remote(f"{url} answers with status {fault.status}{told}", rule="smart-failed", hint="try again later")


class Refusal(NamedTuple):
    """The refusal of a server; empty texts if it cannot be read."""

    text: str
    rule: str


def problem_in(body: bytes) -> Refusal:
    """Reads the text and the rule of a server's refusal."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    said = found if isinstance(found, dict) else {}
    words = (said.get("message") or said.get("detail") or "", said.get("rule") or "")
    return Refusal(*("".join(each if each.isprintable() else " " for each in str(text))[:300] for text in words))


Args = TypeVarTuple("Args")
T = TypeVar("T")
ANSWER_SECONDS: Final = 300.0
"""Seconds for the other side to find what was asked for, which it may count block by block."""
ASKED: Final = 1000
"""Objects whose places are asked for at once."""
MAX_ASKED: Final = 10_000
"""Objects whose places are asked for in one transfer; others are read from the node itself."""


class SmartTransport(WebTransport):
    """Transports datasets from nodes. ``held``: returns the head of the dataset that has a name here."""

    def __init__(
        self,
        files: SmartFiles,
        web: WebTransfers,
        known: Callable[[Multihash], bytes | None],
        lacking: Callable[[Iterable[Multihash]], Sequence[Multihash]],
        held: Callable[[str], Multihash | None],
        log: Callable[[str], object],
    ) -> None:
        """``known``: returns a local block by its name; ``lacking``: returns those of some objects that are not here.

        ``log`` is called if the blocks are read one by one.
        """
        super().__init__(files, known)
        self._smart, self._web, self._lacking, self._held, self._log = files, web, lacking, held, log

    async def resolve(self, place: str, _now: Instant) -> str:
        return place

    async def bring_blocks(self, root: str, head: Multihash, first: int, folder: Path, take: Take) -> None:
        before = await trio.to_thread.run_sync(self._held, root)
        pull = _Pull(self, root, folder, take)
        try:
            with sole_faults():
                await pull.run(before, head)
        except NotOffered as fault:
            self._log(fault.message)
        except Conflict as fault:
            if fault.rule != INTERVAL:
                raise
            if before is not None:  # what has the name here is another dataset, or another history of it
                try:
                    await pull.run(None, head)
                except (Conflict, NotOffered) as again:
                    self._log(again.message)
        await super().bring_blocks(root, head, first, folder, take)


class _Pull:
    """One dataset's pull."""

    def __init__(self, transport: SmartTransport, root: str, folder: Path, take: Take) -> None:
        self._of, self._root, self._folder, self._take = transport, root, folder / BLOCKS, take

    async def run(self, begin_after: Multihash | None, head: Multihash) -> None:
        """Pulls the blocks up to ``head`` after ``begin_after``.

        Raises NotOffered, Refused, Remote, Invalid; Conflict with INTERVAL if the first block is not there.
        """
        if begin_after == head:
            return
        url, headers = await self._of._smart.access(f"{self._root}/pull")
        async with conversation(self._of._web, url, headers) as (socket, is_inside):
            machine = PullClient()
            try:
                await self._converse(
                    machine, socket, (begin_after, head), lambda found: self._note(found, url, is_inside)
                )
            except SocketClosed as fault:
                raise machine.fault_of_close(fault.reason) from None
            finally:
                await socket.close()

    async def _converse(
        self, machine: PullClient, socket: WebSocket, asked: tuple[Multihash | None, Multihash],
        note: Callable[[Sequence[PullStrategy]], bool],
    ) -> None:  # fmt: skip
        await socket.send(machine.begin(*asked).text)
        objects: list[ObjectFile] = []
        for effect in machine.receive(await socket.receive(machine.limit, ANSWER_SECONDS)):
            match effect:
                case Say(text):
                    await socket.send(text)
                case TakeBlocks(plan):
                    count, objects = await self._blocks(socket)
                    machine.note_taken(plan, count)
                case NoBlocks() | Bye():
                    return
        wanted = iter(objects[:MAX_ASKED])
        while page := list(islice(wanted, ASKED)):
            await socket.send(machine.ask(page).text)
            for effect in machine.receive(await socket.receive(machine.limit, ANSWER_SECONDS)):
                if isinstance(effect, ReadAt) and not note(effect.strategies):
                    return  # all are with the node, and so will the others be

    async def _blocks(self, socket: WebSocket) -> tuple[int, list[ObjectFile]]:
        """Stages a batch. Returns its number of blocks, and the objects to ask for."""
        unpacker, objects = Unpacker(PULLED), list[ObjectFile]()
        async with aclosing(socket.receive_pieces(MAX_TEXT, ANSWER_SECONDS)) as pieces:
            async for piece in pieces:
                blocks = await _run_in_worker(unpacker.feed, piece)
                if blocks:
                    found = await _run_in_worker(self._keep, blocks, MAX_ASKED - len(objects))
                    objects += found
        return await _run_in_worker(unpacker.finish), objects

    def _keep(self, blocks: Sequence[NamedBlock], room: int) -> list[ObjectFile]:
        self._take(sum(len(raw) for _, raw in blocks), len(blocks))
        with disk(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, raw in blocks:
                (self._folder / str(name)).write_bytes(raw)
        if room <= 0:
            return []
        found = {file.hash: file for _, raw in blocks for file in object_files(raw)}
        return [found[name] for name in self._of._lacking(found)][:room]

    def _note(self, strategies: Sequence[PullStrategy], url: str, is_inside: bool) -> bool:
        """Remembers objects that are kept elsewhere; returns whether there was one. Raises Invalid, Refused."""
        is_any = False
        for strategy in strategies:
            if leads_to(strategy.download_from.url, url):
                path = f"{self._root}/{FOLDERS[strategy.object_file.object_type]}/{strategy.object_file.hash}"
                self._of._smart.note(path, strategy.download_from, is_led=not is_inside)
                is_any = True
        return is_any


def object_files(raw: bytes) -> list[ObjectFile]:
    """Returns the objects that a block names. Raises Invalid."""
    block = decode_block(raw)
    event = block.event
    if not objects_of(block) or not isinstance(event, AddData | ExecuteTransform):
        return []
    found = []
    if (data := event.new_data) is not None:
        found.append(ObjectFile(object_type="DataSlice", physical_hash=str(data.physical_hash), size=data.size))
    if (checkpoint := event.new_checkpoint) is not None:
        name = str(checkpoint.physical_hash)
        found.append(ObjectFile(object_type="Checkpoint", physical_hash=name, size=checkpoint.size))
    return found


async def _run_in_worker(call: Callable[[*Args], T], *args: *Args) -> T:
    return await trio.to_thread.run_sync(call, *args)
