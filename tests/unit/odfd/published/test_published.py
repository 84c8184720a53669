"""What a node publishes besides data: packs, portals, feeds, and where lineage is told."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import trio
import trio.testing
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import Invalid, NotFound, Refused, Remote
from chain.ids import DatasetId, parse_name
from chain.model.events import AddData, DataSlice, OffsetInterval, SetInfo, SetPollingSource
from chain.model.portal import KAnonymity, PortalRule, Suppression, described, portal_rule, with_portal_rule
from chain.model.schema import DataSchema
from chain.multihash import Multihash
from odfd.cli.offline.sampling.dcat_feed import FORMAT, MAX_KEYWORDS, MAX_SOURCES, MAX_TEXT, Feed, read_feed
from odfd.control import wire
from odfd.datasets.manifest import DATASET_TYPE
from odfd.portals.rule import Earlier, breaches, check_columns, filter_rows
from odfd.published import dcat, packs
from odfd.published.packs import number_in, pack, pack_file, read_pack, write_packs
from odfd.published.replication import Replication
from odfd.resources.manifest import Draft
from odfd.services.lineage.question import block_of_record
from odfd.services.portals import publication
from odfd.services.resources.reading import read_drafts

# Packs of blocks, and places that are peers as long as their last answer stands.


# Packs of blocks: what is written is read, no bytes are more than blocks or a refusal, and files are kept in order.


def test_the_bytes_of_the_decision_record() -> None:
    raw = bytes.fromhex("00000003 616263 00000001 64")
    assert pack([b"abc", b"d"]) == raw
    assert read_pack(raw) == [b"abc", b"d"]


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20))
def test_prop_a_pack_holds_what_was_put_in(blocks: list[bytes]) -> None:
    assert read_pack(pack(blocks)) == blocks


@given(st.binary(max_size=200))
def test_prop_any_bytes_are_blocks_or_refused(raw: bytes) -> None:
    try:
        blocks = read_pack(raw)
    except Invalid:
        return
    assert pack(blocks) == raw


def test_a_pack_ends_at_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK", 3)
    monkeypatch.setattr(packs, "MAX_PACK", 40)
    assert len(read_pack(pack([b"x"] * 9))) == 3
    assert read_pack(pack([bytes(20), bytes(11), bytes(1)])) == [bytes(20), bytes(11)]
    assert pack([bytes(37)]) == b""
    with pytest.raises(Invalid, match="packed"):
        read_pack(b"\0\0\0\1x" * 4)


@pytest.mark.parametrize("path", ["packs", "packs/", "packs/01", "packs/-1", "packs/0/1", "trust/0", "packs/²"])
def test_what_names_no_pack(path: str) -> None:
    assert number_in(path) is None
    assert number_in(pack_file(0)) == 0
    assert number_in(pack_file(1234)) == 1234


class RawChain:
    """Blocks, and who asked for which."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[tuple[int, int]] = []

    def raw_blocks(self, start: int, stop: int) -> Any:
        self.asked.append((start, stop))
        return (b"%d" % number for number in range(start, stop))


def test_only_what_grew_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "PACK", 10)
    chain: Any = RawChain(25)
    write_packs(tmp_path, chain, 25)
    (tmp_path / "packs" / "stray").write_bytes(b"?")
    chain.asked.clear()
    write_packs(tmp_path, chain, 31)
    assert chain.asked == [(20, 30), (30, 31)]
    found = [read_pack((tmp_path / pack_file(number)).read_bytes()) for number in range(4)]
    assert [int(raw) for pack in found for raw in pack] == list(range(31))
    assert len(list((tmp_path / "packs").iterdir())) == 5


# A place is a peer as long as its last answer stands.

CITIES = DatasetId(bytes(32))
PLACE = "https://example.org/cities"


class Source:
    """A place that answers when it is let, or not at all."""

    def __init__(self) -> None:
        self.begun, self.let = trio.Event(), trio.Event()
        self.is_gone = False
        self._edition = SimpleNamespace(root=PLACE, head=SimpleNamespace(dataset=CITIES), statements=(), card=None)

    async def resolve(self, place: str, _now: object) -> str:
        self.begun.set()
        await self.let.wait()
        if self.is_gone:
            raise Remote("nobody answers")
        return place

    async def edition(self, _root: str, _known: object) -> Any:
        return self._edition


