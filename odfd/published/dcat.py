"""Writes cards as a DCAT 3 catalogue in JSON-LD, for search engines and open-data portals. Pure.

Each dataset is a ``schema:Dataset`` too. Addresses are relative to the document, whose address the server knows. Spec:
W3C Recommendation DCAT 3; schema.org/Dataset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from chain.statements.card import Card

MEDIA_TYPE: Final = "application/ld+json"
CONTEXT: Final = {
    "adms": "http://www.w3.org/ns/adms#",
    "dcat": "http://www.w3.org/ns/dcat#",
    "dct": "http://purl.org/dc/terms/",
    "foaf": "http://xmlns.com/foaf/0.1/",
    "prov": "http://www.w3.org/ns/prov#",
    "schema": "https://schema.org/",
    "xsd": "http://www.w3.org/2001/XMLSchema#",
}
_JSON: Final = "https://www.iana.org/assignments/media-types/application/json"
_LAYOUT: Final = "https://docs.kamu.dev/odf/spec/"
"""The specification to which the folder behind an access URL conforms."""


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
        "dct:title": claims.name,
        "schema:name": claims.name,
        "dct:description": facts.description,
        "schema:description": facts.description,
        "dcat:keyword": list(facts.keywords),
        "dct:license": _license(facts.license_url, facts.license),
        "dct:issued": _time(facts.created_at),
        "dct:modified": _time(facts.updated_at),
        "dct:temporal": _until(facts.watermark),
        "dct:publisher": {"@type": "foaf:Agent", "foaf:name": claims.publisher} if claims.publisher else None,
        "dct:creator": {"@id": str(card.author)},
        "prov:wasDerivedFrom": [{"@id": str(each)} for each in facts.inputs],
        "schema:variableMeasured": [each.name for each in facts.columns],
        "adms:sample": _sample(card),
        "dcat:distribution": {
            "@type": "dcat:Distribution",
            "dcat:accessURL": access,
            "dct:conformsTo": {"@id": _LAYOUT},
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


def _license(url: str, name: str) -> Any:
    """Returns a licence by its URL if that is safe, else by its name; untrusted links may have other schemes."""
    return {"@id": url} if url.startswith(("https://", "http://")) else name


def _until(watermark: str | None) -> dict[str, Any] | None:
    return None if watermark is None else {"@type": "dct:PeriodOfTime", "dcat:endDate": _time(watermark)}
