"""What holds of sources of every kind: what no pull could fetch is refused when it is applied, each by its rule."""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.codec.manifest import from_builtins, to_builtins
from chain.errors import Fault, Invalid, Refused, Remote
from chain.model.events import SetPollingSource, SourceState
from chain.model.fetch_options import BucketAccess, KafkaTopic, ServerEvents, SftpAccess, SqlQuery, fetch_options
from chain.model.source import (
    FetchEthereumLogs,
    FetchFilesGlob,
    FetchMqtt,
    FetchUrl,
    MqttQos,
    MqttTopicSubscription,
    RequestHeader,
)
from odfd.ingest.acceptance import check_source
from odfd.ingest.fetch import sse
from odfd.ingest.fetch.dispatch import check_fetch, fetch, source_of
from odfd.ingest.fetch.source import FetchJob, Unchanged
from odfd.ingest.fetch.sse import EventReader, ServerEvent
from odfd.ingest.settings import PATIENCE, IngestSettings
from worlds.azurite import KEY
from worlds.databases import PASSWORD
from worlds.evm import MINTED, ROCKET
from worlds.sources import examples, source
from worlds.sse import Stream, stream_served

OTHER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKcYrxHBQ6Q5DpNvBqNRDgSZzYjVxQmY6Xb0t1J8mDdL"
SFTP = SftpAccess(host_key=OTHER_KEY)
EVENTS = ServerEvents()
TRANSFER = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
VARIABLES = {
    "KEY": "AKIAsaidnowhere",
    "SECRET": "s/aid+nowhere",
    "DB": PASSWORD,
    "MQTT": "x",
    "KAFKA": "x",
    "FTP": "x",
    "SFTP": "x",
    "TOKEN": "t",
    "NODE": "https://a.example/key",
}


def url(text: str, **more: Any) -> FetchUrl:
    return FetchUrl(url=text, **more)


def glob(text: str) -> FetchFilesGlob:
    return FetchFilesGlob(path=text)


def topics(*names: str) -> tuple[MqttTopicSubscription, ...]:
    return tuple(MqttTopicSubscription(path=name, qos=MqttQos.AT_LEAST_ONCE) for name in names)


def mqtt(**more: Any) -> FetchMqtt:
    return FetchMqtt(**{"host": "127.0.0.1", "port": 1883, "topics": topics("a"), **more})


def evm(**more: Any) -> FetchEthereumLogs:
    return FetchEthereumLogs(**{"chain_id": 1, "node_url": "https://a.example", **more})


