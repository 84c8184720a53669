"""A kind of source is found by its step and options: odfd's own, and those that other packages add."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chain.errors import Invalid, Refused
from chain.model.fetch_options import BUCKET, KINDS, SFTP, Plugin, SqlQuery, fetch_options
from chain.model.source import FetchContainer, FetchFilesGlob, FetchUrl
from odfd.ingest.fetch import dispatch
from odfd.ingest.fetch.source import FetchJob, FetchOutcome, Source, Unchanged
from odfd.ingest.settings import IngestSettings
from odfd.ingest.trigger import SPECIMEN, at_time
from odfd.runtime import extensions
from worlds.sources import source

TEXT = """fetch:
  kind: Plugin
  source: Counter
  url: counter:/7
  options: {most: 3, names: [a, "${{ trigger.date }}"]}
read:
  kind: NdJson
  ddlSchema: ['n BIGINT']
"""


class CounterOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    most: int
    names: tuple[str, ...] = ()


class CounterSource(Source[FetchUrl, CounterOptions]):
    options_type = CounterOptions

    def check(self, settings: IngestSettings) -> None:
        pass

    async def fetch(self, job: FetchJob) -> FetchOutcome:
        return Unchanged()


class PlainSource(CounterSource):
    options_type = None


class Entry:
    """An entry point of a package that is installed."""

    def __init__(self, row: type[Any]) -> None:
        self.load = lambda: row


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"Counter": Entry(CounterSource), "Plain": Entry(PlainSource)}
    monkeypatch.setattr(extensions, "extensions", lambda group: found)


def test_every_kind_of_a_manifest_is_a_row_or_an_entry_point() -> None:
    own = {each.name: each.load() for each in entry_points(group=extensions.SOURCES)}
    assert {*KINDS, SFTP, BUCKET} <= {"Plugin", "Http", *own}
    assert all(issubclass(row, Source) for row in own.values())


@pytest.mark.parametrize(
    ("step", "options", "name"),
    [
        (FetchUrl(url="sftp://u@h/a"), None, "SftpSource"),
        (FetchFilesGlob(path="sftp://u@h/*.csv"), None, "SftpSource"),
        (FetchFilesGlob(path="ftp://h/*.csv"), None, "FtpSource"),
        (FetchUrl(url="ftp://h/a"), None, "UrlSource"),
        (FetchFilesGlob(path="s3+https://h/b/*.csv"), None, "BucketSource"),
        (FetchFilesGlob(path="data/*.csv"), None, "FilesSource"),
        (FetchUrl(url="sftp://u@h/a"), SqlQuery(query="select 1"), "SqlSource"),
        (FetchContainer(image="a"), None, "ContainerSource"),
    ],
)
def test_a_kind_is_found_by_options_then_by_scheme(step: Any, options: Any, name: str) -> None:
    assert type(dispatch.source_of(step, options)).__name__ == name


@pytest.mark.usefixtures("added")
def test_a_kind_of_another_package_gets_its_own_options_and_url() -> None:
    event = source(TEXT)
    assert isinstance(event.fetch, FetchUrl)
    assert event.fetch.url == "odfd+counter:/7"
    step, options = at_time((event.fetch, fetch_options(event.read.schema)), SPECIMEN)
    found = dispatch.source_of(step, options)
    assert isinstance(found, CounterSource)
    assert found.step.url == found.address == "counter:/7"
    assert found.options == CounterOptions(most=3, names=("a", "1970-01-01"))
    assert dispatch.address_of(event.fetch) == "odfd+counter:/7"


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        (Plugin(source="Counter"), "options of Counter: .*most"),
        (Plugin(source="Counter", options={"most": 1, "least": 0}), "options of Counter: .*least"),
        (Plugin(source="Plain", options={"most": 1}), "Plain have no options"),
    ],
)
def test_options_that_the_package_does_not_know_are_refused(plugin: Plugin, said: str) -> None:
    with pytest.raises(Invalid, match=said) as caught:
        dispatch.source_of(FetchUrl(url="odfd+counter:/7"), plugin)
    assert caught.value.rule == "fetch-option"


def test_a_kind_that_nobody_installed_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="kind Counter are not installed") as caught:
        dispatch.check_fetch(
            FetchUrl(url="odfd+counter:/7"), IngestSettings(staging=tmp_path), Plugin(source="Counter")
        )
    assert caught.value.rule == "source-kind"


@pytest.mark.parametrize("kind", ["Sql", "Sftp"])
def test_a_kind_of_odfd_has_one_spelling(kind: str) -> None:
    with pytest.raises(Invalid, match=f"{kind} is a kind of odfd itself"):
        source(TEXT.replace("Counter", kind))


@pytest.mark.parametrize("client", ["databases", "evm", "ftp", "kafka", "mqtt", "sftp"])
def test_a_process_of_a_source_starts_without_what_the_node_needs(client: str) -> None:
    """Each fetch starts one, so that what it imports is paid each time."""
    if client == "sftp":
        pytest.importorskip("asyncssh")
    said = f"import sys, odfd.ingest.clients.{client}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True).stdout.split()
    assert not {"trio", "httpx", "pyarrow", "grpc", "odfd.ingest.settings"} & set(loaded)
