"""Every kind of source is bound through a reclocking chain: no fetcher lacks a row here and in the specification."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import pytest
import trio

from chain.instant import MILLISECOND, Instant
from chain.model.events import SetPollingSource, SourceState
from chain.model.fetch_options import FetchOptions, fetch_options
from chain.model.source import FetchStep
from chain.statements.keys import SigningKey
from engines.contract import SkippedFile
from odfd.ingest.fetch import dispatch
from odfd.ingest.fetch.base import DEFAULT_SOURCE, Fetched, FetchJob, FetchOutcome, Unchanged
from odfd.ingest.raw_chain import bindings_in
from odfd.reclock.addresses import KeptFiles, Positions, addresses_of
from odfd.reclock.creation import ShardsWanted, begin
from worlds.instances import START, House, dependencies, rows_in
from worlds.sources import source

SPEC: Final = Path(__file__).parents[3] / "docs" / "spec" / "collections.md"
READ: Final = (
    "\nread:\n  kind: Csv\n  header: true\n  ddlSchema: [event_time TIMESTAMP, city STRING, population BIGINT]"
)
STATE: Final = "w3id.org/odfd/test"


class Kind(NamedTuple):
    """A kind of source as the specification calls it: a fetch step, and the fetcher that performs it."""

    name: str
    fetch: str
    fetcher: str

    @property
    def declared(self) -> SetPollingSource:
        return source(f"fetch: {{{self.fetch}}}{READ}")


KINDS: Final = (
    Kind("files of a folder", "kind: FilesGlob, path: 'in/*.csv', order: ByName", "fetch_files"),
    Kind("objects of a bucket", "kind: FilesGlob, path: 's3://bucket/in/*.csv', order: ByName", "fetch_bucket"),
    Kind("files by FTP", "kind: FilesGlob, path: 'ftp://host/in/*.csv', order: ByName", "fetch_ftp"),
    Kind("files by SFTP", "kind: FilesGlob, path: 'sftp://me@host/in/*.csv', order: ByName", "fetch_sftp"),
    Kind("a document", "kind: Url, url: 'https://host/a.csv'", "fetch_url"),
    Kind("a web service", "kind: Http, url: 'https://host/a', method: POST, body: x", "fetch_http"),
    Kind("server-sent events", "kind: Sse, url: 'https://host/events'", "fetch_sse"),
    Kind("rows of a database", "kind: Sql, url: 'postgresql://host/db', query: select 1", "fetch_sql"),
    Kind("messages of MQTT", "kind: Mqtt, host: host, port: 1883, topics: [{path: a}]", "fetch_mqtt"),
    Kind("an image", "kind: Container, image: 'host/image@sha256:00'", "fetch_container"),
    Kind("logs of Ethereum", "kind: EthereumLogs, nodeUrl: 'https://host', chainId: 1", "fetch_evm"),
    Kind("a topic of Kafka", "kind: Kafka, url: 'kafka://host/topic'", "fetch_kafka"),
)
PUSHES: Final = "pushes"
"""Bound by another port; ``tests/sim/collections/test_reclocked_pushes.py``."""
LATE: Final = SkippedFile(name="late.csv", reason="it came too late")
AS_POSITIONS: Final = {"fetch_kafka"}


def test_every_fetcher_and_option_has_a_row() -> None:
    """A new kind of source is a new fetcher, step or option; it fails here until somebody says how it is bound."""
    fetchers = {name for name in vars(dispatch) if name.startswith("fetch_")}
    assert {each.fetcher for each in KINDS} == fetchers
    assert {type(each.declared.fetch) for each in KINDS} == set(get_args(FetchStep))
    options = {type(fetch_options(each.declared.read.schema)) for each in KINDS} - {type(None)}
    access = {each for each in get_args(FetchOptions) if each.__name__.endswith("Access")}  # permissions, no kinds
    assert options | access == set(get_args(FetchOptions))


def test_the_specification_says_how_each_is_bound() -> None:
    (table,) = re.findall(r'<a id="kinds"></a>\n.*?\n\n(\|.*?)\n\n', SPEC.read_text(), re.DOTALL)
    rows = [line.split("|")[1].strip() for line in table.splitlines()[2:]]
    assert rows == [*(each.name for each in KINDS), PUSHES]


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each.fetcher)
def test_each_has_its_kind_of_addresses(kind: Kind, tmp_path: Path) -> None:
    house = House(tmp_path)
    place, _ = house.place()
    deps = dependencies(place, tmp_path, lambda: START)
    expected = Positions if kind.fetcher in AS_POSITIONS else KeptFiles
    shard = SigningKey(bytes(32)).dataset_id
    assert type(addresses_of(deps, shard, kind.declared, one_part=False)) is expected
    place.close()


class TwoAnswers:
    """A fetcher that gives two answers by the state that it finds, and then nothing; of any of the kinds."""

    def __init__(self) -> None:
        self.known: list[str | None] = []

    def sync(self, _step: object, *rest: Any) -> FetchOutcome:
        job = rest[-1]
        assert isinstance(job, FetchJob)
        known = job.known(STATE)
        self.known.append(known)
        number = int(known or 0) + 1
        if number > 2:
            return Unchanged((LATE,))
        path = job.folder / "answer.csv"
        path.write_text(f"event_time,city,population\n2024-01-01T00:00:00Z,c{number},{number}\n")
        state = SourceState(source_name=DEFAULT_SOURCE, kind=STATE, value=str(number))
        return Fetched(path=path, name="answer.csv", identity=f"{number}", state=state, skipped=(LATE,))

    async def asynchronous(self, step: object, *rest: Any) -> FetchOutcome:
        return self.sync(step, *rest)


@pytest.mark.parametrize("kind", [each for each in KINDS if each.fetcher not in AS_POSITIONS], ids=lambda e: e.fetcher)
def test_what_it_gives_is_bound_and_decoded_from_the_binding(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes and state are bound before they are decoded; whoever has the binding asks the source no more."""
    answers = TwoAnswers()
    monkeypatch.setattr(dispatch, kind.fetcher, answers.sync if kind.fetcher == "fetch_files" else answers.asynchronous)
    house, keys, ticks = House(tmp_path), itertools.count(1), itertools.count(1)
    house.declared = kind.declared
    place, _ = house.place()
    chain = begin(
        place,
        lambda: SigningKey(bytes([next(keys)]) * 32).dataset_id,
        [kind.declared],
        ShardsWanted(2, ("city",)),
        START,
    )
    place.close()

    def now() -> Instant:
        return Instant(START + next(ticks) * MILLISECOND)

    counts, late = [], []
    for _ in range(2):
        instance, place, _ = house.instance(chain, now)
        counts.append(trio.run(instance.run))
        late.append(instance.skipped)
        place.close()
    assert [(each.bound, each.written) for each in counts] == [(2, 2), (0, 0)]
    assert late == [(LATE,)] * 2, "what is not taken is told, once"
    assert answers.known == [None, "1", "2", "2"], "each fetch goes on after what was bound"
    here, _ = house.place()
    here.read([chain])
    found = [binding for _, binding in bindings_in(here.objects, here.chains.chain(chain))]
    assert [(each.kept, each.capture.label and each.capture.label.value) for each in found] == [
        (True, "1"),
        (True, "2"),
    ]
    here.close()
    written = house.chains(chain)
    assert sum(rows_in(raws) for each, (_, raws) in written.items() if each != chain) == 2
    root = house.replayed(chain, "alone")
    asked = len(answers.known)
    place, _ = house.place(root)
    (tmp_path / "alone-staging").mkdir()
    alone = house._made(dependencies(place, tmp_path / "alone-staging", now), place, chain)
    for _ in found:
        assert trio.run(alone.step)
    assert len(answers.known) == asked, "nobody asks the source for what is bound"
    assert house.chains(chain, root) == written
    place.close()
