"""Reads a DCAT 3 feed in JSON-LD as a list of sources, and writes a manifest for each. Pure.

The feed is written by a stranger, and a person inspects the manifests before any is applied. So nothing that it refers
to is fetched: no context, no further page, no file. Names are made of letters and digits, addresses are of the web and
contain no template, and texts are values that YAML quotes; what is refused is reported with the reason. Terms are
recognised by their last part, whatever their prefix, since contexts are not read. Spec: W3C Recommendation DCAT 3;
JSON-LD 1.1, compacted or as one flat @graph.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urljoin, urlsplit

import msgspec

from chain.errors import Invalid
from chain.ids import DID_ODF, DatasetId
from chain.terminal_text import visible
from chain.yaml_text import render_yaml
from p2p.ip import is_global, parse_ip

FORMAT: Final = "https://docs.kamu.dev/odf/spec/"
"""What distributions of Open Data Fabric conform to (``odfd.published.dcat``)."""
MAX_FEED: Final = 16 << 20
MAX_SOURCES: Final = 1000
"""Most sources taken from one feed; further ones are counted."""
MAX_DISTRIBUTIONS: Final = 64
"""Most distributions examined of one dataset."""
MAX_TEXT: Final = 500
MAX_URL: Final = 2048
MAX_KEYWORDS: Final = 32
MAX_NAME: Final = 60
READS: Final = {
    "csv": {"kind": "Csv", "header": True},
    "ndjson": {"kind": "NdJson"},
    "jsonl": {"kind": "NdJson"},
    "json": {"kind": "Json"},
    "parquet": {"kind": "Parquet"},
    "geojson": {"kind": "GeoJson"},
}
"""End of a media type or file name -> read step; the first in this order that a dataset offers is taken."""
_ALIASES: Final = {"geo+json": "geojson"}
_ADDRESS: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
"""Characters of an address (RFC 3986): no braces, so that a manifest finds no template in it."""
_NOT_A_FEED: Final = "a feed is JSON-LD of DCAT: a catalogue with dcat:dataset, or an @graph of datasets"
Node: TypeAlias = Mapping[str, Any]


class FoundSource(NamedTuple):
    """A source made from a dataset of the feed."""

    name: str
    place: str
    """A web address, or the dataset's id in Open Data Fabric."""
    form: str
    """Key in READS; ``odf`` for a dataset to mirror."""
    manifest: str


class LeftOut(NamedTuple):
    """A dataset from which no source was made, and why."""

    title: str
    why: str


class Feed(NamedTuple):
    """The sources of a feed, and the datasets left out."""

    found: tuple[FoundSource, ...]
    left_out: tuple[LeftOut, ...]
    more: int
    """Number of datasets beyond the limit."""


def read_feed(raw: bytes, place: str) -> Feed:
    """Reads a feed. Raises Invalid for bytes that are no feed."""
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Invalid(f"no JSON: {reason}", rule="dcat-feed", place=place, hint=_NOT_A_FEED) from error
    nodes = _Nodes(document)
    datasets = nodes.datasets()
    if not datasets:
        raise Invalid("no dataset of DCAT in it", rule="dcat-feed", place=place, hint=_NOT_A_FEED)
    found: list[FoundSource] = []
    left_out: list[LeftOut] = []
    taken: set[str] = set()
    for number, dataset in enumerate(datasets[:MAX_SOURCES], start=1):
        title = _text(dataset, "title") or f"dataset {number}"
        source = _source(nodes, dataset, title, taken, place)
        if isinstance(source, str):
            left_out.append(LeftOut(title, source))
        else:
            found.append(source)
    return Feed(tuple(found), tuple(left_out), max(0, len(datasets) - MAX_SOURCES))


class _Nodes:
    """The nodes of a document, by id if it is a flat graph."""

    def __init__(self, document: Any) -> None:
        top = _nodes(document)
        self._top = [inner for each in top for inner in (_nodes(each["@graph"]) if "@graph" in each else [each])]
        self._by_id = {each["@id"]: each for each in self._top if isinstance(each.get("@id"), str)}

    def datasets(self) -> list[Node]:
        named = [each for node in self._top if _is(node, "Catalog") for each in self.under(node, "dataset")]
        return named or [each for each in self._top if _is(each, "Dataset")]

    def under(self, node: Node, term: str) -> list[Node]:
        """Returns the nodes that a term of a node refers to, given in full or by id."""
        found: Iterable[Any] = _values(node, term)
        named = [{"@id": each} if isinstance(each, str) else each for each in found]
        return [self._whole(each) for each in named if isinstance(each, dict)]

    def _whole(self, node: Node) -> Node:
        identity = node.get("@id")
        return self._by_id.get(identity, node) if len(node) == 1 and isinstance(identity, str) else node


