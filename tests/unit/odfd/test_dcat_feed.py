"""A DCAT feed becomes manifests that a person looks at; whatever a stranger writes in it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from chain.codec.manifest import parse_manifests
from chain.errors import Invalid
from chain.ids import parse_name
from chain.model.events import DatasetSnapshot, SetInfo, SetPollingSource
from odfd.cli.offline.sampling.dcat_feed import FORMAT, MAX_KEYWORDS, MAX_SOURCES, MAX_TEXT, Feed, read_feed
from odfd.published import dcat

DID = "did:odf:fed014e55dd4d4d4e1a1a3ad0d7e5ad3f5c1e3a7a9a5f9c9a8b0a17aa4cbb2bd2b94c"
CSV = {"dcat:downloadURL": {"@id": "https://data.example.org/a.csv"}, "dcat:mediaType": "text/csv"}


def feed(*datasets: Any) -> Feed:
    document = {"@context": dcat.CONTEXT, "@type": "dcat:Catalog", "dcat:dataset": list(datasets)}
    return read_feed(json.dumps(document).encode(), "feed")


def dataset(title: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"@type": "dcat:Dataset", "dct:title": title, "dcat:distribution": CSV, **fields}


def at(url: str) -> Feed:
    return feed(dataset("Air", {"dcat:distribution": {"dcat:downloadURL": url, "dcat:mediaType": "text/csv"}}))


def snapshot(text: str) -> DatasetSnapshot:
    (manifest,) = parse_manifests(text, "x")
    assert isinstance(manifest.content, DatasetSnapshot)
    return manifest.content


def test_a_dataset_with_a_file_is_polled() -> None:
    (source,) = feed(dataset("Luftgüte, Graz", {"dct:description": "Hourly: #1", "dcat:keyword": ["air"]})).found
    assert (source.name, source.form) == ("luftgute-graz", "csv")
    polled, info = snapshot(source.manifest).metadata
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
    assert snapshot(found.found[0].manifest)


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
    found = at(url)
    assert not found.found
    assert "address" in found.left_out[0].why


@pytest.mark.slow
def test_a_feed_is_bounded() -> None:
    found = feed(*[dataset("Air", {"dct:description": "x" * 9999, "dcat:keyword": ["k"] * 99})] * (MAX_SOURCES + 7))
    assert (len(found.found), found.more) == (MAX_SOURCES, 7)
    assert len({each.name for each in found.found}) == MAX_SOURCES
    info = snapshot(found.found[0].manifest).metadata[1]
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
            content = snapshot(each.manifest)
            assert content.name == each.name
            assert all(isinstance(event, SetPollingSource | SetInfo) for event in content.metadata)
