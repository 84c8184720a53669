"""Formats the details of one resource for ``describe``, with the beginning of the files attached to it.

Strangers write these files: control characters in them do not reach the terminal. Markdown is laid out by ``rich``,
which is loaded only if there is some; other text stays as it is.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from chain.terminal_text import visible
from odfd.cli import formatting
from odfd.cli.dataset_text import growth_text, profile_text, rows_text, size_text, state_text
from odfd.cli.session import to_yaml
from odfd.cli.table import Stack, TableColumn, clean, fields, paragraphs, render
from odfd.control import wire


def _head(view: wire.DatasetView) -> str:
    if view.shards:
        return f"of each of {len(view.shards)} shards: odfctl trust show {view.name}"
    return f"#{view.blocks - 1}  {view.head or ''}" if view.blocks else "none: no block of it is here yet"


def dataset(detail: wire.DatasetDetail) -> str:
    view, profile = detail.dataset, detail.profile
    head = fields(
        [
            ("name", view.name),
            ("id", view.id),
            ("kind", view.kind + (", ours" if view.owner else ", of others")),
            ("about", clean(detail.description or "", 200)),
            ("keywords", ", ".join(detail.keywords)),
            ("state", state_text(view)),
            ("published", _publish_hint(view)),
            ("on its card", f"{formatting.plural(detail.sample, 'row')} at most" if detail.sample else ""),
            *_words(detail.words),
            ("shared with", ", ".join(view.shared_with)),
            ("withdrawn", _withdrawal_text(view)),
            ("head", _head(view)),
            ("license", _license(detail.license)),
            ("records", formatting.count(view.records)),
            ("size", size_text(profile, view.records) if profile and profile.slices else ""),
            ("growth", growth_text(profile.growth) if profile and profile.slices else ""),
            *_portal(detail.portal),
            ("changes", "its rows can be corrected and retracted" if detail.changelog else ""),
            ("watermark", formatting.moment(view.watermark)),
            ("complete", _frontiers(view.frontiers) if view.blocks else ""),
            ("shards", ", ".join(view.shards)),
            *[("held", _hold(hold)) for hold in detail.holds],
            ("raw", "the bytes of its source are kept: odfctl raw list" if detail.keeps_raw else ""),
            ("engine", _engine(view)),
            *[("", each.text) for each in view.unheld],
            ("created", formatting.moment(detail.created_at)),
            ("updated", formatting.moment(detail.updated_at)),
            ("inputs", ", ".join(detail.inputs)),
            ("outputs", ", ".join(detail.outputs)),
            ("rows", _rows(detail.rows)),
            ("last rows", rows_text(detail.rows.last if detail.rows else None)),
        ]
    )
    parts = [head, profile_text(profile) if profile else ""]
    manifests = {"source": detail.source, "transform": detail.transform}
    parts += [to_yaml({name: manifest}) for name, manifest in manifests.items() if manifest]
    parts += [attachment_text(attachment) for attachment in detail.attachments]
    return paragraphs(parts)


def _engine(view: wire.DatasetView) -> str:
    if view.engine is None:
        return ""
    blocked = f"; it is another here, so nothing is appended: odfctl engine prove {view.name}"
    return f"pinned to {formatting.digest(view.engine)}{blocked if 'Blocked' in view.conditions else ''}"


def _publish_hint(view: wire.DatasetView) -> str:
    """Suggests to publish only what is this node's own: a copy may be shared with this node alone."""
    if not view.published and not view.owner:
        return "no: this node gives its copy to no peer"
    if not view.published:
        return f"no: odfctl publish {view.name} lets other nodes copy it"
    to = f"yes, in {', '.join(view.published_in)} alone" if view.published_in else "yes"
    return to if view.state != "unsigned" else f"{to}, but its head is not signed: other nodes do not see it yet"


def _withdrawal_text(view: wire.DatasetView) -> str:
    """Says what a withdrawal leaves here, and what may be done with it."""
    if view.withdrawn_at is None:
        return ""
    ends = f"odfctl mirror remove {view.name} and odfctl delete dataset {view.name} free it"
    gives = f"other nodes get it from this node until odfctl unpublish {view.name}; " if view.published else ""
    return f"by its publisher on {view.withdrawn_at[:10]}: this copy stays and can be used; {gives}{ends}"


