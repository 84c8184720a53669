"""Computes the digest of an engine on the host: sha256 of a canonical manifest of everything that its answers depend
on.

That is: Spark's version and each of its jars, our code that runs inside, every pinned setting, Java, the time zone
database, Python and pyarrow. Two nodes with equal digests must agree on every slice; if digests differ, a disagreement
may have an innocent reason, and the manifests show which. Files are hashed once per change (by size, time and inode).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from chain.errors import Environment
from engines.closure import files_of, package_folder
from engines.contract import EngineIdentity

ENGINE: Final = "engines.spark.__main__"
"""Entry module of an engine process. Code of ours that it never imports affects no answers."""
_PLATFORMS: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_CHUNK: Final = 1 << 20


_T = TypeVar("_T")


class _Seen(msgspec.Struct, frozen=True, array_like=True):
    """The state of a file when it was hashed."""

    size: int
    modified: int
    inode: int
    digest: str


class FileDigests:
    """Caches sha256 digests of files in one JSON file of our own; a lost or broken cache only costs a second.

    ``installed``: digests recorded at installation, for the files that all nodes of the installation share. They are as
    trustworthy as our code, which lies beside them.
    """

    def __init__(self, memory: Path | None, installed: Path | None = None) -> None:
        self._memory = memory
        self._own = _read_memory(memory, _Seen) if memory else {}
        # Thousands of entries, few of which are asked for where no image is used: each is decoded when it is.
        self._installed = _read_memory(installed, msgspec.Raw) if installed else {}
        self._fresh: dict[str, _Seen] = {}

    def of(self, path: Path | str) -> str:
        """Returns the digest of a file in hex. Raises Environment for an unreadable file.

        A text costs less than a ``Path``, whose parts are interned.
        """
        name = str(path)
        recorded = self._read_installed(name)
        try:
            stat = os.stat(path)  # noqa: PTH116
            # Spark's jars alone are half a gigabyte, to be hashed at each start.
            known = self._own.get(name, recorded)
            if known is None or (known.size, known.modified, known.inode) != (
                stat.st_size,
                stat.st_mtime_ns,
                stat.st_ino,
            ):
                with open(path, "rb") as file:  # noqa: PTH123
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                known = _Seen(stat.st_size, stat.st_mtime_ns, stat.st_ino, digest)
        except OSError as error:
            raise Environment(
                f"cannot read a part of the engine: {path}: {error.strerror}",
                rule="engine-digest",
                hint="is the installation whole?",
            ) from error
        if known is not recorded:
            self._fresh[name] = known
        return known.digest

    def _read_installed(self, name: str) -> _Seen | None:
        try:
            return msgspec.json.decode(self._installed[name], type=_Seen)
        except (KeyError, msgspec.DecodeError):
            return None

    def save(self) -> None:
        """Saves the digests requested since the load, but for those of the installation, and drops the rest."""
        if self._memory is None or self._fresh == self._own:
            return
        staged = self._memory.with_name(self._memory.name + ".new")
        try:
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            staged.write_bytes(msgspec.json.encode(self._fresh))
            staged.replace(self._memory)
        except OSError as error:
            raise Environment(
                f"cannot write {self._memory}: {error.strerror}", rule="engine-digest", hint="is the disk full?"
            ) from error


def host_manifest(settings: Mapping[str, str], java_home: Path, digests: FileDigests) -> dict[str, object]:
    """Collects everything that determines results, as JSON. Raises Environment when a part is missing."""
    spark = package_folder("pyspark")
    with ThreadPoolExecutor(4) as pool:
        jars = sorted((spark / "jars").glob("*.jar"))
        jar_digests = dict(zip((jar.name for jar in jars), pool.map(digests.of, jars), strict=True))
    return {
        "engine": "spark",
        "pyspark": importlib.metadata.version("pyspark"),
        "jars": jar_digests,
        "code": code_digests(digests),
        "settings": dict(settings),
        "java": _java_version(java_home),
        "timezones": _timezones(java_home, digests),
        "python": platform.python_version(),
        "pyarrow": importlib.metadata.version("pyarrow"),
    }


def code_digests(digests: FileDigests) -> dict[str, str]:
    """Returns the digest of each file of ours that runs inside, and of the data that affects results."""
    return {name: digests.of(path) for name, path in files_of(ENGINE).items()}


def code_digest(digests: FileDigests) -> str:
    return digest_of(code_digests(digests))


def digest_of(manifest: Mapping[str, object]) -> str:
    """Returns ``sha256:…`` over the manifest as JSON with sorted keys and no spaces."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def identity_of(manifest: Mapping[str, object], sandbox: str) -> EngineIdentity:
    """Builds the identity that is pinned in transforms and written into attestations."""
    return EngineIdentity(
        name=str(manifest["engine"]),
        version=str(manifest["pyspark"]),
        digest=digest_of(manifest),
        sandbox=sandbox,
        platform=_platform(),
    )


def image_identity(version: str, digest: str, sandbox: str) -> EngineIdentity:
    """Builds the identity of an engine in an image, where the digest of the manifest covers all contents."""
    return EngineIdentity(name="spark", version=version, digest=digest, sandbox=sandbox, platform=_platform())


def _platform() -> str:
    return f"{platform.system().lower()}/{_PLATFORMS.get(platform.machine(), platform.machine())}"


def _read_memory(memory: Path, kind: type[_T]) -> dict[str, _T]:
    try:
        return msgspec.json.decode(memory.read_bytes(), type=dict[str, kind])  # type: ignore[valid-type]
    except (OSError, msgspec.DecodeError):
        return {}


def _java_version(home: Path) -> str:
    """Returns ``JAVA_VERSION`` and the vendor's build from the file ``release``, without starting a process."""
    wanted = ("JAVA_VERSION", "JAVA_RUNTIME_VERSION", "IMPLEMENTOR")
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    stated = dict(_pairs(lines))
    return " ".join(stated[name] for name in wanted if name in stated) or "unknown"


def _pairs(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        key, _, value = line.partition("=")
        yield key, value.strip('"')


def _timezones(home: Path, digests: FileDigests) -> str:
    """Returns the digest of the JVM's own table of time zones, which Spark uses."""
    table = home / "lib" / "tzdb.dat"
    return digests.of(table) if table.is_file() else "unknown"
