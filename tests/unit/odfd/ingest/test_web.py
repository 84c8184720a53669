"""Sources on the web: pages, buckets, signatures, and names that lead to services of this machine."""

from __future__ import annotations

import base64
import email.utils
import glob
import gzip
import hashlib
import hmac
import http.server
import json
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from chain import instant
from chain.errors import Environment, Invalid, NotFound, Refused, Remote
from chain.instant import SECOND, Instant
from chain.model.events import SetPollingSource, SourceState
from chain.model.fetch_options import ClientCredentials, HttpRequest, Paging, declared_fetch, fetch_options
from chain.model.source import (
    CompressionFormat,
    Decompress,
    FetchUrl,
    MergeAppend,
    ReadJson,
    RequestHeader,
    SourceOrdering,
)
from odfd.ingest import bucket_objects
from odfd.ingest.acceptance import check_source
from odfd.ingest.bucket_objects import QUIET, Keys, ObjectPosition, StoredObject, ahead, decode, in_order
from odfd.ingest.consumed_files import ConsumedFiles
from odfd.ingest.driver import prepare_batch
from odfd.ingest.endpoint import (
    LEAST_SECRET,
    TOLERANCE,
    HmacSignature,
    StandardWebhooks,
    check_header,
    check_signature,
    key_of,
    secret_name,
)
from odfd.ingest.fetch import dispatch, page
from odfd.ingest.fetch.dispatch import check_fetch, source_of
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import IngestSettings
from odfd.store.webhook_target import signing_key
from p2p.ip import is_global
from worlds.faults import breaks
from worlds.http_served import HttpServer, serving
from worlds.internet import Internet
from worlds.sources import examples, fetch, source

# Web services in pages: each page once, at one origin, with tokens that nobody else sees.

NOW = instant.parse("2050-01-01T12:00:00Z")
EXAMPLES = examples("Http")
SECRETS = {"ID": "me", "SECRET": "s3cr3t/+", "TOKEN": "t0ken"}
Answer = tuple[int, Mapping[str, str], Any]


class Service(http.server.BaseHTTPRequestHandler):
    """Answers by ``answers[path]``, called with the query, and keeps what was asked."""

    answers: dict[str, Callable[[dict[str, str]], Answer]]
    asked: list[tuple[str, str, dict[str, str], bytes]]

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        self.asked.append((self.command, self.path, dict(self.headers), body))
        parts = urllib.parse.urlsplit(self.path)
        status, headers, content = self.answers[parts.path](dict(urllib.parse.parse_qsl(parts.query)))
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def service() -> Iterator[str]:
    Service.answers, Service.asked = {}, []
    with serving(HttpServer(Service)) as server:
        yield server.url


@pytest.fixture
def pull(service: str, tmp_path: Path) -> Callable[..., Any]:
    def one(request: HttpRequest | None, state: SourceState | None = None, path: str = "/orders", **more: Any) -> Any:
        kind = "" if request is None else "odfd+"
        step = FetchUrl(url=f"{kind}{service}{path}", headers=more.pop("headers", None))
        settings = IngestSettings(staging=tmp_path, variables=SECRETS, **more)
        return fetch(step, FetchJob(state=state, now=NOW, folder=tmp_path, settings=settings, options=request))

    return one


def contents(found: Any) -> list[Any]:
    assert isinstance(found, Fetched)
    return [json.loads(path.read_bytes()) for path in (found.path, *found.more)]


def test_pages_by_their_header(pull: Callable[..., Any]) -> None:
    def orders(query: dict[str, str]) -> Answer:
        page = int(query.get("page", "1"))
        return 200, ({"Link": f'</orders?page={page + 1}>; rel="next"'} if page < 3 else {}), [page]

    Service.answers["/orders"] = orders
    found = pull(HttpRequest(pages=Paging(link=True)))
    assert contents(found) == [[1], [2], [3]]
    assert isinstance(pull(HttpRequest(pages=Paging(link=True)), found.state), Unchanged)


