"""Objects of a bucket as a source, at an S3 server of others."""

from __future__ import annotations

import http.server
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import trio

from chain import instant
from chain.codec.manifest import from_builtins, to_builtins
from chain.errors import Fault, Invalid, NotFound, Refused, Remote
from chain.model.events import SetPollingSource, SourceState
from chain.model.fetch_options import BucketAccess, fetch_options
from chain.model.source import FetchFilesGlob, FromMetadata, FromPath, SourceOrdering
from odfd.ingest.bucket_objects import decode
from odfd.ingest.consumed_files import ConsumedFiles
from odfd.ingest.fetch import bucket
from odfd.ingest.fetch.bucket import place_of
from odfd.ingest.fetch.dispatch import check_fetch, fetch, source_of
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import PATIENCE, IngestSettings
from odfd.repositories.bucket import Bucket, open_bucket
from odfd.repositories.manifest import place_of as repository_at
from odfd.runtime import buckets
from odfd.runtime.buckets import address_of, open_store
from worlds.azurite import ACCOUNT, KEY, azurite_served, new_container
from worlds.google import google_served, is_signed, service_account
from worlds.http_served import HttpServer, serving
from worlds.s3_server import new_bucket, s3_server
from worlds.sources import examples, source

pytestmark = pytest.mark.slow  # servers are started
NOW = instant.parse("2050-01-01T12:00:00Z")
EXAMPLES = [each for each in examples("FilesGlob") if "s3://" in each]
ACCESS = BucketAccess(access_key_id="${{ env.KEY }}", secret_access_key="${{ env.SECRET }}")
OWNER = "AWS4-HMAC-SHA256 Credential=a/20240101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=b"
"""Of whom the server believes it."""
KEYS = {"KEY": "AKIAsaidnowhere", "SECRET": "s/aid+nowhere"}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server(page=2) as address:
        yield address


class Stored:
    """A bucket of its own for a test; ``fetch`` asks for the next object."""

    def __init__(self, server: str, name: str, folder: Path) -> None:
        self.path, self.folder, self.number = new_bucket(server, name), folder, 0
        self._address = f"{server}/{name}"

    def put(self, *keys: str, content: str = "1,a\n") -> None:
        with httpx.Client(headers={"Authorization": OWNER}) as client:
            for key in keys:
                assert client.put(f"{self._address}/{key}", content=content.encode()).status_code == 200

    def fetch(self, pattern: str, state: SourceState | None = None, **more: Any) -> Any:
        self.number += 1
        (folder := self.folder / str(self.number)).mkdir()
        access, taken = more.pop("access", ACCESS), more.pop("taken", None)
        variables = more.pop("variables", KEYS)
        patience = more.pop("patience", PATIENCE)
        settings = IngestSettings(staging=folder, variables=variables, patience=patience)
        job = FetchJob(state=state, now=NOW, folder=folder, settings=settings, options=access, taken=taken)
        path = more.pop("path", f"{self.path}/{pattern}")
        return trio.run(fetch, FetchFilesGlob(path=path, **more), job)

    def all(self, pattern: str, state: SourceState | None = None, **more: Any) -> list[str]:
        names = []
        while True:
            found = self.fetch(pattern, state, **more)
            if isinstance(found, Unchanged):
                return names
            names.append(found.name)
            state = found.state
            if not found.has_more:
                return names


