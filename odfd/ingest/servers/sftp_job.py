"""Declares the request to a process that reads files by SFTP, and its answer. Pure."""

from __future__ import annotations

from typing import Final

from odfd.ingest.servers.remote_files import Pattern, RemoteFile
from odfd.ingest.source_process import SourceJob, SourceResult

SFTP: Final = "source-sftp"


class SftpJob(SourceJob, frozen=True, kw_only=True):
    """The request to read a file by SFTP. ``user``, ``password`` and ``private_key`` are filled in."""

    addresses: tuple[str, ...]
    """Addresses that may be dialled, in this order; the name is not resolved again."""
    port: int
    host_key: str
    """The only key that the server may show, as a line of OpenSSH."""
    user: str
    password: str | None
    private_key: str | None
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


class SftpResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads files by SFTP."""

    found: RemoteFile | None = None
    """The file that was read; ``None``: none is new."""
    more: bool = False
    matched: bool = False
    """Whether any file fits the pattern."""
    behind: tuple[RemoteFile, ...] = ()
    """Files before the position, of which some may have appeared late."""
    rule: str = SFTP
