"""What documents and rows of mutants name exists: a path, a module, what a dotted name finds in it, a line, a test."""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.schema import every

TREE = Path(__file__).parents[2]
DOCUMENTS = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "THREATS.md",
    "docs/glossary.md",
    *(f"docs/spec/{name}.md" for name in ("trust", "engine-semantics", "replication", "resources")),
    *(path.relative_to(TREE).as_posix() for path in sorted((TREE / "docs" / "dev").glob("*.md"))),
)
ROOTS = "config|chain|engines|p2p|odfd|demo|bench|docs|tests|requirements|systemd|bin|examples|client"
QUOTED = re.compile(r"`([^`\n]+)`")
LINKED = re.compile(r"\]\((?!https?:)([^)#:\s]+)")
PATH = re.compile(rf"^(?:{ROOTS})/[\w./{{}},-]*$|^[\w-]+\.(?:md|toml)$")
DOTTED = re.compile(r"^(?:config|chain|engines|p2p|odfd)(?:\.\w+)+$")
IN_A_COMMAND = re.compile(r"(?:^|[\s=])(tests/[\w./-]+)")


def expanded(path: str) -> Iterator[str]:
    """``a/{b,c}`` is ``a/b`` and ``a/c``."""
    parts = re.split(r"\{([^}]*)\}", path)
    choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
    yield from ("".join(chosen) for chosen in itertools.product(*choices))


def exists(path: str | Path) -> bool:
    """As a file, a folder, or a module without its ending."""
    return (TREE / path).exists() or (TREE / f"{path}.py").is_file()


def defines(name: str) -> bool:
    """Whether a dotted name is a module, or what a module defines or imports at its top."""
    path, last = name.rsplit(".", 1)
    if exists(name.replace(".", "/")):
        return True
    module = TREE / path.replace(".", "/")
    module = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    if not module.is_file():
        return False
    found = {
        getattr(each, "name", None) or getattr(each, "asname", None) or getattr(each, "id", None)
        for node in ast.parse(module.read_text()).body
        for each in (node, *getattr(node, "targets", ()), getattr(node, "target", None), *getattr(node, "names", ()))
    }
    return last in found


def named(text: str) -> Iterator[str]:
    for quoted in QUOTED.findall(text):
        if PATH.match(quoted):
            yield from expanded(quoted)
        elif DOTTED.match(quoted):
            yield quoted
        else:
            yield from IN_A_COMMAND.findall(quoted)
    yield from LINKED.findall(text)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_a_document_names_exists(document: str) -> None:
    names = sorted(set(named((TREE / document).read_text())) - {key.name for key in every()})
    assert len(names) >= 3, "the test no longer finds what it is about"
    here = Path(document).parent
    gone = [
        name for name in names if not (defines(name) if DOTTED.match(name) else exists(name) or exists(here / name))
    ]
    assert not gone, f"{document} names what is not there: {gone}"


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("chain.instant.Instant", True),
        ("chain.store.base.Snapshot", True),
        ("chain.store.base", True),
        ("chain.store.base.Gone", False),
        ("chain.gone.Snapshot", False),
    ],
)
def test_a_dotted_name_is_looked_up(name: str, there: bool) -> None:
    assert defines(name) is there


def test_what_is_named_is_found_in_the_text() -> None:
    text = (
        "`odfd/{api,node}` and `chain/state`, `make test T=tests/meta/x.py`; see [here](docs/rules.md#a), `--limit a/b`"
    )
    assert list(named(text)) == ["odfd/api", "odfd/node", "chain/state", "tests/meta/x.py", "docs/rules.md"]


def test_the_rows_of_mutants_name_lines_and_tests_that_are_there() -> None:
    """They are run at night only; who changes such a line, or moves its test, is told at once."""
    subjects = tomllib.loads((TREE / "tests/nightly/mutants/mutants.toml").read_text())
    rows = [row for subject in subjects.values() for row in subject]
    assert len(rows) >= 100, "the test no longer finds what it is about"
    for file, line, _, test in rows:
        assert (TREE / file).read_text().count(line) == 1, f"{file} must have this once: {line}"
        path, *names = test.partition("[")[0].split("::")
        source = (TREE / path).read_text()
        assert all(re.search(rf"\b(?:def {name}\(|class {name}\b|{name} = )", source) for name in names), test
