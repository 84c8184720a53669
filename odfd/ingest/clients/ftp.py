"""Reads one file from an FTP server, or the next one of a pattern, in its own process.

A transfer that breaks is continued where it ended, while the server reports the same size and time of the file. These
are requested again at the end: a file that was written meanwhile is refused. Folders are listed within bounds, by MLSD
(RFC 3659): the lists of ``LIST`` have no form common to all servers, and no times with seconds.

The client is Python's own, with bounded waits and answers. Files come only by passive transfers from the address that
was dialled: an answer that names another address is refused, since it would make this machine connect wherever the
server wants. RFC 959, 2428, 3659.
"""

from __future__ import annotations

import calendar
import ftplib
import hashlib
import ipaddress
import re
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from odfd.ingest.clients.remote_files import (
    MAX_LISTED,
    Folders,
    Pattern,
    RemoteFile,
    RemoteFileJob,
    RemoteFileResult,
    next_files,
)
from odfd.ingest.file_writer import FileWriter
from odfd.ingest.source_process import run_job, serve

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


class FtpJob(RemoteFileJob, frozen=True, kw_only=True):
    """The request to read a file by FTP."""

    host: str
    """The name for which the server's certificate has to be valid."""
    tls: Tls
    password: str


class FtpResult(RemoteFileResult, frozen=True, kw_only=True, omit_defaults=True):
    """The answer of the process that reads a file by FTP."""

    unchanged: bool = False
    version: str | None = None
    modified: str | None = None
    """Time of the file as ``YYYYMMDDHHMMSS``, in UTC."""
    rule: str = FTP


TLS_RULE: Final = "ftp-tls"
MAX_LINES: Final = 1_000
"""Lines of answers of one connection."""
BLOCK: Final = 256 << 10
_FIRST_PORT: Final = 1024
"""The least port of a transfer; lower ones belong to services."""
_NUMBER: Final = re.compile(r"213\s+(\d{1,18})\s*\Z")
_MODIFIED: Final = re.compile(r"213\s+(\d{14})(?:\.\d{1,9})?\s*\Z")


class FtpSession(ftplib.FTP):
    """One connection to a server, logged in. Blocking."""

    def __init__(self, job: FtpJob) -> None:
        """Connects and logs in. Raises Remote, Refused, and the client's errors."""
        super().__init__(timeout=job.silence)
        self._lines = 0
        self._host = job.host
        self._tls = None if job.tls == "never" else ssl.create_default_context()
        self.sock = _dial(job)
        try:
            self.af = self.sock.family
            if job.tls == "implicit":
                self.sock = self._secure(self.sock)
            self.file = self.sock.makefile("r", encoding=self.encoding)
            self.welcome = self.getresp()
            if job.tls == "explicit":
                self._begin_tls()
            self._sign_in(job)
            if self._tls is not None:
                self._protect_files()
            self.voidcmd("TYPE I")
        except BaseException:
            self.close()
            raise

    def _sign_in(self, job: FtpJob) -> None:
        try:
            self.login(job.user, job.password)
        except (ftplib.error_perm, ftplib.error_reply) as error:
            raise Refused(
                f"the server refuses this node ({code_of(error)})",
                rule="ftp-credentials",
                hint="user and password? ftp://USER:${{ env.NAME }}@HOST/PATH, with a SecretSet",
            ) from None

    def _begin_tls(self) -> None:
        """Begins TLS. Raises Refused if the server has none: user and password are not sent without it."""
        try:
            self.voidcmd("AUTH TLS")
        except (ftplib.error_perm, ftplib.error_reply) as error:
            raise Refused(
                f"the server takes no TLS ({code_of(error)})",
                rule=TLS_RULE,
                hint="ftps:// asks for it by AUTH; at port 990 it begins with the connection",
            ) from None
        assert self.sock is not None
        self.sock = self._secure(self.sock)
        self.file = self.sock.makefile("r", encoding=self.encoding)

    def _protect_files(self) -> None:
        """Encrypts transfers. Raises Refused if the server would send files in plain text."""
        try:
            # RFC 4217 has it before PROT, though TLS needs no buffer size.
            self.voidcmd("PBSZ 0")
            self.voidcmd("PROT P")
        except (ftplib.error_perm, ftplib.error_reply) as error:
            raise Refused(
                f"the server sends files without TLS ({code_of(error)})", rule=TLS_RULE, hint="ask the server's owner"
            ) from None

    def _secure(self, plain: socket.socket) -> ssl.SSLSocket:
        """Encrypts a connection. One for files resumes the TLS session of the first, which many servers demand."""
        assert self._tls is not None
        session = self.sock.session if isinstance(self.sock, ssl.SSLSocket) else None
        try:
            return self._tls.wrap_socket(plain, server_hostname=self._host, session=session)
        except ssl.SSLCertVerificationError as error:
            raise Refused(
                f"the server's certificate is not that of {self._host}: {error.verify_message}",
                rule=TLS_RULE,
                hint="SSL_CERT_FILE of the daemon's environment names authorities of your own",
            ) from None

    def ntransfercmd(self, cmd: str, rest: int | str | None = None) -> tuple[socket.socket, int | None]:
        """Begins a transfer, which is encrypted if the connection is."""
        plain, size = super().ntransfercmd(cmd, rest)
        return (plain if self._tls is None else self._secure(plain)), size

    def lines(self, command: str, sink: Callable[[str], None]) -> None:
        """Sends a command and passes each line of its list to ``sink``."""
        self.retrlines(command, sink)
        # retrlines has set ASCII, in which line ends of the next file would be changed.
        self.voidcmd("TYPE I")

    def getline(self) -> str:
        """Reads a line of an answer. Raises Remote if there are too many."""
        self._lines += 1
        if self._lines > MAX_LINES:
            raise Remote(f"the server answered more than {MAX_LINES:,} lines", rule=FTP, hint="is it the right one?")
        return super().getline()

    def makepasv(self) -> tuple[str, int]:
        """Returns address and port of the next transfer. Raises Refused for an address other than the server's."""
        assert self.sock is not None
        here = str(self.sock.getpeername()[0])
        try:
            host, port = ftplib.parse229(self.sendcmd("EPSV"), (here, 0))
        except ftplib.error_perm:
            if self.af != socket.AF_INET:
                raise
            host, port = ftplib.parse227(self.sendcmd("PASV"))
        if not _is_same(host, here):
            raise Refused(
                f"the server, at {here}, sends this node to {host[:64]} for the file",
                rule="ftp-redirect",
                hint="it would have the node connect elsewhere; the server's owner sets its passive address, or EPSV",
            )
        if not _FIRST_PORT <= port < 1 << 16:
            raise Refused(f"the server sends this node to its port {port} for the file", rule="ftp-redirect")
        return here, port

    def version(self, path: str) -> FileVersion:
        """Requests the size and the time of a file; ``None`` for each that the server does not tell."""
        size, modified = self._query(f"SIZE {path}", _NUMBER), self._query(f"MDTM {path}", _MODIFIED)
        return FileVersion(None if size is None else int(size), modified)

    def _query(self, command: str, form: re.Pattern[str]) -> str | None:
        try:
            found = form.match(self.sendcmd(command))
        except ftplib.error_perm:
            return None
        return None if found is None else found[1]

    def read(self, path: str, sink: Callable[[bytes], None], start: int) -> None:
        """Passes the bytes of a file from ``start`` on to ``sink``."""
        self.retrbinary(f"RETR {path}", sink, BLOCK, start or None)


