"""Fills the two folders that an engine sees: inputs are hard-linked in, outputs are copied out.

The engine reads ``in/`` through a read-only mount where the sandbox has one, so a hard link exposes an object's bytes
and nothing else. Outputs are copied, never renamed: a file that the engine may still hold open must not become ours.
One per engine process; leftovers are deleted before the next process starts. Does not decide what is mounted.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path
from typing import Any, BinaryIO, Final

from chain.errors import Environment, NotFound
from engines.errors import EngineFault, LimitExceeded
from engines.io_plan import IoPlan

MAX_OUTPUT: Final = 1 << 40
"""Most bytes of one output file. A disk fills up first, but a number from the engine's side needs a bound."""
_NO_LINK: Final = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}
"""Errors of linking that mean another file system, or one without hard links: the file is copied."""
_CHUNK: Final = 1 << 20


class Staging:
    """The folders ``scratch/in`` and ``scratch/out`` of one engine process."""

    def __init__(self, scratch: Path) -> None:
        self.inputs = scratch / "in"
        self.outputs = scratch / "out"

    def sweep(self) -> None:
        """Empties both folders; only while no engine is using them."""
        for folder in (self.inputs, self.outputs):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700, parents=True)

    def lay(self, plan: IoPlan[Any]) -> None:
        """Makes the transaction's folders and links. Idempotent. Raises NotFound for a lost input."""
        folder = self.inputs / plan.folder
        folder.mkdir(exist_ok=True, parents=True)
        (self.outputs / plan.folder).mkdir(exist_ok=True, parents=True)
        for link in plan.links:
            target = folder / link.name
            target.parent.mkdir(exist_ok=True)
            try:
                _link(Path(link.host), target)
            except FileNotFoundError as error:
                raise NotFound(f"an input of the engine is not there: {link.host}", rule="engine-input") from error
            except OSError as error:
                raise _disk_fault(f"cannot give {link.host} to the engine", error) from error

    def has(self, plan: IoPlan[Any], name: str) -> bool:
        """Whether the engine wrote anything under this name."""
        return os.path.lexists(self.outputs / plan.folder / name)

    def collect(self, plan: IoPlan[Any], name: str) -> None:
        """Copies one output to its place on the host. Raises EngineFault unless it is a plain file, Environment."""
        host = next(output.host for output in plan.outputs if output.name == name)
        with _plain_file(self.outputs / plan.folder / name) as reader:
            size = os.fstat(reader.fileno()).st_size
            if size > MAX_OUTPUT:
                raise LimitExceeded(
                    f"the engine wrote {size} bytes", rule="engine-output", hint=f"at most {MAX_OUTPUT}"
                )
            try:
                _copy(reader, size, Path(host))
            except OSError as error:
                raise _disk_fault(f"cannot take the {size:,} bytes that the engine wrote", error) from error

    def clear(self, plan: IoPlan[Any]) -> None:
        shutil.rmtree(self.inputs / plan.folder, ignore_errors=True)
        shutil.rmtree(self.outputs / plan.folder, ignore_errors=True)


def _copy(reader: BinaryIO, size: int, target: Path) -> None:
    """Copies only ``size`` bytes, since the engine may still append."""
    with target.open("wb") as writer:
        while size and (piece := reader.read(min(_CHUNK, size))):
            writer.write(piece)
            size -= len(piece)


def _disk_fault(what: str, error: OSError) -> Environment:
    return Environment(
        f"{what}: {error.strerror}",
        rule="disk",
        hint="check that the disk of the state directory is not full, read-only or failing",
    )


def _link(source: Path, target: Path) -> None:
    source = source.resolve(strict=True)
    try:
        target.hardlink_to(source)
    except FileExistsError:
        if not target.samefile(source):
            target.unlink()
            _link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        shutil.copyfile(source, target)
        target.chmod(0o444)


def _plain_file(path: Path) -> BinaryIO:
    """Opens a file without following links or blocking on a pipe: the engine chose it, so it may be anything."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise EngineFault(
            f"the engine left no readable file at {path.name}: {error.strerror}", rule="output"
        ) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise EngineFault(f"what the engine wrote at {path.name} is not a plain file", rule="engine-output")
    return os.fdopen(handle, "rb")
