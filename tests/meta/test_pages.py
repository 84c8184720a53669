"""What pages and the documents of the front door say is so: numbers, settings and manifests are those of the code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from chain.model.fetch_options import BATCH_MESSAGES, BATCH_ROWS, PAGES
from chain.model.read_options import MAX_ROWS
from chain.statements.card import MAX_SAMPLE
from chain.store.objects import SMALL
from config import schema
from engines.flight.messages import MAX_MESSAGE
from engines.flight.server import MAX_BATCH
from engines.flight.service import HELD_SECONDS, MOST_STATEMENTS
from engines.spark.ingest.csv_text import INFER_ROWS
from engines.spark.ingest.unpack import LAYERS, RECORD_BYTES
from engines.spark.provenance.question import MAX_ROWS as MAX_WITNESSES
from engines.spark.provenance.table_mode import MAX_LIVED
from odfd.api import graphql_limits
from odfd.api.graphql_limits import MAX_ALIASES, MAX_COST, MAX_SOURCE, MAX_TOKENS
from odfd.api.resource_operations import WAIT_SECONDS
from odfd.cli.offline.sampling.dcat_feed import MAX_FEED
from odfd.cli.sql.sheet import MOST_COLUMNS, MOST_ROWS, MOST_TEXT
from odfd.control import remote, wire
from odfd.control.wire.node import BackupRequest
from odfd.errors import ExitCode
from odfd.flows.runs import USUAL_RUNS
from odfd.flows.tasks import MOST_FINISHED
from odfd.ingest.clients.mqtt import MAX_MESSAGES
from odfd.ingest.clients.remote_files import MAX_DEPTH, MAX_LISTED
from odfd.ingest.containers import PROCESSES
from odfd.ingest.endpoint import LEAST_SECRET, MAX_PUSH
from odfd.ingest.fetch import evm, sse
from odfd.mirrors.first_contact import ENOUGH
from odfd.obs import log_lines
from odfd.page.sessions import SESSION_SECONDS, TOKEN_SECONDS
from odfd.queries.askers import Crowd
from odfd.resources.manifest import MAX_NAME
from odfd.resources.store import KEPT, MOST, MOST_BYTES
from odfd.services.lineage.trace import MAX_FOLLOWED, MAX_TOLD
from odfd.services.network.mirror_wait import PATIENCE_SECONDS
from odfd.services.queries.fair_turns import WAITING
from odfd.services.resources.reading import read_drafts
from odfd.services.resources.watches import WATCHES
from odfd.services.volumes.manifest import CACHE
from odfd.services.webhooks.call import CALL_SECONDS
from odfd.store import webhook_target
from odfd.store.spool import RECEIPTS
from p2p.driver.namespaces import MAX_NETWORKS
from p2p.machines.dial_order import HEAD_START, MAX_TRIED
from p2p.machines.relay import RelayLimits
from worlds.prose import MOST as MOST_WORDS
from worlds.prose import check_page, problems

DOCS: Final = Path(__file__).parents[2] / "docs"
TOML: Final = re.compile(r"^ *```(?:toml|file \S+\.toml)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
DEFAULT: Final = re.compile(r"`([a-z0-9]+(?:\.[a-z0-9-]+)+)` \(default ([^)]+)\)")
RELAY: Final = RelayLimits()
SAID: Final = (
    ("how-to/ingest-web.md", f"at most {MAX_FEED >> 20} MiB"),
    ("how-to/receive-records.md", f"A push has at most {MAX_PUSH >> 20} MiB"),
    ("how-to/receive-records.md", f"the last {RECEIPTS:,} ids"),
    ("how-to/receive-records.md", f"at least {LEAST_SECRET} bytes, or {webhook_target.LEAST_SECRET} for"),
    ("how-to/receive-records.md", f"A call has at most {remote.MAX_HOOK_BODY >> 20} MiB"),
    ("how-to/volumes.md", f"objects below {SMALL >> 10} KiB"),
    ("how-to/volumes.md", f"({CACHE >> 30}Gi)"),
    ("how-to/webhooks.md", f"within {CALL_SECONDS:g} seconds"),
    ("reference/flows.md", f"`maxRuns`, 1 to 100, default {USUAL_RUNS}"),
    ("reference/flows.md", f"The newest {MOST_FINISHED} finished Tasks"),
    ("reference/reading.md", f"the first {INFER_ROWS:,} records"),
    ("reference/reading.md", f"`maxRows` (at most {MAX_ROWS:,})"),
    ("reference/reading.md", f"`ingest.record-bytes` ({RECORD_BYTES >> 20} MiB)"),
    ("reference/reading.md", f"up to {['one', 'two', 'three'][LAYERS - 1]} layers deep"),
    ("reference/resources.md", f"at most {MAX_NAME} characters"),
    ("reference/resources.md", f"at least {KEPT:,}, and at most {MOST:,} or {MOST_BYTES >> 20} MiB"),
    ("reference/sources.md", f"| `pages.most` | {PAGES:,} |"),
    ("reference/sources.md", f"| `batchMessages` | {BATCH_MESSAGES:,} |"),
    ("reference/sources.md", f"| `batchRows` | {BATCH_ROWS:,} |"),
    ("reference/sources.md", f"at most {MAX_DEPTH} folders"),
    ("reference/sources.md", f"more than {MAX_LISTED:,} entries"),
    ("reference/sources.md", f"at most {MAX_MESSAGES} messages"),
    ("reference/sources.md", f"at most {PROCESSES} processes"),
    ("reference/sources.md", f"for {sse.QUIET:g} seconds, and at most for {sse.LONGEST:g}"),
    ("reference/sources.md", f"at most {sse.MAX_EVENT >> 20} MiB, a transaction {sse.MAX_BATCH >> 20} MiB"),
    ("reference/sources.md", f"A request covers {evm.STRIDE:,} blocks"),
    ("reference/sources.md", f"more than {evm.MOST_LOGS:,} logs"),
    ("reference/sql.md", f"After {MOST_ROWS:,} rows"),
    ("reference/sql.md", f"more than {MOST_TEXT:,} characters"),
    ("reference/sql.md", f"more than {MOST_COLUMNS:,} columns"),
    ("how-to/backup.md", f"objects up to {SMALL >> 10} KiB"),
    ("how-to/backup.md", f"`--keep N` (default {BackupRequest(to='/').keep})"),
    ("how-to/flight.md", f"| {MAX_MESSAGE >> 20} MiB |"),
    ("how-to/flight.md", f"| {MAX_BATCH >> 20} MiB, unless"),
    ("how-to/flight.md", f"| {MOST_STATEMENTS}, for an hour |"),
    ("how-to/flight.md", f"| {HELD_SECONDS:g} seconds; then"),
    ("how-to/http.md", f"{WAITING} more wait"),
    ("how-to/http.md", f"a running one has {Crowd.STRANGERS.value:g} seconds"),
    ("how-to/join.md", f"in {MAX_NETWORKS} networks at a time"),
    ("how-to/join.md", f"serves it within {PATIENCE_SECONDS:g} seconds"),
    ("how-to/join.md", f"peers in {ENOUGH} or more IP subnets"),
    ("how-to/operate.md", f"the last {log_lines.MOST:,} lines, at most {log_lines.MOST_BYTES >> 20} MiB"),
    ("how-to/page.md", f"valid once, for {TOKEN_SECONDS:g} seconds"),
    ("how-to/page.md", f"after {SESSION_SECONDS / 3600:g} hours without a request"),
    ("how-to/publish.md", f"`--sample N` (at most {MAX_SAMPLE})"),
    ("how-to/reach.md", f"at most {RELAY.reservations} peers and {RELAY.circuits} circuits"),
    ("how-to/reach.md", f"after {RELAY.circuit.seconds / 3600:g} hours, or after {RELAY.circuit.data >> 30} GiB"),
    ("how-to/reach.md", f"the next address after {HEAD_START:g} s"),
    ("how-to/reach.md", f"it dials at most {MAX_TRIED}."),
    ("reference/api.md", f"an apply after {WAIT_SECONDS:g} seconds"),
    ("reference/api.md", f"At most {WATCHES} watches"),
    (
        "reference/api.md",
        f"{MAX_SOURCE >> 10} KiB, {MAX_TOKENS:,} tokens, {graphql_limits.MAX_DEPTH} levels, {MAX_ALIASES} aliases"
        f" and {MAX_COST:,} values",
    ),
    ("reference/roles.md", f"at most {remote.AT_ONCE} requests at a time"),
    ("explanation/provenance.md", f"| {MAX_FOLLOWED:,}, and none after {MAX_TOLD:,} listed rows"),
    ("explanation/provenance.md", f"| {MAX_WITNESSES:,} (`provenance-size`)"),
    ("explanation/provenance.md", f"| {MAX_LIVED:,} (`provenance-size`)"),
)


def pages() -> Iterator[tuple[str, str]]:
    """Pages for users: the specification shows parts of a file of settings."""
    for path in sorted(DOCS.rglob("*.md")):
        if path.relative_to(DOCS).parts[0] not in ("adr", "spec"):
            yield path.relative_to(DOCS).as_posix(), path.read_text()


def flat(table: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def wrong_settings(text: str) -> Iterator[str]:
    """What blocks of settings of a page name, and the node does not take."""
    keys = {key.name: key for key in schema.every()}
    for block in TOML.findall(text):
        for name, value in flat(tomllib.loads(re.sub(r"(?m)^ +", "", block))):
            if name not in keys:
                yield f"there is no setting {name}"
            elif "…" not in str(value) and (problem := schema.accept(keys[name], value, "page")[1]) is not None:
                yield str(problem)


def wrong_defaults(text: str) -> Iterator[str]:
    defaults = {key.name: key.default for key in schema.every()}
    for name, value in DEFAULT.findall(text):
        if str(defaults.get(name, "no such setting")) != value:
            yield f"{name}: {value}, where the code says {defaults.get(name)}"


@pytest.mark.parametrize(("page", "text"), SAID, ids=lambda value: value[:40])
def test_a_page_says_the_number_of_the_code(page: str, text: str) -> None:
    assert text in " ".join((DOCS / page).read_text().split())


def test_settings_that_pages_show_are_taken() -> None:
    assert not [f"{page}: {each}" for page, text in pages() for each in wrong_settings(text)]
    assert list(wrong_settings("```toml\n[p2p]\nupnp = true\n```\n")) == ["there is no setting p2p.upnp"]


def test_defaults_that_pages_name_are_those_of_the_code() -> None:
    assert not [f"{page}: {each}" for page, text in pages() for each in wrong_defaults(text)]
    assert list(wrong_defaults("`query.seconds` (default 1)"))


def test_each_exit_code_has_a_row() -> None:
    text = (DOCS / "how-to" / "troubleshoot.md").read_text()
    codes: type[IntEnum] = ExitCode
    assert sorted(map(int, re.findall(r"(?m)^\| (\d+) \|", text))) == sorted(codes)


# Manifests on pages are accepted, and numbers of sources, resources and queries are those of the code.

BLOCK: Final = re.compile(r"^```(?:yaml|file \S+\.yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW: Final = re.compile(r"(?m)^\| `(\{kind: [^`]*\})` \|")
PARTS: Final = ("fetch", "prepare", "read", "preprocess", "merge")
WRONG: Final = "$schema: Folw"
"""Of a manifest that a page shows with its mistakes."""
SOURCE: Final = {"kind": "SetPollingSource", "fetch": {"kind": "Url", "url": "https://a.example/a"},
                 "read": {"kind": "NdJson"}, "merge": {"kind": "Append"}}  # fmt: skip


def blocks() -> Iterator[tuple[str, str]]:
    for folder in ("how-to", "reference"):
        for path in sorted((DOCS / folder).glob("*.md")):
            yield from ((f"{folder}/{path.name}", text) for text in BLOCK.findall(path.read_text()))


def accept(text: str) -> None:
    """Raises Invalid for manifests that the node refuses as they are written."""
    read_drafts([wire.ManifestText(source="page.yaml", text=text, base="/pages")])


def flow(trigger: Any, task: Any) -> str:
    spec = {"target": "Dataset:a", "triggers": [trigger], "tasks": [task]}
    return yaml.safe_dump({"$schema": "Flow", "headers": {"name": "a"}, "spec": spec})


def test_manifests_of_pages_are_accepted() -> None:
    found = [text for _, text in blocks() if "$schema: " in text and WRONG not in text]
    assert len(found) > 30
    for text in found:
        accept(text)


def test_parts_of_sources_on_pages_are_accepted() -> None:
    found = [yaml.safe_load(text) for _, text in blocks() if re.match(r"(fetch|prepare|read):\n", text)]
    assert len(found) > 30
    for each in found:
        source = SOURCE | {key: value for key, value in each.items() if key in PARTS}
        spec = {"kind": "Root", "metadata": [source]}
        accept(yaml.safe_dump({"$schema": "Dataset", "headers": {"name": "a"}, "spec": spec}))


def test_triggers_and_tasks_of_the_page_are_accepted() -> None:
    before, _, after = (DOCS / "reference" / "flows.md").read_text().partition("## Tasks\n")
    triggers, tasks = ([yaml.safe_load(each) for each in ROW.findall(part)] for part in (before, after))
    assert (len(triggers), len(tasks)) == (6, 12)
    fitting = {"InputsUpdated": {"kind": "Transform"}, "SourceUpdated": {"kind": "Ingest", "source": "NAME"}}
    for each in triggers:
        accept(flow(each, fitting.get(each["kind"], {"kind": "Verify"})))
    for each in tasks:
        accept(flow({"kind": "Manual"}, {key: value for key, value in each.items() if value != "HASH"}))


# The front door says what is so: sizes of the documents that are read first, and where to report a vulnerability.

TREE: Final = Path(__file__).parents[2]
LINES: Final = {"README.md": 120, "ARCHITECTURE.md": 100, "CHANGELOG.md": 200}
"""Most lines of each: what is longer belongs in docs."""
WORDS: Final = {"CONTRIBUTING.md": 1600, "SECURITY.md": 400}
ROWS: Final = re.compile(r"(?m)^\| (.+) \| (.+) \| (.+) \|$")


def text(name: str) -> str:
    """A document without its line breaks."""
    return " ".join((TREE / name).read_text().split())


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    return found


@pytest.mark.parametrize("name", LINES)
def test_the_document_is_short(name: str) -> None:
    assert len((TREE / name).read_text().splitlines()) <= LINES[name]


@pytest.mark.parametrize("name", WORDS)
def test_the_document_has_few_words(name: str) -> None:
    assert len((TREE / name).read_text().split()) <= WORDS[name]


def test_security_names_the_contact_of_the_metadata_or_says_that_there_is_none() -> None:
    said, contact = text("SECURITY.md"), project()["urls"].get("Security")
    assert (contact in said) if contact else ("names no address" in said)


def test_the_readme_says_what_the_metadata_says() -> None:
    said, metadata = text("README.md"), project()
    assert f"version {metadata['version']}" in said
    assert f"Python {metadata['requires-python'].removeprefix('>=')} or newer" in said
    assert metadata["license"].replace("-", " ") in said


def test_the_changelog_has_the_version_of_the_metadata_once() -> None:
    headings = re.findall(r"(?m)^## (\S+?),", (TREE / "CHANGELOG.md").read_text())
    assert headings.count(project()["version"]) == 1


def test_each_law_has_its_test_and_each_change_its_place() -> None:
    said = (TREE / "ARCHITECTURE.md").read_text()
    places = ROWS.findall(said.partition("## Where do I change X")[2].partition("## Five laws")[0])[1:]
    laws = ROWS.findall(said.partition("## Five laws")[2])[1:]
    assert len(places) == 15
    assert len(laws) == 5
    for *_, test in (*places, *laws):
        assert (TREE / test.strip("`")).is_file(), test


def test_manifests_have_one_dialect() -> None:
    found = (*TREE.glob("docs/tutorials/*.md"), *TREE.glob("docs/how-to/*.md"), *TREE.glob("examples/**/*.*"))
    for path in (TREE / "README.md", *found, *TREE.glob("demo/manifests/*.yaml")):
        assert "DatasetSnapshot" not in path.read_text(), path.name


# Prose of pages, help and messages has no word that readers stumble over, and no long sentence.


def test_prose_passes_but_for_the_exceptions_and_each_exception_is_one() -> None:
    assert not list(problems()), "make lint"


@pytest.mark.parametrize(
    "text",
    [
        "Nobody reads it.", "Write it anew.", "It is told by an event.", "* the flow goes on", "a person accepts it",
        "See issue 7.", "Measured at a load of 17.", "word " * (MOST_WORDS + 1),
    ],
)  # fmt: skip
def test_what_readers_stumble_over_is_found(text: str) -> None:
    assert list(check_page(text))


@pytest.mark.parametrize(
    "text",
    [
        "% stands for any text.", "`told` is a name.", "| " + "cell " * 40 + "|", "```\nanew\n```\n",
        "word " * (MOST_WORDS - 1) + "end. " + "Word " * (MOST_WORDS - 1),
        "- one " * 2 + "\n- " + "two " * 20, "[x](anew.md)",
    ],
)  # fmt: skip
def test_what_reads_well_passes(text: str) -> None:
    assert not list(check_page(text))
