"""Lines are taken from a position, each once, and what cannot be read is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from odfd_source_journal import POSITION, JournalOptions, JournalSource

from chain.errors import Fault
from chain.instant import Instant
from chain.model.events import SourceState
from chain.model.source import FetchUrl
from odfd.ingest.fetch.source import DEFAULT_SOURCE, Fetched, FetchJob, FetchOutcome, Unchanged
from odfd.ingest.settings import IngestSettings


def fetch(file: Path, state: SourceState | None = None) -> FetchOutcome:
    folder = file.parent / "job"
    folder.mkdir(exist_ok=True)
    job = FetchJob(state=state, now=Instant(0), folder=folder, settings=IngestSettings(staging=file.parent))
    return trio.run(JournalSource(FetchUrl(url=f"journal:{file}"), JournalOptions(batch_lines=2)).fetch, job)


def test_each_line_is_taken_once(tmp_path: Path) -> None:
    file = tmp_path / "readings.csv"
    file.write_text("1\n2\n3\n4 is not com")
    first = fetch(file)
    assert isinstance(first, Fetched)
    assert (first.path.read_text(), first.has_more) == ("1\n2\n", True)
    second = fetch(file, first.state)
    assert isinstance(second, Fetched)
    assert second.path.read_text() == "3\n"
    assert isinstance(fetch(file, second.state), Unchanged)


def test_what_is_no_continuation_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "readings.csv"
    file.write_text("1\n")
    with pytest.raises(Fault) as caught:
        fetch(file, SourceState(source_name=DEFAULT_SOURCE, kind=POSITION, value="9"))
    assert caught.value.rule == "journal"


def test_a_url_without_a_path_is_refused(tmp_path: Path) -> None:
    source = JournalSource(FetchUrl(url="journal:readings.csv"), JournalOptions())
    with pytest.raises(Fault) as caught:
        source.check(IngestSettings(staging=tmp_path))
    assert caught.value.rule == "journal-url"