async def test_a_place_that_is_asked_again_is_still_a_peer_until_it_fails() -> None:
    """Mirrors are shown with their number of peers, also while one of these is asked."""
    source: Any = Source()
    nobody: Any = SimpleNamespace(peers=list)
    replication = Replication(nobody, lambda _: source, nobody, lambda: 0)
    source.let.set()
    await replication.inquire(CITIES, PLACE)
    source.let, source.begun = trio.Event(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replication.inquire, CITIES, PLACE)
        await source.begun.wait()
        assert [view.peer for view in replication.peers()] == [PLACE]
        source.let.set()
    source.is_gone = True
    with pytest.raises(Remote):
        await replication.inquire(CITIES, PLACE)
    assert replication.peers() == []


# The rule of a portal over random blocks: no block and no difference of two versions tells of a small group.


K = 3
ALIKE = PortalRule(input="f1620", k_anonymity=KAnonymity(k=K, quasi_identifiers=("town", "age")))
COUNTS = PortalRule(input="f1620", suppress=(Suppression(count="n", below=K, groups=("town",)),))
_PEOPLE = st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.sampled_from([1, 2])), max_size=12)
_COUNTS = st.lists(st.tuples(st.sampled_from([*"abcdefgh", None]), st.sampled_from([None, 1, 2, 3, 9])), max_size=6)


def table(names: tuple[str, str], rows: list[tuple[object, object]]) -> pa.Table:
    kinds = {"town": pa.string(), "age": pa.int32(), "n": pa.int64()}
    columns = list(zip(*rows, strict=True)) or [(), ()]
    return pa.table({name: pa.array(values, kinds[name]) for name, values in zip(names, columns, strict=True)})


@pytest.mark.slow
@given(st.lists(_PEOPLE, max_size=5))
def test_between_any_two_versions_there_are_k_of_each_group(blocks: list[list[tuple[object, object]]]) -> None:
    published = []
    for rows in blocks:
        found = list(breaches(ALIKE, table(("town", "age"), rows), Earlier(ALIKE)))
        assert bool(found) == any(count < K for count in Counter(rows).values())
        if not found:
            published.append(Counter(rows))
    for start, stop in itertools.combinations(range(len(published) + 1), 2):
        between: Counter[tuple[object, object]] = sum(published[start:stop], Counter())
        assert all(count >= K for count in between.values())


@pytest.mark.slow
@given(st.lists(_COUNTS, max_size=5))
def test_a_group_has_one_count_and_no_small_one(blocks: list[list[tuple[object, object]]]) -> None:
    """Whatever was published before is compared, in one part or in many."""
    seen: set[object] = set()
    for at, rows in enumerate(blocks):
        left = filter_rows(COUNTS, table(("town", "n"), rows))
        wanted = [row for row in rows if row[1] is not None and row[1] >= K]  # type: ignore[operator]
        assert list(zip(left["town"].to_pylist(), left["n"].to_pylist(), strict=True)) == wanted
        earlier = Earlier(COUNTS)
        parts = [[town] for town in seen] if at % 2 else [list(seen)]
        for part in parts:
            earlier.add(table(("town", "n"), [(town, 9) for town in part]))
        towns = [town for town, _ in wanted]
        repeats = [town for town, count in Counter(towns).items() if count > 1 or town in seen]
        found = [each.rule for each in breaches(COUNTS, left, earlier)]
        assert found == (["portal-difference"] if repeats else [])
        if not repeats:
            seen |= set(towns)


def test_columns_that_cannot_be_compared_are_refused() -> None:
    schema = pa.schema([("town", pa.list_(pa.string())), ("n", pa.float64()), ("age", pa.int8())])
    for rule, why in ((ALIKE, "has parts"), (COUNTS, "has parts")):
        with pytest.raises(Refused, match=why):
            check_columns(rule, schema)
    with pytest.raises(Refused, match="counts nothing"):
        check_columns(COUNTS, schema.set(0, pa.field("town", pa.string())))


