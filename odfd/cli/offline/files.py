"""Reads the files that a command names and writes its output, with error messages that name the file."""

from __future__ import annotations

import sys
from pathlib import Path

from chain.errors import Invalid, NotFound
from chain.store.files import disk
from chain.store.layout import is_dataset, not_a_dataset


def read_limited(name: str, limit: int, what: str) -> bytes:
    """Reads a file, or standard input for ``-``. Raises NotFound, Invalid beyond ``limit`` bytes, Environment."""
    if name == "-":
        raw = sys.stdin.buffer.read(limit + 1)
    else:
        path = existing(name)
        with disk(path), path.open("rb") as file:
            raw = file.read(limit + 1)
    if len(raw) > limit:
        raise Invalid(f"{name} is longer than {limit:,} bytes, so it is no {what}", rule="file-size", place=name)
    return raw


def is_directory(target: str) -> bool:
    """Whether the target has the form of a path, which may be absent; errors are then about files.

    ``a/b`` is a dataset of the account ``a``, unless it is a folder.
    """
    slashes = target.partition("://")[0].count("/")
    return target.startswith((".", "/", "~")) or slashes > 1 or Path(target).is_dir()


def dataset(name: str) -> Path:
    """Returns the folder of a dataset. Raises NotFound if there is none, Invalid for one of a former format."""
    from odfd.transfer.former_chain import find_former

    path = Path(name).expanduser()
    if find_former(path) is not None:
        raise Invalid(
            f"{name} is a dataset of ODF 0.18",
            rule="former-format",
            hint=f"odfctl import {name} verifies it, converts it, and compares both",
        )
    if not is_dataset(path):
        raise not_a_dataset(path, name)
    return path


def existing(name: str) -> Path:
    """Returns the path of a file. Raises NotFound if there is none."""
    path = Path(name).expanduser()
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file" if path.exists() else "not there"
        raise NotFound(f"cannot read {name}: it is {kind}", rule="file-missing", hint="name an existing file")
    return path