def _dial(job: FtpJob) -> socket.socket:
    failed: OSError | None = None
    for address in job.addresses:
        try:
            found = socket.create_connection((address, job.port), job.connect)
        except OSError as error:
            failed = error
            continue
        found.settimeout(job.silence)
        return found
    said = failed.strerror or failed if failed is not None else "it has no address"
    raise Remote(f"the server cannot be reached: {said}", rule=FTP, hint="try again later")


def _is_same(host: str, here: str) -> bool:
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(here)
    except ValueError:
        return False


def code_of(error: BaseException) -> str:
    """Returns the code of a reply; its text may quote secrets that were sent."""
    code = str(error)[:3]
    return code if code.isdecimal() else "no answer of FTP"


def fault_of(error: Exception, path: str) -> Fault:
    """Converts an error of the client to a fault."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, ftplib.error_perm) and code_of(error) in ("550", "553"):
        return NotFound(f"there is no file {path!r}, or it may not be read", rule=FTP, hint="check the URL")
    if isinstance(error, ValueError):  # from the client, for characters that would end a command
        return Invalid("user, password or path hold what no command of FTP may", rule=FTP, hint="odfctl docs sources")
    if isinstance(error, ftplib.Error):
        return Remote(f"the server answers {code_of(error)}", rule=FTP, hint="try again later")
    return Remote(f"the connection was lost: {type(error).__name__}", rule=FTP, hint="try again later")


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
        raise Refused("a name there is no UTF-8", rule=RULE, hint="rename that file, or narrow the path") from None
    except ftplib.error_perm as error:
        if code_of(error) in _MISSING:
            raise NotFound(f"there is no folder {folder!r}", rule=FTP, hint="check the path") from None
        if code_of(error) not in _UNKNOWN:
            raise
        raise Refused(
            f"the server does not list its files by MLSD ({code_of(error)}), so it is not known what is new",
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
        raise Refused(
            f"the server lists {line[:120]!r}, which is no name", rule=RULE, hint="check that it is the right server"
        )
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
            f"the server does not report size and time of {key!r}", rule=RULE, hint="name its files as kind: Url"
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
            return FtpResult(behind=late)
        root = "/" if self._job.path.startswith("/") else ""
        self._path = root + found[0].key
        version = session.version(self._path)
        if version != FileVersion(found[0].size, stamp_of(found[0].modified)):
            raise _change_fault()
        done = self._read(session, version)
        return msgspec.structs.replace(done, found=found[0], more=len(found) > 1, behind=late)

    def _read(self, first: FtpSession, version: FileVersion) -> FtpResult:
        job = self._job
        with FileWriter(Path(job.target), "the file", job.limit, job.reserve) as file:
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
        "the file changed while it was read, and no part of it was kept", rule="source-changed", hint="pull again"
    )


def main() -> int:
    """Runs the process. Returns its exit code."""
    return serve(FtpJob, answer)


if __name__ == "__main__":
    sys.exit(main())
