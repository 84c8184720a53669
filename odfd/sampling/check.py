"""A manifest that was written is read again, so that nobody is given one that cannot be applied."""

from __future__ import annotations

from typing import Any

from chain.codec.manifest import from_builtins, parse_manifests
from chain.errors import Invalid
from chain.model.events import AddPushSource, DatasetSnapshot, SetPollingSource
from chain.model.source import ReadStep
from odfd.datasets.creation import with_columns


def proven(text: str, name: str) -> ReadStep:
    """The read step of a manifest's source. Raises Invalid."""
    (manifest,) = parse_manifests(text, f"{name}.yaml")
    assert isinstance(manifest.content, DatasetSnapshot)
    for event in manifest.content.metadata:
        found = with_columns(event)
        if isinstance(found, AddPushSource | SetPollingSource):
            return found.read
    raise Invalid(f"{name} has no source", rule="new-source")


def read_of(source: dict[str, Any]) -> ReadStep:
    """The read step of a source, as a daemon tells it. Raises Invalid."""
    kind = SetPollingSource if source.get("kind") == "SetPollingSource" or "fetch" in source else AddPushSource
    found = from_builtins(kind, {"kind": kind.__struct_config__.tag, **source})
    assert isinstance(found, AddPushSource | SetPollingSource)
    return found.read
