"""Fetches Debian packages by a lock, checks their hashes, and unpacks them without running their scripts.

The parts of an engine need no maintainer script: a C library, Python, a shell and a few tools. Their files go below
/usr, to which /bin, /lib and their like are links, as on an installed Debian.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from chain.errors import Environment
from engines.image.oci import Item

PACKAGES: Final = tuple(name for line in (
    "base-files bash coreutils dash gcc-12-base grep libacl1 libattr1 libbz2-1.0 libc-bin libc6 libcrypt1",
    "libdb5.3 libexpat1 libffi8 libgcc-s1 libgmp10 libgssapi-krb5-2 libk5crypto3 libkeyutils1 libkrb5-3",
    "libkrb5support0 libcom-err2 liblzma5 libncursesw6 libnsl2 libpcre2-8-0 libpython3.11-minimal",
    "libpython3.11-stdlib libreadline8 libselinux1 libsqlite3-0 libssl3 libstdc++6 libtinfo6 libtirpc3",
    "libuuid1 media-types netbase python3.11-minimal sed tzdata zlib1g",
) for name in line.split())  # fmt: skip
"""What Python, Java and Spark's shell scripts load, with all dependencies; names of Debian 12."""
MERGED: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Folders that are links into /usr."""
_UNWANTED: Final = re.compile(
    r"usr/share/(doc|man|locale|info|lintian|bash-completion|bug|menu)/|usr/share/zoneinfo/right/"
)
_LINE: Final = re.compile(r"(\S+) (\S+) ([0-9a-f]{64})\Z")
_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = 60


@dataclass(frozen=True, slots=True)
class Locked:
    """A Debian package of a lock."""

    name: str
    version: str
    digest: str
    """sha256 of the file."""

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.digest}"


def read_lock(path: Path) -> list[Locked]:
    """Reads a lock. Raises Environment."""
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    except OSError as error:
        raise Environment(f"cannot read {path}: {error.strerror}", rule="image-lock") from error
    found = [_LINE.match(line) for line in lines]
    if not all(found):
        raise Environment(f"{path} is not a lock of packages: a name, version and hash a line", rule="image-lock")
    return [Locked(*match.groups()) for match in found if match is not None]


def fetch(locked: Locked, cache: Path) -> Path:
    """Returns the package from the cache or the configured sources of apt. Raises Environment."""
    cache.mkdir(parents=True, exist_ok=True)
    kept = cache / f"{locked.digest}.deb"
    if not kept.is_file() or _digest(kept) != locked.digest:
        fetched = _download(f"{locked.name}={locked.version}", cache)
        if _digest(fetched) != locked.digest:
            fetched.unlink()
            raise Environment(
                f"{locked.name} {locked.version} is not the file that the lock names",
                rule="image-lock",
                hint="another build of it was published: look why, then `make engine-image LOCK=1`",
            )
        fetched.replace(kept)
    return kept


def lock(cache: Path) -> list[Locked]:
    """Locks the versions that apt's sources offer now."""
    cache.mkdir(parents=True, exist_ok=True)
    found = []
    for name in PACKAGES:
        file = _download(name, cache)
        version = file.name.split("_")[1].replace("%3a", ":")
        found.append(Locked(name, version, _digest(file)))
        file.replace(cache / f"{found[-1].digest}.deb")
    return found


def items(package: Path) -> Iterator[Item]:
    """Yields a package's files and links, at their places below /usr. Raises Environment."""
    with tarfile.open(fileobj=io.BytesIO(_data(package)), mode="r:*") as tar:
        members = {_target_path(member.name): member for member in tar if not member.isdir()}
        for path, member in members.items():
            if _UNWANTED.match(str(path)):
                continue
            if member.issym():
                yield Item(path, _link(member.linkname))
                continue
            content = tar.extractfile(member)
            if content is None:
                raise Environment(f"{package.name} holds {member.name}, which is no file", rule="image-package")
            yield Item(path, content.read(), bool(member.mode & 0o100))


def _target_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name.removeprefix("./").lstrip("/"))
    return PurePosixPath("usr", path) if path.parts[:1] and path.parts[0] in MERGED else path


def _link(text: str) -> str:
    """Returns the target of a link; an absolute one goes below /usr too. Packages have relative links
    within one tree only."""
    return "/" + str(_target_path(text)) if text.startswith("/") else text


def _data(package: Path) -> bytes:
    """Returns the member ``data.tar.*`` of a .deb, which is an ar archive."""
    raw = package.read_bytes()
    at = len(_MAGIC)
    while raw.startswith(_MAGIC) and at + _HEADER <= len(raw):
        name, size = raw[at : at + 16].decode().strip(), int(raw[at + 48 : at + 58])
        at += _HEADER
        if name.startswith("data.tar"):
            return raw[at : at + size]
        at += size + size % 2
    raise Environment(f"{package.name} is no Debian package", rule="image-package")


def _download(wanted: str, folder: Path) -> Path:
    before = set(folder.glob("*.deb"))
    argv = ("apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", wanted)
    try:
        done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Environment(
            f"cannot run apt-get: {error.strerror}",
            rule="image-package",
            hint="engine images are built on Debian; elsewhere copy one that was built, or use bubblewrap on the host",
        ) from error
    fetched = set(folder.glob("*.deb")) - before
    if done.returncode or len(fetched) != 1:
        raise Environment(
            f"apt cannot fetch {wanted}: {done.stderr.strip()[-300:]}",
            rule="image-package",
            hint="apt-get update; if Debian has moved on, `make engine-image LOCK=1` locks what it has now",
        )
    return fetched.pop()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
