"""Writes the manifest of a new root for a file, with doubts as comments, and reads it again as a check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from chain.codec.bind import Mistake
from chain.codec.manifest import from_builtins, parse_manifests
from chain.codec.yaml_tree import Node
from chain.errors import Invalid
from chain.model.events import AddPushSource, SetPollingSource
from chain.model.source import ReadStep
from chain.yaml_text import render_yaml
from odfd.cli.offline.sampling.text_types import Guess
from odfd.datasets.creation import with_columns
from odfd.datasets.manifest import DATASET_TYPE
from odfd.resources.manifest import Draft, read_resource
from odfd.resources.types import TypeRegistry


def proven(text: str, name: str) -> ReadStep:
    """Returns the read step of the source in a manifest, with its columns. Raises Invalid."""
    source = f"{name}.yaml"
    drafts: list[Draft | None] = []

    def read(node: Node) -> Sequence[Mistake]:
        draft, mistakes = read_resource(node, source, TypeRegistry((DATASET_TYPE,)))
        drafts.append(draft)
        return mistakes

    parse_manifests(text, source, read)
    (draft,) = drafts
    assert draft is not None
    for event in draft.spec.metadata:
        found = with_columns(event)
        if isinstance(found, AddPushSource | SetPollingSource):
            return found.read
    raise Invalid(f"{name} has no source", rule="new-source")


def read_of(source: dict[str, Any]) -> ReadStep:
    """Returns the read step of a source, in the daemon's form. Raises Invalid."""
    kind = SetPollingSource if source.get("kind") == "SetPollingSource" or "fetch" in source else AddPushSource
    found = from_builtins(kind, {"kind": kind.__struct_config__.tag, **source})
    assert isinstance(found, AddPushSource | SetPollingSource)
    return found.read


_TIMES = ("TIMESTAMP", "DATE")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def manifest_text(
    name: str, found: Guess, url: str | None = None, shards: int | None = None, by: Sequence[str] = ()
) -> str:
    """Formats YAML for ``odfctl apply``.

    ``url``: the address at which the file is polled; ``None``: it is pushed. ``shards``: the number of chains among
    which rows are divided by the columns ``by``; ``None``: one chain.
    """
    return "\n".join(_lines(name, found, url, None if shards is None else {"number": shards, "by": list(by)})) + "\n"


def _lines(name: str, found: Guess, url: str | None, shards: dict[str, Any] | None) -> Iterator[str]:
    yield "$schema: Dataset"
    yield "headers:"
    yield from _yaml({"name": name}, 2)
    yield "spec:"
    yield from _yaml({"kind": "Root"} if shards is None else {"kind": "Root", "shards": shards}, 2)
    yield "  metadata:"
    if url is None:
        yield "    - kind: AddPushSource"
        yield "      sourceName: default"
    else:
        yield "    - kind: SetPollingSource"
        yield "      fetch:"
        yield from _yaml({"kind": "Url", "url": url}, 8)
    yield "      read:"
    yield from (f"        # unsure: {each}" for each in found.unsure)
    yield from _yaml(found.read, 8)
    if found.columns:
        yield "        ddlSchema:"
        for column, ddl, unsure in found.columns:
            yield from (f"          # unsure: {each}" for each in unsure)
            quoted = column if _PLAIN.fullmatch(column) else f'"{column}"'
            yield from _yaml([f"{quoted} {ddl}"], 10)
    yield "      # unsure: Append takes every row of every file; Ledger and Snapshot merge them by a primary key,"
    yield "      # as {kind: Snapshot, primaryKey: [id]} does where a file holds all there is"
    yield "      merge:"
    yield "        kind: Append"
    yield from _event_time(found)


def _event_time(found: Guess) -> Iterator[str]:
    """Names the column of event times: one that every row of the sample fills, as a row without one is refused."""
    times = [column for column, ddl, _ in found.columns if ddl in _TIMES]
    if not times or "event_time" in times:
        return
    full = [column for column in times if column not in found.gaps]
    if not full:
        yield f"    # unsure: some rows have no {' and no '.join(times)}: the event time is that of the ingest"
        return
    others = f" ({', '.join(full[1:])} may be meant)" if full[1:] else ""
    yield f"    # unsure: the time at which a row happened{others}"
    yield "    - kind: SetVocab"
    yield from _yaml({"eventTimeColumn": full[0]}, 6)


def _yaml(value: object, indent: int) -> Iterator[str]:
    for line in render_yaml(value).splitlines():
        yield " " * indent + line
