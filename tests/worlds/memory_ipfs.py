"""IPFS in memory: two daemons share a ``Swarm``; files of each are its own, content and records are everybody's."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import trio
from multiformats import CID

from chain.errors import Remote
from p2p.kubo.rpc import AddedFile
from p2p.ports import FileMissing

PART = 1000


@dataclass
class Swarm:
    roots: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Files by path, of each folder that ever was, by its CID."""
    records: dict[str, bytes] = field(default_factory=dict)


class MemoryIpfs:
    """Implements ``p2p.kubo.rpc.IpfsDaemon``. ``lie`` changes what is read under a path."""

    def __init__(self, swarm: Swarm | None = None) -> None:
        self.swarm = swarm or Swarm()
        self.files: dict[str, bytes] = {}
        self.away = False
        self.added: list[str] = []
        """Paths of files in the order in which they came."""
        self.lie: Callable[[str, bytes], bytes] = lambda _path, content: content

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def version(self) -> str:
        await self._here()
        return "memory"

    async def add(self, folder: str, files: Sequence[AddedFile]) -> None:
        await self._here()
        for file in files:
            content = file.content.read_bytes() if isinstance(file.content, Path) else file.content
            self.files.setdefault(f"{folder}/{file.name}", content)
            self.added.append(f"{folder}/{file.name}")

    async def replace(self, path: str, content: bytes) -> None:
        await self._here()
        self.files[path] = content

    async def read(self, path: str, limit: int) -> bytes | None:
        await self._here()
        return _limited(self.files.get(path), limit)

    async def remove(self, path: str) -> None:
        await self._here()
        self.files = {name: raw for name, raw in self.files.items() if name != path and not name.startswith(path + "/")}

    async def root_of(self, path: str) -> str | None:
        await self._here()
        files = {name.removeprefix(path + "/"): raw for name, raw in self.files.items() if name.startswith(path + "/")}
        if not files:
            return None
        whole = b"".join(hashlib.sha256(name.encode() + b"\0" + raw).digest() for name, raw in sorted(files.items()))
        cid = str(CID("base32", 1, "dag-pb", ("sha2-256", hashlib.sha256(whole).digest())))
        self.swarm.roots[cid] = files
        return cid

    async def size_of(self, content: str) -> int | None:
        found = await self._content(content)
        return None if found is None else len(found)

    async def cat(self, content: str, limit: int) -> bytes | None:
        return _limited(await self._content(content), limit)

    @asynccontextmanager
    async def open(self, content: str, offset: int = 0) -> AsyncIterator[AsyncIterator[bytes]]:
        found = await self._content(content)
        if found is None:
            raise FileMissing(f"no {content}", rule="ipfs-missing")
        yield _parts(found[offset:])

    @asynccontextmanager
    async def archive(self, content: str) -> AsyncIterator[AsyncIterator[bytes]]:
        await self._here()
        root, _, below = content.removeprefix("/ipfs/").partition("/")
        if root not in self.swarm.roots:
            raise Remote(f"nobody gives {content}", rule="ipfs-slow")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, raw in sorted(self.swarm.roots[root].items()):
                if name.startswith(below):
                    said = self.lie(name, raw)
                    member = tarfile.TarInfo(name if below else f"{root}/{name}")
                    member.size = len(said)
                    archive.addfile(member, io.BytesIO(said))
        yield _parts(packed.getvalue())

    async def put_record(self, name: str, record: bytes) -> None:
        await self._here()
        self.swarm.records[name] = record

    async def record(self, name: str) -> bytes | None:
        await self._here()
        return self.swarm.records.get(name)

    async def _here(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.away:
            raise Remote("the Kubo cannot be reached", rule="ipfs-api", hint="is it running?")

    async def _content(self, content: str) -> bytes | None:
        await self._here()
        if not content.startswith("/ipfs/"):
            return self.files.get(content)
        root, _, path = content.removeprefix("/ipfs/").partition("/")
        if root not in self.swarm.roots:
            raise Remote(f"nobody gives {content}", rule="ipfs-slow")
        found = self.swarm.roots[root].get(path)
        return None if found is None else self.lie(path, found)


async def _parts(raw: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(raw), PART):
        await trio.lowlevel.checkpoint()
        yield raw[at : at + PART]


def _limited(raw: bytes | None, limit: int) -> bytes | None:
    if raw is not None and len(raw) > limit:
        raise Remote(f"more than {limit} bytes", rule="ipfs-answer")
    return raw
