"""Checks files of objects by their hash, makes folders, and turns the system's errors about files into faults.

The engine needs this for files that it is given, and nothing else of the store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chain.errors import Environment, NotFound
from chain.multihash import Multihash

DAMAGED: Final = "stored-object-damaged"


class ObjectDamaged(Environment):
    """Raised for a stored object whose bytes do not have its hash."""

    def __init__(self, name: Multihash) -> None:
        super().__init__(
            f"object {name.short} is damaged on disk",
            rule=DAMAGED,
            hint="odfctl pull REF --repair fetches it again from a peer that has it",
        )
        self.name = name


def check_file(path: Path, name: Multihash) -> None:
    """Checks a file by its hash. Raises ObjectDamaged, NotFound, Environment."""
    with disk(path), path.open("rb") as file:
        if Multihash.sha3_256_of(file) != name:
            raise ObjectDamaged(name)


@contextlib.contextmanager
def disk(place: Path) -> Iterator[None]:
    """Turns an OSError about a file into Environment, or NotFound when the file is absent."""
    try:
        yield
    except FileNotFoundError as error:
        raise NotFound(f"no file {error.filename or place}", rule="file-missing") from error
    except OSError as error:
        raise Environment(
            f"cannot use {error.filename or place}: {error.strerror}",
            rule="disk",
            hint="check that the disk is not full, read-only or failing, and that this user owns the folder",
        ) from error


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents. Raises Environment for any failure, never NotFound."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Environment(
            f"cannot make the folder {folder}: {error.strerror}",
            rule="disk",
            hint="name a folder on a disk that you may write to",
        ) from error
