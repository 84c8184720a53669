"""The site: its answers, asked as ASGI asks, and what they cost a visitor."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
import trio

from chain.errors import Environment, NotFound
from chain.ids import DatasetId, KeyDid
from chain.multihash import Multihash
from chain.statements.card import FREQUENCIES, Card, CardColumn, CardSample, ChainFacts, PublisherClaims
from odfd.published import dcat
from odfd.runtime.http import Message, Receive, Send
from odfd.site import application
from odfd.site.application import Site
from odfd.site.ports import ShownDataset
from odfd.site.server import PAID_WITHIN, SHARES, SiteServer
from p2p.budget.work import SITE_ANSWER, SITE_PACK

# The site's answers, asked as ASGI asks: what is there, ranges, what is not for others, what is no question.

DATASET = DatasetId.from_public_key(b"d" * 32)
BLOCK, OBJECT = b"block", bytes(range(250)) * 10
HEAD, NAME = Multihash.sha3_256(BLOCK), Multihash.sha3_256(OBJECT)
CARD = Card(
    dataset=DATASET, author=KeyDid.from_public_key(b"d" * 32), authority=0, epoch=0, size=1, head=HEAD,
    issued_at="2026-11-20T08:00:00Z", expires_at="2026-12-20T08:00:00Z",
    claims=PublisherClaims(name="air", publisher="Graz"),
    chain=ChainFacts(
        kind="root", records=3, created_at="2026-01-01T00:00:00Z", updated_at="2026-11-01T00:00:00Z",
        watermark="2026-10-31T00:00:00Z", keywords=("dust",), license="evil", license_url="javascript:alert(1)",
        columns=(CardColumn(name="pm10", type="Float64"),),
    ),
    sample=CardSample(columns=(0,), rows=(("<script>",), (False,))),
)  # fmt: skip


class Shelf:
    """One dataset of one block and one object. ``fault`` is raised by whatever reads."""

    def __init__(self) -> None:
        self.fault: Exception | None = None

    def datasets(self, limit: int) -> Sequence[ShownDataset]:
        return [ShownDataset(name="x", id=str(DATASET), blocks=1)][:limit]

    def cards(self, limit: int) -> Sequence[tuple[str, Card]]:
        return [("a b/ü", CARD), ("gone", msgspec.structs.replace(CARD, chain=None, claims=None, sample=None))][:limit]

    def find(self, ref: str, _file: str = "") -> DatasetId | None:
        return DATASET if ref == "x" else None

    def head(self, dataset: DatasetId) -> Multihash | None:
        if self.fault is not None:
            raise self.fault
        return HEAD

    def block(self, dataset: DatasetId, name: Multihash) -> bytes | None:
        return BLOCK if name == HEAD else None

    def pack(self, dataset: DatasetId, number: int) -> bytes | None:
        return b"packed" if number == 0 else None

    def statement(self, dataset: DatasetId, path: str) -> bytes | None:
        return b"signed" if path == "trust/head" else None

    def object_size(self, name: Multihash) -> int | None:
        return len(OBJECT) if name == NAME else None

    def read_object(self, name: Multihash, offset: int, length: int) -> bytes:
        if self.fault is not None and offset:
            raise self.fault
        return OBJECT[offset : offset + length]


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def info(self, event: str, **_: object) -> None:
        self.said.append(event)

    error = info


class Told:
    """An answer."""

    def __init__(self, messages: list[Any]) -> None:
        self.status = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body = b"".join(each["body"] for each in messages[1:])
        self.whole = not messages[-1].get("more_body", True)


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


async def ask(shelf: Shelf, path: str, method: str = "GET", **headers: str) -> Told:
    messages: list[Any] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody has a body for a site")

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await Site(shelf, Lines())({"method": method, "path": path, "headers": raw}, receive, send)
    return Told(messages)


async def test_a_catalogue_for_portals(shelf: Shelf) -> None:
    """DCAT 3 in JSON-LD: what was taken back is not there, and no link but one of the web."""
    told = await ask(shelf, "/catalog.jsonld")
    assert (told.status, told.headers["content-type"]) == (200, "application/ld+json")
    catalogue = json.loads(told.body)
    (shown,) = catalogue["dcat:dataset"]
    assert shown["@id"] == str(DATASET)
    assert shown["dcat:distribution"]["dcat:accessURL"] == {"@id": "a%20b%2F%C3%BC/"}
    assert (shown["dct:license"], shown["dcat:keyword"], shown["schema:variableMeasured"]) == (
        "evil",
        ["dust"],
        ["pm10"],
    )
    assert "dct:description" not in shown
    terms = {name.partition(":")[0] for name in shown if ":" in name}
    assert terms <= catalogue["@context"].keys()
    sample = shown["adms:sample"]["dcat:accessURL"]["@id"]
    assert sample.startswith("data:application/json,%5B%7B%22pm10%22%3A")
    assert json.loads(unquote(sample.partition(",")[2])) == [{"pm10": "<script>"}, {}]


def described(facts: dict[str, Any], **words: str) -> dict[str, Any]:
    """The one dataset of a catalogue, by what its card says."""
    assert CARD.chain is not None
    assert CARD.claims is not None
    chain = msgspec.structs.replace(CARD.chain, **facts)
    card = msgspec.structs.replace(CARD, chain=chain, claims=msgspec.structs.replace(CARD.claims, **words))
    made = dcat.catalogue([("air", card)])
    (shown,) = made["dcat:dataset"]
    text = json.dumps(shown)
    assert {each.partition(":")[0] for each in re.findall(r'"@type": "([a-z]+:)', text)} <= made["@context"].keys()
    return dict(shown)


def test_a_catalogue_says_title_place_times_and_frequency_in_the_words_of_dcat_and_of_schema_org() -> None:
    events = {"first_event": "2024-01-01T00:00:00Z", "last_event": "2024-03-01T00:00:00Z", "bytes": 4711}
    shown = described(events, title="Fine dust", place="Graz", area="-15.5,46.9,15.5,47.2", frequency="hourly")
    assert (shown["dct:title"], shown["schema:name"], shown["schema:alternateName"]) == (
        "Fine dust",
        "Fine dust",
        "air",
    )
    assert shown["dct:accrualPeriodicity"] == {
        "@id": "http://publications.europa.eu/resource/authority/frequency/HOURLY"
    }
    assert shown["dct:temporal"] == {
        "@type": "dct:PeriodOfTime",
        "dcat:startDate": {"@type": "xsd:dateTime", "@value": "2024-01-01T00:00:00Z"},
        "dcat:endDate": {"@type": "xsd:dateTime", "@value": "2024-03-01T00:00:00Z"},
    }
    assert shown["dcat:distribution"]["dcat:byteSize"] == {"@type": "xsd:nonNegativeInteger", "@value": "4711"}
    assert shown["schema:temporalCoverage"] == "2024-01-01T00:00:00Z/2024-03-01T00:00:00Z"
    box = "POLYGON((-15.5 46.9,15.5 46.9,15.5 47.2,-15.5 47.2,-15.5 46.9))"
    assert shown["dct:spatial"] == {
        "@type": "dct:Location",
        "skos:prefLabel": "Graz",
        "dcat:bbox": {"@type": "geo:wktLiteral", "@value": box},
    }, "WKT: longitude first"
    assert shown["schema:spatialCoverage"] == {
        "@type": "schema:Place",
        "schema:name": "Graz",
        "schema:geo": {"@type": "schema:GeoShape", "schema:box": "46.9 -15.5 47.2 15.5"},
    }, "schema.org: latitude first"


def test_a_catalogue_of_a_card_without_words_says_only_what_is_known() -> None:
    shown = described({})
    assert (shown["dct:title"], shown["schema:name"]) == ("air", "air")
    assert "dcat:startDate" not in shown["dct:temporal"], "the watermark tells an end alone"
    absent = {"schema:alternateName", "dct:accrualPeriodicity", "dct:spatial", "schema:spatialCoverage"}
    assert not (absent | {"schema:temporalCoverage"}) & shown.keys()


def test_areas_of_a_point_and_across_the_180th_meridian() -> None:
    point = described({}, area="15.4,47,15.4,47")
    assert point["dct:spatial"]["dcat:centroid"]["@value"] == "POINT(15.4 47)"
    assert point["schema:spatialCoverage"]["schema:geo"] == {
        "@type": "schema:GeoCoordinates",
        "schema:latitude": 47.0,
        "schema:longitude": 15.4,
    }
    fiji = described({}, area="177,-21,-178,-12")
    halves = "((177 -21,180 -21,180 -12,177 -12,177 -21)),((-180 -21,-178 -21,-178 -12,-180 -12,-180 -21))"
    assert fiji["dct:spatial"]["dcat:bbox"]["@value"] == f"MULTIPOLYGON({halves})"
    boxes = [each["schema:box"] for each in fiji["schema:spatialCoverage"]["schema:geo"]]
    assert boxes == ["-21 177 -12 180", "-21 -180 -12 -178"]
    assert described({}, place="Fiji")["dct:spatial"] == {"@type": "dct:Location", "skos:prefLabel": "Fiji"}


@pytest.mark.parametrize(
    ("seconds", "claimed", "code"),
    [
        (86_400, "", "DAILY"),
        (80_000, "", "DAILY"),
        (50_000, "", None),
        (3_600, "weekly", "WEEKLY"),
        (0, "continuous", "UPDATE_CONT"),
        (31 * 86_400, "", "MONTHLY"),
        (0, "annual", "ANNUAL"),
        (86_400, "fortnightly", None),
    ],
)
def test_the_frequency_of_a_catalogue_is_the_publishers_or_the_measured_one(
    seconds: int, claimed: str, code: str | None
) -> None:
    assert set(dcat._FREQUENCIES) == set(FREQUENCIES)
    shown = described({"update_interval": seconds}, frequency=claimed).get("dct:accrualPeriodicity", {})
    assert shown.get("@id", "").rpartition("/")[2] == (code or "")


@pytest.mark.parametrize(
    "path, body, lasts",
    [
        ("/x/refs/head", str(HEAD).encode(), False),
        (f"/x/blocks/{HEAD}", BLOCK, True),
        (f"/x/data/{NAME}", OBJECT, True),
        (f"/x/checkpoints/{NAME}", OBJECT, True),
        ("/x/trust/head", b"signed", False),
        ("/x/packs/0", b"packed", False),
    ],
)
async def test_what_is_there(shelf: Shelf, path: str, body: bytes, lasts: bool) -> None:
    told, head = await ask(shelf, path), await ask(shelf, path, "HEAD")
    assert (told.status, told.body, told.whole) == (200, body, True)
    assert ("immutable" in told.headers["cache-control"]) is lasts
    assert int(told.headers["content-length"]) == len(body)
    assert (head.status, head.body, head.headers, head.whole) == (200, b"", told.headers, True)


async def test_the_list(shelf: Shelf) -> None:
    told = json.loads((await ask(shelf, "/")).body)
    assert told == {"datasets": [{"name": "x", "id": str(DATASET), "blocks": 1}]}


@pytest.mark.parametrize(
    "path",
    [
        "/y/refs/head",
        "/x",
        "/x/refs/other",
        f"/x/blocks/{NAME}",
        f"/x/data/{HEAD}",
        "/x/data/",
        "/x/data/../../odfd.sqlite",
        "/x/config",
        "/x/trust/authority-1",
        "/x/blocks/f1620",
        "/../keys",
        f"/x/data/{NAME}/more",
        "/\x00",
        "/x/" + "y" * 9000,
    ],
)
async def test_what_is_not_there(shelf: Shelf, path: str) -> None:
    told = await ask(shelf, path)
    assert (told.status, json.loads(told.body)["rule"]) == (404, "site-missing")
    assert len(told.body) < 2000


@pytest.mark.parametrize(
    "wanted, status, first, stop",
    [
        ("bytes=0-", 200, 0, 2500),
        ("bytes=100-", 206, 100, 2500),
        ("bytes=0-0", 206, 0, 1),
        ("bytes=10-19", 206, 10, 20),
        ("bytes=2400-9999", 206, 2400, 2500),
        ("bytes=-7", 206, 2493, 2500),
        ("bytes=-9999", 200, 0, 2500),
        ("bytes=2500-", 416, 0, 0),
        ("bytes=20-10", 416, 0, 0),
        ("bytes=-0", 416, 0, 0),
        ("bytes=-", 200, 0, 2500),
        ("lines=1-2", 200, 0, 2500),
        ("bytes=1-2,5-6", 200, 0, 2500),
        ("bytes=" + "9" * 40 + "-", 200, 0, 2500),
    ],
)
async def test_ranges(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, wanted: str, status: int, first: int, stop: int
) -> None:
    monkeypatch.setattr(application, "PART", 400)
    monkeypatch.setattr(application, "PIECE", 150)
    told = await ask(shelf, f"/x/data/{NAME}", range=wanted)
    assert (told.status, told.body, told.whole) == (status, OBJECT[first:stop], True)
    said = told.headers.get("content-range")
    assert said == {200: None, 206: f"bytes {first}-{stop - 1}/2500", 416: "bytes */2500"}[status]


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "OPTIONS", "BREW"])
async def test_other_methods(shelf: Shelf, method: str) -> None:
    told = await ask(shelf, "/x/refs/head", method)
    assert (told.status, json.loads(told.body)["rule"]) == (405, "site-method")
    assert told.headers["allow"] == "GET, HEAD"


async def test_a_disk_that_fails_is_not_told_of(shelf: Shelf) -> None:
    shelf.fault = Environment("/state/odfd.sqlite: input/output error", rule="disk")
    told = await ask(shelf, "/x/refs/head")
    assert told.status == 503
    assert b"/state" not in told.body


async def test_an_object_that_is_spoilt_in_the_middle_ends_there(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "PART", 1000)
    shelf.fault = NotFound("not served", rule="object-not-served")
    told = await ask(shelf, f"/x/data/{NAME}")
    assert (told.status, told.body, told.whole) == (200, OBJECT[:1000], False)


# A visitor of the site pays for what it asks before it is made, and one address leaves others their share.


async def asked(server: SiteServer, visitor: str, path: str, method: str = "HEAD") -> int:
    told: list[Any] = []

    async def send(message: Message) -> None:
        told.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody has a body")

    await server._paid_by(visitor)({"method": method, "path": path}, receive, send)
    return int(told[0]["status"])


@pytest.mark.slow
@pytest.mark.parametrize(("path", "cost"), [("/x/packs/0", SITE_PACK), ("/x/refs/head", SITE_ANSWER)])
async def test_a_head_that_makes_a_pack_is_paid_for_before(autojump_clock: Any, path: str, cost: float) -> None:
    """Attack T-HTTP-01: a visitor of the site that has packs made without end, with HEAD, which returns no body.

    Defence: an answer is charged to the address before it is made: twelve packs or 250 files a second.
    """
    made = 0

    async def application(_scope: Message, _receive: Receive, send: Send) -> None:
        nonlocal made
        made += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})

    server = SiteServer([], application, None)  # type: ignore[arg-type]  # it listens nowhere
    refused = 0

    async def visit(number: int) -> None:
        nonlocal refused
        status = await asked(server, "203.0.113.7", path)
        refused += status == 503

    allowed = (SHARES.host.burst + PAID_WITHIN * SHARES.host.per_second) / cost
    begun = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(int(2 * allowed)):
            nursery.start_soon(visit, number)
    assert made == pytest.approx(allowed, abs=2)
    assert refused == pytest.approx(allowed, abs=2)
    assert trio.current_time() - begun <= PAID_WITHIN
    assert await asked(server, "198.51.100.1", path) == 200, "another address has its own share"
    assert await asked(server, "127.0.0.1", path) == 200, "its owner, or a proxy"
