"""Lists the files of an FTP server that may fit a pattern: folder by folder, within bounds, by MLSD (RFC 3659).

The lists of ``LIST`` have no form common to all servers, and no times with seconds: a server without MLSD is refused.
"""

from __future__ import annotations

import calendar
import ftplib
import re
import time
from typing import Final

from chain.errors import NotFound, Refused
from odfd.ingest.servers.ftp_session import FtpSession, code_of
from odfd.ingest.servers.job import FTP
from odfd.ingest.servers.remote_files import MAX_LISTED, Folders, RemoteFile

RULE: Final = "ftp-listing"
_UNKNOWN: Final = frozenset({"500", "502", "504"})
"""Reply codes for a command that a server does not have."""
_MISSING: Final = frozenset({"501", "550", "553"})
"""Reply codes for a folder that does not exist."""
_SIZE: Final = re.compile(r"\d{1,18}\Z")
_TIME: Final = re.compile(r"(\d{14})(?:\.\d{1,9})?\Z")
_NOT_IN_NAMES: Final = re.compile(r"[/\x00-\x1f\x7f]")


def listed(session: FtpSession, pattern: str) -> list[RemoteFile]:
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
                found += [file] if folders.keys.fit(file.stored()) else []
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