def test_the_rule_stands_in_the_schema_and_is_told() -> None:
    whole = PortalRule(input="f1620", k_anonymity=ALIKE.k_anonymity, suppress=COUNTS.suppress)
    assert portal_rule(with_portal_rule(DataSchema(fields=()), whole)) == whole
    assert described(whole) == "k = 3 in town, age; n at least 3, once for each town"
    assert portal_rule(DataSchema(fields=())) is None
    with pytest.raises(Invalid, match="cannot be read"):
        portal_rule(DataSchema(fields=(), extra={"w3id.org/odfd/portal": {"epsilon": 1}}))


def test_an_opening_is_read_under_limits() -> None:
    portal, private = (DatasetId.from_public_key(bytes([at]) * 32) for at in (1, 2))
    text = publication.opening_text(portal, private, b"s" * 32)
    assert publication.read_opening(text, portal) == (private, b"s" * 32)
    for wrong in (b"", b"{}", text + b" " * 5000, text.replace(b"73", b"7", 1), text.replace(b"/v1", b"/v2")):
        with pytest.raises(Invalid, match="the opening"):
            publication.read_opening(wrong, portal)
    with pytest.raises(Invalid, match="another portal"):
        publication.read_opening(text, private)
    assert publication.input_hash(b"s" * 32, private) != publication.input_hash(b"t" * 32, private)


# A DCAT feed becomes manifests that a person looks at; whatever a stranger writes in it.


DID = "did:odf:fed014e55dd4d4d4e1a1a3ad0d7e5ad3f5c1e3a7a9a5f9c9a8b0a17aa4cbb2bd2b94c"
CSV = {"dcat:downloadURL": {"@id": "https://data.example.org/a.csv"}, "dcat:mediaType": "text/csv"}


def feed(*datasets: Any) -> Feed:
    document = {"@context": dcat.CONTEXT, "@type": "dcat:Catalog", "dcat:dataset": list(datasets)}
    return read_feed(json.dumps(document).encode(), "feed")


def dataset(title: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"@type": "dcat:Dataset", "dct:title": title, "dcat:distribution": CSV, **fields}


def at(url: str) -> Feed:
    return feed(dataset("Air", {"dcat:distribution": {"dcat:downloadURL": url, "dcat:mediaType": "text/csv"}}))


def declared(text: str) -> Draft:
    (draft,) = read_drafts([wire.ManifestText(text=text, source="x")])
    assert draft.type is DATASET_TYPE
    return draft


def test_a_dataset_with_a_file_is_polled() -> None:
    (source,) = feed(dataset("Luftgüte, Graz", {"dct:description": "Hourly: #1", "dcat:keyword": ["air"]})).found
    assert (source.name, source.form) == ("luftgute-graz", "csv")
    polled, info = declared(source.manifest).spec.metadata
    assert isinstance(polled, SetPollingSource)
    assert isinstance(info, SetInfo)
    assert (info.description, info.keywords) == ("Hourly: #1", ("air",))


def test_a_dataset_of_open_data_fabric_is_mirrored() -> None:
    (source,) = feed({"@id": DID, "@type": ["dcat:Dataset"], "dct:title": "cities"}).found
    assert (source.name, source.form, source.place) == ("cities", "odf", DID)
    assert "via" not in source.manifest
    assert "$schema: Mirror" in source.manifest


