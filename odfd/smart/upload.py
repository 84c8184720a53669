"""Pushes a dataset to a node by the smart protocol: all blocks, then the objects that are wanted, then the head.

The other side is asked first what it has, and the push continues from there: a history that is not ours is never
overwritten. Objects that are there already, for example from an interrupted push, are not sent again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from io import FileIO
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import trio

from chain.codec.blocks import decode_block
from chain.errors import Conflict, Fault, Invalid, Refused, Remote
from chain.multihash import Multihash
from chain.state import load_state
from chain.store.files import disk
from chain.store.layout import CHECKPOINTS, HEAD
from odfd.errors import sole_faults
from odfd.published.signed import COLLECTION, SHARD_MISSING
from odfd.repositories.files import StoredFile
from odfd.repositories.push import continues
from odfd.runtime.websocket import SocketClosed, WebSocket
from odfd.smart.batches import PUSHED, NamedBlock, pack
from odfd.smart.files import SmartFiles, headers_of
from odfd.smart.messages import ObjectFile, ObjectType, PushStrategy
from odfd.smart.plans import Counter
from odfd.smart.pull import Bye, GiveBlocks, Say
from odfd.smart.push import ClientEffect, LookAtHead, NextObjects, PushClient, UploadObjects
from odfd.smart.transport import conversation, problem_in
from odfd.transfer.folders import Missing, Transfer
from odfd.transfer.object_list import NamedObjects
from p2p.web.transfer import WebTransfers, leads_to

ANSWER_SECONDS: Final = 3600.0
"""Seconds for each message of the other side, which at the end verifies everything that came."""
ASKED: Final = 1000
"""Objects that are negotiated at once, so that memory is bounded and no upload URL expires before its turn."""
TOGETHER: Final = 8
"""Uploads at a time."""
CHUNK: Final = 256 << 10
_MAX_REF: Final = 256


class SmartPusher:
    """Pushes datasets to nodes."""

    def __init__(self, files: SmartFiles, web: WebTransfers) -> None:
        self._files, self._web = files, web

    async def push(self, root: str, missing: Missing, sent: Callable[[int], None]) -> Transfer:
        """Pushes a dataset. ``root``: its place at the node; ``sent`` is called with numbers of bytes.

        Raises Conflict if another history is there, or comes meanwhile; Refused, Remote, Invalid, Environment.
        """
        there = await self.head(root)
        start = 0 if there is None else await self._continues(missing, there, root)
        missing = missing._replace(start=start, there=there)
        done = Transfer(dataset=missing.dataset, head=missing.head.hash)
        if there == missing.head.hash:
            return done
        given = _Upload(self, root, missing, sent)
        counted = await given.run()
        return msgspec.structs.replace(done, blocks=counted.blocks, objects=given.uploaded, bytes=given.uploaded_bytes)

    async def unite(self, root: str, collection: bytes) -> bool:
        """Tells a node which shards belong together under a name; ``False`` if it has not all of them yet.

        ``collection``: the content of ``trust/collection``. Raises Refused for a node that takes single chains alone.
        """

        async def body() -> AsyncIterator[bytes]:
            yield collection

        url, headers = await self._files.access(f"{root}/{COLLECTION}")
        answer = await self._web.put(url, headers, body, len(collection), is_led=False)
        said = problem_in(answer.body)
        if 200 <= answer.status < 300:
            return True
        if (answer.status, said.rule) == (409, SHARD_MISSING):
            return False
        if answer.status in (400, 404, 405, 501) or said.rule == "site-method":
            hint = "push it to a folder, a bucket, IPFS or a node of this version; or each shard by its id"
            raise Refused(f"{root} takes single chains alone", rule="shard-whole", hint=hint)
        text = f"{url} refuses the collection ({answer.status}: {said.text})"
        kind = Refused if answer.status in (401, 403) else Conflict if answer.status == 409 else Remote
        raise kind(text, rule=said.rule or "smart-upload", hint="push again")

    async def head(self, root: str) -> Multihash | None:
        """Returns the head of the dataset at a node; ``None``: it has none. Raises Remote."""
        raw = await self._files.cat(f"{root}/{HEAD}", _MAX_REF)
        if raw is None:
            return None
        try:
            return Multihash.parse(raw.decode("ascii").strip())
        except (Invalid, UnicodeDecodeError):
            raise Remote(f"{HEAD} of {root} does not hold a block's hash", rule="layout-head") from None

    async def _continues(self, missing: Missing, there: Multihash, root: str) -> int:
        name, _, folder = root.rpartition("/")
        there_files = _BlockingFiles(self._files, name)
        return await trio.to_thread.run_sync(continues, missing.chain, missing.head, there, there_files, folder)


class _BlockingFiles:
    """Files of a node, for use in a worker thread."""

    def __init__(self, files: SmartFiles, name: str) -> None:
        self._files, self.name = files, name

    def get(self, path: str, limit: int) -> StoredFile | None:
        found = trio.from_thread.run(self._files.cat, f"{self.name}/{path}", limit)
        return None if found is None else StoredFile(found, "")


class _Object(NamedTuple):
    file: ObjectFile
    name: Multihash


class _Upload:
    """The state of one push."""

    def __init__(self, pusher: SmartPusher, root: str, missing: Missing, sent: Callable[[int], None]) -> None:
        self._files, self._web, self._pusher = pusher._files, pusher._web, pusher
        self._root, self._missing, self._sent = root, missing, sent
        self._machine = PushClient()
        self._objects = self._named_objects()
        self._held_back: list[_Object] = []
        self._page: dict[Multihash, _Object] = {}
        self._counter = Counter()
        self._is_inside = False
        self.uploaded = self.uploaded_bytes = 0

    async def run(self) -> Counter:
        await trio.to_thread.run_sync(self._count)
        url, headers = await self._files.access(f"{self._root}/push")
        self._url = url
        async with conversation(self._web, url, headers) as (socket, is_inside):
            self._is_inside = is_inside
            try:
                with sole_faults():
                    async with trio.open_nursery() as nursery:
                        await self._converse(socket, nursery)
            except SocketClosed as fault:
                if not (self._machine.is_committing and await self._is_there()):
                    raise self._machine.fault_of_close(fault.reason) from None
            finally:
                await socket.close()
        return self._counter

    def _count(self) -> None:
        for raw in self._raws():
            self._counter.add(raw)

    def _raws(self) -> Iterator[bytes]:
        return self._missing.chain.raw_blocks(self._missing.start, self._missing.head.size)

    def _blocks(self) -> Iterator[NamedBlock]:
        return ((Multihash.sha3_256(raw), raw) for raw in self._raws())

    async def _converse(self, socket: WebSocket, nursery: trio.Nursery) -> None:
        await socket.send(self._machine.begin(self._missing.there, self._counter.plan).text)
        while True:
            text = await socket.receive(self._machine.limit, ANSWER_SECONDS)
            if await self._perform([self._machine.receive(text)], socket, nursery):
                return

    async def _perform(self, effects: Sequence[ClientEffect], socket: WebSocket, nursery: trio.Nursery) -> bool:
        """Performs effects of the machine; returns whether the push is done."""
        waiting = deque(effects)
        while waiting:
            match waiting.popleft():
                case Say(text):
                    await socket.send(text)
                case GiveBlocks():
                    packed = pack(PUSHED, self._counter.blocks, self._blocks())
                    async with aclosing(self._iterate_in_worker(packed)) as pieces:
                        await socket.send_pieces(pieces)
                case NextObjects():
                    waiting.append(await self._next_objects())
                case UploadObjects(strategies):
                    nursery.start_soon(self._uploads, strategies, socket, nursery)
                case LookAtHead():
                    waiting.append(self._machine.head_seen(is_ours=await self._is_there()))
                case Bye():
                    return True
        return False

    async def _iterate_in_worker(self, pieces: Iterator[str]) -> AsyncGenerator[str, None]:
        while (piece := await trio.to_thread.run_sync(next, pieces, None)) is not None:
            yield piece

    async def _next_objects(self) -> Say:
        found = await trio.to_thread.run_sync(lambda: list(islice(self._objects, ASKED + 1 - len(self._held_back))))
        found = [*self._held_back, *found]
        page, self._held_back = found[:ASKED], found[ASKED:]
        self._page = {each.name: each for each in page}
        return self._machine.objects([each.file for each in page], is_last=not self._held_back)

    def _named_objects(self) -> Iterator[_Object]:
        chain, objects, start = self._missing.chain, self._missing.objects, self._missing.start
        named = NamedObjects(load_state(chain, start), objects)
        seen = set[Multihash]()
        for raw in self._raws():
            for folder, name, size in named.of(decode_block(raw)):
                if name not in seen:
                    seen.add(name)
                    kind: ObjectType = "Checkpoint" if folder == CHECKPOINTS else "DataSlice"
                    yield _Object(ObjectFile(object_type=kind, physical_hash=str(name), size=size), name)

    async def _uploads(self, strategies: Sequence[PushStrategy], socket: WebSocket, nursery: trio.Nursery) -> None:
        """Uploads the objects that are wanted, and says when all are there."""
        slots = trio.Semaphore(TOGETHER)

        async def upload(strategy: PushStrategy) -> None:
            try:
                await self._upload(strategy)
            finally:
                slots.release()

        async with trio.open_nursery() as uploading:
            for strategy in strategies:
                if strategy.push_strategy == "HttpUpload":
                    await slots.acquire()
                    uploading.start_soon(upload, strategy)
                else:
                    self._machine.note_upload()
        await self._perform(self._machine.upload_over(), socket, nursery)

    async def _upload(self, strategy: PushStrategy) -> None:
        place, (_, name) = strategy.upload_to, self._page[strategy.object_file.hash]
        assert place is not None
        is_led = leads_to(place.url, self._url) and not self._is_inside
        size = strategy.object_file.size
        answer = await self._web.put(
            place.url, headers_of(place.headers), partial(self._read, name, size), size, is_led=is_led
        )
        if not 200 <= answer.status < 300:
            text = f"{name.short} is not taken at {place.url.partition('?')[0][:200]}: status {answer.status}"
            kind = Refused if answer.status in (401, 403) else Remote
            raise kind(text, rule="smart-upload", hint="push again: what is there is not sent again")
        self._machine.note_upload()
        self.uploaded += 1
        self.uploaded_bytes += size

    async def _read(self, name: Multihash, size: int) -> AsyncIterator[bytes]:
        """Yields an object; raises Invalid before its last part if it is damaged on this disk."""
        path = await trio.to_thread.run_sync(self._missing.objects.path, name)
        digest, left = hashlib.sha3_256(), size
        with disk(path):
            file: FileIO = await trio.to_thread.run_sync(partial(FileIO, path))
        try:
            while left and (part := await trio.to_thread.run_sync(file.read, min(CHUNK, left))):
                digest.update(part)
                left -= len(part)
                if not left and digest.digest() != name.digest:
                    hint = "odfctl doctor --deep finds what else is"
                    raise Invalid(f"object {name.short} is damaged here", rule="slice-physical-hash", hint=hint)
                self._sent(len(part))
                yield part
        finally:
            file.close()

    async def _is_there(self) -> bool:
        try:
            return await self._pusher.head(self._root) == self._missing.head.hash
        except Fault:
            return False
