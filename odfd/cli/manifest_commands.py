"""Applies the manifest that a command stands for; ``-v`` prints it, so that it can be kept and applied by hand."""

from __future__ import annotations

import json
from typing import Any, Final

from odfd import output
from odfd.cli import kinds
from odfd.cli.progress import apply_manifests
from odfd.cli.session import Session, to_yaml
from odfd.control import wire

_WRITTEN: Final = ("labels", "annotations")


def declare(session: Session, type_: str, name: str, spec: dict[str, Any], *, key: str | None = None) -> None:
    """Applies one manifest, and prints its warnings. Raises the fault that prevents it.

    ``key``: field of the spec that identifies resources of this type instead of the name: an existing one keeps its
    name. Existing labels and annotations are kept too.
    """
    standing = kinds.list_resources(session.client, kinds.find(type_)).value
    same = [each for each in standing if _is_same(each, name, spec, key)]
    headers: dict[str, Any] = {"name": same[0].name if same else name}
    headers |= {part: same[0].headers[part] for part in _WRITTEN if same and same[0].headers.get(part)}
    manifest = {"$schema": type_, "headers": headers, "spec": spec}
    (item, *_) = apply_manifests(session, [manifest_text(session, type_, manifest)]).value.items
    for warning in item.warnings:
        session.remark(f"warning: {item.name}: {warning}")
    if item.fault is not None:
        raise item.fault.fault()


def manifest_text(session: Session, source: str, manifest: dict[str, Any]) -> wire.ManifestText:
    """Returns the manifest of a command for sending; with ``-v`` also prints it."""
    if session.verbose:
        output.remark(to_yaml(manifest).rstrip())
    return wire.ManifestText(source=source, text=json.dumps(manifest))


def _is_same(each: wire.ResourceManifest, name: str, spec: dict[str, Any], key: str | None) -> bool:
    if key is None:
        return each.name.casefold() == name.casefold()
    return each.spec is not None and each.spec.get(key) == spec[key]