@pytest.mark.parametrize(
    ("place", "url", "via"),
    [
        ("http://127.0.0.1:8093/catalog.jsonld", "cities/", "http://127.0.0.1:8093/cities/"),
        ("https://a.example.org/x/catalog.jsonld", "cities/", "https://a.example.org/x/cities/"),
        ("https://a.example.org/c", "https://b.example.org/cities/", "https://b.example.org/cities/"),
        ("https://a.example.org/c", "http://10.0.0.7/cities/", None),
        ("https://a.example.org/c", "http://a.example.org:1/", "http://a.example.org:1/"),
        ("https://a.example.org/c", "https://me:secret@a.example.org/", None),
        ("https://a.example.org/c", "${{ env.SECRET }}", None),
        ("https://a.example.org/c", "file:///etc/passwd", None),
        ("https://a.example.org/c", "http://[::1", None),
        ("catalog.jsonld", "cities/", None),
        ("catalog.jsonld", "https://a.example.org/cities/", "https://a.example.org/cities/"),
    ],
)
def test_a_mirror_is_looked_for_where_the_catalogue_says_that_it_is_served(
    place: str, url: str, via: str | None
) -> None:
    """Only by what says that it is of Open Data Fabric, and never at an address that nobody named."""
    served = {"dcat:accessURL": {"@id": url}, "dct:conformsTo": {"@id": FORMAT}}
    page = {"dcat:accessURL": {"@id": "https://portal.example.org/page"}}
    told = {"@id": DID, "@type": "dcat:Dataset", "dct:title": "cities", "dcat:distribution": [page, served]}
    document = {"@context": dcat.CONTEXT, "@type": "dcat:Catalog", "dcat:dataset": [told]}
    (source,) = read_feed(json.dumps(document).encode(), place).found
    assert yaml.safe_load(source.manifest)["spec"] == {"source": DID} | ({"via": via} if via else {})


@pytest.mark.parametrize(
    ("media", "form"),
    [
        ("text/csv; charset=utf-8", "csv"),
        ("application/x-ndjson", "ndjson"),
        ("application/geo+json", "geojson"),
        ("application/vnd.apache.parquet", "parquet"),
        ("https://www.iana.org/assignments/media-types/text/csv", "csv"),
    ],
)
def test_media_types_name_the_format(media: str, form: str) -> None:
    found = feed(
        dataset("Air", {"dcat:distribution": [{"dcat:accessURL": "https://example.org/x", "dcat:mediaType": media}]})
    )
    assert [each.form for each in found.found] == [form]
    assert declared(found.found[0].manifest)


def test_a_flat_graph_with_other_prefixes_is_read() -> None:
    graph = [
        {"@id": "_:c", "@type": "http://www.w3.org/ns/dcat#Catalog",
         "http://www.w3.org/ns/dcat#dataset": [{"@id": "_:d"}]},
        {"@id": "_:d", "@type": "Dataset", "http://purl.org/dc/terms/title": {"@value": "Air", "@language": "en"},
         "distribution": {"@id": "_:f"}},
        {"@id": "_:f", "downloadURL": "https://data.example.org/a.parquet"},
    ]  # fmt: skip
    (source,) = read_feed(json.dumps({"@graph": graph}).encode(), "feed").found
    assert (source.name, source.form) == ("air", "parquet")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "ftp://example.org/a.csv", "https://user:secret@example.org/a.csv",
        "https://example.org/${{ env.TOKEN }}.csv", "https://example.org/a.csv\nkind: x", "http://[::1/a.csv",
        "http://127.0.0.1/a.csv", "http://[::1]/a.csv", "http://169.254.169.254/a.csv", "http://10.0.0.1/a.csv",
        "http://224.0.0.1/a.csv", "http://[64:ff9b::7f00:1]/a.csv", "http://[2002:7f00:1::]/a.csv",
        "http://localhost/a.csv", "http://metadata.internal/a.csv", "https://example.org/" + "a" * 2048,
    ],
)  # fmt: skip
def test_a_feed_sends_no_node_to_places_behind_it(url: str) -> None:
    """Attack T-INVITE-01: a DCAT feed that makes a node fetch from its private network, reads its secrets by a
    template, or writes other manifests.

    Defence: the operator reviews before an apply; only public web addresses, without password and braces; names of
    letters and digits; texts quoted.
    """
    found = at(url)
    assert not found.found
    assert "address" in found.left_out[0].why


