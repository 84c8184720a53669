"""Starts the process that reads by SFTP: only this process imports the SFTP client, which is an extra."""

from __future__ import annotations

import sys

from odfd.ingest.servers.sftp_job import SftpJob, SftpResult
from odfd.ingest.source_process import serve


def answer(job: SftpJob) -> SftpResult:
    """Reads the file and writes it; a fault becomes an answer."""
    from odfd.ingest.servers import sftp

    return sftp.answer(job)


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(SftpJob, answer)


if __name__ == "__main__":
    sys.exit(main())