def test_pages_by_a_value_of_the_answer(pull: Callable[..., Any]) -> None:
    Service.answers["/orders"] = lambda query: (
        200,
        {},
        {"items": [query.get("after")], "meta": {"next": {None: "a&b", "a&b": "c"}.get(query.get("after"))}},
    )
    found = pull(HttpRequest(pages=Paging(next="meta.next", parameter="after")), path="/orders?size=1")
    assert [each["items"] for each in contents(found)] == [[None], ["a&b"], ["c"]]
    assert all("size=1" in path for _, path, *_ in Service.asked)


def test_pages_by_number_end_with_the_first_empty_one(pull: Callable[..., Any]) -> None:
    Service.answers["/orders"] = lambda query: (200, {}, {"items": [1] if int(query["p"]) < 2 else []})
    found = pull(HttpRequest(pages=Paging(number="p", first=0, records="items")))
    assert contents(found) == [{"items": [1]}, {"items": [1]}]
    Service.answers["/orders"] = lambda _: (200, {}, {"items": []})
    assert contents(pull(HttpRequest(pages=Paging(number="p", records="items")))) == [{"items": []}]


def test_more_pages_than_allowed_are_refused(pull: Callable[..., Any]) -> None:
    """Attack T-SOURCE-04: pages without end, in a circle, or larger than the disk.

    Defence: `pages.most`: more are refused, not cut; an address is requested once; all pages count against
    `ingest.source-bytes`; a page that is parsed for the next one has at most 64 MiB.
    """
    Service.answers["/orders"] = lambda query: (200, {}, {"next": int(query.get("after", "0")) + 1})
    with pytest.raises(Refused, match="more than 3 pages"):
        pull(HttpRequest(pages=Paging(next="next", parameter="after", most=3)))
    assert len(Service.asked) == 3


def test_pages_that_lead_in_a_circle(pull: Callable[..., Any]) -> None:
    Service.answers["/orders"] = lambda _: (200, {}, {"next": "/orders"})
    with pytest.raises(Refused, match="in a circle"):
        pull(HttpRequest(pages=Paging(next="next")))


def test_all_pages_are_bounded(pull: Callable[..., Any]) -> None:
    Service.answers["/orders"] = lambda query: (200, {}, {"next": int(query.get("p", "0")) + 1, "x": "x" * 400})
    with pytest.raises(Refused, match="larger than 1,000 bytes"):
        pull(HttpRequest(pages=Paging(next="next", parameter="p")), max_source_bytes=1000)


def test_the_next_page_of_another_origin_is_not_asked(pull: Callable[..., Any]) -> None:
    """Attack T-SOURCE-01: a web service whose next page, or answer to a POST, leads elsewhere, to get headers, tokens
    or the body.

    Defence: pages are requested only from the origin of the source, and redirects of a POST are not followed.
    """
    Service.answers["/orders"] = lambda _: (200, {"Link": '<http://127.0.0.1:1/orders>; rel="next"'}, [])
    with pytest.raises(Refused, match=r"at http://127\.0\.0\.1"):
        pull(HttpRequest(pages=Paging(link=True)), headers=(RequestHeader(name="X", value="${{ env.TOKEN }}"),))


def test_a_post_has_its_body_and_is_sent_to_no_other_place(pull: Callable[..., Any]) -> None:
    Service.answers["/orders"] = lambda _: (200, {}, [1])
    pull(HttpRequest(method="POST", body='{"key": "${{ env.TOKEN }}"}'))
    ((method, _, _, body),) = Service.asked
    assert (method, body) == ("POST", b'{"key": "t0ken"}')
    Service.answers["/orders"] = lambda _: (307, {"Location": "http://127.0.0.1:1/"}, b"")
    with pytest.raises(Refused, match="redirects a POST"):
        pull(HttpRequest(method="POST", body="x"))


