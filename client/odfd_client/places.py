"""Reads the files of a repository: of a folder, of a web server, or of a store that Arrow reads (S3, Google).

All files are named relative to the repository. Nothing here is trusted: the callers hash what they get.
"""

from __future__ import annotations

import http.client
import os
import ssl
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

from odfd_client.errors import Bug, Environment, Invalid, NotFound, OdfdError, Refused, Remote, Unreachable

_PART: Final = 1 << 20
_SECONDS: Final = 60.0
_MOST_KEPT: Final = 4
_MOST_LISTED: Final = 1000


class Place(ABC):
    """The files below one address. Methods raise Unreachable, Remote, Refused, Environment."""

    shown: str

    @abstractmethod
    def read(self, path: str, limit: int) -> bytes | None:
        """Returns a file of at most ``limit`` bytes; ``None``: there is none."""

    @abstractmethod
    def open(self, path: str, size: int) -> IO[bytes] | None:
        """Returns a file of this size on the disk of this machine, which stays readable; ``None``: there is none."""

    def folders(self) -> list[str] | None:
        """Lists the names of folders; ``None``: the place does not tell."""
        return None


class FolderPlace(Place):
    def __init__(self, root: Path) -> None:
        self._root, self.shown = root, str(root)

    def read(self, path: str, limit: int) -> bytes | None:
        try:
            with (self._root / path).open("rb") as opened:
                content = opened.read(limit + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(self._root / path, error) from error
        return _check_length(self.shown, path, content, limit)

    def open(self, path: str, size: int) -> IO[bytes] | None:  # noqa: ARG002  the caller hashes what there is
        try:
            return (self._root / path).open("rb")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _unreadable(self._root / path, error) from error

    def folders(self) -> list[str] | None:
        try:
            names = sorted(each.name for each in os.scandir(self._root) if not each.name.startswith("."))
        except OSError as error:
            raise _unreadable(self._root, error) from error
        if len(names) > _MOST_LISTED:
            raise Refused(f"{self.shown} has more than {_MOST_LISTED} folders", rule="repository-listing",
                          hint="open a dataset by the name of its folder")  # fmt: skip
        return names


class WebPlace(Place):
    """A place of the ODF layout at a web server."""

    def __init__(self, url: str, token: str = "", ca_file: str | os.PathLike[str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.query or parts.fragment or parts.username or not parts.hostname:
            raise Invalid("an address without a password, ? and #", rule="url", hint="https://HOST/FOLDER")
        if token and parts.scheme != "https" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise Invalid("a token is not sent unencrypted", rule="url", hint="https://HOST/FOLDER")
        self._parts, self._path = parts, parts.path.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls = None
        self._kept: deque[http.client.HTTPConnection] = deque()
        weakref.finalize(self, _close_all, self._kept)
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except OSError as error:
                raise Invalid(f"no certificates can be read: {error}", rule="ca-file", hint="a file in PEM") from error
        self.shown = url.rstrip("/")

    def read(self, path: str, limit: int) -> bytes | None:
        with self._get(path) as answer:
            return None if answer is None else _check_length(self.shown, path, answer.take(limit + 1), limit)

    def open(self, path: str, size: int) -> IO[bytes] | None:
        with self._get(path) as answer:
            if answer is None:
                return None
            return _spool(self.shown, path, size, answer.take)

    def _get(self, path: str) -> _Got:
        return _Got(self, quote(f"{self._path}/{path}"))

    def connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """Returns a connection, and whether it was used before."""
        with suppress(IndexError):
            return self._kept.pop(), True
        host, port = self._parts.hostname or "", self._parts.port
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=self._tls), False
        return http.client.HTTPConnection(host, port, timeout=_SECONDS), False

    def keep(self, connection: http.client.HTTPConnection) -> None:
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(connection)
        else:
            connection.close()

    @property
    def headers(self) -> dict[str, str]:
        return self._headers


def _close_all(connections: deque[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


class _Got:
    """One answer of a web server, within ``with``, which gives ``None`` for a missing file."""

    def __init__(self, place: WebPlace, target: str) -> None:
        self._place, self._target = place, target

    def __enter__(self) -> _Got | None:
        self._open, is_used = self._place.connection()
        try:
            self._ask()
        except (OSError, http.client.HTTPException) as error:
            self._open.close()
            if not is_used:
                raise Unreachable(f"{self._place.shown} cannot be asked: {error}", rule="repository-remote") from error
            return self.__enter__()  # the server had closed a connection that was kept
        if self._answer.status == 200:
            return self
        self._answer.read(_PART)
        self.__exit__()
        self._check_missing(self._answer.status)
        return None

    def _ask(self) -> None:
        self._open.request("GET", self._target, headers=self._place.headers)
        self._answer = self._open.getresponse()

    def _check_missing(self, status: int) -> None:
        """Raises Refused or Remote for a status that does not say that a file is missing."""
        # Object stores answer 403 for a missing file if the caller may not list.
        if status in (404, 410) or (status in (401, 403) and not self._place.headers):
            return
        if status in (401, 403):
            said = f"{self._place.shown} answered {status}: the token does not open it"
            raise Refused(said, rule="repository-remote", hint="another token")
        raise Remote(f"{self._place.shown} answered {status}", rule="repository-remote", hint="try again")

    def __exit__(self, *_: object) -> None:
        if self._answer.isclosed() and not self._answer.will_close:
            self._place.keep(self._open)
        else:
            self._open.close()

    def take(self, size: int) -> bytes:
        try:
            return self._answer.read(size)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self._place.shown} broke off: {error}", rule="repository-remote") from error


class StorePlace(Place):
    """A place in a store that Arrow knows by its URL, with the credentials that Arrow finds."""

    def __init__(self, url: str) -> None:
        from pyarrow import fs

        try:
            self._store, self._root = fs.FileSystem.from_uri(url)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise Invalid(f"not the address of a store: {error}", rule="url", hint="s3://BUCKET/FOLDER") from error
        self.shown = url.partition("?")[0]

    def read(self, path: str, limit: int) -> bytes | None:
        found = self._open(path)
        if found is None:
            return None
        with found:
            return _check_length(self.shown, path, self._take(found, limit + 1), limit)

    def open(self, path: str, size: int) -> IO[bytes] | None:
        found = self._open(path)
        if found is None:
            return None
        with found:
            return _spool(self.shown, path, size, lambda count: self._take(found, count))

    def folders(self) -> list[str] | None:
        from pyarrow import fs

        try:
            found = self._store.get_file_info(fs.FileSelector(self._root))
        except OSError as error:
            raise Unreachable(f"{self.shown} cannot be listed: {error}", rule="repository-remote") from error
        return sorted(each.base_name for each in found if each.type == fs.FileType.Directory)[:_MOST_LISTED]

    def _open(self, path: str) -> Any:
        try:
            return self._store.open_input_stream(f"{self._root}/{path}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unreachable(f"{self.shown} cannot be asked: {error}", rule="repository-remote") from error

    def _take(self, found: Any, size: int) -> bytes:
        try:
            return bytes(found.read(size))
        except OSError as error:
            raise Unreachable(f"{self.shown} broke off: {error}", rule="repository-remote") from error


def open_place(where: str | os.PathLike[str], token: str, ca_file: str | os.PathLike[str] | None) -> Place:
    """Opens a place. Raises Invalid, NotFound."""
    text = os.fspath(where)
    scheme = urlsplit(text).scheme if "://" in text else ""
    if scheme in ("http", "https"):
        return WebPlace(text, token, ca_file)
    if token or ca_file:
        raise Invalid("a token and certificates are for a web server", rule="url", hint="https://HOST/FOLDER")
    if scheme in ("s3", "gs"):
        return StorePlace(text)
    if scheme not in ("", "file"):
        hint = "a folder, file://, http(s)://, s3:// or gs://; for other stores mirror it on a node: odfctl mirror add"
        raise Invalid(f"{scheme}:// is no repository that the client reads", rule="url", hint=hint)
    root = Path(unquote(urlsplit(text).path) if scheme else text)
    if (root / ".kamu" / "datasets").is_dir():
        root = root / ".kamu" / "datasets"
    if not root.is_dir():
        raise NotFound(f"there is no folder {root}", rule="repository-place", hint="a dataset, or datasets in folders")
    return FolderPlace(root)


def _spool(shown: str, path: str, size: int, take: Any) -> IO[bytes]:
    """Copies a file to the disk of this machine; its name is deleted at once."""
    file = tempfile.TemporaryFile(prefix="odfd-client-")  # noqa: SIM115  it is returned
    try:
        left = size + 1
        while left > 0 and (part := take(min(_PART, left))):
            file.write(part)
            left -= len(part)
        if left != 1:
            said = "has more bytes" if left == 0 else "ends before its last byte"
            raise Bug(f"{path} of {shown} {said} than its block says", rule="repository-object")
        file.flush()
    except OSError as error:
        _close(file)
        raise Environment(f"no space for {path}: {error}", rule="disk", hint="TMPDIR names another disk") from error
    except OdfdError:
        _close(file)
        raise
    return file


def _close(file: IO[bytes]) -> None:
    with suppress(OSError):
        file.close()


def _check_length(shown: str, path: str, content: bytes, limit: int) -> bytes:
    if len(content) > limit:
        raise Remote(f"{path} of {shown} has more than {limit:,} bytes", rule="repository-size")
    return content


def _unreadable(path: Path, error: OSError) -> OdfdError:
    return Environment(f"{path} cannot be read: {error.strerror or error}", rule="disk")
