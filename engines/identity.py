"""Computes the digest of an engine on the host: sha256 of a canonical manifest of everything that its answers depend
on.

That is: Spark's version and each of its jars, our code that runs inside, every pinned setting, Java, the time zone
database, Python and pyarrow. Two nodes with equal digests must agree on every slice; if digests differ, a disagreement
may have an innocent reason, and the manifests show which. Files are hashed once per change (by size, time and inode).

Which of our files a module may import is found by reading sources: import statements have the form that the formatter
gives them, at the top of a module and inside functions, and reading that is 20 times as fast as parsing. Imports that
are made from text are not found; we have none (``tests/unit/engines/test_closure.py``).
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from chain.errors import Environment
from engines.contract import EngineIdentity

OURS: Final = ("chain", "config", "engines")
_IMPORT: Final = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n]+)|import ([^\n]+))", re.MULTILINE)
_NO_DATA: Final = frozenset({".py", ".pyc", ".typed"})


def closure(entry: str) -> dict[str, Path]:
    """Lists by name the modules of ours that ``entry`` may ever import, and the packages that hold them."""
    specs = {name: importlib.util.find_spec(name) for name in OURS}
    roots = {name: Path(spec.origin).parents[1] for name, spec in specs.items() if spec and spec.origin}
    found: dict[str, Path] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        path = _file_of(name, roots) if name not in found else None
        if path is not None:
            found[name] = path
            waiting += [name.rpartition(".")[0], *find_imports(path.read_text(encoding="utf-8"))]
    return dict(sorted(found.items()))


def files_of(entry: str) -> dict[str, Path]:
    """Lists the files of ``closure`` by path relative to the folder of all packages, with data files next to them."""
    found = {}
    for name, path in closure(entry).items():
        top = path.parents[name.count(".") + (path.name == "__init__.py")]
        data = (each for each in path.parent.iterdir() if each.is_file() and each.suffix not in _NO_DATA)
        for each in (path, *(data if path.name == "__init__.py" else ())):
            found[str(each.relative_to(top))] = each
    return found


def find_imports(source: str) -> Iterator[str]:
    """Yields the names that a source imports: modules, and names that are either modules or members of one."""
    for match in _IMPORT.finditer(source):
        if match[1]:
            yield match[1]
            yield from (f"{match[1]}.{name}" for name in _names(match[2]))
        else:
            yield from _names(match[3])


def package_folder(name: str) -> Path:
    """Returns the folder of a package. Raises Environment if there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        hint = "install the node again, with its engine: odfctl docs install"
        raise Environment(f"the package {name} is not installed", rule="engine-digest", hint=hint)
    return Path(spec.origin).parent


def _names(text: str) -> Iterator[str]:
    for each in re.sub(r"#[^\n]*", "", text).strip("() \n").split(","):
        if words := each.split():
            yield words[0]


def _file_of(name: str, roots: dict[str, Path]) -> Path | None:
    root = roots.get(name.partition(".")[0])
    if root is None:
        return None
    place = root.joinpath(*name.split("."))
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)


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
                hint="check that the installation is complete",
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
                f"cannot write {self._memory}: {error.strerror}",
                rule="engine-digest",
                hint="check that the disk is not full",
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
