"""Reads and writes objects below one prefix of a bucket, some on condition that they are unchanged.

obstore speaks to the store. Its texts quote answers of servers, URLs and signed requests, so none of them is passed on:
a message names the repository, the kind of refusal and the store's own short code. Blocking; safe to use from many
threads.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from chain.errors import Refused, Remote
from odfd.repositories.files import StoredFile
from odfd.repositories.manifest import RepositoryPlace
from odfd.runtime.buckets import CHUNK, is_no_bucket, kind_of, open_store
from p2p.ports import FileMissing, FilePart

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore

PROBE: Final = ".odfd-conditions"
"""A small file beside the datasets, with which the store's conditional writes are tested."""


_OF_NOTHING: Final = '"of-nothing"'


class Bucket:
    """The files below one prefix of a bucket. All methods raise Remote, Refused."""

    def __init__(self, name: str, store: ObjectStore, *, by_version: bool = False) -> None:
        """``name``: the repository's, for messages.

        ``by_version``: whether tags are version numbers, as Google's are.
        """
        self.name = name
        self._store = store
        self._by_version = by_version

    def get(self, path: str, limit: int) -> StoredFile | None:
        """Reads a file; ``None`` if there is none. Raises Remote for more than ``limit`` bytes."""
        import obstore

        try:
            with self._ask():
                found = obstore.get(self._store, path)
                if found.meta["size"] > limit:
                    raise Remote(f"{self.name}: {path[-80:]} has more than {limit:,} bytes", rule="repository-size")
                tag = found.meta["version"] if self._by_version else found.meta["e_tag"]
                return StoredFile(bytes(found.bytes()), tag or "")
        except FileMissing:
            return None

    def size(self, path: str) -> int | None:
        import obstore

        try:
            with self._ask():
                return obstore.head(self._store, path)["size"]
        except FileMissing:
            return None

    def parts(self, path: str, offset: int) -> Generator[FilePart, None, None]:
        """Yields a file from ``offset`` on. Raises Missing."""
        import obstore

        with self._ask():
            found = obstore.get(self._store, path, options={"range": {"offset": offset}} if offset else None)
            for part in found.stream(min_chunk_size=CHUNK):
                yield memoryview(part)

    def put(self, path: str, content: bytes | Iterator[bytes]) -> None:
        """Writes a file as a whole, or not at all; an exception of ``content`` is passed on."""
        import obstore

        with self._ask():
            obstore.put(self._store, path, content)

    def delete(self, path: str) -> None:
        """Deletes a file. With some stores also raises Missing."""
        import obstore

        with self._ask():
            obstore.delete(self._store, path)

    def put_if(self, path: str, content: bytes, tag: str | None) -> bool:
        """Writes only over a file with this tag, or for ``None`` only if there is none; returns whether it did."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with self._ask():
                obstore.put(self._store, path, content, mode="create" if tag is None else self._condition(tag))
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def check_conditions(self) -> None:
        """Raises Refused for a store that ignores conditions, with which two pushers would both win."""
        self.put_if(PROBE, b"odfd", None)
        if self.put_if(PROBE, b"odfd", None) or self.put_if(PROBE, b"odfd", "1" if self._by_version else _OF_NOTHING):
            raise Refused(
                f"{self.name} ignores conditions of writes: of two concurrent pushes one would be lost silently",
                rule="repository-conditions",
                hint="a store with conditional writes (If-None-Match, If-Match) is needed to push; pulling works",
            )

    def _condition(self, tag: str) -> UpdateVersion:
        return {"version": tag} if self._by_version else {"e_tag": tag}

    @contextmanager
    def _ask(self) -> Iterator[None]:
        from obstore import exceptions

        try:
            yield
        except FileNotFoundError as error:
            if is_no_bucket(error):
                raise Refused(f"{self.name}: there is no such bucket", rule="repository-bucket") from None
            raise FileMissing(f"{self.name} has no such file", rule="repository-file") from None
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
            raise
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as error:
            raise Refused(
                f"{self.name} refuses this node: {kind_of(error)}",
                rule="repository-credentials",
                hint=f"odfctl get repository {self.name} -o yaml names its SecretSet, whose keys it does not take",
            ) from None
        except exceptions.BaseError as error:
            raise Remote(
                f"{self.name} cannot be asked: {kind_of(error)}",
                rule="repository-remote",
                hint="try again; odfctl repo list",
            ) from None


def open_bucket(name: str, place: RepositoryPlace, credentials: Mapping[str, str]) -> Bucket:
    """Opens a bucket. Without credentials requests are unsigned. Raises Invalid, Environment."""
    assert place.bucket is not None
    store = open_store(place.bucket, credentials, prefix=place.bucket.below)
    return Bucket(name, store, by_version=place.bucket.store == "gs")