NOT_ASKED: Final[list[tuple[Any, Any, str]]] = [
    *(
        (glob(path), None, rule)
        for path, rule in (
            ("ftp://a.example", "url-host"),
            ("ftp:///*.csv", "url-host"),
            ("ftp://a.example:99999/*.csv", "url-host"),
            ("ftps://a.example/../*.csv", "url-host"),
            ("ftp://a.example/a//*.csv", "url-host"),
            ("ftp://a.example/*.csv\r\nDELE b", "url-host"),
            ("ftp://me%0d:x${{ env.NONE }}@a.example/*", "source-password"),
            ("ftps://me:secret@a.example/*.csv", "source-password"),
            ("ftps://me:${{ env.NONE }}@a.example/*.csv", "source-variable"),
        )
    ),
    *(
        (url(text), None, rule)
        for text, rule in (
            ("ftp://a.example", "url-host"),
            ("ftp://a.example/folder/", "url-host"),
            ("ftp:///a.csv", "url-host"),
            ("ftp://a.example:99999/a", "url-host"),
            ("ftp://a.example/a%0d%0aDELE%20b", "url-host"),
            ("ftp://a%0ab@a.example/a", "url-host"),
            ("ftp://a.example/a\r\nDELE b", "url-host"),
            ("ftp://a.example/a?b", "url-host"),
            ("ftp://a.example/a%ff", "url-host"),
            ("ftp://me:secret@a.example/a", "source-password"),
            ("ftp://me:${{ env.NONE }}@a.example/a", "source-variable"),
        )
    ),
    *(
        (step(text), access, rule)
        for step in (url, glob)
        for text, access, rule in (
            ("sftp://a.example/a", SFTP, "url-host"),
            ("sftp://me@a.example", SFTP, "url-host"),
            ("sftp://me@a.example/a/../b", SFTP, "url-host"),
            ("sftp://me@a.example:99999/a", SFTP, "url-host"),
            ("sftp://me:secret@a.example/a", SFTP, "source-password"),
            ("sftp://me:${{ env.NONE }}@a.example/a", SFTP, "source-variable"),
            ("sftp://me@a.example/a", SftpAccess(host_key=OTHER_KEY, private_key="secret"), "source-password"),
            ("sftp://me@a.example/a", SftpAccess(host_key="a.example ssh-ed25519 AAAA"), "sftp-host-key"),
            ("sftp://me@a.example/a", None, "sftp-host-key"),
        )
    ),
    (url("sftp://me@a.example/a%00b"), SFTP, "url-host"),  # patterns are not decoded
    *(
        (url(text), KafkaTopic(), rule)
        for text, rule in (
            ("kafka://host/topic", "url-scheme"),
            ("kafka://host:1/", "url-scheme"),
            ("kafka://host:1/a/b", "url-scheme"),
            ("kafka://host:1/a?x=1", "url-scheme"),
            ("https://host:1/a", "url-scheme"),
            ("kafka://" + ",".join(["h:1"] * 17) + "/a", "url-scheme"),
            ("kafka://h:1\nssl.ca.location=/etc/passwd/a", "url-scheme"),
            ("kafka://user:word@h:1/a", "source-password"),
        )
    ),
    *(
        (mqtt(**more), None, rule)
        for more, rule in (
            ({"host": "a b"}, "source-mqtt"),
            ({"port": 0}, "source-mqtt"),
            ({"topics": ()}, "source-mqtt"),
            ({"topics": topics("")}, "source-mqtt"),
            ({"topics": topics("$SYS/#")}, "source-mqtt"),
            ({"topics": topics(*map(str, range(65)))}, "source-mqtt"),
            ({"username": "u", "password": "word"}, "source-password"),
            ({"password": "${{ env.MQTT }}"}, "source-mqtt"),
        )
    ),
    (url("https://a.example/"), EVENTS, "url-scheme"),
    (url("odfd+ftp://a.example/b"), EVENTS, "url-scheme"),
    (url("odfd+https://a b/"), EVENTS, "url-host"),
    (url("odfd+https://a/", headers=(RequestHeader(name="last-event-id", value="5"),)), EVENTS, "source-sse"),
    *(
        (evm(**step), None, rule)
        for step, rule in (
            ({"node_url": None}, "evm-node"),
            ({"node_url": "wss://a.example"}, "url-scheme"),
            ({"node_url": "https://me:word@a.example"}, "source-password"),
            ({"node_url": "https://a b"}, "url-host"),
            ({"node_url": "${{ env.NONE }}"}, "source-variable"),
            ({"filter": "address = X'ab'"}, "evm-filter"),
            ({"filter": "block_number > 1 or block_number < 3"}, "evm-filter"),
            ({"filter": "block_number > 5 and block_number < 3"}, "evm-filter"),
            ({"filter": "data = X'00'"}, "evm-filter"),
            ({"filter": f"topic0 = X'{TRANSFER}'", "signature": MINTED}, "evm-filter"),
            ({"signature": "Made((uint256,bool) indexed a)"}, "evm-signature"),
            ({"signature": "Made(uint257 a)"}, "evm-signature"),
            ({"signature": "Made(uint256 a, bool A)"}, "evm-signature"),
            ({"signature": "Made(bool indexed a, bool indexed b, bool indexed c, bool indexed d)"}, "evm-signature"),
        )
    ),
]


@pytest.mark.parametrize(("step", "options", "rule"), NOT_ASKED)
def test_what_nobody_can_be_asked_is_refused_by_its_rule(step: Any, options: Any, rule: str, tmp_path: Path) -> None:
    """Attack T-SOURCE-04: settings of the client smuggled in through a source's URL.

    Defence: host, port and topic are matched whole; the URL is used for nothing else.
    """
    if isinstance(step, FetchEthereumLogs):
        pytest.importorskip("eth_abi")
    with pytest.raises(Fault) as caught:
        check_fetch(step, IngestSettings(staging=tmp_path, variables=VARIABLES), options)
    assert caught.value.rule == rule