@pytest.fixture
def stored(server: str, tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
    return Stored(server, f"b{abs(hash(request.node.name)) % 10**12}", tmp_path)


def test_objects_come_in_the_order_of_their_keys_and_go_on_behind_the_last(stored: Stored) -> None:
    stored.put("d/b.csv", "d/a.csv", "d/é ü.csv", "d/sub/c.csv", "d/x.json", "e/a.csv")
    stored.put("d/folder/", content="")
    stored.put("d/z.csv", content="26,z\n")
    found = stored.fetch("d/*.csv")
    assert (found.name, found.path.read_text(), found.has_more) == ("d/a.csv", "1,a\n", True)
    assert stored.all("d/*.csv") == ["d/a.csv", "d/b.csv", "d/z.csv", "d/é ü.csv"]
    assert stored.all("d/**/*.csv") == ["d/a.csv", "d/b.csv", "d/sub/c.csv", "d/z.csv", "d/é ü.csv"]
    assert stored.all("d/*.csv", found.state) == ["d/b.csv", "d/z.csv", "d/é ü.csv"]


def test_a_list_of_several_pages_is_read_to_its_end(stored: Stored) -> None:
    stored.put(*(f"d/{number}.json" for number in range(9)), "d/9999.csv")
    found = stored.fetch("d/*.csv")
    assert (found.name, found.has_more) == ("d/9999.csv", False)
    assert isinstance(stored.fetch("d/*.csv", found.state), Unchanged)


def test_by_time_the_oldest_comes_first_and_an_order_stays(stored: Stored) -> None:
    stored.put("d/b.csv")
    older = stored.fetch("d/*", order=SourceOrdering.BY_EVENT_TIME, event_time=FromMetadata())
    assert older.event_time == instant.parse(decode(older.state.value).modified)
    with pytest.raises(Invalid, match="taken in the order ByEventTime, and now ByName is said"):
        stored.fetch("d/*", older.state)
    assert isinstance(stored.fetch("d/*", older.state, order=SourceOrdering.BY_EVENT_TIME), Unchanged)


def test_an_event_time_is_read_from_the_key(stored: Stored) -> None:
    stored.put("day=2024-05-06/a.csv")
    found = stored.fetch("*/*.csv", event_time=FromPath(pattern=r"day=(\d+-\d+-\d+)/"))
    assert found.event_time == instant.parse("2024-05-06T00:00:00Z")


def test_what_came_late_or_changed_is_told_and_not_taken(stored: Stored) -> None:
    stored.put("d/b.csv", "d/c.csv")
    first = stored.fetch("d/*")
    last = stored.fetch("d/*", first.state)
    taken = ConsumedFiles()
    for each in (first, last):
        position = decode(each.state.value)
        taken.add(position.key, instant.parse("2020-01-01T00:00:00Z"), position.tag)
    assert stored.fetch("d/*", last.state, taken=taken) == Unchanged()
    stored.put("d/a.csv")
    stored.put("d/c.csv", content="2,changed\n")
    found = stored.fetch("d/*", last.state, taken=taken)
    assert isinstance(found, Unchanged)
    assert [each.name for each in found.skipped] == ["d/a.csv", "d/c.csv"]


def test_older_objects_are_looked_at_in_turn(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "LOOKED_AT", 2)
    stored.put(*(f"d/{each}" for each in "abcde"))
    last = stored.fetch("d/e")
    taken = ConsumedFiles()
    taken.add("d/e", instant.parse("2020-01-01T00:00:00Z"), decode(last.state.value).tag)
    told = [[each.name for each in stored.fetch("d/*", last.state, taken=taken).skipped] for _ in range(4)]
    assert told == [["d/a", "d/b"], ["d/c", "d/d"], [], ["d/a", "d/b"]]


def test_an_object_that_changes_while_it_is_read_is_refused(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.put("d/a.csv", content="x" * 100)
    monkeypatch.setattr(bucket, "PIECE", 40)
    assert stored.fetch("d/*").path.read_text() == "x" * 100, "in three pieces"
    whole = bucket._Source._parts

    def parts(self: Any, found: Any, start: int, end: int) -> Iterator[bytes]:
        yield from whole(self, found, start, end)
        stored.put("d/a.csv", content="y" * 100)

    monkeypatch.setattr(bucket._Source, "_parts", parts)
    with pytest.raises(Remote, match="changed or went while it was read"):
        stored.fetch("d/*")


def test_what_is_not_there_is_told_by_what_it_is(stored: Stored, server: str) -> None:
    with pytest.raises(NotFound, match="no object matches"):
        stored.fetch("d/*")
    with pytest.raises(NotFound, match="no such bucket"):
        stored.fetch("", path=f"s3+{server}/nowhere/*.csv")
    stored.put("d//a.csv")
    with pytest.raises(Refused, match="a key with an empty part"):
        stored.fetch("d/*")


def test_an_object_larger_than_the_limit_is_not_read(stored: Stored, tmp_path: Path) -> None:
    stored.put("a.csv", content="x" * 100)
    settings = IngestSettings(staging=tmp_path, variables=KEYS, max_source_bytes=99)
    job = FetchJob(state=None, now=NOW, folder=tmp_path, settings=settings, options=ACCESS)
    with pytest.raises(Refused, match="larger than 99 bytes"):
        trio.run(fetch, FetchFilesGlob(path=f"{stored.path}/*"), job)


@contextmanager
def answering(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: Any) -> None: ...

    with serving(HttpServer(Handler)) as served:
        yield served.url


def _sent(handler: http.server.BaseHTTPRequestHandler, status: int, body: bytes, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def test_keys_of_a_source_are_signed_with_and_told_to_nobody(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-SOURCE-01: keys of a bucket that a source reads, in its chain or in an error, or keys of the daemon's
    environment sent to it.

    Defence: keys are variables; error texts of the library are not shown; keys that are not declared are not sent.
    """
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAofthedaemon")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ofthedaemon")
    seen: list[str] = []

    def refuse(handler: http.server.BaseHTTPRequestHandler) -> None:
        signed = handler.headers.get("Authorization", "")
        seen.append(signed)
        _sent(handler, 403, f"<Error><Code>AccessDenied</Code><Message>{signed}</Message></Error>".encode())

    with answering(refuse) as address:
        for access in (ACCESS, None):
            with pytest.raises(Refused) as caught:
                stored.fetch("", path=f"s3+{address}/bucket/*.csv", access=access)
            assert "403 AccessDenied" in str(caught.value)
            assert not any(word in str(caught.value) for word in ("AKIA", "aid", "Signature"))
    assert KEYS["KEY"] in seen[0]
    assert seen[1] == "", "without keys, and none of the daemon's environment"


def test_a_store_that_leads_elsewhere_brings_nothing_from_there(stored: Stored) -> None:
    """Attack T-SOURCE-03: a store that redirects a source to another server's data in place of an object.

    Defence: an answer is kept only if it has the listed tag and the requested range.

    An answer of another server has neither the tag that was listed nor the range that was asked for.
    """
    listed = (
        b"<ListBucketResult><Contents><Key>a.csv</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
        b"%s<Size>6</Size></Contents></ListBucketResult>"
    )
    for tag in (b'<ETag>"t"</ETag>', b""):
        with answering(lambda handler: _sent(handler, 200, b"secret")) as inside:

            def lead(handler: http.server.BaseHTTPRequestHandler, tag: bytes = tag, inside: str = inside) -> None:
                if "list-type" in handler.path:
                    _sent(handler, 200, listed % tag)
                else:
                    _sent(handler, 307, b"", Location=f"{inside}/")

            with answering(lead) as address, pytest.raises(Fault) as caught:
                stored.fetch("", path=f"s3+{address}/bucket/*.csv")
        assert "secret" not in str(caught.value)


def test_a_store_that_is_silent_is_left(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "REQUEST_SECONDS", 0.2)
    monkeypatch.setattr(buckets, "RETRIES", 0)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        path = f"s3+http://127.0.0.1:{deaf.getsockname()[1]}/bucket/*.csv"
        with pytest.raises(Remote, match="cannot be asked"):
            stored.fetch("", path=path)
        monkeypatch.setattr(buckets, "REQUEST_SECONDS", 300.0)
        patience = PATIENCE._replace(total=0.1)
        with pytest.raises(Remote, match="its next object did not come in 0"):
            stored.fetch("", path=path, patience=patience)


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_the_page_are_fetched(stored: Stored, server: str, text: str) -> None:
    event = source(text)
    assert isinstance(event.fetch, FetchFilesGlob)
    access = fetch_options(event.read.schema)
    stored.put("daily/a.csv", content="at,station,celsius\n2024-01-01T00:00:00Z,x,1.5\n")
    path = event.fetch.path.replace("s3://measurements", stored.path)
    assert isinstance(stored.fetch("", path=path, access=access), Fetched)


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_chain_holds_the_source_by_the_formats_own_step(text: str) -> None:
    event = source(text)
    assert event.fetch == FetchFilesGlob(path="s3://measurements/daily/*.csv", order=SourceOrdering.BY_NAME)
    assert fetch_options(event.read.schema) == BucketAccess(
        region="eu-central-1", access_key_id="${{ env.KEY }}", secret_access_key="${{ env.SECRET }}"
    )
    assert from_builtins(SetPollingSource, to_builtins(event)) == event


def test_an_unknown_option_is_told_with_those_of_buckets() -> None:
    with pytest.raises(Invalid) as caught:
        source(EXAMPLES[0].replace("region:", "regoin:"))
    assert (caught.value.message, caught.value.hint) == (
        "fetch.regoin: unknown field 'regoin'",
        "did you mean 'region'?",
    )
    with pytest.raises(Invalid, match=r"fetch: options of the fetch step: Expected `str"):
        source(EXAMPLES[0].replace("eu-central-1", "1"))


def test_no_bucket_of_a_stranger_is_asked(tmp_path: Path) -> None:
    event = source(EXAMPLES[0])
    with pytest.raises(Refused, match="its source is not on the web"):
        source_of(event.fetch, None).check_open()
    check_fetch(event.fetch, IngestSettings(staging=tmp_path, allowed=tuple(KEYS)), fetch_options(event.read.schema))


# Objects of Azure, at Microsoft's own emulator, and of Google, at a server of ours, as sources.


CLOUD_EXAMPLES = {
    store: next(each for each in examples("FilesGlob") if f"{store}://" in each) for store in ("gs", "az")
}


class Cloud(NamedTuple):
    store: str
    url: str
    owner: Bucket
    access: BucketAccess
    variables: dict[str, str]

    def fetch(self, folder: Path, pattern: str, state: SourceState | None = None, **more: Any) -> Any:
        (place := folder / str(len(list(folder.iterdir())))).mkdir()
        settings = IngestSettings(staging=place, variables=more.pop("variables", self.variables))
        access, taken = more.pop("access", self.access), more.pop("taken", None)
        job = FetchJob(state=state, now=NOW, folder=place, settings=settings, options=access, taken=taken)
        return trio.run(fetch, FetchFilesGlob(path=more.pop("path", f"{self.url}/{pattern}"), **more), job)


@pytest.fixture(scope="module")
def azurite() -> Iterator[Callable[..., str]]:
    with azurite_served() as address:
        yield partial(new_container, address)


@pytest.fixture(scope="module")
def google() -> Iterator[Callable[[str], str]]:
    with google_served() as cloud:
        cloud.page = 2
        yield cloud.new_bucket


@pytest.fixture(params=["az", "gs"])
def cloud(request: pytest.FixtureRequest) -> Cloud:
    of = {"az": ("azurite", "accountKey", KEY), "gs": ("google", "serviceAccountKey", service_account())}
    made_by, name, key = of[request.param]
    field = {"az": "account_key", "gs": "service_account_key"}[request.param]
    url = request.getfixturevalue(made_by)(f"b{abs(hash(request.node.name)) % 10**12}")
    owner = open_bucket("owner", repository_at(url), {name: key})
    return Cloud(request.param, url, owner, BucketAccess(**{field: "${{ env.KEY }}"}), {"KEY": key})


def test_objects_of_each_cloud_come_in_the_order_of_their_keys_and_go_on_behind_the_last(
    cloud: Cloud, tmp_path: Path
) -> None:
    for key in ("d/b.csv", "d/a.csv", "d/é ü.csv", "d/sub/c.csv", "d/x.json", "e/a.csv"):
        cloud.owner.put(key, f"1,{key}\n".encode())
    names: list[str] = []
    found: Any = cloud.fetch(tmp_path, "d/*.csv")
    while isinstance(found, Fetched):
        assert found.path.read_text() == f"1,{found.name}\n"
        names.append(found.name)
        found = cloud.fetch(tmp_path, "d/*.csv", found.state)
    assert (names, found) == (["d/a.csv", "d/b.csv", "d/é ü.csv"], Unchanged())


def test_late_objects_are_told(cloud: Cloud, tmp_path: Path) -> None:
    cloud.owner.put("d/b.csv", b"1,b\n")
    last = cloud.fetch(tmp_path, "d/*")
    cloud.owner.put("d/a.csv", b"1,a\n")
    taken, position = ConsumedFiles(), decode(last.state.value)
    taken.add(position.key, instant.parse("2020-01-01T00:00:00Z"), position.tag)
    found = cloud.fetch(tmp_path, "d/*", last.state, taken=taken)
    assert [each.name for each in found.skipped] == ["d/a.csv"]


def test_what_is_not_there_is_told_by_each_cloud(cloud: Cloud, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no object matches"):
        cloud.fetch(tmp_path, "d/*.csv")
    with pytest.raises(NotFound, match="no such bucket"):
        cloud.fetch(tmp_path, "", path=f"{cloud.url}-gone/d/*.csv")


def test_without_keys_what_is_public_is_read_and_nothing_is_written(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attack T-SOURCE-01: variables of the daemon's environment, or the machine's own role, that open a bucket of
    Google or Azure, or lead to another host.

    Defence: the address, the account and a provider of credentials are always given, also for requests that are not
    signed; tokens of Google are made from the declared key.

    Variables that these libraries read elsewhere open nothing here, nor lead elsewhere.
    """
    cloud.owner.put("d/b.csv", b"1,b\n")
    for name, value in {
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_STORAGE_ENDPOINT": "http://127.0.0.1:9",
        "GOOGLE_BEARER_TOKEN": "of-the-daemon",
        "GOOGLE_SERVICE_ACCOUNT_KEY": service_account(),
        "GOOGLE_BASE_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    assert cloud.fetch(tmp_path, "d/*.csv", access=None).name == "d/b.csv"
    with pytest.raises(Refused, match="refuses this node: 403 A"):
        open_bucket("stranger", repository_at(cloud.url), {}).put("d/c.csv", b"")
    cloud.owner.put("d/c.csv", b"1,c\n")


def test_a_wrong_key_is_told_and_not_shown(tmp_path: Path, azurite: Callable[..., str]) -> None:
    access = BucketAccess(account_key="${{ env.KEY }}")
    at = Cloud("az", azurite("wrong-key", is_public=False), None, access, {"KEY": "d3JvbmdrZXk="})  # type: ignore[arg-type]  # not asked
    with pytest.raises(Refused, match="refuses this node: 403 Auth") as caught:
        at.fetch(tmp_path, "*.csv")
    assert "d3Jv" not in f"{caught.value!r} {caught.value.hint}"
    for key, text in (("account_key", "no:base64"), ("service_account_key", '{"client_email": "s3cr3t"}')):
        url = at.url if key == "account_key" else "gs://bucket"
        with pytest.raises(Invalid, match="is no key") as refused:
            at.fetch(
                tmp_path,
                "",
                path=f"{url}/*.csv",
                access=BucketAccess(**{key: "${{ env.KEY }}"}),
                variables={"KEY": text},
            )
        assert text not in f"{refused.value!r} {refused.value.hint}"


def test_a_token_of_google_is_made_here() -> None:
    store: Any = open_store(address_of("gs://bucket"), {"serviceAccountKey": service_account()})
    given = store.credential_provider()
    assert is_signed(f"Bearer {given['token']}")
    assert not is_signed(f"Bearer {given['token'][:-4]}")


def test_a_variable_that_keeps_all_buckets_shut_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/nowhere")
    with pytest.raises(Exception, match="GOOGLE_SERVICE_ACCOUNT of the daemon's environment"):
        open_store(address_of("gs://bucket"), {})


def test_a_store_of_google_that_ignores_conditions_is_refused() -> None:
    with google_served() as cloud:
        cloud.ignores_conditions = True
        at = open_bucket("odd", repository_at(cloud.new_bucket("odd")), {"serviceAccountKey": service_account()})
        with pytest.raises(Refused, match="ignores conditions of writes"):
            at.check_conditions()


@pytest.mark.parametrize("store", ["az", "gs"])
def test_the_examples_of_the_page_are_fetched_from_each_cloud(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    event = source(CLOUD_EXAMPLES[store])
    assert isinstance(event.fetch, FetchFilesGlob)
    access, place = fetch_options(event.read.schema), place_of(event.fetch.path, None)
    key = {"az": KEY, "gs": service_account()}[store]
    name = {"az": "accountKey", "gs": "serviceAccountKey"}[store]
    url = request.getfixturevalue({"az": "azurite", "gs": "google"}[store])("measurements")
    owner = open_bucket("owner", repository_at(url), {name: key})
    owner.put("daily/a.csv", b"at,station,celsius\n2024-01-01T00:00:00Z,x,1.5\n")
    assert isinstance(access, BucketAccess)
    settings = IngestSettings(staging=tmp_path, variables={"KEY": key})
    job = FetchJob(state=None, now=NOW, folder=tmp_path, settings=settings, options=access)
    step = FetchFilesGlob(path=f"{url}/{place.below}", order=event.fetch.order)
    assert isinstance(trio.run(fetch, step, job), Fetched)


def test_addresses_are_those_of_the_clouds() -> None:
    assert address_of("gs://my_bucket/a/*.csv").endpoint == "https://storage.googleapis.com"
    found = address_of("az://acc0unt/container/a/*.csv")
    assert (found.endpoint, found.bucket, found.below) == (
        "https://acc0unt.blob.core.windows.net",
        "container",
        "a/*.csv",
    )
    found = address_of(f"az+http://127.0.0.1:10000/{ACCOUNT}/container/a")
    assert (found.endpoint, found.account) == (f"http://127.0.0.1:10000/{ACCOUNT}", ACCOUNT)
