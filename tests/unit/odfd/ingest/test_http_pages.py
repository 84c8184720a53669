"""Web services in pages: each page once, at one origin, with tokens that nobody else sees."""

from __future__ import annotations

import email.utils
import gzip
import http.server
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from chain import instant
from chain.errors import Invalid, NotFound, Refused, Remote
from chain.model.events import SetPollingSource, SourceState
from chain.model.fetch_options import ClientCredentials, HttpRequest, Paging, declared_fetch, fetch_options
from chain.model.source import CompressionFormat, Decompress, FetchUrl, MergeAppend, ReadJson, RequestHeader
from odfd.ingest.acceptance import check_source
from odfd.ingest.driver import prepare_batch
from odfd.ingest.fetch import page
from odfd.ingest.fetch.dispatch import check_fetch, source_of
from odfd.ingest.fetch.source import Fetched, FetchJob, Unchanged
from odfd.ingest.settings import IngestSettings
from worlds.sources import examples, fetch, source

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
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


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
    Service.answers["/orders"] = lambda _: (200, {"Link": '<http://127.0.0.1:1/orders>; rel="next"'}, [])
    with pytest.raises(Refused, match=r"at http://127\.0\.0\.1"):
        pull(HttpRequest(pages=Paging(link=True)), headers=(RequestHeader(name="X", value="${{ env.TOKEN }}"),))


def test_a_post_has_its_body_and_is_sent_to_no_other_place(pull: Callable[..., Any]) -> None:
    Service.answers["/orders"] = lambda _: (200, {}, [1])
    pull(HttpRequest(method="POST", body='{"key": "${{ env.TOKEN }}"}'))
    ((method, _, _, body),) = Service.asked
    assert (method, body) == ("POST", b'{"key": "t0ken"}')
    Service.answers["/orders"] = lambda _: (307, {"Location": "http://127.0.0.1:1/"}, b"")
    with pytest.raises(Refused, match="sends a POST on"):
        pull(HttpRequest(method="POST", body="x"))


def test_a_token_is_asked_for_and_shown_to_its_service_alone(service: str, pull: Callable[..., Any]) -> None:
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
    with pytest.raises(Remote, match="answers 401, and gives no token") as fault:
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
        ("https://login.", "file://login.", "not a file of this machine|no page of the web"),
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