S3, GS, AZ = (next(each for each in examples("FilesGlob") if f"{store}://" in each) for store in ("s3", "gs", "az"))
SQL = examples("Sql")[0]
FOLDER = "s3://measurements/daily/*.csv"


@pytest.mark.parametrize(
    ("text", "old", "new", "said"),
    [
        (S3, "${{ env.SECRET }}", "plain", "would be in the chain"),
        (S3, "${{ env.SECRET }}", "${{ env.OTHER }}", "no variable 'OTHER'"),
        (
            S3,
            "secretAccessKey: ${{ env.SECRET }} ",
            "sessionToken: ${{ env.SECRET }} ",
            "accessKeyId and sessionToken do not open a bucket",
        ),
        (S3, "eu-central-1", "'EU central'", "its region is none"),
        (S3, FOLDER, "s3://measurements", "names between single slashes"),
        (S3, FOLDER, "s3://measurements//a", "names between single slashes"),
        (S3, FOLDER, "s3://M/a", "names no bucket"),
        (S3, FOLDER, "s3+https://me:word@host/bucket/a", "names no host"),
        (S3, FOLDER, "s3://bucket/${{ env.KEY }}", "nothing is filled in there"),
        (S3, FOLDER, "/data/*.csv", "is no bucket, and has neither region nor keys"),
        (AZ, "accountKey: ${{ env.KEY }}", "accessKeyId: ${{ env.KEY }}", "accessKeyId opens no bucket of az://"),
        (AZ, "az://weather", "az://Weather", "names no account: az://ACCOUNT/CONTAINER"),
        (AZ, "/measurements/daily/*.csv", "/m/*.csv", "names no container"),
        (AZ, "/measurements/daily/*.csv", "/measurements", "names between single slashes"),
        (AZ, "accountKey:", "sasToken: ${{ env.KEY }}\n  accountKey:", "accountKey and sasToken do not open"),
        (GS, "serviceAccountKey: ${{ env.KEY }}", "accountKey: ${{ env.KEY }}", "accountKey opens no bucket of gs://"),
        (GS, "serviceAccountKey: ${{ env.KEY }}", "serviceAccountKey: plain", "would be in the chain"),
        (GS, "serviceAccountKey: ${{ env.KEY }}", "region: eu-west-1", "a region is of S3"),
        (GS, "gs://measurements", "gs://M", "names no bucket"),
        (SQL, "${{ env.DB }}", "secret", "would be in the chain"),
        (SQL, "${{ env.DB }}", "${{ env.OTHER }}", "no variable 'OTHER'"),
        (SQL, "postgresql:", "oracle:", "asks no oracle"),
        (SQL, "kind: Parquet", "kind: NdJson", "rows with their types"),
        (SQL, "db.example/shop", "db.example/shop?password=x", "would be in the chain"),
    ],
)
def test_what_no_pull_could_fetch_is_refused_when_applied(
    text: str, old: str, new: str, said: str, tmp_path: Path
) -> None:
    assert old in text
    variables = VARIABLES | ({"KEY": KEY} if text in (GS, AZ) else {})
    found = check_source(source(text.replace(old, new)), IngestSettings(staging=tmp_path, variables=variables))
    assert found is not None
    place, fault = found
    assert place == "fetch" or "rows with their types" in said
    assert said in str(fault)


@pytest.mark.parametrize(
    ("step", "options", "client", "rule"),
    [
        (url("sftp://me@a.example/a"), SFTP, "asyncssh", "sftp-extra"),
        (url("kafka://h:1/a"), KafkaTopic(), "confluent_kafka", "kafka-extra"),
        (mqtt(), None, "paho", "mqtt-extra"),
        (url("postgresql://h/shop"), SqlQuery(query="select 1"), "", "sql-extra"),
        (url("mysql://h/shop"), SqlQuery(query="select 1"), "", "sql-extra"),
        (evm(signature=MINTED), None, "", "evm-extra"),
    ],
)
def test_without_its_client_a_source_is_refused_by_name(
    step: Any, options: Any, client: str, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match=f"{client}.*is not installed") as caught:
        check_fetch(step, IngestSettings(staging=tmp_path), options)
    assert caught.value.rule == rule


