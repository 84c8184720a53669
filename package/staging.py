"""Lays out the source of the wheel: one package, with our roots inside of it, and the files that belong beside it.

The folders of the repository stay as they are: here they are copied to where nobody else's packages are (ADR 31).
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from argparse_manpage.manpage import Manpage

from config.paths import PAGES, PRIVATE
from odfd.cli import main as odfctl
from odfd.cli import registry
from odfd.cli.command import Subparsers
from odfd.cli.commands.completions import BASH, FISH, ZSH
from odfd.daemon import main as odfd

TREE: Final = Path(__file__).parents[1]
ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd")
ENGINE: Final = ("pyspark", "pandas", "py4j")
"""Distributions that the Spark engine alone needs: an extra, ``odfd[engine]``."""
SOURCES: Final = ("kafka", "mqtt", "sftp", "sql", "evm")
"""Extras for kinds of sources."""
NODE: Final = ("bucket", "top")
"""Extras that belong to a whole node: our packages bring them."""
PACKAGE: Final = "odfd_node"
_DATA: Final = ("*.py", "py.typed", "*.toml", "*.json", "*.tsv", "*.html", "*.css", "*.js", "*.svg", "*.LICENSE")
_COPIED: Final = (
    "name", "version", "description", "readme", "license", "license-files", "requires-python", "keywords",
    "classifiers",
)  # fmt: skip
"""Metadata of the wheel that is the repository's."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+")
_LAUNCH: Final = '''"""Starts the programs of odfd with their packages, which no other program in this Python sees."""

import importlib
import sys
from pathlib import Path

CODE = Path(__file__).with_name("{private}")


def odfd() -> None:
    _run("odfd.daemon.main", "main")


def odfctl() -> None:
    _run("odfd.cli", "start")


def _run(module: str, name: str) -> None:
    sys.path.insert(0, str(CODE))
    sys.exit(getattr(importlib.import_module(module), name)())
'''
SHARED: Final = {
    "share/man/man1": ("odfd.1", "odfctl.1"),
    "share/bash-completion/completions": ("odfctl",),
    "share/zsh/site-functions": ("_odfctl",),
    "share/fish/vendor_completions.d": ("odfctl.fish",),
    "lib/systemd/system": ("odfd.service", "odfd.socket"),
    "lib/systemd/user": ("odfd.service",),
    "lib/sysusers.d": ("odfd.conf",),
    "lib/tmpfiles.d": ("odfd.conf",),
}
"""Where files go below the prefix of an installation."""
UNITS: Final = {
    "lib/systemd/system/odfd.service": "odfd.service",
    "lib/systemd/system/odfd.socket": "odfd.socket",
    "lib/systemd/user/odfd.service": "user/odfd.service",
    "lib/sysusers.d/odfd.conf": "odfd.sysusers",
    "lib/tmpfiles.d/odfd.conf": "odfd.tmpfiles",
}


def stage(folder: Path) -> None:
    """The source of the wheel, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    code = folder / PACKAGE / PRIVATE
    for path in (path for root in ROOTS for pattern in _DATA for path in (TREE / root).rglob(pattern)):
        target = code / path.relative_to(TREE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copytree(TREE / "docs", code / PAGES.name, ignore=shutil.ignore_patterns("adr", "images", "schemas"))
    (folder / PACKAGE / "__init__.py").write_text('"""A node of Open Data Fabric. See odfd -h and odfctl -h."""\n')
    (folder / PACKAGE / "launch.py").write_text(_LAUNCH.format(private=PRIVATE))
    for place, text in shared().items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text)
    said = project()
    for name in (said["readme"], *said["license-files"]):
        shutil.copyfile(TREE / name, folder / name)
    (folder / "pyproject.toml").write_text("\n".join(_project()) + "\n")


def project() -> dict[str, Any]:
    """Of the repository."""
    found: dict[str, Any] = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    return found


def home_page() -> str:
    """The address that packages name: the project's own where its metadata has one, else that of the format."""
    urls = project()["urls"]
    return str(urls.get("Homepage", urls["Open Data Fabric"]))


