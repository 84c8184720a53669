"""Declares the request to a process that reads files by FTP, and its answer. Pure."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

from odfd.ingest.servers.remote_files import Pattern, RemoteFile
from odfd.ingest.source_process import SourceJob, SourceResult

FTP: Final = "source-ftp"
Tls: TypeAlias = Literal["never", "explicit", "implicit"]
"""Encryption of the connection: none, after AUTH (RFC 4217), or from the first byte."""


class FileVersion(NamedTuple):
    """Size and time of a file, which distinguish its versions; ``None``: the server does not tell."""

    size: int | None
    modified: str | None
    """The time as the server writes it."""

    def encode(self) -> str | None:
        """Returns the version for a source state; ``None`` if size or time is unknown."""
        return None if self.size is None or self.modified is None else f"{self.size}-{self.modified}"


class FtpJob(SourceJob, frozen=True, kw_only=True):
    """The request to read a file by FTP. ``user`` and ``password`` are filled in."""

    addresses: tuple[str, ...]
    """Addresses that may be dialled, in this order; the name is not resolved again."""
    port: int
    host: str
    """The name for which the server's certificate has to be valid."""
    tls: Tls
    user: str
    password: str
    path: str
    """Path of one file, or a pattern; without a leading slash it is relative to the user's initial folder."""
    known: str | None
    """The version of the file that the chain took in, for a single file."""
    pattern: Pattern | None
    """Order and position of the pattern; ``None``: a single file is requested."""
    connect: float
    silence: float
    """Seconds without a word from the server after which the read fails."""
    reserve: int
    """Bytes left free on the disk of the target."""


class FtpResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads a file by FTP."""

    unchanged: bool = False
    version: str | None = None
    modified: str | None = None
    """Time of the file as ``YYYYMMDDHHMMSS``, in UTC."""
    found: RemoteFile | None = None
    """The file of the pattern that was read; ``None``: none is new."""
    more: bool = False
    matched: bool = False
    """Whether any file fits the pattern."""
    behind: tuple[RemoteFile, ...] = ()
    """Files before the position, of which some may have appeared late."""
    rule: str = FTP
