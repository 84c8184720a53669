"""Writes cards as a DCAT 3 catalogue in JSON-LD, for search engines and open-data portals. Pure.

Each dataset is a ``schema:Dataset`` too. Addresses are relative to the document, whose address the server knows. Spec:
W3C Recommendation DCAT 3; schema.org/Dataset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from chain.statements.area import Area
from chain.statements.card import Card, ChainFacts, PublisherClaims

MEDIA_TYPE: Final = "application/ld+json"
CONTEXT: Final = {
    "adms": "http://www.w3.org/ns/adms#",
    "dcat": "http://www.w3.org/ns/dcat#",
    "dct": "http://purl.org/dc/terms/",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "geo": "http://www.opengis.net/ont/geosparql#",
    "prov": "http://www.w3.org/ns/prov#",
    "schema": "https://schema.org/",
    "skos": "http://www.w3.org/2004/02/skos/core#",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}
_JSON: Final = "https://www.iana.org/assignments/media-types/application/json"
_LAYOUT: Final = "https://docs.kamu.dev/odf/spec/"
"""The specification to which the folder behind an access URL conforms."""
_VOCABULARY: Final = "http://publications.europa.eu/resource/authority/frequency/"
_FREQUENCIES: Final = {
    "continuous": "UPDATE_CONT",
    "hourly": "HOURLY",
    "daily": "DAILY",
    "weekly": "WEEKLY",
    "monthly": "MONTHLY",
    "quarterly": "QUARTERLY",
    "annual": "ANNUAL",
    "irregular": "IRREG",
    "never": "NEVER",
}
_DAY: Final = 86_400
_SECONDS: Final = {
    "hourly": 3_600,
    "daily": _DAY,
    "weekly": 7 * _DAY,
    "monthly": 30 * _DAY,
    "quarterly": 91 * _DAY,
    "annual": 365 * _DAY,
}


def catalogue(cards: Iterable[tuple[str, Card]]) -> dict[str, Any]:
    """Builds a catalogue of ``cards``, each with the name under which its dataset is served, without withdrawn ones."""
    shown = [_dataset(name, card) for name, card in cards if not card.is_withdrawal]
    return {"@context": CONTEXT, "@type": "dcat:Catalog", "@id": "", "dcat:dataset": shown}


def _dataset(name: str, card: Card) -> dict[str, Any]:
    facts, claims = card.chain, card.claims
    assert facts is not None, "it was not taken back"
    assert claims is not None, "it was not taken back"
    access = {"@id": f"{quote(name, safe='')}/"}
    fields = {
        "@id": str(card.dataset),
        "@type": ["dcat:Dataset", "schema:Dataset"],
        "dct:identifier": str(card.dataset),
        "dct:title": claims.title or claims.name,
        "schema:name": claims.title or claims.name,
        "schema:alternateName": claims.name if claims.title else None,
        "dct:description": facts.description,
        "schema:description": facts.description,
        "dcat:keyword": list(facts.keywords),
        "dct:license": _license(facts.license_url, facts.license),
        "dct:issued": _time(facts.created_at),
        "dct:modified": _time(facts.updated_at),
        "dct:accrualPeriodicity": _frequency(claims.frequency, facts.update_interval),
        "dct:temporal": _period(facts),
        "schema:temporalCoverage": _coverage(facts),
        "dct:spatial": _location(claims),
        "schema:spatialCoverage": _place(claims),
        "dct:publisher": {"@type": "foaf:Agent", "foaf:name": claims.publisher} if claims.publisher else None,
        "dct:creator": {"@id": str(card.author)},
        "prov:wasDerivedFrom": [{"@id": str(input_)} for input_ in facts.inputs],
        "schema:variableMeasured": [column.name for column in facts.columns],
        "adms:sample": _sample(card),
        "dcat:distribution": {
            "@type": "dcat:Distribution",
            "dcat:accessURL": access,
            "dct:conformsTo": {"@id": _LAYOUT},
            **({"dcat:byteSize": _number(facts.bytes)} if facts.bytes else {}),
        },
    }
    return _without_empty(fields)


def _sample(card: Card) -> dict[str, Any] | None:
    """Returns the rows on a card as a distribution of their own, as DCAT-AP has samples; the address is the content."""
    facts, sample = card.chain, card.sample
    if facts is None or sample is None or not sample.rows:
        return None
    names = [facts.columns[place].name for place in sample.columns]
    rows = [{name: cell for name, cell in zip(names, row, strict=True) if isinstance(cell, str)} for row in sample.rows]
    return {
        "@type": "dcat:Distribution",
        "dcat:mediaType": {"@id": _JSON},
        "dcat:accessURL": {"@id": "data:application/json," + quote(json.dumps(rows, ensure_ascii=False), safe="")},
    }


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields without empty ones."""
    return {name: value for name, value in fields.items() if value not in ("", None, [])}