def test_a_token_is_asked_for_and_shown_to_its_service_alone(service: str, pull: Callable[..., Any]) -> None:
    """Attack T-SOURCE-01: a secret of OAuth in a manifest, or quoted by its server.

    Defence: refused when applied; messages of the server are not shown.
    """
    auth = ClientCredentials(
        token_url=f"{service}/token", client_id="${{ env.ID }}", client_secret="${{ env.SECRET }}", scope="read"
    )
    Service.answers["/token"] = lambda _: (200, {}, {"access_token": "abc", "token_type": "Bearer"})
    Service.answers["/orders"] = lambda _: (200, {}, [1])
    assert contents(pull(HttpRequest(auth=auth))) == [[1]]
    (_, _, asking, body), (_, _, asked, _) = Service.asked
    assert asking["Authorization"] == "Basic bWU6czNjcjN0JTJGJTJC"
    assert body == b"grant_type=client_credentials&scope=read"
    assert asked["Authorization"] == "Bearer abc"
    Service.answers["/token"] = lambda _: (401, {}, {"error": "invalid_client", "secret": SECRETS["SECRET"]})
    with pytest.raises(Remote, match="answers 401, and returns no token") as fault:
        pull(HttpRequest(auth=auth))
    assert "s3cr3t" not in f"{fault.value.message}{fault.value.hint}"


