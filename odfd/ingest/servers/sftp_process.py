"""Starts the reader of SFTP: only this process imports its client, which is an extra."""

from __future__ import annotations

import sys

from odfd.ingest.apart import serve
from odfd.ingest.servers.sftp_job import SftpJob, SftpResult


def answer(job: SftpJob) -> SftpResult:
    """Reads, and writes what was read; a fault is an answer."""
    from odfd.ingest.servers import sftp

    return sftp.answer(job)


def main() -> int:
    """Exit code of the process."""
    return serve(SftpJob, answer)


if __name__ == "__main__":
    sys.exit(main())
