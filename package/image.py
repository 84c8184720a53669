"""Builds the image of a node, without the Spark engine, to the same digest from the same inputs.

It lies on the Debian packages of the engine image, so that both are locked, fetched and updated as one. No daemon, no
privilege, no script of anybody runs while it is built.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from engines.image.build import EPOCH, architecture, base_items, install_wheels
from engines.image.oci import Item, LayerContent, files_below, write_image, write_layers
from package.programs import ENGINE, HOME, leave_out, programs, run_compiler
from package.symbols import strip_libraries

USER: Final = 10001
"""Of the node inside, and its group; hosts have none of this number: nobody's files would be the node's."""
STATE: Final = "/var/lib/odfd"
_FOLDERS: Final = ("run", "proc", "dev", "etc/odfd", "var/lib")
_WRITTEN: Final[Mapping[str, bytes]] = {
    "/etc/passwd": f"root:x:0:0::/:/bin/sh\nodfd:x:{USER}:{USER}::{STATE}:/bin/sh\n".encode(),
    "/etc/group": f"root:x:0:\nodfd:x:{USER}:\n".encode(),
    "/etc/nsswitch.conf": b"passwd: files\ngroup: files\nhosts: files dns\n",
}
_LIBRARY: Final = re.compile(r"usr/lib/python3\.\d+/.+\.py")
_UNUSED: Final = frozenset({"distutils", "ensurepip", "idlelib", "lib2to3", "pydoc_data", "test", "turtledemo"})
"""Parts of the standard library that no process of the node imports."""
RUN: Final[Mapping[str, object]] = {
    "User": f"{USER}:{USER}",
    "WorkingDir": STATE,
    "Env": [
        "PATH=/usr/bin",
        "LANG=C.UTF-8",
        f"HOME={STATE}",
        f"XDG_STATE_HOME={PurePosixPath(STATE).parent}",
    ],
    "Entrypoint": ["/usr/bin/odfd"],
    "Cmd": ["run"],
    "StopSignal": "SIGTERM",
    "Volumes": {STATE: {}},
}
"""The state directory is where the daemon and odfctl look for it first. Settings are read from /etc/odfd/odfd.toml."""


def build(layout: Path, locks: Path, wheel: Path, cache: Path) -> str:
    """Write the layout; the digest of its manifest.

    ``locks``: folder of the locks; ``wheel``: of the node; ``cache``: for fetched packages. Raises Environment.
    """
    machine, tag = architecture()
    shutil.rmtree(layout, ignore_errors=True)
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", EPOCH))
    packages = locks / "engine-image.txt"
    with tempfile.TemporaryDirectory(prefix="odf-image-") as folder:
        needed, own, library = Path(folder, "needed"), Path(folder, "own"), Path(folder, "library")
        install_wheels((locks / "node.txt").read_text(encoding="utf-8"), needed, tag, Path(folder))
        install_wheels(f"odfd @ {wheel.as_uri()} --hash=sha256:{_digest(wheel)}\n", own, tag, Path(folder))
        compiled = _standard_library(base_items(packages, cache, {}), library, epoch)
        parts = (
            LayerContent(base_items(packages, cache, _WRITTEN), _FOLDERS),
            LayerContent([*compiled, *_shipped(needed, epoch)]),
            LayerContent([*_shipped(own, epoch), *_programs()]),
            LayerContent((), (STATE[1:], "tmp"), USER),
        )
        layers, _ = write_layers(layout / "blobs" / "sha256", parts, epoch)
    config = {"architecture": machine, "os": "linux", "created": "1970-01-01T00:00:00Z", "config": RUN}
    digest, _ = write_image(layout, layers, config, {}, "odfd")
    return digest


def _shipped(site: Path, epoch: int) -> Iterator[Item]:
    leave_out(site, ENGINE)
    for each in [*site.rglob("__pycache__")]:
        shutil.rmtree(each, ignore_errors=True)
    strip_libraries(site)
    run_compiler("compile_all", site, epoch)
    return files_below(site, HOME, frozenset())


def _standard_library(items: Iterable[Item], folder: Path, epoch: int) -> Iterator[Item]:
    """Yields the compiled standard library: files in a container are read-only, so that each start would compile it."""
    for item in items:
        below = item.path.parts[3:]
        if _LIBRARY.fullmatch(str(item.path)) and not _UNUSED & set(below) and isinstance(item.source, bytes):
            place = folder / item.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(item.source)
    run_compiler("compile_beside", folder, epoch)
    return (each for each in files_below(folder, "", frozenset()) if each.path.suffix == ".pyc")


def _programs() -> Iterator[Item]:
    for place, text in programs().items():
        yield Item(PurePosixPath(place), text.encode(), executable=True)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