@pytest.mark.slow
def test_a_feed_is_bounded() -> None:
    """Attack T-INVITE-01: a DCAT feed without end.

    Defence: 16 MiB, 1,000 datasets, 500 characters of a text; nothing else is fetched.
    """
    found = feed(*[dataset("Air", {"dct:description": "x" * 9999, "dcat:keyword": ["k"] * 99})] * (MAX_SOURCES + 7))
    assert (len(found.found), found.more) == (MAX_SOURCES, 7)
    assert len({each.name for each in found.found}) == MAX_SOURCES
    info = declared(found.found[0].manifest).spec.metadata[1]
    assert isinstance(info, SetInfo)
    assert (len(info.description or ""), len(info.keywords or ())) == (MAX_TEXT, MAX_KEYWORDS)


@pytest.mark.parametrize("raw", [b"", b"<rdf/>", b"[" * 100_000, b"{}", b"3", b'{"@type": 5, "dataset": 7}', b"\xff"])
def test_what_is_no_feed_is_refused(raw: bytes) -> None:
    with pytest.raises(Invalid) as caught:
        read_feed(raw, "feed")
    assert caught.value.rule == "dcat-feed"


TERMS = ["@id", "@type", "@graph", "@value", "dcat:dataset", "dcat:distribution", "dcat:downloadURL", "dct:title",
         "dcat:mediaType", "dcat:keyword", "dct:description"]  # fmt: skip
TEXTS = st.sampled_from(["dcat:Catalog", "dcat:Dataset", "text/csv", "https://example.org/a.csv", DID]) | st.text()
ANYTHING = st.recursive(
    TEXTS | st.none() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(TERMS), inner, max_size=5),
)


@pytest.mark.slow
@given(ANYTHING)
def test_no_feed_writes_anything_but_manifests(document: Any) -> None:
    try:
        found = read_feed(json.dumps({"@type": "Catalog", "dataset": document}).encode(), "feed")
    except Invalid:
        return
    for each in found.found:
        parse_name(each.name)
        if each.form != "odf":
            draft = declared(each.manifest)
            assert draft.headers.name == each.name
            assert all(isinstance(event, SetPollingSource | SetInfo) for event in draft.spec.metadata)


# Which block holds a record, whatever stands between the blocks that hold data.


HASH = Multihash.sha3_256(b"")


class Chain:
    """Blocks as the store gives them; counts what is read."""

    def __init__(self, sizes: list[int | None]) -> None:
        """Records of each data block; ``None``: an event that holds no data."""
        self.blocks: list[Any] = []
        self.reads = 0
        offset = 0
        for number, size in enumerate(sizes):
            event: object = "SetInfo"
            if size is not None:
                data = DataSlice(
                    logical_hash=HASH, physical_hash=HASH, size=1,
                    offset_interval=OffsetInterval(start=offset, end=offset + size - 1),
                ) if size else None  # fmt: skip
                event = AddData(prev_offset=offset - 1 if offset else None, new_data=data)
                offset += size
            self.blocks.append(SimpleNamespace(sequence_number=number, event=event))
        self.records = offset

    def head(self) -> Any:
        return SimpleNamespace(size=len(self.blocks)) if self.blocks else None

    def block_at(self, number: int) -> Any:
        self.reads += 1
        return self.blocks[number]

    def last_of(self, _: Any, before: int | None = None) -> Any:
        self.reads += 1
        stop = len(self.blocks) if before is None else before
        return next((block for block in self.blocks[:stop][::-1] if isinstance(block.event, AddData)), None)


@given(st.lists(st.none() | st.integers(0, 4), max_size=40))
def test_every_record_is_found_in_its_block(sizes: list[int | None]) -> None:
    chain: Any = Chain(sizes)
    expected = [number for number, size in enumerate(sizes) for _ in range(size or 0)]
    assert [block_of_record(chain, offset).sequence_number for offset in range(chain.records)] == expected
    for beyond in (-1, chain.records):
        with pytest.raises(NotFound, match=f"no record {beyond}"):
            block_of_record(chain, beyond)


def test_a_long_chain_is_not_walked() -> None:
    chain: Any = Chain([1] * 4096)
    assert block_of_record(chain, 1000).sequence_number == 1000
    assert chain.reads < 20