def _time(text: str) -> dict[str, str]:
    return {"@type": "xsd:dateTime", "@value": text}


def _number(value: int) -> dict[str, str]:
    return {"@type": "xsd:nonNegativeInteger", "@value": str(value)}


def _license(url: str, name: str) -> Any:
    """Returns a licence by its URL if that is safe, else by its name; untrusted links may have other schemes."""
    return {"@id": url} if url.startswith(("https://", "http://")) else name


def _period(facts: ChainFacts) -> dict[str, Any] | None:
    """Returns the time that the rows are of; the watermark ends it where no event time is known."""
    end = facts.last_event or facts.watermark
    if end is None:
        return None
    start = {} if facts.first_event is None else {"dcat:startDate": _time(facts.first_event)}
    return {"@type": "dct:PeriodOfTime", **start, "dcat:endDate": _time(end)}


def _coverage(facts: ChainFacts) -> str | None:
    """Returns the same as an interval of ISO 8601, which schema.org takes."""
    return None if facts.first_event is None else f"{facts.first_event}/{facts.last_event}"


def _frequency(claimed: str, measured: int) -> dict[str, str] | None:
    """Returns a frequency of the EU's vocabulary, which DCAT-AP asks for; without a claim the measured one, if near."""
    near = (word for word, seconds in _SECONDS.items() if measured and abs(measured - seconds) * 5 <= seconds)
    code = _FREQUENCIES.get(claimed or next(near, ""))
    return None if code is None else {"@id": _VOCABULARY + code}


def _location(claims: PublisherClaims) -> dict[str, Any] | None:
    """Returns the area as DCAT writes it, in WKT, where longitudes come first."""
    if not claims.area and not claims.place:
        return None
    named = {"skos:prefLabel": claims.place} if claims.place else {}
    if not claims.area:
        return {"@type": "dct:Location", **named}
    area = Area.parse(claims.area)
    west, south, *_ = (_degrees(degree) for degree in area.degrees)
    if area.is_point:
        return {"@type": "dct:Location", **named, "dcat:centroid": _wkt(f"POINT({west} {south})")}
    rings = [_ring(part) for part in area.parts]
    shape = f"POLYGON({rings[0]})" if len(rings) == 1 else f"MULTIPOLYGON({','.join(f'({ring})' for ring in rings)})"
    return {"@type": "dct:Location", **named, "dcat:bbox": _wkt(shape)}


def _place(claims: PublisherClaims) -> dict[str, Any] | None:
    """Returns the area as schema.org writes it, where latitudes come first."""
    if not claims.area and not claims.place:
        return None
    place = {"@type": "schema:Place", "schema:name": claims.place, "schema:geo": _geo(claims.area)}
    return _without_empty(place)


def _geo(text: str) -> Any:
    if not text:
        return None
    area = Area.parse(text)
    if area.is_point:
        longitude, latitude, *_ = area.degrees
        return {"@type": "schema:GeoCoordinates", "schema:latitude": latitude, "schema:longitude": longitude}
    shapes = []
    for part in area.parts:
        west, south, east, north = (_degrees(degree) for degree in part.degrees)
        shapes.append({"@type": "schema:GeoShape", "schema:box": f"{south} {west} {north} {east}"})
    return shapes[0] if len(shapes) == 1 else shapes


def _ring(part: Area) -> str:
    west, south, east, north = (_degrees(degree) for degree in part.degrees)
    return f"({west} {south},{east} {south},{east} {north},{west} {north},{west} {south})"


def _degrees(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _wkt(text: str) -> dict[str, str]:
    return {"@type": "geo:wktLiteral", "@value": text}