@pytest.mark.slow
def test_a_server_that_is_asked_too_often_is_waited_for(
    pull: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    def answered(status: int, said: dict[str, str]) -> list[float]:
        """The waits until it answers, at the third question, or until it is given up."""
        waits.clear()
        Service.answers["/orders"] = lambda _: (status, said, b"") if len(waits) < 2 else (200, {}, [1])
        assert contents(pull(request)) == [[1]]
        return list(waits)

    def later(seconds: int) -> str:
        return email.utils.formatdate(NOW // instant.SECOND + seconds, usegmt=True)

    monkeypatch.setattr(page.trio, "sleep", sleep)
    for request in (HttpRequest(), None):
        for status in (429, 503):
            assert answered(status, {"Retry-After": "7"}) == [7.0, 7.0]
            assert answered(status, {"Retry-After": later(9)}) == [9.0, 9.0]
            assert answered(status, {"Retry-After": later(-9)}) == [0.0, 0.0]
        assert answered(429, {}) == [1.0, 2.0]
        waits.clear()
        for said in ("soon", "Sat, 01 Jan 99999999999999999999 00:00:00 GMT", "Sat, 01 Jan 2050 00:00:00 +999999"):
            waits.clear()
            Service.answers["/orders"] = lambda _, said=said: (429, {"Retry-After": said}, b"")
            with pytest.raises(Remote, match="too often"):
                pull(request)
            assert waits == [1.0, 2.0, 4.0, 8.0]
        waits.clear()
        for said in ({"Retry-After": "86400"}, {}):
            Service.answers["/orders"] = lambda _, said=said: (503, said, b"")
            with pytest.raises(Remote, match="answers 503"):
                pull(request)
        assert not waits


@pytest.mark.parametrize("status,kind", [(404, NotFound), (401, Remote), (204, Remote), (500, Remote)])
def test_answers_that_bring_nothing(pull: Callable[..., Any], status: int, kind: type[Exception]) -> None:
    Service.answers["/orders"] = lambda _: (status, {}, b"")
    with pytest.raises(kind, match=str(status)):
        pull(HttpRequest())


@pytest.mark.parametrize(
    "pages,answer,said",
    [
        (Paging(next="a.b"), b"<html>", "no JSON"),
        (Paging(next="a"), b'{"a": [1]}', "a is no text"),
        (Paging(number="p", records="a.b"), b'{"a": 1}', "no list of records at a.b"),
    ],
)
def test_answers_that_say_nothing_of_the_next(
    pull: Callable[..., Any], pages: Paging, answer: bytes, said: str
) -> None:
    Service.answers["/orders"] = lambda _: (200, {}, answer)
    with pytest.raises(Invalid, match=said):
        pull(HttpRequest(pages=pages))


@pytest.mark.parametrize(
    "options,said",
    [
        ({"kind": "Http", "body": "x"}, "a GET has no body"),
        ({"kind": "Http", "pages": {}}, "needs one of"),
        ({"kind": "Http", "pages": {"link": True, "number": "p"}}, "needs one of"),
        ({"kind": "Http", "pages": {"link": True, "parameter": "p"}}, "of no use"),
        ({"kind": "Http", "method": "PUT"}, "Invalid enum value"),
        ({"kind": "Ftp"}, "Ftp"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        declared_fetch(options)


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_example_of_the_page_is_asked(text: str, service: str, pull: Callable[..., Any], tmp_path: Path) -> None:
    Service.answers["/v1/orders"] = lambda query: (200, {}, {"orders": [query], "meta": {"next": None}})
    Service.answers["/token"] = lambda _: (200, {}, {"access_token": "abc"})
    event = source(re.sub(r"https://[a-z.]*example", service, text))
    assert check_source(event, IngestSettings(staging=tmp_path, variables=SECRETS)) is None
    assert str(getattr(event.fetch, "url", "")).startswith("odfd+http")
    request = fetch_options(event.read.schema)
    assert isinstance(request, HttpRequest)
    assert contents(pull(request, path="/v1/orders"))[0]["orders"] == [{}]
    with pytest.raises(Refused, match="not on the web"):
        source_of(event.fetch, None).check_open()
    written = text.replace("${{ env.SECRET }}", "secret")
    found = check_source(source(written), IngestSettings(staging=tmp_path, variables=SECRETS))
    assert found is not None
    assert "would be in the chain" in str(found[1])


@pytest.mark.parametrize(
    "old,new,said",
    [
        ("https://api.", "ftp://api.", "asks web services"),
        ("https://login.", "file://login.", "not a file of this machine|no web URL"),
        ("${{ env.ID }}", "${{ env.OTHER }}", "no variable 'OTHER'"),
    ],
)
def test_what_no_pull_could_ask_is_refused_when_applied(old: str, new: str, said: str, tmp_path: Path) -> None:
    found = check_source(source(EXAMPLES[0].replace(old, new)), IngestSettings(staging=tmp_path, variables=SECRETS))
    assert found is not None
    assert re.search(said, str(found[1]))


def test_a_url_that_others_would_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="with odfd\\+ before it"):
        check_fetch(FetchUrl(url="https://api.example/v1"), IngestSettings(staging=tmp_path), HttpRequest())


def test_each_page_is_prepared(service: str, tmp_path: Path) -> None:
    Service.answers["/orders"] = lambda query: (
        200,
        {} if query else {"Link": '</orders?p=2>; rel="next"'},
        gzip.compress(json.dumps([query]).encode()),
    )
    event = SetPollingSource(
        fetch=FetchUrl(url=f"odfd+{service}/orders"),
        prepare=(Decompress(format=CompressionFormat.GZIP),),
        read=ReadJson(),
        merge=MergeAppend(),
    )
    settings = IngestSettings(staging=tmp_path)
    job = FetchJob(
        state=None, now=NOW, folder=tmp_path, settings=settings, options=HttpRequest(pages=Paging(link=True))
    )
    found = fetch(event.fetch, job)
    batch = trio.run(prepare_batch, cast(Any, SimpleNamespace(settings=settings)), event, found, tmp_path)
    assert [json.loads(path.read_bytes()) for path in batch.paths] == [[{}], [{"p": "2"}]]
    assert batch.names == ("orders", "orders (page 2)")


# Sources on the web whose names, or whose servers, lead to services of this machine.

SITE = "93.184.216.34"


class Server(http.server.BaseHTTPRequestHandler):
    """``/data`` is what a service of this machine says to whoever asks it; all else leads to ``there``."""

    there = ""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/data" else 302)
        self.send_header("Location", self.there)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"secret\n")

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    with serving(HttpServer(Server)) as server:
        yield server.server_port


def fetch_url(url: str, folder: Path, internet: Internet, **settings: Any) -> bytes:
    job = FetchJob(state=None, now=Instant(0), folder=folder, settings=IngestSettings(staging=folder, **settings))

    async def run() -> Any:
        with internet.open():
            return await dispatch.fetch(FetchUrl(url=url), job)

    return bytes(trio.run(run).path.read_bytes())


@pytest.mark.parametrize("name", ["127.0.0.1", "[::1]", "[::ffff:7f00:1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]",
                                  "site.example", "inside.example"])  # fmt: skip
def test_a_server_leads_no_source_into_this_house(port: int, tmp_path: Path, name: str) -> None:
    """Attack T-SOURCE-05: a server of one's own source that redirects into the own network.

    Defence: redirects from the Internet are followed on the Internet only, over a new connection.

    A source of the owner's own, at a site of the Internet that redirects, or whose name is turned round.
    """
    internet = Internet()
    internet(port, SITE, site_example=[[SITE], ["127.0.0.1"]], inside_example=[["127.0.0.1"]])
    Server.there = f"http://{name}:{port}/data"
    with breaks("address-inside", Refused):
        fetch_url("http://site.example/moved", tmp_path, internet)
    assert internet.dialled == [SITE]


@pytest.mark.parametrize(
    "answers", [[["127.0.0.1"]], [["::ffff:127.0.0.1"]], [["2002:7f00:1::"]], [["64:ff9b::7f00:1"]], [["10.0.0.1"]]]
)
def test_a_source_that_a_stranger_declared_is_only_asked_on_the_internet(
    port: int, tmp_path: Path, answers: list[list[str]]
) -> None:
    """Attack T-SOURCE-05: a source declared by another, at a name or mapped address in the observer's own network.

    Defence: only addresses of the Internet are dialled, from the first request on.
    """
    internet = Internet()
    internet(port, SITE, site_example=answers)
    with breaks("address-inside", Refused):
        fetch_url("http://site.example/data", tmp_path, internet, may_dial=is_global)
    assert internet.dialled == []


def test_its_name_is_resolved_once_for_each_question(port: int, tmp_path: Path) -> None:
    internet = Internet()
    internet(port, SITE, site_example=[["127.0.0.1", SITE], ["127.0.0.1"]])
    assert fetch_url("http://site.example/data", tmp_path, internet, may_dial=is_global) == b"secret\n"
    assert internet.dialled == [SITE]
    assert internet.asked["site.example"] == 1


def test_a_source_of_this_machine_may_lead_within_it(port: int, tmp_path: Path) -> None:
    internet = Internet()
    internet.names = {"localhost": [["127.0.0.1"]]}
    Server.there = f"http://127.0.0.1:{port}/data"
    assert fetch_url(f"http://localhost:{port}/moved", tmp_path, internet) == b"secret\n"


HERE = ["127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "169.254.169.254", "fe80::1", "fd00:ec2::254", "0.0.0.0"]


@pytest.mark.parametrize("address", HERE)
@pytest.mark.parametrize("scheme", ["http", "ftp"])
def test_a_name_of_the_internet_in_an_own_source_is_not_dialled_on_this_machine(
    port: int, tmp_path: Path, address: str, scheme: str
) -> None:
    """Attack T-SOURCE-05: a name in a source or mirror of the owner, whose server later resolves it to an address in
    this network.

    Defence: a name is resolved once, and a judged address is dialled; a name of the Internet is not dialled on this
    machine, its link or its cloud's services. Private networks stay open to the owner: firms have such names, and the
    data is checked like any other.

    Whoever resolves it may answer otherwise tomorrow, and have what only this machine may ask made into rows.
    """
    internet = Internet()
    internet(port, SITE, site_example=[[address]])
    with breaks("address-rebound", Refused) as caught:
        fetch_url(f"{scheme}://site.example/data", tmp_path, internet)
    assert "name the address itself" in caught.value.hint
    assert (internet.dialled, internet.asked["site.example"]) == ([], 1)


def test_of_the_addresses_of_an_own_source_those_are_dialled_that_were_judged(port: int, tmp_path: Path) -> None:
    internet = Internet()
    internet(port, SITE, site_example=[["127.0.0.1", SITE], ["127.0.0.1"]])
    assert fetch_url("http://site.example/data", tmp_path, internet) == b"secret\n"
    assert (internet.dialled, internet.asked["site.example"]) == ([SITE], 1)


@pytest.mark.parametrize("name", ["nas", "NAS.", "shop.lan", "box.home.arpa", "dev.localhost", "db.internal"])
def test_an_own_source_may_be_in_this_house_by_a_name_of_this_house(port: int, tmp_path: Path, name: str) -> None:
    internet = Internet()
    internet.names = {name.lower(): [["127.0.0.1"]], name: [["127.0.0.1"]]}
    assert fetch_url(f"http://{name}:{port}/data", tmp_path, internet) == b"secret\n"


def test_an_own_source_may_be_in_a_private_network_by_any_name(port: int, tmp_path: Path) -> None:
    """Names of firms lead there from within; services of this machine are not there."""
    internet = Internet()
    internet(port, "10.1.2.3", intra_example=[["10.1.2.3"]])
    assert fetch_url("http://intra.example/data", tmp_path, internet) == b"secret\n"


# Signatures of webhooks: those of the senders' own libraries count, and no changed byte does.

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
"""The example of the specification of Standard Webhooks, with its id, time, body and signature."""
BODY = b'{"test": 2432232314}'
HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
SENT_AT = Instant(1614265330 * SECOND)
STANDARD = StandardWebhooks(secret="")


def test_the_example_of_the_specification_counts() -> None:
    key = signing_key(SECRET)
    assert check_signature(STANDARD, key, HEADERS, BODY, SENT_AT) == HEADERS["webhook-id"]
    two = {**HEADERS, "webhook-signature": f"v1,AAAA v2,x {HEADERS['webhook-signature']}"}
    assert check_signature(STANDARD, key, two, BODY, SENT_AT) == HEADERS["webhook-id"]


def test_the_example_of_github_counts() -> None:
    """Of its documentation of webhooks: secret, payload and header."""
    said = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    key, body = b"It's a Secret to Everybody", b"Hello, World!"
    assert check_signature(HmacSignature(secret=""), key, {"x-hub-signature-256": said}, body, SENT_AT) is None
    named = HmacSignature(secret="", id_header="X-GitHub-Delivery")
    headers = {"x-hub-signature-256": said, "x-github-delivery": "72d3162e"}
    assert check_signature(named, key, headers, body, SENT_AT) == "72d3162e"
    own = HmacSignature(secret="", header="X-Signature", prefix="")
    assert check_signature(own, key, {"x-signature": said.removeprefix("sha256=")}, body, SENT_AT) is None


@pytest.mark.parametrize("seconds", [-TOLERANCE - 1, TOLERANCE + 1])
def test_a_call_of_another_time_is_a_replay(seconds: int) -> None:
    with pytest.raises(Refused, match="not signed"):
        check_signature(STANDARD, signing_key(SECRET), HEADERS, BODY, Instant(SENT_AT + seconds * SECOND))


@given(st.data())
def test_no_changed_byte_counts(data: Any) -> None:
    key = data.draw(st.binary(min_size=24, max_size=40))
    body = data.draw(st.binary(max_size=40))
    call, at = data.draw(st.text("abc_", min_size=1, max_size=8)), "1614265330"
    mac = hmac.new(key, f"{call}.{at}.".encode() + body, hashlib.sha256).digest()
    headers = {"webhook-id": call, "webhook-timestamp": at, "webhook-signature": "v1," + base64.b64encode(mac).decode()}
    assert check_signature(STANDARD, key, headers, body, SENT_AT) == call
    part = data.draw(st.sampled_from(["body", "key", *headers]))
    other = dict(headers)
    if part in headers:
        other[part] = data.draw(st.text(max_size=60).filter(lambda text: text.split() != headers[part].split()))
    changed_body = body + b"x" if part == "body" else body
    changed_key = bytes([key[0] ^ 1]) + key[1:] if part == "key" else key
    with pytest.raises(Refused):
        check_signature(STANDARD, changed_key, other, changed_body, SENT_AT)
    said = {"x-hub-signature-256": "sha256=" + hmac.new(key, body, hashlib.sha256).hexdigest()}
    with pytest.raises(Refused):
        check_signature(HmacSignature(secret=""), key, said, body + b"\0", SENT_AT)
    for bad in ({}, {"x-hub-signature-256": ""}, {"x-hub-signature-256": "sha256=\udcff"}):
        with pytest.raises(Refused):
            check_signature(HmacSignature(secret=""), key, bad, body, SENT_AT)


def test_a_secret_is_named_and_never_written() -> None:
    assert secret_name("${{ config.hook }}") == "hook"
    for text in ("sesame", "${{ env.HOOK }}", "x${{ config.hook }}", ""):
        with pytest.raises(Invalid):
            secret_name(text)
    check_header("X-Hub-Signature-256")
    for text in ("", "a b", "ä", "x" * 65):
        with pytest.raises(Invalid):
            check_header(text)


@pytest.mark.parametrize(
    "secret", ["", " ", "sesame", "whsec_", "whsec_AAAA", "whsec_no base64 at all", "x" * (LEAST_SECRET - 1)]
)
@pytest.mark.parametrize("signature", [STANDARD, HmacSignature(secret="")])
def test_a_secret_that_can_be_guessed_signs_nothing(secret: str, signature: Any) -> None:
    """Attack T-SOURCE-06: calls of a webhook forged with a secret that is empty or short, since a SecretSet may hold
    one.

    Defence: such a secret signs nothing: no call counts, and the node says why.

    With an empty one anybody signs: that a Source names a secret does not say that there is one.
    """
    if isinstance(signature, StandardWebhooks) or len(secret) < LEAST_SECRET:
        with breaks("webhook-secret", Environment) as caught:
            key_of(signature, secret, "hooked")
        assert not secret.strip() or secret not in str(caught.value)
    assert key_of(HmacSignature(secret=""), "x" * LEAST_SECRET, "hooked") == b"x" * LEAST_SECRET


def test_a_captured_call_is_no_other_call() -> None:
    """Attack T-SOURCE-06: a captured call of a webhook, sent again with another id or time, or to another Source.

    Defence: Standard Webhooks sign id, time and body; sixteen signatures at most are compared. **GitHub's way signs the
    body alone**: such a call can be sent again under another id by anyone who has seen it.

    Not of another id, at another time, to a Source of another secret, nor behind many that are wrong.
    """
    key, good = signing_key(SECRET), HEADERS["webhook-signature"]
    for headers in (
        {**HEADERS, "webhook-id": "msg_another"},
        {**HEADERS, "webhook-id": ""},
        {**HEADERS, "webhook-timestamp": str(int(HEADERS["webhook-timestamp"]) + 1)},
        {**HEADERS, "webhook-timestamp": "+1614265330"},
        {**HEADERS, "webhook-timestamp": "1614265330 "},
        {**HEADERS, "webhook-signature": good.replace("v1,", "v1a,")},
        {**HEADERS, "webhook-signature": " ".join(["v1,AAAA"] * 16 + [good])},
    ):
        with pytest.raises(Refused):
            check_signature(STANDARD, key, headers, BODY, SENT_AT)
    with pytest.raises(Refused):
        check_signature(STANDARD, signing_key("whsec_" + "A" * 32), HEADERS, BODY, SENT_AT)


# Which object of a bucket is next, by a listing and a position alone.

NAME, TIME = SourceOrdering.BY_NAME, SourceOrdering.BY_EVENT_TIME
LATER = Instant(10**6 * SECOND)
OBJECTS = st.lists(
    st.builds(
        StoredObject,
        st.text("abé/.\U0001f600", min_size=1, max_size=6),
        st.integers(0, 3),
        st.sampled_from(["x", "y"]),
        st.integers(0, 5).map(lambda second: Instant(second * SECOND)),
    ),
    unique_by=lambda each: each.key,
    max_size=12,
)


def stored(key: str, at: int = 0, size: int = 1) -> StoredObject:
    return StoredObject(key, size, "t", Instant(at * SECOND))


@pytest.mark.slow
@given(OBJECTS, st.sampled_from(["**", "*", "a*/**", "**/b*"]), st.sampled_from([NAME, TIME]), st.data())
def test_each_object_is_taken_once_in_order_wherever_a_pull_stops(
    objects: list[StoredObject], pattern: str, order: SourceOrdering, data: st.DataObject
) -> None:
    keys, state, taken = Keys(pattern), None, []
    listing = sorted(objects, key=lambda each: each.key.encode())
    while True:
        last = None if state is None else decode(state)
        listed = [each for each in listing if last is None or order is TIME or each.key > last.key]
        found = ahead(in_order(listed), keys, last, order, LATER)
        if not found:
            break
        if data.draw(st.booleans(), "killed before the commit"):
            continue
        taken.append(found[0])
        state = ObjectPosition.of(found[0], order).encode()
    by = (lambda each: each.key) if order is NAME else (lambda each: (each.modified, each.key))
    assert taken == sorted(filter(keys.fit, objects), key=by)


@given(
    st.text("ab*?.", min_size=1, max_size=5),
    st.lists(st.text("ab.", min_size=1, max_size=4).filter(lambda name: name.strip(".")), min_size=1, max_size=6),
)
def test_patterns_are_those_of_files_but_for_hidden_ones(
    tmp_path_factory: pytest.TempPathFactory, pattern: str, names: list[str]
) -> None:
    if pattern == "**" or not pattern.strip("."):
        return
    folder = tmp_path_factory.mktemp("objects")
    for name in names:
        (folder / name).write_text("x")
    found = set(glob.glob(pattern, root_dir=folder, include_hidden=True))  # noqa: PTH207 - hidden ones too
    assert {each for each in names if Keys(pattern).fit(stored(each))} == found


@pytest.mark.parametrize(
    ("pattern", "folder", "fits", "others"),
    [
        ("daily/*.csv", "daily", ["daily/a.csv", "daily/.csv"], ["daily/a/b.csv", "daily/acsv", "x/daily/a.csv"]),
        ("d/**/*.csv", "d", ["d/a.csv", "d/x/y/a.csv"], ["d/a.json", "da.csv"]),
        ("d/**", "d", ["d/a", "d/x/y"], ["d", "e/a"]),
        ("[!a-c]?/[]x]", "", ["dd/]", "zz/x"], ["ad/x", "d/x", "d//x", "dd/y"]),
        ("a+(b).csv", "", ["a+(b).csv"], ["aab.csv"]),
        ("one/two/three.csv", "one/two", ["one/two/three.csv"], ["one/two/three.csv.gz"]),
    ],
)
def test_what_a_pattern_means(pattern: str, folder: str, fits: list[str], others: list[str]) -> None:
    keys = Keys(pattern)
    assert keys.folder == folder
    assert [each for each in [*fits, *others] if keys.fit(stored(each))] == fits
    assert not keys.fit(stored(fits[0], size=0))


def test_a_listing_without_order_or_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack T-SOURCE-03: an object of a source that is written while it is read, or a listing without order or end, to
    hide or double rows.

    Defence: each piece is read on condition of the listed tag; a listing that is not sorted by name, or has more than a
    million objects, is refused.
    """
    with pytest.raises(Refused, match="lists 'a' behind 'b'"):
        list(in_order([stored("b"), stored("a")]))
    assert [each.key for each in in_order([stored("d-x"), stored("d", size=0)])] == ["d-x"], "d/ without its slash"
    monkeypatch.setattr(bucket_objects, "MAX_LISTED", 2)
    with pytest.raises(Refused, match="more than 2 objects"):
        list(in_order(stored(each) for each in "abc"))


def test_the_youngest_are_left_where_times_are_the_order() -> None:
    objects, now = [stored("b", 90), stored("a", 100)], Instant(100 * SECOND)
    assert [each.key for each in ahead(objects, Keys("*"), None, TIME, now)] == ["b"]
    assert [each.key for each in ahead(objects, Keys("*"), None, TIME, Instant(now + QUIET))] == ["b", "a"]
    assert [each.key for each in ahead(objects, Keys("*"), None, NAME, now)] == ["b", "a"]


@pytest.mark.parametrize("value", ["", "a.csv", "{}", '{"key":"a","tag":"","modified":"x","order":"ByName"}'])
def test_a_state_of_others_is_no_position(value: str) -> None:
    with pytest.raises(Invalid, match="no object of a bucket"):
        decode(value)


def test_what_came_too_late_is_told() -> None:
    taken = ConsumedFiles()
    taken.add("b", Instant(10 * SECOND), "one")
    taken.add("d", Instant(20 * SECOND), "one")
    seconds = {"a": 5, "b": 5, "c": 15, "d": 5}
    told = taken.late([(key, "two" if key == "d" else "one", Instant(at * SECOND)) for key, at in seconds.items()])
    assert [(each.name, each.reason.partition(";")[0]) for each in told] == [
        ("c", "it came at 1970-01-01T00:00:15Z, when the source had got beyond it"),
        ("d", "it changed at 1970-01-01T00:00:05Z, after it was taken"),
    ]
    assert ConsumedFiles().late([("a", "one", LATER)]) == ()
