"""Reads one file from an FTP server, or the next one of a pattern, in its own process.

A transfer that breaks is continued where it ended, while the server reports the same size and time of the file. These
are requested again at the end: a file that was written meanwhile is refused.
"""

from __future__ import annotations

import ftplib
import hashlib
import sys
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Fault, Remote
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.servers.ftp_listing import listed, stamp_of
from odfd.ingest.servers.ftp_session import FtpSession, fault_of
from odfd.ingest.servers.job import FTP, FileVersion, FtpJob, FtpResult
from odfd.ingest.servers.remote_files import Pattern, next_files
from odfd.ingest.settings import IngestSettings
from odfd.ingest.source_process import answered, serve

TRIES: Final = 5
"""Connections of one fetch that may end without a further byte."""


def answer(job: FtpJob) -> FtpResult:
    """Reads the file and writes it; a fault becomes an answer."""
    return answered(job, lambda job: _Transfer(job).run(), FtpResult, "have it served in smaller files")


class _Transfer:
    """Reads one file over one connection or several. Blocking."""

    def __init__(self, job: FtpJob) -> None:
        self._job = job
        self._path = job.path
        self._digest = hashlib.sha3_256()

    def run(self) -> FtpResult:
        """Reads the file. Raises Remote, Refused, NotFound, Invalid, Environment."""
        job = self._job
        try:
            session = FtpSession(job)
            with closing(session):
                if job.pattern is not None:
                    return self._next(session, job.pattern)
                version = session.version(job.path)
                if job.known is not None and version.encode() == job.known:
                    return FtpResult(unchanged=True)
                return self._read(session, version)
        except (ftplib.Error, OSError, EOFError, ValueError) as error:
            raise fault_of(error, self._path) from None

    def _next(self, session: FtpSession, pattern: Pattern) -> FtpResult:
        files = listed(session, self._job.path)
        found, behind = next_files(files, self._job.path, pattern)
        late = tuple(behind) if len(found) < 2 else ()
        if not found:
            return FtpResult(matched=bool(files), behind=late)
        root = "/" if self._job.path.startswith("/") else ""
        self._path = root + found[0].key
        version = session.version(self._path)
        if version != FileVersion(found[0].size, stamp_of(found[0].modified)):
            raise _changed()
        done = self._read(session, version)
        return msgspec.structs.replace(done, found=found[0], more=len(found) > 1, matched=True, behind=late)

    def _read(self, first: FtpSession, version: FileVersion) -> FtpResult:
        job = self._job
        limits = IngestSettings(staging=Path(job.target).parent, max_source_bytes=job.limit, disk_reserve=job.reserve)
        with FileWriter(Path(job.target), "the file", limits) as file:
            file.expect(version.size or 0)
            self._parts(first, version, file)
        return FtpResult(digest=self._digest.hexdigest(), version=version.encode(), modified=version.modified)

    def _parts(self, first: FtpSession, version: FileVersion, file: FileWriter) -> None:
        session, idle = first, 0
        while True:
            start = file.size
            with closing(session):
                if self._is_whole(session, version, file):
                    return
            idle = idle + 1 if file.size == start else 0
            if version.encode() is None or idle == TRIES:
                raise Remote(f"the connection was lost after {file.size:,} bytes", rule=FTP, hint="try again later")
            session = FtpSession(self._job)

    def _is_whole(self, session: FtpSession, version: FileVersion, file: FileWriter) -> bool:
        """Reads the rest of the file. Returns whether it is complete; False if the connection broke."""

        def keep(part: bytes) -> None:
            file.write(part)
            self._digest.update(part)

        try:
            if file.size and session.version(self._path) != version:
                raise _changed()
            session.read(self._path, keep, file.size)
            too_long = version.size is not None and file.size > version.size
            if too_long or session.version(self._path) != version:
                raise _changed()
        except Fault:
            raise
        except (OSError, EOFError, ftplib.error_temp):
            return False
        return version.size is None or file.size == version.size


def _changed() -> Remote:
    return Remote(
        "the file changed while it was read, and nothing of it was kept", rule="source-changed", hint="pull again"
    )


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(FtpJob, answer)


if __name__ == "__main__":
    sys.exit(main())
