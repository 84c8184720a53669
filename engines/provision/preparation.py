"""Prepares quick starts of an engine: a class data archive of its Java and, in an image, bytecode.

An image has neither, because both differ each time that they are made. So one engine is started from it once, in the
usual sandbox, to run a few queries of its own (``warm_up``), and the files that it leaves are stored beside the image's
files for all nodes of the installation. They are listed and checked like these, and no job can write there.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

import trio

from chain.errors import Fault
from chain.terminal_text import visible
from engines.errors import EngineLost
from engines.image.installed import PYTHON, Image, installed_layout, keep_preparation, prepare_image, staged_preparation
from engines.provision.archive import RECORD_SECONDS, recording
from engines.sandbox.base import Job, Mount
from engines.sandbox.bubblewrap import Bubblewrap, image_runtime
from engines.sandbox.process import ConfinedProcess, start
from engines.spark.runtime.java import base_of

_ARCHIVE: Final = PurePosixPath("/odf/archive.jsa")
_INSIDE: Final = PurePosixPath("/odf/prepared")
_IN_IMAGE: Final = _INSIDE / "archive.jsa"
_SCRATCH: Final = PurePosixPath("/odf/tmp")
_ENVIRONMENT: Final = MappingProxyType({"PYTHONPYCACHEPREFIX": str(_INSIDE / "bytecode")})
_WRITES_NONE: Final = "PYTHONDONTWRITEBYTECODE"
_MAX_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Preparation:
    """Additions to the engine that make its start faster."""

    mounts: tuple[Mount, ...] = ()
    archive: Mount | None = None
    """Mount with the class data archive, one of ``mounts`` or inside one."""
    env: Mapping[str, str] = field(default_factory=dict)


def of_host(archive: Path) -> Preparation:
    """Returns the archive recorded with this machine's Java, and its base if the runtime has none of its own."""
    mount = Mount(archive, _ARCHIVE)
    base = Mount(base_of(archive), PurePosixPath(f"{_ARCHIVE}.base"), optional=True)
    return Preparation((mount, base) if base.source.is_file() else (mount,), mount)


def of_image(image: Image) -> Preparation:
    if image.prepared is None:
        return Preparation()
    archive = Mount(image.prepared / _IN_IMAGE.name, _IN_IMAGE)
    return Preparation((Mount(image.prepared, _INSIDE),), archive, _ENVIRONMENT)


async def prepare(image: Image, layout: Path, bubblewrap: str) -> None:
    """Makes the preparation, which takes little longer than a cold start. Raises EngineLost if that
    fails, and Environment."""
    runtime = image_runtime(image)
    writing = {name: value for name, value in runtime.environment.items() if name != _WRITES_NONE}
    staged = staged_preparation(image)
    with tempfile.TemporaryDirectory(prefix="odf-") as scratch:
        job = Job(
            argv=(PYTHON, "-P", *recording(_IN_IMAGE, _SCRATCH)),
            env={"HOME": str(_SCRATCH), **_ENVIRONMENT},
            mounts=(Mount(staged, _INSIDE, writable=True), Mount(Path(scratch), _SCRATCH, writable=True)),
        )
        process = start(Bubblewrap(bubblewrap, replace(runtime, environment=writing)), job)
        code, said = await _until_it_left(process)
    if code or not (staged / _IN_IMAGE.name).is_file():
        shutil.rmtree(staged, ignore_errors=True)
        raise EngineLost(f"it ended with {code}: {said[-500:].strip()}", rule="engine-archive")
    await trio.to_thread.run_sync(keep_preparation, layout, image, staged)


async def _until_it_left(process: ConfinedProcess) -> tuple[int | None, str]:
    """Waits for the process to end. Returns its exit code, ``None`` if it took too long, and its last output."""
    said, code = b"", None

    async def read(stream: trio.lowlevel.FdStream) -> None:
        nonlocal said
        while piece := await stream.receive_some(_MAX_PIECE):
            said = (said + piece)[-_MAX_PIECE:]

    try:
        with trio.move_on_after(RECORD_SECONDS):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read, process.stdout)
                nursery.start_soon(read, process.stderr)
                code = await process.wait()
    finally:
        await process.stop(grace=0.0)
    return code, said.decode(errors="replace")


def main() -> int:
    """Runs ``python -m engines.provision.preparation`` for the image of this installation, after it was unpacked."""
    layout, bubblewrap = installed_layout(), shutil.which("bwrap")
    try:
        with tempfile.TemporaryDirectory(prefix="odf-") as cache:
            image = prepare_image(Path(cache), layout)
        if isinstance(image, str):
            raise EngineLost(image, rule="engine-archive")
        if bubblewrap is None:
            raise EngineLost("bubblewrap (bwrap) is not installed", rule="engine-archive")
        trio.run(prepare, image, layout, bubblewrap)
    except Fault as fault:
        sys.stderr.write(visible(f"engines will start from the image without bytecode and class archive: {fault}\n"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
