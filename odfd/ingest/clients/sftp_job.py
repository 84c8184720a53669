"""Declares the request to a process that reads files by SFTP, and its answer. Pure."""

from __future__ import annotations

from typing import Final

from odfd.ingest.clients.remote_files import RemoteFileJob, RemoteFileResult

SFTP: Final = "source-sftp"
PROGRAM: Final = "odfd.ingest.clients.sftp"
"""The module of the process: only it imports the client, which is an extra."""


class SftpJob(RemoteFileJob, frozen=True, kw_only=True):
    """The request to read a file by SFTP."""

    host_key: str
    """The only key that the server may show, as a line of OpenSSH."""
    password: str | None
    private_key: str | None


class SftpResult(RemoteFileResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads files by SFTP."""

    rule: str = SFTP
