"""Authenticates by tokens in a file, a name and a token a line, reloaded when it changes."""

from __future__ import annotations

import hashlib
import hmac
import stat
from pathlib import Path
from typing import Final

from chain.errors import Environment, Refused

MAX_FILE: Final = 1 << 20
LEAST: Final = 16
"""Fewest characters of a token."""


class Tokens:
    """The tokens in file ``path``, named by ``setting``; ``None``: no tokens. ``required``: requests need one."""

    def __init__(self, path: Path | None, setting: str, *, required: bool) -> None:
        self._path, self._setting, self._required = path, setting, required
        self._rule = setting.replace(".", "-")
        self._known: frozenset[bytes] = frozenset()
        self._mark: tuple[int, int, int] | None = None

    def admits(self, token: str) -> bool:
        """Whether a token grants its caller the owner's read access. Called from worker threads.

        Raises Refused for an unknown token, and without one where it is required; Environment.
        """
        if not token:
            if self._required:
                raise Refused("a token is needed here", rule=self._rule, hint=f"one of the file in {self._setting}")
            return False
        digest = _digest(token)
        if not any(hmac.compare_digest(digest, each) for each in self._read()):
            hint = f"{self._setting} names the file of those that are"
            raise Refused("the token is not known", rule=self._rule, hint=hint)
        return True

    def check(self) -> None:
        """Raises Environment or Invalid if the file cannot be used."""
        self._read()

    def _read(self) -> frozenset[bytes]:
        if self._path is None:
            return frozenset()
        try:
            found = self._path.stat()
            if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                hint = f"chmod 600 {self._path}"
                raise Environment(f"other users may read the tokens in {self._path}", rule=self._rule, hint=hint)
            mark = (found.st_ino, found.st_mtime_ns, found.st_size)
            if mark != self._mark:
                with self._path.open("rb") as file:
                    self._known = self._parse(file.read(MAX_FILE))
                self._mark = mark
        except OSError as error:
            hint = f"{self._setting} names it"
            raise Environment(f"cannot read {self._path}: {error.strerror}", rule=self._rule, hint=hint) from error
        return self._known

    def _parse(self, data: bytes) -> frozenset[bytes]:
        found = set()
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) != 2 or len(words[1]) < LEAST:
                hint = f"a name and a token of at least {LEAST} characters"
                raise Environment(f"line {number} of {self._path} is no token", rule=self._rule, hint=hint)
            found.add(_digest(words[1]))
        return frozenset(found)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