def test_without_the_library_logs_that_are_not_decoded_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    check_fetch(evm(filter=f"address = X'{ROCKET[2:]}'"), IngestSettings(staging=tmp_path))


class Page(NamedTuple):
    """Examples of docs/reference/sources.md: how they are known, how many there are, and the options of each."""

    kinds: tuple[str, ...]
    word: str
    count: int
    options: Any = None
    client: str = ""
    address: str = ""

    def texts(self) -> list[str]:
        return [each for kind in self.kinds for each in examples(kind) if re.search(self.word, each)]


PAGES: Final = {
    "ftp": Page(("Url", "FilesGlob"), r"[ /]ftps?://", 2),
    "sftp": Page(("Url", "FilesGlob"), "sftp://", 2, SftpAccess),
    "kafka": Page(("Kafka",), "", 2, KafkaTopic, "confluent_kafka"),
    "mqtt": Page(("Mqtt",), "", 1, client="paho"),
    "sse": Page(("Sse",), "", 1, ServerEvents, address="odfd+https://api.example/v1/changes"),
    "evm": Page(("EthereumLogs",), "", 1, client="eth_abi"),
    "s3": Page(("FilesGlob",), "s3://", 1, BucketAccess),
    "gs": Page(("FilesGlob",), "gs://", 1, BucketAccess),
    "az": Page(("FilesGlob",), "az://", 1, BucketAccess),
    "sql": Page(("Sql",), "", 1, SqlQuery),
}


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_the_page_are_accepted_and_keep_their_options(name: str, tmp_path: Path) -> None:
    page = PAGES[name]
    if page.client:
        pytest.importorskip(page.client)
    texts = page.texts()
    assert len(texts) == page.count
    for text in texts:
        event = source(text)
        variables = VARIABLES | ({"KEY": KEY} if name == "az" else {})
        assert check_source(event, IngestSettings(staging=tmp_path, variables=variables)) is None
        options = fetch_options(event.read.schema)
        assert options is None if page.options is None else isinstance(options, page.options)
        assert page.address in ("", getattr(event.fetch, "url", None))
        assert from_builtins(SetPollingSource, to_builtins(event)) == event


@pytest.mark.parametrize("step", [url("ftp://192.0.2.7/a.csv"), source(SQL).fetch])
def test_no_source_of_a_stranger_that_is_not_on_the_web_is_asked(step: Any) -> None:
    """Attack T-SOURCE-05: a database that another's manifest names, on the observer's own network.

    Defence: observers fetch only web pages.
    """
    with pytest.raises(Refused, match="not on the web"):
        source_of(step, None).check_open()


# What a stream of server-sent events means as a source, asked of a server on loopback that keeps Last-Event-ID.


NOW = instant.parse("2050-01-01T12:00:00Z")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    monkeypatch.setattr(sse, "QUIET", 0.2)
    with stream_served() as made:
        yield made


