"""Calls the operator's IPFS daemon over its HTTP RPC; ``IpfsDaemon`` is the port, ``Kubo`` implements it.

It uses few, simple calls: files are added to the daemon's own file system (MFS), which also keeps them from its garbage
collector; content is read by path; records of names are put as bytes, so that no key goes into the daemon. The daemon
is not trusted: callers check hashes and signatures. Kubo RPC API v0 (``/api/v0``); ADR 9.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias

import httpx
import trio

from chain.errors import Remote
from p2p.ipfs.record import MAX_RECORD
from p2p.pace import Pace
from p2p.ports import Content, FileMissing, RemoteFiles
from p2p.web.client import OpenedClient, Patience, body_of, lively, new_client, pace_parts

CHUNK: Final = 256 << 10
_BOUNDARY: Final = "odfd-5d1b0c6a9e7f4d3c"
FORM: Final = f"multipart/form-data; boundary={_BOUNDARY}"
"""The content type of a request whose body is a ``Form``."""


class AddedFile(NamedTuple):
    """A file to add: bytes, or the path of a file here."""

    name: str
    content: bytes | Path


class Form(httpx.AsyncByteStream):
    """The body of an HTTP request with files, read in parts: slices are larger than memory, and reads must not block.

    An iterator and not a generator: a daemon may answer before it has read everything, and then nobody would close a
    generator.
    """

    def __init__(self, files: Sequence[AddedFile]) -> None:
        self._pieces = _pieces(files)
        self._file: Any = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while True:
            if self._file is not None:
                part: bytes = await self._file.read(CHUNK)
                if part:
                    return part
                await self.aclose()
            piece = next(self._pieces, None)
            if piece is None:
                raise StopAsyncIteration
            if isinstance(piece, Path):
                self._file = await trio.open_file(piece, "rb")
            elif piece:
                return piece

    async def aclose(self) -> None:
        if self._file is not None:
            await self._file.aclose()
            self._file = None


def _pieces(files: Sequence[AddedFile]) -> Iterator[bytes | Path]:
    for file in files:
        head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{file.name}"\r\n'
        yield f"{head}Content-Type: application/octet-stream\r\n\r\n".encode()
        yield file.content
        yield b"\r\n"
    yield f"--{_BOUNDARY}--\r\n".encode()


PATIENCE: Final = Patience(connect=5.0, silence=30.0, span=60.0, least=64 << 10, total=6 * 3600.0)
"""Time limits: ``silence`` also ends a search for unavailable content; ``least`` bytes must come in each ``span``."""
ANSWER_SECONDS: Final = 120.0
"""Seconds until an answer that is not content is complete."""
SLOW_SECONDS: Final = 120.0
"""Seconds until the first byte of answers that come only after much was written."""
MAX_ANSWER: Final = 1 << 20
"""Bytes of an answer that is not content."""
_MISSING: Final = ("does not exist", "no link named", "not found", "no such file")
_AGAIN: Final = "perhaps no peer has the content just now; try again later, as a mirror does by itself"
_HINT: Final = "check that it is running, and that [ipfs] api of the settings is its RPC address"


Options: TypeAlias = Mapping[str, str | list[str]]


class IpfsDaemon(RemoteFiles, Protocol):
    """The operations of an IPFS daemon that the node uses. All raise Remote.

    Folders are absolute paths of the daemon's own files; content is named by ``/ipfs/CID/…``. Connections live as long
    as the block of ``async with``.
    """

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def version(self) -> str: ...

    async def add(self, folder: str, files: Sequence[AddedFile]) -> None:
        """Adds files to a folder, which is made if need be; a file that exists under its name stays as it is."""

    async def replace(self, path: str, content: bytes) -> None:
        """Writes one small file, replacing any at that path."""

    async def read(self, path: str, limit: int) -> bytes | None:
        """Reads one of the daemon's own files, at most ``limit`` bytes; ``None``: there is none."""

    async def remove(self, path: str) -> None:
        """Removes a path with everything below it, if it exists."""

    async def root_of(self, path: str) -> str | None:
        """Returns the CID of a folder as it is now; ``None``: there is none."""

    def archive(self, content: str) -> Content:
        """Opens a folder as a tar stream."""

    async def put_record(self, name: str, record: bytes) -> None:
        """Publishes an IPNS record for a name."""

    async def record(self, name: str) -> bytes | None:
        """Returns the newest record of an IPNS name that the daemon finds."""


