"""Declares the request to a process that reads files by SFTP, and its answer. Pure."""

from __future__ import annotations

from typing import Final

from odfd.ingest.apart import SourceJob, SourceResult
from odfd.ingest.servers.remote_files import Pattern, RemoteFile

SFTP: Final = "source-sftp"


class SftpJob(SourceJob, frozen=True, kw_only=True):
    """``user``, ``password`` and ``private_key`` are filled in."""

    addresses: tuple[str, ...]
    """Those that may be dialled, in this order; nothing is resolved again."""
    port: int
    host_key: str
    """The only key by which the server is known, as a line of OpenSSH."""
    user: str
    password: str | None
    private_key: str | None
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


class SftpResult(SourceResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads files by SFTP."""

    found: RemoteFile | None = None
    """The file that was read; ``None``: none is new."""
    more: bool = False
    matched: bool = False
    """Whether any file fits the pattern."""
    behind: tuple[RemoteFile, ...] = ()
    """Files before the position: some may have come late."""
    rule: str = SFTP
