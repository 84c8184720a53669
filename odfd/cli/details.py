"""Formats the details of one thing for ``describe``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from odfd.cli import words
from odfd.cli.row_text import rows_text
from odfd.cli.session import to_yaml
from odfd.cli.table import clean, fields


def dataset(detail: Mapping[str, Any]) -> str:
    view = detail["dataset"]
    head = fields(
        [
            ("name", view["name"]),
            ("id", view["id"]),
            ("kind", view["kind"] + (", ours" if view.get("owner") else ", of others")),
            ("about", clean(detail.get("description") or "", 200)),
            ("keywords", ", ".join(detail.get("keywords", []))),
            ("state", view["state"]),
            ("published", "yes" if view.get("published") else f"no: odfctl publish {view['name']} lets others have it"),
            ("head", f"#{view['blocks'] - 1}  {view.get('head') or ''}"),
            ("records", f"{words.count(view.get('records'))}  {words.size(view.get('bytes'))}"),
            ("changes", "its rows can be corrected and retracted" if detail.get("changelog") else ""),
            ("watermark", words.moment(view.get("watermark"))),
            ("created", words.moment(detail.get("createdAt"))),
            ("updated", words.moment(detail.get("updatedAt"))),
            ("inputs", ", ".join(detail.get("inputs", []))),
            ("outputs", ", ".join(detail.get("outputs", []))),
            ("rows", _rows(detail.get("rows"))),
            ("last rows", rows_text((detail.get("rows") or {}).get("last"))),
        ]
    )
    parts = [head]
    parts += [to_yaml({name: detail[name]}) for name in ("source", "transform") if detail.get(name)]
    return "\n\n".join(part.rstrip() for part in parts)


def _rows(totals: Mapping[str, Any] | None) -> str:
    """Of all transactions; where nobody counted that is said, for nothing may be concluded from it."""
    if totals is None:
        return "not counted here: this node read none for it"
    rows = totals["rows"]
    said = rows_text(rows) or f"{words.count(rows.get('read'))} read, {words.count(rows.get('appended'))} appended"
    return f"{said}, in {words.plural(totals['transactions'], 'transaction')} since block #{totals['sinceBlock']}"


def plain(value: Mapping[str, Any]) -> str:
    """Any value, as its fields in YAML: every kind can be described before it has a page of its own."""
    return to_yaml({name: field for name, field in value.items() if field not in (None, "", [], {})})
