"""Declares the request to a process that reads a file of a server, and its answer. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from odfd.ingest.apart import SourceJob, SourceResult

FTP: Final = "source-ftp"


class FileVersion(NamedTuple):
    """Tells one state of a file from another; ``None``: the server does not say."""

    size: int | None
    modified: str | None
    """The time as the server writes it."""

    def encode(self) -> str | None:
        """Returns it for a source state; ``None``: it would tell too little."""
        return None if self.size is None or self.modified is None else f"{self.size}-{self.modified}"


class FtpJob(SourceJob, frozen=True, kw_only=True):
    """``user`` and ``password`` are filled in."""

    addresses: tuple[str, ...]
    """Those that may be dialled, in this order; nothing is resolved again."""
    port: int
    user: str
    password: str
    path: str
    known: str | None
    """The version that the chain took in."""
    connect: float
    silence: float
    """Seconds that the server may say nothing."""
    reserve: int
    """Bytes left free on the disk of the target."""


class FtpResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads a file by FTP."""

    unchanged: bool = False
    version: str | None = None
    modified: str | None = None
    """As ``YYYYMMDDHHMMSS``, in UTC."""
    rule: str = FTP
