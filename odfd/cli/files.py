"""Opens files that are named on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from chain.errors import Environment, NotFound
from odfd.errors import Usage


@contextmanager
def open_file(name: str) -> Iterator[BinaryIO]:
    """Opens a file for reading. Raises NotFound, Usage for a folder, Environment for one that may not be read."""
    try:
        file = Path(name).open("rb")  # noqa: SIM115 - closed below; faults of its reader are not faults of the file
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {name}", hint="name files, or - for standard input") from error
    except IsADirectoryError as error:
        hint = f"name the files in it: {name.rstrip('/')}/*; a source with fetch: {{kind: FilesGlob}} follows a folder"
        raise Usage(f"{name} is a folder", rule="file", hint=hint) from error
    except OSError as error:
        raise Environment(f"cannot read {name}: {error.strerror}", rule="file") from error
    with file:
        yield file
