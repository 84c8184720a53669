"""Speaks FTP to one server, by Python's own client with bounded waits and answers.

Files come only by passive transfers from the address that was dialled: an answer that names another address is refused,
since it would make this machine connect wherever the server wants. RFC 959, 2428, 3659.
"""

from __future__ import annotations

import ftplib
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable
from typing import Final

from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from odfd.ingest.servers.job import FTP, FileVersion, FtpJob

TLS_RULE: Final = "ftp-tls"
MAX_LINES: Final = 1_000
"""Lines of answers of one connection."""
BLOCK: Final = 256 << 10
_FIRST_PORT: Final = 1024
"""The least port of a transfer; lower ones belong to services."""
_NUMBER: Final = re.compile(r"213\s+(\d{1,18})\s*\Z")
_TIME: Final = re.compile(r"213\s+(\d{14})(?:\.\d{1,9})?\s*\Z")


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
        size, modified = self._query(f"SIZE {path}", _NUMBER), self._query(f"MDTM {path}", _TIME)
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
        return NotFound(f"there is no file {path!r}, or it may not be read", rule=FTP, hint="is the URL right?")
    if isinstance(error, ValueError):  # from the client, for characters that would end a command
        return Invalid("user, password or path hold what no command of FTP may", rule=FTP, hint="odfctl docs sources")
    if isinstance(error, ftplib.Error):
        return Remote(f"the server answers {code_of(error)}", rule=FTP, hint="try again later")
    return Remote(f"the connection was lost: {type(error).__name__}", rule=FTP, hint="try again later")