def _portal(portal: wire.PortalFacts | None) -> list[tuple[str, str]]:
    """Formats a portal's rule, who vouches for its rows, and what can be checked."""
    if portal is None:
        return []
    count = formatting.plural(portal.auditors, "auditor")
    others = f"; {formatting.plural(portal.contradicted, 'auditor')} found other rows" if portal.contradicted else ""
    return [
        ("portal", f"rows of a private dataset: {clean(portal.rule, 300)}"),
        ("vouched by", f"its publisher, {count} of the newest block{others}"),
        ("checked", "the rule by anyone (odfctl verify), the private input by auditors alone"),
    ]


def card(view: wire.CardView) -> str:
    """Formats a dataset that is not here: its publisher's description, and what this node knows of it."""
    licence = f"{view.license}  {view.license_url}".rstrip() or "not said"
    head = fields(
        [
            ("name", view.name),
            ("id", view.id),
            *_words(view.words),
            ("publisher", view.publisher or "gives no name"),
            ("node", _node(view.node)),
            ("portal", f"rows of a private dataset: {clean(view.portal, 300)}" if view.portal else ""),
            ("signed by", view.author),
            ("signed", formatting.moment(view.signed_at)),
            ("standing", view.standing),
            ("peers", _spread(view)),
            ("namesakes", _namesakes(view.namesakes)),
            ("kind", view.kind),
            ("about", clean(view.description, 200)),
            ("keywords", ", ".join(view.keywords)),
            ("license", clean(licence, 200)),
            ("records", formatting.count(view.records)),
            ("blocks", formatting.count(view.blocks)),
            ("size", formatting.size(view.bytes) if view.bytes else ""),
            ("watermark", formatting.moment(view.watermark)),
            ("events", _events(view)),
            ("created", formatting.moment(view.created_at)),
            ("updated", formatting.moment(view.updated_at)),
            ("usually", f"updated every {formatting.span(view.update_interval)}" if view.update_interval else ""),
            ("inputs", ", ".join(view.inputs)),
            ("shards", f"{len(view.shards)} by {', '.join(view.shard_by)}" if view.shards else ""),
        ]
    )
    columns = [f"  {clean(column.name, 64):<32} {clean(column.type, 64)}".rstrip() for column in view.columns]
    if view.more_columns:
        columns.append(f"  and {view.more_columns} more")
    return Stack([head, *(["columns", *columns] if columns else []), *_sample(view.sample)])


def _words(words: wire.CardWords) -> list[tuple[str, str]]:
    """Formats what a publisher says of a dataset on purpose, as one line each."""
    area = words.area
    box = "" if area is None else ", ".join(map(_degrees, (area.west, area.south, area.east, area.north)))
    return [
        ("title", clean(words.title, 128)),
        ("place", clean(words.place, 128)),
        ("area", f"{box} (west, south, east, north)" if box else ""),
        ("frequency", f"{clean(words.frequency, 32)}, says its publisher" if words.frequency else ""),
    ]