class Root:
    def __init__(self, server: Stream, folder: Path, **options: Any) -> None:
        self.folder, self.options = folder, ServerEvents(**options)
        header = RequestHeader(name="Authorization", value="Bearer ${{ env.TOKEN }}")
        self.step = FetchUrl(url=f"odfd+{server.url}", headers=(header,))
        self.state: SourceState | None = None

    def fetch(self) -> Any:
        settings = IngestSettings(staging=self.folder, variables={"TOKEN": "s3cr3t-token"}, patience=PATIENCE)
        job = FetchJob(state=self.state, now=NOW, folder=self.folder, settings=settings, options=self.options)
        return trio.run(fetch, self.step, job)

    def rows(self) -> list[Any]:
        found = self.fetch()
        if isinstance(found, Unchanged):
            return []
        self.state = found.state
        return [msgspec.json.decode(line) for line in found.path.read_bytes().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("stays", [False, True])
def test_events_come_once_behind_the_last_one(server: Stream, tmp_path: Path, stays: bool) -> None:
    server.stays = stays
    server.events = [(f"n{number}", f'{{"id":\n{number}}}') for number in range(5)]
    root = Root(server, tmp_path, batch_messages=3)
    first = root.fetch()
    assert first.has_more
    assert root.rows() == [{"id": 0}, {"id": 1}, {"id": 2}]
    assert root.state == SourceState(source_name="default", kind="w3id.org/odfd/sse", value="n2")
    assert root.rows() == [{"id": 3}, {"id": 4}]
    assert root.rows() == []
    server.events.append(("n5", '{"id": 5}'))
    assert root.rows() == [{"id": 5}]
    assert "Last-Event-ID" not in server.asked[0]
    assert (server.asked[-1]["Last-Event-ID"], server.asked[-1]["Authorization"]) == ("n4", "Bearer s3cr3t-token")


def test_events_can_be_rows_themselves(server: Stream, tmp_path: Path) -> None:
    server.events = [("1", "a\nb")]
    assert Root(server, tmp_path, envelope=True).rows() == [{"sse_id": "1", "sse_event": "change", "sse_data": "a\nb"}]


def test_a_server_that_forgets_the_position_is_refused(server: Stream, tmp_path: Path) -> None:
    """Attack T-SOURCE-03: a server of events that ignores the position, so that rows arrive twice.

    Defence: an event whose id was taken is refused, by name.
    """
    server.events, server.forgets = [("1", "{}"), ("2", "{}")], True
    root = Root(server, tmp_path)
    assert len(root.rows()) == 2
    server.events.append(("3", "{}"))
    with pytest.raises(Refused) as caught:
        root.rows()
    assert caught.value.rule == "sse-position"
    server.events = [("1", "{}"), ("1", "{}")]
    with pytest.raises(Refused, match="are no position"):
        Root(server, tmp_path).rows()


def test_ids_that_no_header_or_chain_may_hold_are_refused(server: Stream, tmp_path: Path) -> None:
    """Attack T-SOURCE-01: an id of an event that ends a header, or contains a secret of the source, which the chain
    would show.

    Defence: ids are printable and bounded; an id with the value of a variable is refused.
    """
    for name in ("", "a\tb", "x" * 5000):
        server.events = [(name, "{}")]
        with pytest.raises(Invalid, match="no id of its own"):
            Root(server, tmp_path).rows()
    server.events = [("s3cr3t-token", "{}")]
    with pytest.raises(Refused, match="holds the value of a variable"):
        Root(server, tmp_path).rows()


@pytest.mark.slow
def test_a_stream_that_never_ends_is_left(server: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-SOURCE-04: a stream of events that never ends, or an event without end.

    Defence: a pull listens for half a minute; events and transactions have limits.
    """
    monkeypatch.setattr(sse, "LONGEST", 0.3)
    server.events, server.pings = [("1", "{}")], True
    root = Root(server, tmp_path)
    assert root.rows() == [{}]
    assert root.rows() == []
    monkeypatch.setattr(sse, "MAX_EVENT", 3)
    with pytest.raises(Refused, match="more than 3 characters"):
        root.rows()


def test_what_is_no_stream_is_told(server: Stream, tmp_path: Path) -> None:
    server.kind = "text/html"
    with pytest.raises(Invalid, match="no stream of events"):
        Root(server, tmp_path).rows()
    server.status = 500
    with pytest.raises(Remote, match="answers 500"):
        Root(server, tmp_path).rows()
    server.status = 204
    assert Root(server, tmp_path).rows() == []


NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=5)
DATA = st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=("Cs",)), max_size=8)


@pytest.mark.slow
@given(
    st.lists(st.tuples(NAMES, DATA, st.sampled_from(["\n", "\r\n", "\r"]), st.booleans()), max_size=5),
    st.lists(st.integers(0, 200), max_size=8),
)
def test_events_do_not_depend_on_how_the_stream_is_cut(
    events: list[tuple[str, str, str, bool]], cuts: list[int]
) -> None:
    text = ""
    for name, data, end, comment in events:
        said = [": a comment"] if comment else []
        text += end.join([*said, f"id: {name}", "retry: 5", f"data: {data}", "data:more", "", ""])
    sent = text.encode()
    edges = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    reader = EventReader()
    found = [event for start, stop in itertools.pairwise(edges) for event in reader.feed(sent[start:stop])]
    found += list(reader.feed(b"\n"))  # a lone \r at the end may have been half of a line's end
    assert found == [ServerEvent(name, "message", f"{data}\nmore") for name, data, _, _ in events]
