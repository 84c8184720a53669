"""Implements the site as an ASGI application: ``/DATASET/refs/head``, ``blocks/HASH``, ``data/HASH``, ``trust/head``…

It answers GET and HEAD, with one range of an object; POST only if this node is a witness for others. A file that is
named by its hash never changes and says so in its headers; all others are to be asked for anew each time. Blocks are
sent as the bytes in which they came. Spec: Simple Transfer Protocol; RFC 9110; c2sp.org/tlog-witness; ADR 9,
ADR 16.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, TypeVarTuple

import msgspec
import trio

from chain.errors import Environment, Fault, Invalid, NotFound, Refused
from chain.ids import DatasetId
from chain.multihash import Multihash
from chain.statements.submission import MAX_SUBMISSION
from chain.store.layout import BLOCKS, CHECKPOINTS, DATA, HEAD
from odfd.errors import PROBLEM_JSON, to_problem, told_to_others
from odfd.published.packs import number_in
from odfd.runtime.extensions import ExportFormats
from odfd.runtime.http import Message, Receive, Send
from odfd.runtime.supervision import Logger
from odfd.site.ports import CatalogueFormat, CheckpointReceiver, SiteLibrary
from odfd.site.requests import read_body

Args = TypeVarTuple("Args")
T = TypeVar("T")
THREADS: Final = 8
"""Threads that read the library for all visitors; the node's own work has other threads."""
PART: Final = 1 << 20
"""Bytes of an object that are read at once."""
PIECE: Final = 128 << 10
"""Bytes that are sent at once; a visitor who takes longer for them than the server's patience is cut off."""
LISTED: Final = 1000
CATALOGUE: Final = "catalog.jsonld"
"""The datasets as a DCAT catalogue. It is looked up before datasets, so none can hide it."""
CATALOGUES: Final = ExportFormats("site")
SUBMIT: Final = "/witness/add-checkpoint"
"""Path at which a witness takes checkpoints (c2sp.org/tlog-witness): its submission prefix is ``/witness``."""
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_FOREVER: Final = "public, max-age=31536000, immutable"
_ANEW: Final = "no-cache"
_OCTETS: Final = "application/octet-stream"


