"""Writes the manifest of a new root for a file, with doubts as comments, and reads it again as a check."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from chain.codec.manifest import from_builtins, parse_manifests
from chain.errors import Invalid
from chain.model.events import AddPushSource, DatasetSnapshot, SetPollingSource
from chain.model.source import ReadStep
from chain.yaml_text import render_yaml
from odfd.cli.offline.sampling.text_types import Guess
from odfd.datasets.creation import with_columns


def proven(text: str, name: str) -> ReadStep:
    """Returns the read step of the source in a manifest, with its columns. Raises Invalid."""
    (manifest,) = parse_manifests(text, f"{name}.yaml")
    assert isinstance(manifest.content, DatasetSnapshot)
    for event in manifest.content.metadata:
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


def manifest_text(name: str, found: Guess, url: str | None = None) -> str:
    """Formats YAML for ``odfctl apply``. ``url``: the address at which the file is polled; ``None``: it is pushed."""
    return "\n".join(_lines(name, found, url)) + "\n"


def sharded_text(name: str, text: str, shards: int, by: Sequence[str]) -> str:
    """Rewrites a manifest as a Dataset resource with shards, for which the format's own kind has no field."""
    _, metadata = text.split("\n  metadata:\n", 1)
    said = {"kind": "Root", "shards": {"number": shards, "by": list(by)}}
    head = ["$schema: Dataset", "headers:", *_yaml({"name": name}, 2), "spec:", *_yaml(said, 2)]
    return "\n".join([*head, "  metadata:", metadata])


def _lines(name: str, found: Guess, url: str | None) -> Iterator[str]:
    yield "kind: DatasetSnapshot"
    yield "version: 1"
    yield "content:"
    yield from _yaml({"name": name, "kind": "Root"}, 2)
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
