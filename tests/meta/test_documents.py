"""What documents name is there: tests, paths, settings, waits, and rows of mutants."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import itertools
import os
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from contract.waits.test_dripping import ASKS

from config import schema
from config.load import RESERVED
from config.schema import every
from worlds.messages import Text, messages
from worlds.source_tree import called, nodes

TREE = Path(__file__).parents[2]


# What code and pages cite of the specifications exists under its anchor, and no section is cited by its number.


SPECS = TREE / "docs" / "spec"
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')
LIST = re.compile(r"docs/spec/([\w-]+)\.md((?:#[\w-]+(?:,\s+#[\w-]+)*)?)")
"""As code cites: ``docs/spec/NAME.md#one, #two``, or the whole document."""
LINK = re.compile(r"\]\(([^)\s]*?)#([\w-]+)\)")
"""As pages link, to other pages and within one."""
DECISION = re.compile(r"^\| \[?(\d+)\]?(?:\(([^)]+)\))? \| ([^|]+) \|", re.MULTILINE)
NUMBER = re.compile(
    r"\b(?:trust|replication|engine[ -]semantics)(?:\.md)?,?\s+(?:sections?\s+)?\d|\bsections?\s+\d", re.I
)
OTHERS = re.compile(r"\bRFC\b|Noise|SQLite|REKEY|libp2p", re.I)
"""Documents of others have numbers only."""


def texts(*suffixes: str) -> Iterator[tuple[Path, str]]:
    """All files of the tree that end so, but this one and hidden folders."""
    for folder, below, names in os.walk(TREE):
        below[:] = sorted(each for each in below if not each.startswith(".") and each not in ("build", "out"))
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(suffixes) and path != Path(__file__):
                yield path, path.read_text()


