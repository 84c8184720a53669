"""Copies the libraries of the page, and of its tests, from the packages that a lock file names.

Nothing is bundled or minified here: the files are those of the packages, byte for byte, but for the names by which
modules import each other, which a browser has to be given as paths.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

TREE: Final = Path(__file__).parents[1]
LOCK: Final = Path(__file__).with_name("page")
PAGE: Final = TREE / "odfd" / "page" / "static" / "vendor"
TESTS: Final = TREE / "tests" / "e2e" / "page"
_FROM: Final = (b'from"preact"', b'from"./preact.js"')
_MAP: Final = b"\n//# sourceMappingURL="


class Library(NamedTuple):
    source: str
    """Below ``node_modules``."""
    target: Path


LIBRARIES: Final = (
    Library("preact/dist/preact.mjs", PAGE / "preact.js"),
    Library("preact/hooks/dist/hooks.mjs", PAGE / "hooks.js"),
    Library("preact/LICENSE", PAGE / "preact.LICENSE"),
    Library("htm/dist/htm.mjs", PAGE / "htm.js"),
    Library("htm/LICENSE", PAGE / "htm.LICENSE"),
    Library("marked/lib/marked.esm.js", PAGE / "marked.js"),
    Library("marked/LICENSE", PAGE / "marked.LICENSE"),
    Library("axe-core/axe.min.js", TESTS / "axe.min.js"),
    Library("axe-core/LICENSE", TESTS / "axe.LICENSE"),
)


def copy_libraries(folder: Path) -> None:
    """``folder`` is emptied first. Raises CalledProcessError where npm cannot give what the lock names."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copyfile(LOCK / name, folder / name)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
    for library in LIBRARIES:
        library.target.parent.mkdir(parents=True, exist_ok=True)
        library.target.write_bytes(as_shown((folder / "node_modules" / library.source).read_bytes(), library.target))


def as_shown(content: bytes, target: Path) -> bytes:
    """A module without the name of a map that is not shipped, and with paths for names."""
    if target.suffix != ".js":
        return content
    return content.replace(*_FROM).partition(_MAP)[0].rstrip(b"\n") + b"\n"
