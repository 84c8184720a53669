"""Opens files that a person names, and writes those for the output of a command, by one rule for all.

A file that is there already is kept: the command refuses before it asks the daemon for anything, unless it has
``--replace``, or the file is empty, as ``mktemp`` and a shell's ``>`` leave one. A new file appears when it is
complete, or not at all. A secret is readable by its owner alone, and no option replaces it. A device or a pipe, such
as ``/dev/stdout``, is written to as it is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from chain.errors import Environment, Fault, Invalid, NotFound
from chain.store import durable
from odfd.errors import Usage, unwritable

RULE: Final = "file-exists"
UNWRITTEN: Final = "file-write"
_PRIVATE: Final = 0o600


class NewFile:
    """A file to write. Raises Invalid if it is there already, Usage for a folder or a file in none."""

    def __init__(
        self, name: str | Path, *, replace: bool = False, is_private: bool = False, hint: str | None = None
    ) -> None:
        """``hint`` replaces the advice to a person whose file is there already."""
        self.path = Path(name).expanduser()
        self._is_private = is_private
        self._hint = hint or ("name another file" if is_private else "--replace overwrites it; or name another file")
        try:
            found = self.path.stat() if self.path.exists() else None
            if found is None and not self.path.parent.is_dir():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            if found is not None and stat.S_ISDIR(found.st_mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        except OSError as error:
            raise unwritable(self.path, error, UNWRITTEN) from error
        self.is_special = found is not None and not stat.S_ISREG(found.st_mode)
        self._replace = replace or (found is not None and not found.st_size and not is_private)
        if not self.is_special and not self._replace and os.path.lexists(self.path):
            raise self._make_fault()

    def write(self, content: str | bytes) -> None:
        """Writes the whole file; texts are UTF-8. Raises as ``writing``."""
        with self.writing() as file:
            file.write(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """Opens the file; it appears at the end of the block, unless that raises.

        Raises Invalid if it appeared meanwhile, Usage or Environment if it cannot be written.
        """
        if self.is_special:
            with self._faults(), self.path.open("wb", buffering=0) as device:
                yield device
            return
        target = self.path.resolve() if self._replace else self.path
        draft = target.with_name(f".{target.name[:200]}.{os.getpid()}")
        try:
            with self._faults():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                with os.fdopen(os.open(draft, flags, _PRIVATE if self._is_private else 0o666), "wb") as file:
                    if self._is_private:
                        os.fchmod(file.fileno(), _PRIVATE)  # independent of the umask
                    elif self._replace and target.exists():
                        os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
                    yield file
                    if self._is_private:
                        file.flush()
                        durable.sync(file.fileno())
                self.publish(draft, target)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)

    def publish(self, draft: Path, target: Path) -> None:
        """Gives a complete draft its name. Raises Invalid, OSError."""
        if self._replace:
            draft.replace(target)
            return
        try:
            os.link(draft, target)
        except FileExistsError as error:
            raise self._make_fault() from error
        except OSError:  # a file system without links
            if os.path.lexists(target):
                raise self._make_fault() from None
            draft.rename(target)
        if self._is_private:
            durable.sync_folder(target.absolute().parent)

    def _make_fault(self) -> Fault:
        return Invalid(f"{self.path} is there already", rule=RULE, hint=self._hint)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            raise unwritable(self.path, error, UNWRITTEN) from error


def check_distinct(**files: NewFile | None) -> None:
    """Raises Usage if two options name one file."""
    named: dict[Path, str] = {}
    for option, file in files.items():
        if file is None:
            continue
        other = named.setdefault(file.path.absolute(), option)
        if other != option:
            options = " and ".join(f"--{each.replace('_', '-')}" for each in (other, option))
            raise Usage(f"{options} name one file, {file.path}", hint="name two files")


@contextmanager
def open_file(name: str) -> Iterator[BinaryIO]:
    """Opens a file for reading. Raises NotFound, Usage for a folder, Environment for one that may not be read."""
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - closed below; faults of its reader are not faults of the file
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no file {name}", rule="file-missing", hint="name files, or - for standard input"
        ) from error
    except IsADirectoryError as error:
        hint = f"name the files in it: {name.rstrip('/')}/*; a source with fetch: {{kind: FilesGlob}} follows a folder"
        raise Usage(f"{name} is a folder", rule="file", hint=hint) from error
    except OSError as error:
        raise Environment(f"cannot read {name}: {error.strerror}", rule="file") from error
    with file:
        yield file