def maintainer() -> str:
    """The first author, with the address that the metadata states, if it states one."""
    first = project()["authors"][0]
    return f"{first['name']} <{first['email']}>" if "email" in first else str(first["name"])


def split() -> tuple[list[str], list[str]]:
    """What a whole node needs, and what its engine needs beside that."""
    said = project()
    needed = said["dependencies"] + [each for name in NODE for each in said["optional-dependencies"][name]]
    engine = [each for each in needed if _NAME.match(each)[0].lower() in ENGINE]  # type: ignore[index]
    return [each for each in needed if each not in engine], engine


def engine_extras() -> list[str]:
    """What a whole engine takes beside its own needs: a JVM, and clients of the sources that are extras."""
    extras = project()["optional-dependencies"]
    return [each for name in ("java", *SOURCES) for each in extras[name]]


def shared() -> dict[str, str]:
    """Text of each file beside the code, by its place: pages, completions, units."""
    made = {
        "share/man/man1/odfd.1": manual(odfd._parser(), "odfd"),
        "share/man/man1/odfctl.1": manual(whole_parser(), "odfctl"),
        "share/bash-completion/completions/odfctl": BASH,
        "share/zsh/site-functions/_odfctl": ZSH,
        "share/fish/vendor_completions.d/odfctl.fish": FISH,
    }
    return made | {place: (TREE / "systemd" / source).read_text() for place, source in UNITS.items()}


def whole_parser() -> argparse.ArgumentParser:
    """Of ``odfctl`` with all its commands, from their one declaration."""
    parser = odfctl._parser()
    parser.description = "Talk to the Open Data Fabric node on this machine."
    subparsers: Subparsers = parser.add_subparsers(
        parser_class=odfctl.Parser, title="commands", metavar="COMMAND", prog="odfctl"
    )
    for entry in registry.entries().values():
        registry.load(entry, subparsers)
    return parser


def manual(parser: argparse.ArgumentParser, name: str) -> str:
    """The page of the first section. No date in it: the same source gives the same bytes."""
    said = project()
    data = {
        "project_name": "odfd", "prog": name, "version": said["version"], "description": said["description"],
        "long_description": parser.description or "", "url": home_page(),
        "manual_title": "Open Data Fabric", "manual_section": "1", "authors": [],
    }  # fmt: skip
    text = str(Manpage(parser, data))
    return re.sub(r'^(\.TH \S+ "?1"?) "[^"]*"', r'\1 ""', text, count=1, flags=re.MULTILINE)


def _project() -> Iterator[str]:
    said, (needed, engine) = project(), split()
    names = ("java", "ipfs-client", *SOURCES)
    extras = {"engine": engine} | {name: said["optional-dependencies"][name] for name in names}
    yield from ("[build-system]", 'requires = ["setuptools==84.2.1"]', 'build-backend = "setuptools.build_meta"', "")
    yield "[project]"
    for key in _COPIED:
        yield f"{key} = {said[key]!r}"
    yield f"authors = [{', '.join(_table(each) for each in said['authors'])}]"
    yield f"urls = {_table(said['urls'])}"
    yield f"dependencies = {needed!r}"
    yield from ("", "[project.optional-dependencies]", *(f"{name} = {each!r}" for name, each in extras.items()))
    yield from ("", "[project.scripts]", *(f'{name} = "{PACKAGE}.launch:{name}"' for name in ("odfd", "odfctl")))
    for group, rows in said["entry-points"].items():
        yield from ("", f'[project.entry-points."{group}"]', *(f'"{name}" = "{place}"' for name, place in rows.items()))
    yield from ("", "[tool.setuptools]", f"packages = {[PACKAGE]!r}", "include-package-data = false")
    yield from ("", "[tool.setuptools.package-data]", f'{PACKAGE} = ["{PRIVATE}/**/*"]')
    yield from ("", "[tool.setuptools.data-files]")
    yield from (f'"{place}" = {[f"{place}/{name}" for name in names]!r}' for place, names in SHARED.items())


def _table(texts: Mapping[str, str]) -> str:
    """An inline table of TOML. Texts of JSON are texts of TOML too."""
    return f"{{{', '.join(f'{json.dumps(key)} = {json.dumps(text)}' for key, text in texts.items())}}}"
