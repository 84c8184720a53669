"""Where datasets are published, as hostile as can be: a web server whose every answer is the same bytes, a folder whose
every file is, an IPFS daemon that says the same to all. The real readers over them.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import httpcore
import httpx
import trio

from chain.errors import Invalid, Refused, Remote
from chain.multihash import Multihash
from odfd.ipfs.transport import IpfsTransport
from odfd.published.source import PublishedSource
from odfd.published.staging import StagingQuota
from p2p.kubo.rpc import Kubo
from p2p.ports import Content
from p2p.web.site import Web
from worlds.memory_ipfs import MemoryIpfs

Decode: TypeAlias = Callable[[bytes], object]
SID = Multihash.sha3_256(b"object")
URL = "http://site.example/flights"
ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 3-7/8\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
)


async def tried(*questions: Callable[[], Awaitable[object]]) -> list[object]:
    """What each gave. Raises the last refusal when none gave anything."""
    found: list[object] = []
    fault: Invalid | Remote | None = None
    for question in questions:
        try:
            found.append(await question())
        except (Invalid, Remote) as refused:
            fault = refused
    if not found and fault is not None:
        raise fault
    return found


@contextmanager
def website(_: Path) -> Iterator[Decode]:
    """Raw bytes on the connection: headers and chunks are read by the library, what they mean by us."""
    web, transport = Web(), httpx.AsyncHTTPTransport(verify=False)
    web._made = web.led._made = httpx.AsyncClient(transport=transport, follow_redirects=False, trust_env=False)

    async def read(offset: int) -> int:
        async with web.open(URL, offset) as parts:
            return sum([len(part) async for part in parts])

    async def ask(raw: bytes) -> list[object]:
        backend = httpcore.AsyncMockBackend([raw])
        async with httpcore.AsyncConnectionPool(network_backend=backend) as transport._pool:
            return await tried(
                lambda: web.size_of(URL), lambda: web.cat(URL, 100), lambda: read(0), lambda: read(3)
            )  # fmt: skip

    yield lambda raw: trio.run(ask, raw)


class SameFile:
    """Implements ``Files`` and ``Transport``: whatever is asked for holds the same bytes."""

    is_fixed = False

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    @property
    def files(self) -> SameFile:
        return self

    async def size_of(self, _content: str) -> int | None:
        return len(self._raw)

    async def cat(self, content: str, limit: int) -> bytes | None:
        if len(self._raw) > limit:
            raise Remote(f"{content} is too long", rule="web-answer")
        return self._raw

    def open(self, content: str, offset: int = 0) -> Content:
        return self._open(offset)

    @asynccontextmanager
    async def _open(self, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
        async def parts() -> AsyncIterator[bytes]:
            yield self._raw[offset:]

        yield parts()

    async def resolve(self, place: str, _now: object) -> str:
        return place

    async def bring_blocks(self, root: str, head: Multihash, first: int, folder: Path, take: Any) -> None:
        raise Remote("nothing more is here", rule="web-missing")


@contextmanager
def folder_of(parent: Path) -> Iterator[Decode]:
    """A dataset's folder: its head, its signed head, and its last block, which is asked for by its right name."""

    def read(raw: bytes) -> object:
        with tempfile.TemporaryDirectory(dir=parent) as place:
            source: Any = PublishedSource(SameFile(raw), Path(place), StagingQuota(int, lambda _: None))  # type: ignore[arg-type]
            name = Multihash.sha3_256(raw)
            return trio.run(
                tried,
                lambda: source.edition(URL),
                lambda: source.head_of(URL),
                lambda: source.last_blocks(URL, name, 1),
            )

    yield read


@contextmanager
def kubo(_: Path) -> Iterator[Decode]:
    """Each question, with the same bytes as an answer and as a refusal."""
    told = (200, b"")
    rpc = Kubo("http://kubo")
    transport = httpx.MockTransport(lambda _: httpx.Response(told[0], content=told[1]))
    rpc._made = httpx.AsyncClient(base_url="http://kubo/api/v0/", transport=transport)
    questions: list[Callable[[], Any]] = [
        rpc.version,
        lambda: rpc.root_of("/f"),
        lambda: rpc.size_of("/ipfs/x"),
        lambda: rpc.record("k51"),
        lambda: rpc.replace("/f", b""),
    ]

    async def ask_all() -> None:
        refused: list[Remote] = []
        for question in questions:
            try:
                await question()
            except Remote as fault:
                refused.append(fault)
        if len(refused) == len(questions):
            raise refused[0]

    def ask(raw: bytes) -> object:
        nonlocal told
        told = (500, raw)
        with suppress(Remote):
            trio.run(ask_all)
        told = (200, raw)
        trio.run(ask_all)
        return told

    yield ask


class Archive(MemoryIpfs):
    """A daemon whose folder is any bytes."""

    def __init__(self, raw: bytes) -> None:
        super().__init__()
        self._raw = raw

    @asynccontextmanager
    async def archive(self, content: str) -> AsyncIterator[AsyncIterator[bytes]]:
        async def parts() -> AsyncIterator[bytes]:
            yield self._raw

        yield parts()


@contextmanager
def unpacking(folder: Path) -> Iterator[Decode]:
    def take(raw: bytes) -> object:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            inside, outside = Path(place) / "in", Path(place)
            try:
                trio.run(IpfsTransport(Archive(raw)).bring_blocks, "/ipfs/x", SID, 0, inside, lambda *_: None)
            except Refused as fault:
                raise Invalid(fault.message, rule=fault.rule) from fault
            finally:
                assert {path.name for path in outside.iterdir()} <= {"in"}
            return sum(path.is_file() for path in inside.rglob("*"))

    yield take


def archives() -> list[bytes]:
    """A folder of blocks, plain and with what the pax format can add."""
    made = []
    sparse = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "x", "GNU.sparse.realsize": "9"}
    for extra in ({}, {"path": f"cid/blocks/{SID}", "size": "5"}, sparse, {"GNU.sparse.map": "0,5", "comment": "x"}):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for name in (f"cid/blocks/{SID}", f"cid/data/{SID}"):
                member = tarfile.TarInfo(name)
                member.size, member.pax_headers = 5, extra
                archive.addfile(member, io.BytesIO(b"hello"))
        made.append(packed.getvalue()[: -packed.tell() % 512 or None])
    return made


KUBO_ANSWERS = (
    b'{"Version":"0.43.0"}', b'{"Hash":"bafy","Size":5,"Type":"directory"}',
    b'{"Message":"file does not exist","Code":0,"Type":"error"}', b'{"Type":5}\n{"Extra":"aGVsbG8="}',
)  # fmt: skip