def _source(nodes: _Nodes, dataset: Node, title: str, taken: set[str], feed: str) -> FoundSource | str:
    """Makes a source of a dataset, or returns the reason why none can be made."""
    identity = dataset.get("@id")
    if isinstance(identity, str) and identity.startswith(DID_ODF):
        try:
            place = str(DatasetId.parse(identity))
        except Invalid:
            return "its did:odf is none"
        name = _name(title, taken)
        return FoundSource(name, place, "odf", _mirror(name, place, _served_at(nodes, dataset, feed)))
    forms: dict[str, str] = {}
    why = "no file in a format that is read: " + ", ".join(READS)
    for each in nodes.under(dataset, "distribution")[:MAX_DISTRIBUTIONS]:
        form = _form(each)
        for url in (*_addresses(each, "downloadURL"), *_addresses(each, "accessURL")):
            if (wrong := _refusal(url)) is not None:
                why = wrong
            elif form is not None:
                forms.setdefault(form, url)
                break
    chosen = next((form for form in READS if form in forms), None)
    if chosen is None:
        return why
    name = _name(title, taken)
    return FoundSource(name, forms[chosen], chosen, _polled(name, dataset, chosen, forms[chosen]))


def _refusal(url: str) -> str | None:
    """Returns the reason why an address is not polled; ``None``: it can be."""
    if len(url) > MAX_URL or _ADDRESS.fullmatch(url) is None:
        return "its address is too long, or has letters that addresses do not have"
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return "its address is none"
    if parts.scheme not in ("http", "https") or not host:
        return "its address is none of the web"
    if "@" in parts.netloc:
        return "its address holds a name or a password"
    try:
        is_near = not is_global(parse_ip(host))
    except ValueError:
        is_near = host == "localhost" or "." not in host or host.endswith((".localhost", ".local", ".internal"))
    return "its address is of this machine, or of a network behind it" if is_near else None


def _form(distribution: Node) -> str | None:
    said = [*_addresses(distribution, "mediaType"), *_addresses(distribution, "format")]
    urls = [*_addresses(distribution, "downloadURL"), *_addresses(distribution, "accessURL")]
    ends = [re.split(r"[/.\-]", each.partition(";")[0].strip().lower())[-1] for each in said]
    ends += [url.partition("?")[0].partition("#")[0].rpartition(".")[2].lower() for url in urls]
    return next((form for end in ends if (form := _ALIASES.get(end, end)) in READS), None)


def _served_at(nodes: _Nodes, dataset: Node, feed: str) -> str | None:
    """Returns where the site of a feed serves a dataset of Open Data Fabric, so that it is found without a network.

    An address at the site that a person named is taken as it is, any other like that of a file.
    """
    site = _origin(feed)
    for each in nodes.under(dataset, "distribution")[:MAX_DISTRIBUTIONS]:
        if FORMAT not in _addresses(each, "conformsTo"):
            continue
        for url in _addresses(each, "accessURL"):
            with suppress(ValueError):
                whole = url if site is None else urljoin(feed, url)
                is_theirs = site is not None and _origin(whole) == site and _ADDRESS.fullmatch(whole) is not None
                if is_theirs or _refusal(whole) is None:
                    return whole
    return None


def _origin(url: str) -> tuple[str, str] | None:
    """Returns scheme and host of an address of the web without a password; ``None`` for all else."""
    parts = urlsplit(url)
    is_place = parts.scheme in ("http", "https") and "@" not in parts.netloc and len(url) <= MAX_URL
    return (parts.scheme, parts.netloc) if is_place else None


def _mirror(name: str, place: str, via: str | None) -> str:
    spec = {"source": place} if via is None else {"source": place, "via": via}
    return render_yaml({"$schema": "Mirror", "headers": {"name": name}, "spec": spec})


def _polled(name: str, dataset: Node, form: str, url: str) -> str:
    about = _text(dataset, "description")
    keywords = [text for value in _values(dataset, "keyword")[:MAX_KEYWORDS] if (text := _plain(value))]
    info: dict[str, Any] = {"kind": "SetInfo", "description": about, "keywords": keywords}
    source = {
        "kind": "SetPollingSource",
        "fetch": {"kind": "Url", "url": url},
        "read": READS[form],
        "merge": {"kind": "Append"},
    }
    metadata = [source, {key: value for key, value in info.items() if value}] if about or keywords else [source]
    spec = {"kind": "Root", "metadata": metadata}
    return render_yaml({"$schema": "Dataset", "headers": {"name": name}, "spec": spec})


def _name(title: str, taken: set[str]) -> str:
    """Makes a name from a title, unlike those ``taken``."""
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    stem = re.sub(r"[^a-z0-9]+", "-", plain)[:MAX_NAME].strip("-") or "dataset"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name)
    return name


def _is(node: Node, type_: str) -> bool:
    said = node.get("@type", node.get("type", ()))
    types = said if isinstance(said, list) else [said]
    return any(isinstance(each, str) and _last(each) == type_ for each in types)


def _last(term: str) -> str:
    return re.split(r"[:#/]", term)[-1]


def _nodes(value: Any) -> list[Node]:
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, dict)]


def _values(node: Node, term: str) -> Sequence[Any]:
    for key, value in node.items():
        if _last(key) == term:
            return value if isinstance(value, list) else [value]
    return ()


def _plain(value: Any) -> str:
    """Returns the text of a value, with or without a language."""
    if isinstance(value, dict):
        value = value.get("@value", "")
    return visible(value)[:MAX_TEXT].strip() if isinstance(value, str) else ""


def _text(node: Node, term: str) -> str:
    return next((text for value in _values(node, term) if (text := _plain(value))), "")


def _addresses(node: Node, term: str) -> Iterator[str]:
    for value in _values(node, term)[:MAX_DISTRIBUTIONS]:
        found = value.get("@id", value.get("@value")) if isinstance(value, dict) else value
        if isinstance(found, str):
            yield found
