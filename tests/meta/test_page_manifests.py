"""Manifests on pages are accepted, and numbers of sources, resources and queries are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from chain.model.fetch_options import BATCH_MESSAGES, BATCH_ROWS, PAGES
from chain.model.read_options import MAX_ROWS
from chain.store.objects import SMALL
from engines.spark.ingest.csv_text import INFER_ROWS
from engines.spark.ingest.unpack import LAYERS, RECORD_BYTES
from odfd.cli.offline.sampling.dcat_feed import MAX_FEED
from odfd.cli.sql.sheet import MOST_COLUMNS, MOST_ROWS, MOST_TEXT
from odfd.control import remote, wire
from odfd.flows.runs import USUAL_RUNS
from odfd.flows.tasks import MOST_FINISHED
from odfd.ingest.clients.mqtt import MAX_MESSAGES
from odfd.ingest.clients.remote_files import MAX_DEPTH, MAX_LISTED
from odfd.ingest.containers import PROCESSES
from odfd.ingest.endpoint import LEAST_SECRET, MAX_PUSH
from odfd.ingest.fetch import evm, sse
from odfd.resources.manifest import MAX_NAME
from odfd.resources.store import KEPT, MOST, MOST_BYTES
from odfd.services.resources.reading import read_drafts
from odfd.services.volumes.manifest import CACHE
from odfd.services.webhooks.call import CALL_SECONDS
from odfd.store import webhook_target
from odfd.store.spool import RECEIPTS

DOCS: Final = Path(__file__).parents[2] / "docs"
BLOCK: Final = re.compile(r"^```(?:yaml|file \S+\.yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW: Final = re.compile(r"(?m)^\| `(\{kind: [^`]*\})` \|")
PARTS: Final = ("fetch", "prepare", "read", "preprocess", "merge")
WRONG: Final = "$schema: Folw"
"""Of a manifest that a page shows with its mistakes."""
SOURCE: Final = {"kind": "SetPollingSource", "fetch": {"kind": "Url", "url": "https://a.example/a"},
                 "read": {"kind": "NdJson"}, "merge": {"kind": "Append"}}  # fmt: skip
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
)


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


@pytest.mark.parametrize(("page", "text"), SAID, ids=lambda value: value[:40])
def test_a_page_says_the_number_of_the_code(page: str, text: str) -> None:
    assert text in " ".join((DOCS / page).read_text().split())