class Kubo(OpenedClient):
    """A client of one Kubo. Used inside ``async with``; ``token`` is sent as ``Authorization: Bearer``."""

    def __init__(self, api: str, token: str = "", patience: Patience = PATIENCE, pace: Pace | None = None) -> None:
        """``pace`` caps the bytes per second of answers."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._api = api.rstrip("/")
        self._patience = patience
        self._pace = pace or Pace()
        # Proxies of the environment are not meant for a daemon that the settings name.
        base = f"{self._api}/api/v0/"
        super().__init__(partial(new_client, base_url=base, headers=headers, timeout=patience.times, trust_env=False))

    async def version(self) -> str:
        return str(_object(await self._call("version", {})).get("Version", "?"))

    async def add(self, folder: str, files: Sequence[AddedFile]) -> None:
        """Adds files, and repeats the call for the rest, if need be.

        It counts the files in the answer, which ends at a file that exists: few HTTP clients read the trailer that says
        why.
        """
        await self._call("files/mkdir", {"arg": folder, "parents": "true", **_FORMAT})
        options = {"to-files": folder + "/", "pin": "false", "quieter": "true", "progress": "false", **_ADDED}
        while files:
            reply = await self._call("add", options, files, slow=True)
            done = files[: len(reply.splitlines())]
            if not done or await self.size_of(f"{folder}/{done[-1].name}") is None:
                raise Remote(
                    f"the Kubo at {self._api} did not take {(done or files)[-1].name}", rule="ipfs-refused",
                    hint="is its disk full? See what it logs",
                )  # fmt: skip
            files = files[len(done) :]

    async def replace(self, path: str, content: bytes) -> None:
        # Not ``files/write``: a file truncated by it begins with an empty block, which no other daemon can fetch.
        options = {"pin": "false", "quieter": "true", "progress": "false", **_ADDED}
        added = _object(await self._call("add", options, [AddedFile("data", content)]))
        await self._call("files/cp", {"arg": [f"/ipfs/{added.get('Hash')}", path], "parents": "true", "force": "true"})

    async def read(self, path: str, limit: int) -> bytes | None:
        return await self._find("files/read", {"arg": path, "count": str(limit + 1)}, limit)

    async def remove(self, path: str) -> None:
        await self._find("files/rm", {"arg": path, "recursive": "true", "force": "true"})

    async def root_of(self, path: str) -> str | None:
        raw = await self._find("files/stat", {"arg": path})
        if raw is None:
            return None
        root = _object(raw).get("Hash")
        if not isinstance(root, str):
            raise _odd("a folder without a hash")
        return root

    async def size_of(self, content: str) -> int | None:
        raw = await self._find("files/stat", {"arg": content})
        if raw is None:
            return None
        size = _object(raw).get("Size")
        if not isinstance(size, int) or size < 0:
            raise _odd("a size that is none")
        return size

    async def cat(self, content: str, limit: int) -> bytes | None:
        try:
            async with self._stream("cat", {"arg": content, "length": str(limit + 1)}, self._patience) as parts:
                return await _whole("cat", parts, limit)
        except FileMissing:
            return None

    def open(self, content: str, offset: int = 0) -> Content:
        return self._stream("cat", {"arg": content, "offset": str(offset)}, self._patience)

    def archive(self, content: str) -> Content:
        return self._stream("get", {"arg": content, "archive": "true"}, self._patience)

    async def put_record(self, name: str, record: bytes) -> None:
        # Not `name/publish`: it needs the key in the daemon, and did not return within 60 s (Kubo 0.43, two nodes).
        options = {"arg": f"/ipns/{name}", "allow-offline": "true"}
        await self._call("routing/put", options, [AddedFile("value-file", record)], slow=True)

    async def record(self, name: str) -> bytes | None:
        raw = await self._find("routing/get", {"arg": f"/ipns/{name}"}, 4 * MAX_RECORD)
        return None if raw is None else _extra(raw)

    async def _find(self, what: str, options: Options, limit: int = MAX_ANSWER) -> bytes | None:
        try:
            return await self._call(what, options, limit=limit)
        except FileMissing:
            return None

    async def _call(
        self,
        what: str,
        options: Options,
        files: Sequence[AddedFile] = (),
        *,
        limit: int = MAX_ANSWER,
        slow: bool = False,
    ) -> bytes:
        """Makes one call and returns its answer.
        ``slow``: the answer comes only once the data sent is written, or spread."""
        patience = self._patience
        if slow:
            patience = patience._replace(silence=max(patience.silence, SLOW_SECONDS))
        else:
            patience = patience._replace(total=min(patience.total, ANSWER_SECONDS))
        async with self._stream(what, options, patience, files) as parts:
            return await _whole(what, parts, limit)

    @asynccontextmanager
    async def _stream(
        self, what: str, options: Options, patience: Patience, files: Sequence[AddedFile] = ()
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        request = self.client.build_request("POST", what, params=dict(options), timeout=patience.times)
        deadline = trio.current_time() + patience.total
        body = Form(files)
        if files:
            del request.headers["Content-Length"]
            request.headers.update({"Content-Type": FORM, "Transfer-Encoding": "chunked"})
            request.stream = body
        try:
            # The headers of the answer come only after all files were sent, however large they are.
            with trio.fail_after(patience.total if files else patience.head):
                response = await self.client.send(request, stream=True)
            try:
                if response.status_code != httpx.codes.OK:
                    raise await self._refusal(what, response, patience)
                async with (
                    body_of(response, response.aiter_bytes()) as given,
                    aclosing(lively(f"Kubo, {what}", given, patience, deadline, _AGAIN)) as parts,
                    aclosing(pace_parts(parts, self._pace)) as slowed,
                ):
                    yield slowed
            finally:
                with trio.CancelScope(shield=True):
                    await response.aclose()
        except (httpx.TimeoutException, trio.TooSlowError) as error:
            raise Remote(
                f"the Kubo at {self._api} gave nothing for {patience.silence:.0f} s ({what})", rule="ipfs-slow",
                hint=_AGAIN,
            ) from error  # fmt: skip
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise Remote(f"the Kubo at {self._api} cannot be reached: {reason}", rule="ipfs-api", hint=_HINT) from error
        finally:
            await body.aclose()

    async def _refusal(self, what: str, response: httpx.Response, patience: Patience) -> Remote:
        raw = bytearray()
        deadline = trio.current_time() + ANSWER_SECONDS
        async with (
            body_of(response, response.aiter_bytes()) as body,
            aclosing(lively(f"Kubo, {what}", body, patience, deadline, _AGAIN)) as parts,
        ):
            async for part in parts:
                raw += part
                if len(raw) > MAX_ANSWER:
                    break
        if response.status_code in (401, 403):
            return Remote(
                f"the Kubo at {self._api} does not let us in", rule="ipfs-token",
                hint="put what its API.Authorizations asks for into [ipfs] token",
            )  # fmt: skip
        reason = _message(bytes(raw)) or f"status {response.status_code}"
        if any(each in reason for each in _MISSING):
            return FileMissing(f"Kubo: {reason}", rule="ipfs-missing")
        return Remote(f"Kubo refused {what}: {reason[:300]}", rule="ipfs-refused", hint=_HINT)


async def _whole(what: str, parts: AsyncIterator[bytes], limit: int) -> bytes:
    found = bytearray()
    async for part in parts:
        found += part
        if len(found) > limit:
            raise _odd(f"{what} answers with more than {limit:,} bytes")
    return bytes(found)


_FORMAT: Final = {"cid-version": "1"}
_ADDED: Final = {"cid-version": "1", "raw-leaves": "true"}


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _odd("something that is not JSON") from error
    if not isinstance(found, dict):
        raise _odd("something that is no object")
    return found


def _message(raw: bytes) -> str:
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return raw[:300].decode("utf-8", "replace").strip()
    return str(found.get("Message", "")) if isinstance(found, dict) else ""


def _extra(raw: bytes) -> bytes:
    """Returns the record in an answer of ``routing/get``: base64 in the field ``Extra`` of the last line."""
    lines = raw.split()
    extra = _object(lines[-1]).get("Extra") if lines else None
    if not isinstance(extra, str):
        raise _odd("no record where one was asked for")
    try:
        return base64.b64decode(extra, validate=True)
    except ValueError as error:
        raise _odd("a record that is not base64") from error


def _odd(what: str) -> Remote:
    return Remote(f"the Kubo gave {what}", rule="ipfs-answer", hint="is it a Kubo? See [ipfs] api of the settings")