@cache
def anchors(page: Path) -> frozenset[str]:
    """What a page can be linked by; headings as they are made into links too."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(ANCHOR.findall(text)) | {
        re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in headings
    }


def unknown(path: Path, text: str) -> Iterator[str]:
    """Sections that a text cites and that are in no specification."""
    for found in LIST.finditer(text):
        page = SPECS / f"{found[1]}.md"
        if not page.is_file():
            yield f"{path.relative_to(TREE)}: {found[0]}"
            continue
        known = set(ANCHOR.findall(page.read_text()))
        yield from (f"{path.relative_to(TREE)}: {page.name}#{each}"
                    for each in re.findall(r"#([\w-]+)", found[2]) if each not in known)  # fmt: skip


def dangling(path: Path, text: str) -> Iterator[str]:
    """Links of a page to parts of pages that are not there."""
    for target, name in LINK.findall(text):
        if "://" in target:
            continue
        page = (path.parent / target).resolve() if target else path
        if not page.is_file() or name not in anchors(page):
            yield f"{path.relative_to(TREE)}: {target}#{name}"


def numbered(text: str) -> Iterator[str]:
    """Cites of our own documents by number."""
    for found in NUMBER.finditer(text):
        if not OTHERS.search(text[max(0, found.start() - 80) : found.start()]):
            yield found[0]


def test_every_section_that_is_cited_exists() -> None:
    cited = [each for path, text in texts(".py", ".md") for each in LIST.findall(text)]
    assert sum(name == "trust" for name, _ in cited) > 50
    assert sum(name == "engine-semantics" for name, _ in cited) > 50
    assert not [each for path, text in texts(".py", ".md") for each in unknown(path, text)]


def test_every_link_to_a_part_of_a_page_leads_there() -> None:
    assert not [each for path, text in texts(".md") for each in dangling(path, text)]


def test_an_anchor_is_in_a_page_once() -> None:
    for page in SPECS.glob("*.md"):
        found = ANCHOR.findall(page.read_text())
        assert found, page.name
        assert len(found) == len(set(found)), page.name


def test_nothing_is_cited_by_the_number_of_a_section() -> None:
    found = [f"{path.relative_to(TREE)}: {each}" for path, text in texts(".py", ".md") for each in numbered(text)]
    assert not found


def test_faults_are_found() -> None:
    here = TREE / "x.py"
    assert list(unknown(here, "docs/spec/trust.md#forks,\n#no-such")) == ["x.py: trust.md#no-such"]
    assert list(unknown(here, "docs/spec/no-such.md#a")) == ["x.py: docs/spec/no-such.md#a"]
    assert list(dangling(SPECS / "x.md", "[a](trust.md#forks) [b](trust.md#no-such)"))
    for text in ("trust.md section 3", "Engine semantics, sections 2 and 4", "trust.md 3", "of section 15"):
        assert list(numbered(text)), text
    assert not list(numbered("RFC 8032 section 7.1; the Noise specification, section 12.4"))


def test_the_index_of_decisions_lists_each_record_by_its_number_and_title() -> None:
    folder = TREE / "docs" / "adr"
    rows = DECISION.findall((folder / "README.md").read_text())
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1))
    titles = {name: f"# {number}. {title}" for number, name, title in rows if name}
    assert sorted(titles) == sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert not [name for name, title in titles.items() if (folder / name).read_text().splitlines()[0] != title]
    assert not [name for name, title in titles.items() if int(name[:4]) != int(title[2:].partition(".")[0])]


# waits.md is whole and right: every module that waits for others has a row, every bound is what the code says.


ROOTS: Final = ("config", "chain", "engines", "p2p", "odfd")
TABLE: Final = Path(__file__).with_name("waits.md").read_text()
PAGE: Final = (TREE / "docs" / "reference" / "waits.md").read_text()
"""What a reader needs of it: each number of the page is one of the code, too."""
ROWS: Final = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith("| wait ")]
WAITING: Final = {
    "AsyncClient", "new_client", "getaddrinfo", "open_tcp_stream", "open_unix_socket", "create_connection",
    "receive_some", "open_process", "run_process", "Popen", "urlopen", "insecure_channel", "accept",
    "HTTPResponse", "HTTPConnection", "check_output", "check_call", "AsyncHTTPTransport",
}  # fmt: skip
"""Names of calls that wait for another program or machine, or open what does; and ``subprocess.run``."""
ELSEWHERE: Final = dict.fromkeys(
    ("p2p.host.muxer", "config.load", "odfd.api.actions", "odfd.services.trust.policies", "odfd.daemon.init"), "accept"
) | {"p2p.web.client": "AsyncClient"}
"""Names that stand for something of our own there, or for what the callers of that module wait for."""
BOUND: Final = re.compile(r"`([\w.]+):([\w.]+)`(?: (\d[\d.]*))?")
SETTING: Final = re.compile(r"`([a-z0-9]+\.[a-z-]+)`(?: (\d[\d.]*))?")


def waiting() -> Iterator[str]:
    for root in ROOTS:
        for path in sorted((TREE / root).rglob("*.py")):
            name = ".".join(path.relative_to(TREE).with_suffix("").parts).removesuffix(".__init__")
            for node in nodes(path):
                if isinstance(node, ast.Call):
                    last = called(node)
                    waits = last in WAITING or (last == "run" and ast.unparse(node.func) == "subprocess.run")
                    if waits and ELSEWHERE.get(name) != last:
                        yield name


def value_of(module: str, path: str) -> Any:
    """What the code says; of a class the default of its field."""
    found: Any = importlib.import_module(module)
    for step in path.split("."):
        if dataclasses.is_dataclass(found) and isinstance(found, type):
            found = next(each.default for each in dataclasses.fields(found) if each.name == step)
        elif hasattr(found, "__struct_fields__") and isinstance(found, type):
            found = dict(zip(found.__struct_fields__[-len(found.__struct_defaults__):], found.__struct_defaults__,
                             strict=True))[step]  # fmt: skip
        else:
            found = getattr(found, step)
    return found


def test_whoever_waits_has_a_row() -> None:
    named = {name for row in ROWS for name in re.findall(r"`([\w.]+)`", row.split("|")[2])}
    missing = sorted(set(waiting()) - named)
    assert not missing, f"these wait for others, and tests/meta/waits.md does not say how long: {missing}"
    for name in named:
        importlib.import_module(name)


def test_bounds_are_what_the_code_says() -> None:
    defaults = {key.name: key.default for key in schema.every()}
    page = [line for line in PAGE.splitlines() if line.startswith("| ")]
    for row, bounds in (*((row, row.split("|")[3]) for row in ROWS), *((row, row) for row in page)):
        for module, path, value in BOUND.findall(row):
            assert value == "" or float(value_of(module, path)) == float(value), f"{module}:{path}"
        for name, value in SETTING.findall(bounds):
            assert name in defaults, name
            assert value == "" or float(defaults[name]) == float(value), name


def test_each_round_with_a_peer_has_an_end_and_a_budget() -> None:
    """Whoever opens a stream to a peer has a row among the rounds, with seconds and with bytes."""
    rows = TABLE.partition("## Rounds with a peer")[2].partition("## Engines")[0].splitlines()
    rows = [row for row in rows if row.startswith("| ") and not row.startswith("| wait ")]
    named = {name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[2])}
    opening = set()
    for path in (TREE / "p2p" / "driver").glob("*.py"):
        if re.search(r"\.(open_stream|_standing\.open|framed)\(", path.read_text()):
            opening.add(f"p2p.driver.{path.stem}")
    # It serves, and its bounds are in other rows; the network hands on.
    assert opening - {"p2p.driver.serve", "p2p.driver.network"} <= named
    for row in rows:
        bounds = row.split("|")[3]
        assert BOUND.search(bounds), row
        assert re.search(r"\d B\b|bytes", bounds), row


def test_rows_are_tried() -> None:
    """Each by a test that there is, and every case of the dripping server has a row."""
    cases = re.findall(r"dripping\[([\w-]+)\]", TABLE)
    assert set(cases) == set(ASKS)
    for file, _, name in re.findall(r"`(tests/[\w/]+\.py)(::(\w+))?`", TABLE):
        text = (TREE / file).read_text()
        assert not name or f"def {name}(" in text, f"{file}::{name}"


# What documents and rows of mutants name exists: a path, a module, what a dotted name finds in it, a line, a test.


DOCUMENTS = (
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "THREATS.md",
    "docs/glossary.md",
    *(f"docs/spec/{name}.md" for name in sorted(path.stem for path in SPECS.glob("*.md"))),
    *(path.relative_to(TREE).as_posix() for path in sorted((TREE / "docs" / "dev").glob("*.md"))),
)
NAMED_ROOTS = "config|chain|engines|p2p|odfd|demo|bench|docs|tests|requirements|systemd|bin|examples|client"
QUOTED = re.compile(r"`([^`\n]+)`")
LINKED = re.compile(r"\]\((?!https?:)([^)#:\s]+)")
PATH = re.compile(rf"^(?:{NAMED_ROOTS})/[\w./{{}},-]*$|^[\w-]+\.(?:md|toml)$")
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


def test_targets_of_make_that_a_document_names_exist() -> None:
    there = set(re.findall(r"^([a-z][\w-]*):", (TREE / "Makefile").read_text(), re.MULTILINE))
    named_ = {
        (name, target)
        for name in DOCUMENTS
        for quoted in QUOTED.findall((TREE / name).read_text())
        for target in re.findall(r"^make ([a-z][\w-]*)", quoted)
    }
    assert len(named_) >= 10, "the test no longer finds what it is about"
    assert not {each for each in named_ if each[1] not in there}


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


# Every setting that a message, a hint or a document names is one that there is, with a value that it takes. Named
# means ``table.key``, ``[table] key`` or ``ODFD_TABLE_KEY`` in a text for people: one with a space in it. What is no
# setting and looks like one, such as kinds of events, stands alone in its text.


SAYING: Final = ("README.md", "ARCHITECTURE.md", "THREATS.md", "docs/**/*.md", "systemd/**/*.*")
KEYS: Final = {key.name: key for key in schema.every()}
TABLES: Final = {key.table for key in KEYS.values()} | {key.table.partition(".")[0] for key in KEYS.values()}
TOP: Final = "|".join(sorted(table for table in TABLES if "." not in table))
VALUE: Final = r"true|false|\d[\d.]*|\"[^\"]*\"|'[^']*'|\[.*\]"
SET_SOMEWHERE: Final = re.compile(
    rf"(?<![\w./@:-])(?P<name>(?:{TOP})(?:\.[a-z][a-z0-9_-]*)+)(?![\w(@/:-])"
    rf"(?:\s*=\s*(?P<value>{VALUE}))?"
)
IN_TABLE: Final = re.compile(
    rf"\[(?P<table>(?:{TOP})(?:\.[a-z-]+)?)\](?:\s+(?P<key>[a-z][a-z0-9-]*)(?:\s*=\s*(?P<value>{VALUE}))?)?"
)
VARIABLE: Final = re.compile(r"\bODFD_[A-Z][A-Z_]*[A-Z]\b")
READ: Final = re.compile(r'environ(?:\.get\(|\[)"(ODFD_\w+)"')
VAGUE: Final = re.compile(r"\b(?:daemon|node)'s \w+ settings\b|\bingest settings\b")
WORDS: Final = {"of", "in", "and", "or", "below", "as", "say", "says"}
"""What may follow a table that is named as a whole."""


@cache
def documents() -> list[Text]:
    return list(_documents())


def _documents() -> Iterator[Text]:
    """Each piece of code in a line of prose, and the lines of settings that are shown."""
    for pattern in SAYING:
        for path in sorted(TREE.glob(pattern)):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                place = f"{path.relative_to(TREE)}:{number}"
                yield from (Text(place, found) for found in re.findall(r"`([^`]+)`", line))
                if path.suffix != ".md":
                    yield Text(place, line)


def is_code(name: str) -> bool:
    """A module, or something in it: one of our roots has the name of a table."""
    root, first, *_ = name.split(".")
    return first == "py" or (TREE / root / first).is_dir() or (TREE / root / f"{first}.py").is_file()


def wrong(text: Text) -> Iterator[str]:
    for found in SET_SOMEWHERE.finditer(text.text):
        name = found["name"].replace("_", "-")
        if name not in KEYS and name not in TABLES and not is_code(found["name"]):
            yield f"{text.place}: there is no setting {found['name']}"
        elif found["value"] is not None and name in KEYS:
            yield from _unfit(text, name, found["value"])
    for found in IN_TABLE.finditer(text.text):
        name = f"{found['table']}.{found['key']}"
        if found["table"] not in TABLES:
            yield f"{text.place}: there is no table [{found['table']}]"
        elif found["key"] is not None and found["key"] not in WORDS and name not in KEYS:
            yield f"{text.place}: there is no setting {name}"
        elif found["value"] is not None and name in KEYS:
            yield from _unfit(text, name, found["value"].strip())
    for variable in VARIABLE.findall(text.text):
        if variable not in RESERVED | {key.variable for key in KEYS.values()}:
            yield f"{text.place}: there is no variable {variable}"
    if VAGUE.search(text.text):
        yield f"{text.place}: it says settings, and not which"


def _unfit(text: Text, name: str, value: str) -> Iterator[str]:
    """What is proposed has to be taken."""
    try:
        proposed = tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        yield f"{text.place}: {name} = {value} is not TOML"
        return
    _, problem = schema.accept(KEYS[name], proposed, text.place)
    if problem is not None:
        yield str(problem)


def test_no_setting_of_tests_is_taken_for_one_of_the_daemon() -> None:
    """A daemon refuses a variable with its prefix that it does not know: what tests are told begins with ``ODF_``."""
    known = RESERVED | {key.variable for key in KEYS.values()}
    told = (TREE / "Makefile").read_text()
    read = (found for path in (TREE / "tests").rglob("*.py") for found in READ.findall(path.read_text()))
    assert not {*VARIABLE.findall(told), *read} - known


def test_every_setting_that_is_named_is_one() -> None:
    found = [each for text in (*messages(), *documents()) for each in wrong(text)]
    assert not found, "\n".join(found)


def test_there_is_something_to_look_at() -> None:
    """Both ways of naming a setting are met, in code and in documents."""
    for texts in (messages(), documents()):
        assert any(SET_SOMEWHERE.search(each.text) for each in texts)
        assert any(IN_TABLE.search(each.text) for each in texts)


@pytest.mark.parametrize(
    "text",
    [
        "raise the limit in the daemon's ingest settings", "set ingest.max-bytes of the settings",
        "name it in [ingest] vars = [1]", "set ingest.pipes = 1 then", "write [ingest.more] of the settings",
        "set ODFD_INGEST_PIPES to 1",
    ],
)  # fmt: skip
def test_what_is_none_is_found(text: str) -> None:
    assert list(wrong(Text("here", text)))