def _degrees(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _events(view: wire.CardView) -> str:
    if view.first_event is None:
        return ""
    return f"{formatting.moment(view.first_event)} to {formatting.moment(view.last_event)}"


def _sample(sample: wire.CardRows | None) -> list[str]:
    """Formats the rows on a card, and says how many have no room there."""
    if sample is None:
        return []
    shown = sample.rows
    missing = f", {formatting.count(sample.left_out)} more that the card has no space for" if sample.left_out else ""
    head = f"sample: {formatting.plural(len(shown), 'row')} that its publisher shows{missing}"
    columns: tuple[TableColumn[tuple[str | None, ...]], ...] = tuple(
        TableColumn(clean(name, 64), lambda row, place=place: formatting.cell(row[place]), most=40)  # type: ignore[misc]
        for place, name in enumerate(sample.columns)
    )
    return [head, render(columns, shown)] if shown else [head]


def _namesakes(number: int) -> str:
    if not number:
        return ""
    return f"{formatting.plural(number, 'other dataset')} with a name that looks like this: compare publisher and id"


def _spread(view: wire.CardView) -> str:
    """Formats ``3 in 2 subnets``."""
    where = f" in {formatting.plural(view.places, 'subnet')}" if view.places else ""
    return f"{formatting.count(view.peers)}{where}"


def _node(node: wire.PeerName | None) -> str:
    if node is None:
        return "no node signed that it publishes this"
    alike = f"  ({node.alike} others look the same by name: compare the id)" if node.alike else ""
    return clean(f"{node.peer_id}  {node.name or ''}".rstrip() + alike, 200)


def _frontiers(found: wire.Frontiers | None) -> str:
    """Formats the range of times of blocks to which nothing will be added."""
    if found is None:
        return ""
    first = f"from {found.since} " if found.since else ""
    if found.sealed:
        return f"{first}for ever: it is sealed"
    late = f"; {', '.join(found.held_by)} hold{'s' * (len(found.held_by) == 1)} it back" if found.held_by else ""
    return f"{first}before {found.upper}{late}"


def _hold(held: wire.HoldView) -> str:
    until = f"until {formatting.moment(held.expires_at)}" if held.expires_at else "until it is released"
    return f"{until} by {held.id}, at {held.time}" + (f": {clean(held.note, 200)}" if held.note else "")


def _license(license_: wire.License | None) -> str:
    if license_ is None:
        return "not said"
    short = license_.spdx_id or license_.short_name
    return clean(f"{license_.name} ({short})  {license_.website_url}", 200)


def _rows(totals: wire.RowTotals | None) -> str:
    """Formats the counts of all transactions; an unknown count is stated, as it allows no conclusion."""
    if totals is None:
        return "not counted here: this node read none for it"
    rows = totals.rows
    counted = rows_text(rows) or f"{formatting.count(rows.read)} read, {formatting.count(rows.appended)} appended"
    return f"{counted}, in {formatting.plural(totals.transactions, 'transaction')} since block #{totals.since_block}"


def plain(value: Mapping[str, Any]) -> str:
    """Formats any value as its fields in YAML, for kinds without a view of their own."""
    return to_yaml({name: field for name, field in value.items() if field not in (None, "", [], {})})


_MOST_CHARACTERS: Final = 32_768
_MOST_LINES: Final = 200
_WIDEST: Final = 100
_MARKDOWN: Final = (".md", ".markdown")


def attachment_text(attachment: wire.Attachment) -> str:
    """Formats the path and the text of an attachment, indented."""
    begun = visible(attachment.content.replace("\r\n", "\n")[:_MOST_CHARACTERS])
    markdown = attachment.path.lower().endswith(_MARKDOWN)
    lines = (_laid_out(begun) if markdown else begun).strip("\n").splitlines()
    left_out = len(lines) > _MOST_LINES or len(begun) < len(attachment.content.replace("\r\n", "\n"))
    shown = [f"  {line}".rstrip() for line in lines[:_MOST_LINES]]
    if left_out:
        whole = formatting.plural(len(attachment.content), "character")
        shown.append(f"  … this is its beginning: -o json has all of {whole}")
    return "\n".join([f"{clean(attachment.path, 200)}:", *shown])


def _laid_out(text: str) -> str:
    from rich.console import Console
    from rich.markdown import CodeBlock, Markdown

    class PlainCode(CodeBlock):
        """A block of code without highlighting: lexers run patterns that can take unbounded time on strangers' text."""

        @classmethod
        def create(cls, markdown: Markdown, _: object) -> PlainCode:
            return cls("text", markdown.code_theme)

    class Readme(Markdown):
        elements: ClassVar = {**Markdown.elements, "fence": PlainCode, "code_block": PlainCode}

    columns = min(shutil.get_terminal_size((_WIDEST, 24)).columns, _WIDEST) - 2
    console = Console(file=io.StringIO(), width=max(columns, 20), color_system=None, legacy_windows=False)
    lines = console.render_lines(Readme(text, hyperlinks=False), pad=False)
    return visible("\n".join("".join(segment.text for segment in line) for line in lines))