class Site:
    """The ASGI application that serves one library."""

    def __init__(self, library: SiteLibrary, logger: Logger, receiver: CheckpointReceiver | None = None) -> None:
        """``receiver`` takes checkpoints, on a node that is a witness for others."""
        self._library = library
        self._receiver = receiver
        self._logger = logger
        self._threads = trio.CapacityLimiter(THREADS)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        answer = _Answer(send, head_only=scope["method"] == "HEAD")
        try:
            if self._receiver is not None and (scope["method"], scope["path"]) == ("POST", SUBMIT):
                return await self._take(self._receiver, receive, answer)
            if scope["method"] not in ("GET", "HEAD"):
                raise Refused(f"{scope['method']} is not understood here", rule="site-method", hint="GET and HEAD are")
            await self._give(scope["path"], dict(scope["headers"]).get(b"range", b"").decode("latin-1"), answer)
        except Fault as fault:
            if isinstance(fault, Environment):
                self._logger.error("cannot be given", path=scope["path"][:300], fault=str(fault), rule=fault.rule)
            if not answer.begun:  # else the connection is cut, which the reader notices
                await answer.refuse(told_to_others(fault))

    async def _take(self, receiver: CheckpointReceiver, receive: Receive, answer: _Answer) -> None:
        """Takes in one checkpoint, if its request is small enough and comes in time, and answers it."""
        body = await read_body(receive, MAX_SUBMISSION)
        if not isinstance(body, bytes):
            return await answer.whole(b"", "text/plain", _ANEW, body, {"connection": "close"})
        reply = await self._ask(receiver.add_checkpoint, body)
        kind = "text/x.tlog.size" if reply.status == 409 else "text/plain; charset=utf-8"
        return await answer.whole(reply.body, kind, _ANEW, reply.status)

    async def _give(self, path: str, wanted: str, answer: _Answer) -> None:
        ref, _, file = path.strip("/").partition("/")
        if not ref:
            shown = await self._ask(self._library.datasets, LISTED)
            body = json.dumps({"datasets": [msgspec.to_builtins(each) for each in shown]}, indent=1).encode() + b"\n"
            return await answer.whole(body, "application/json", _ANEW)
        if (ref, file) == (CATALOGUE, ""):
            dcat: CatalogueFormat = await self._ask(CATALOGUES.load, "dcat")
            body = json.dumps(dcat.catalogue(await self._ask(self._library.cards, LISTED)), indent=1).encode() + b"\n"
            return await answer.whole(body, dcat.MEDIA_TYPE, _ANEW)
        dataset = await self._ask(self._library.find, ref, file)
        if dataset is None:
            raise _nothing(path)
        folder, _, name = file.partition("/")
        if folder in (DATA, CHECKPOINTS):
            return await self._object(_parse_name(name, path), wanted, path, answer)
        return await self._small(dataset, file, path, answer)

    async def _small(self, dataset: DatasetId, file: str, path: str, answer: _Answer) -> None:
        folder, _, name = file.partition("/")
        if file == HEAD:
            head = await self._ask(self._library.head, dataset)
            found, kind, lasts = None if head is None else str(head).encode(), "text/plain; charset=us-ascii", _ANEW
        elif folder == BLOCKS:
            found, kind, lasts = (
                await self._ask(self._library.block, dataset, _parse_name(name, path)),
                _OCTETS,
                _FOREVER,
            )
        elif (number := number_in(file)) is not None:
            found, kind, lasts = await self._ask(self._library.pack, dataset, number), _OCTETS, _ANEW
        else:
            found, kind, lasts = await self._ask(self._library.statement, dataset, file), "application/json", _ANEW
        if found is None:
            raise _nothing(path)
        await answer.whole(found, kind, lasts)

    async def _object(self, name: Multihash, wanted: str, path: str, answer: _Answer) -> None:
        size = await self._ask(self._library.object_size, name)
        if size is None:
            raise _nothing(path)
        first, stop = _cut(wanted, size)
        headers = {"content-type": _OCTETS, "cache-control": _FOREVER, "accept-ranges": "bytes"}
        if first >= stop and wanted and size:
            return await answer.begin(416, 0, headers | {"content-range": f"bytes */{size}"}, last=True)
        part = (first, stop) != (0, size)
        if part:
            headers["content-range"] = f"bytes {first}-{stop - 1}/{size}"
        await answer.begin(206 if part else 200, stop - first, headers, last=answer.head_only or first == stop)
        while first < stop and not answer.head_only:
            data = await self._ask(self._library.read_object, name, first, min(PART, stop - first))
            if not data:
                return None
            first += len(data)
            for start in range(0, len(data), PIECE):
                piece = data[start : start + PIECE]
                await answer.more(piece, last=first == stop and start + PIECE >= len(data))
        return None

    async def _ask(self, call: Callable[[*Args], T], *args: *Args) -> T:
        return await trio.to_thread.run_sync(call, *args, limiter=self._threads)


class _Answer:
    """An HTTP response, sent once."""

    def __init__(self, send: Send, *, head_only: bool) -> None:
        self._send = send
        self.head_only = head_only
        self.begun = False

    async def begin(self, status: int, length: int, headers: Mapping[str, str], *, last: bool) -> None:
        self.begun = True
        fields = {"content-length": str(length), **headers}
        raw = [(name.encode(), value.encode()) for name, value in fields.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
        if last:
            await self.more(b"", last=True)

    async def more(self, data: bytes, *, last: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def whole(
        self, body: bytes, kind: str, lasts: str, status: int = 200, also: Mapping[str, str] | None = None
    ) -> None:
        headers = {"content-type": kind, "cache-control": lasts, **(also or {})}
        await self.begin(status, len(body), headers, last=False)
        await self.more(b"" if self.head_only else body, last=True)

    async def refuse(self, fault: Fault) -> None:
        status = 405 if fault.rule == "site-method" else 404 if isinstance(fault, NotFound) else 503
        also = {"allow": "GET, HEAD"} if status == 405 else {}
        await self.whole(json.dumps(to_problem(fault)).encode(), PROBLEM_JSON, _ANEW, status, also)


def _cut(wanted: str, size: int) -> tuple[int, int]:
    """Returns the range of bytes that is asked for; all bytes for a range of another form."""
    found = _RANGE.fullmatch(wanted)
    if found is None or not (found[1] or found[2]):
        return 0, size
    if not found[1]:
        return max(0, size - int(found[2])), size
    return int(found[1]), min(size, int(found[2]) + 1 if found[2] else size)


def _parse_name(text: str, path: str) -> Multihash:
    try:
        return Multihash.parse(text)
    except Invalid as error:
        raise _nothing(path) from error


def _nothing(path: str) -> NotFound:
    return NotFound(f"there is no {path[:300]} here", rule="site-missing", hint="GET / lists the datasets")
