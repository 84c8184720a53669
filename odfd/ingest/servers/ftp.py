"""Reads one file from an FTP server, or the next one of a pattern, in its own process.

A transfer that breaks is continued where it ended, while the server reports the same size and time of the file. These
are requested again at the end: a file that was written meanwhile is refused. Folders are listed within bounds, by MLSD
(RFC 3659): the lists of ``LIST`` have no form common to all servers, and no times with seconds.
"""

from __future__ import annotations

import calendar
import ftplib
import hashlib
import re
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec

from chain.errors import Fault, NotFound, Refused, Remote
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.servers.ftp_session import FtpSession, code_of, fault_of
from odfd.ingest.servers.job import FTP, FileVersion, FtpJob, FtpResult
from odfd.ingest.servers.remote_files import MAX_LISTED, Folders, Pattern, RemoteFile, next_files
from odfd.ingest.settings import IngestSettings
from odfd.ingest.source_process import run_job, serve

RULE: Final = "ftp-listing"
_UNKNOWN: Final = frozenset({"500", "502", "504"})
"""Reply codes for a command that a server does not have."""
_MISSING: Final = frozenset({"501", "550", "553"})
"""Reply codes for a folder that does not exist."""
_SIZE: Final = re.compile(r"\d{1,18}\Z")
_TIME: Final = re.compile(r"(\d{14})(?:\.\d{1,9})?\Z")
_NOT_IN_NAMES: Final = re.compile(r"[/\x00-\x1f\x7f]")


def list_files(session: FtpSession, pattern: str) -> list[RemoteFile]:
    """Returns the files that fit a pattern. Raises Refused, and the client's errors."""
    folders, looked_at = Folders(pattern), 0
    found: list[RemoteFile] = []
    while folders.waiting:
        folder = folders.waiting.pop()
        for kind, name, facts in _entries(session, folders.root + folder, MAX_LISTED - looked_at):
            looked_at += 1
            key = folders.below(folder, name)
            if kind == "dir":
                folders.add(key)
            elif kind == "file":
                file = _file(key, facts)
                found += [file] if folders.keys.fit(file.as_object()) else []
    return found


def _entries(session: FtpSession, folder: str, most: int) -> list[tuple[str, str, dict[str, str]]]:
    found: list[tuple[str, str, dict[str, str]]] = []

    def take(line: str) -> None:
        facts, name = _read(line)
        kind = facts.get("type", "").casefold()
        if kind not in ("cdir", "pdir"):
            found.append((kind, name, facts))
        if len(found) > most:
            raise Refused(
                f"more than {MAX_LISTED:,} entries are listed below {folder!r}",
                rule=FTP,
                hint="narrow the folder before the first * of the path",
            )

    try:
        session.lines(f"MLSD {folder}".rstrip(), take)
    except UnicodeDecodeError:
        raise Refused("a name there is no UTF-8", rule=RULE, hint="name that file anew, or narrow the path") from None
    except ftplib.error_perm as error:
        if code_of(error) in _MISSING:
            raise NotFound(f"there is no folder {folder!r}", rule=FTP, hint="is the path right?") from None
        if code_of(error) not in _UNKNOWN:
            raise
        raise Refused(
            f"the server does not list its files by MLSD ({code_of(error)}), so nothing tells what is new",
            rule=RULE,
            hint="name its files one by one, as kind: Url; or use SFTP, if the server has it",
        ) from None
    return found


def _read(line: str) -> tuple[dict[str, str], str]:
    """Parses the facts and the name of an entry. Raises Refused."""
    # The first space ends the facts; a name may have more (RFC 3659, section 7.2).
    said, space, name = line.partition(" ")
    if name in (".", ".."):
        return {"type": "cdir"}, name
    if not space or not name or _NOT_IN_NAMES.search(name):
        raise Refused(f"the server lists {line[:120]!r}, which is no name", rule=RULE, hint="is it the right server?")
    pairs = (fact.partition("=") for fact in said.split(";") if fact)
    return {key.casefold(): value for key, _, value in pairs}, name


def _file(key: str, facts: dict[str, str]) -> RemoteFile:
    size, modified = _SIZE.match(facts.get("size", "")), _TIME.match(facts.get("modify", ""))
    try:
        seconds = calendar.timegm(time.strptime(modified[1], "%Y%m%d%H%M%S")) if modified else None
    except ValueError:
        seconds = None
    if size is None or seconds is None:
        raise Refused(
            f"the server does not tell size and time of {key!r}", rule=RULE, hint="name its files as kind: Url"
        )
    return RemoteFile(key=key, size=int(size[0]), modified=seconds)


def stamp_of(modified: int) -> str:
    """Returns a time in the form of MDTM."""
    return time.strftime("%Y%m%d%H%M%S", time.gmtime(modified))


TRIES: Final = 5
"""Connections of one fetch that may end without a further byte."""


def answer(job: FtpJob) -> FtpResult:
    """Reads the file and writes it; a fault becomes an answer."""
    return run_job(job, lambda job: _Transfer(job).run(), FtpResult, "have it served in smaller files")


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
        files = list_files(session, self._job.path)
        found, behind = next_files(files, self._job.path, pattern)
        late = tuple(behind) if len(found) < 2 else ()
        if not found:
            return FtpResult(matched=bool(files), behind=late)
        root = "/" if self._job.path.startswith("/") else ""
        self._path = root + found[0].key
        version = session.version(self._path)
        if version != FileVersion(found[0].size, stamp_of(found[0].modified)):
            raise _change_fault()
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
                raise _change_fault()
            session.read(self._path, keep, file.size)
            too_long = version.size is not None and file.size > version.size
            if too_long or session.version(self._path) != version:
                raise _change_fault()
        except Fault:
            raise
        except (OSError, EOFError, ftplib.error_temp):
            return False
        return version.size is None or file.size == version.size


def _change_fault() -> Remote:
    return Remote(
        "the file changed while it was read, and nothing of it was kept", rule="source-changed", hint="pull again"
    )


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(FtpJob, answer)


if __name__ == "__main__":
    sys.exit(main())
