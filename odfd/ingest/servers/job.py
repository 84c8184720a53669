"""Declares the request to a process that reads files of a server of FTP, and its answer. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from odfd.ingest.apart import SourceJob, SourceResult
from odfd.ingest.servers.remote_files import Pattern, RemoteFile

FTP: Final = "source-ftp"
Tls: TypeAlias = Literal["never", "explicit", "implicit"]
"""Whether the connection is encrypted: after AUTH (RFC 4217), from its first byte, or not."""


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
    host: str
    """The name that its certificate has to have."""
    tls: Tls
    user: str
    password: str
    path: str
    """Of one file, or a pattern; without a slash at its begin it starts where the user arrives."""
    known: str | None
    """The version that the chain took in, of one file."""
    pattern: Pattern | None
    """``None``: one file is asked for."""
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
    found: RemoteFile | None = None
    """The file of a pattern that was read; ``None``: none is new."""
    more: bool = False
    matched: bool = False
    """Whether any file fits the pattern."""
    behind: tuple[RemoteFile, ...] = ()
    """Files before the position: some may have come late."""
    rule: str = FTP
