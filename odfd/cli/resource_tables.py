"""Defines the table columns of declared resources by type, for ``get``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from chain.instant import Instant
from odfd.cli import formatting
from odfd.cli.table import WHOLE, TableColumn
from odfd.control import wire

_ENDPOINT: Mapping[str, str] = {"kind": "RestEndpoint"}
"""The ingress of a Source that declares none."""


def sets(part: str, now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    """Returns the columns of sets. ``part``: the field of the spec that holds a set's keys."""
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("KEYS", lambda row: ", ".join(sorted(row.spec[part])), most=80),
        TableColumn("PHASE", phase_text),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("GENERATION", lambda row: formatting.count(row.generation), right=True),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def elements(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    """Returns the columns of single variables and secrets."""
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("SET", lambda row: row.spec["set"].partition(":")[2]),
        TableColumn("KEY", lambda row: row.spec["key"]),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def projections(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    def told(row: wire.ResourceManifest, part: str) -> str:
        conditions = row.status.get("conditions", {})
        table = next((each["value"] for key, each in conditions.items() if key.endswith("/Table")), None)
        return formatting.NOTHING if table is None else formatting.count(table[part])

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("ROWS", lambda row: told(row, "rows"), right=True),
        TableColumn("LAG", lambda row: told(row, "lag"), right=True),
        TableColumn("PHASE", phase_text),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def portals(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    def rule(row: wire.ResourceManifest) -> str:
        k = (row.spec.get("kAnonymity") or {}).get("k")
        parts = [] if k is None else [f"k = {k}"]
        return ", ".join([*parts, *(f"{each['count']} >= {each['below']}" for each in row.spec.get("suppress") or ())])

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("FROM", lambda row: row.spec["input"].removeprefix("Dataset:"), most=80),
        TableColumn("TO", lambda row: row.spec["dataset"].removeprefix("Dataset:"), most=80),
        TableColumn("RULE", rule, most=80),
        TableColumn("PHASE", phase_text),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def sources(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    def where(row: wire.ResourceManifest) -> str:
        ingress = row.spec.get("ingress") or {}
        return str(next((ingress[part] for part in ("url", "path", "image") if part in ingress), formatting.NOTHING))

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("INGRESS", lambda row: (row.spec.get("ingress") or _ENDPOINT)["kind"]),
        TableColumn("FROM", where, most=80),
        TableColumn("PHASE", phase_text),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def trust_policies(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    def said(row: wire.ResourceManifest, part: str) -> str:
        return str(row.spec.get(part) or formatting.NOTHING)

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("DATASETS", lambda row: ", ".join(row.spec["datasets"]), most=60),
        TableColumn("USE", lambda row: said(row, "use"), most=60),
        TableColumn("SERVE", lambda row: said(row, "serve"), most=60),
        TableColumn("PRIORITY", lambda row: str(row.spec.get("priority") or 0), right=True),
        TableColumn("PHASE", phase_text),
        TableColumn("LABELS", lambda row: labels_text(row.labels), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def volumes(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    def told(row: wire.ResourceManifest) -> Mapping[str, Any]:
        conditions = row.status.get("conditions", {})
        return next((each["value"] for key, each in conditions.items() if key.endswith("/Usage")), {})

    def where(row: wire.ResourceManifest) -> str:
        spec = row.spec
        if spec["kind"] == "HostPath":
            return str(spec["path"])
        return "/".join(filter(None, (spec.get("endpoint", "s3:/"), spec["bucket"], spec.get("prefix"))))

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("PLACE", where, most=WHOLE),
        TableColumn("SLICES", lambda row: formatting.count(told(row).get("slices", 0)), right=True),
        TableColumn("USED", lambda row: formatting.size(told(row).get("bytes", 0)), right=True),
        TableColumn("CAPACITY", lambda row: (row.spec.get("capacity") or {}).get("storage", formatting.NOTHING)),
        TableColumn("PHASE", phase_text),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
        TableColumn("", lambda row: row.status.get("message", ""), most=WHOLE),
    )


def accounts(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    def callers(row: wire.ResourceManifest) -> str:
        said = row.headers.get("annotations", {})
        found: Mapping[str, Any] = next(
            (said[key] for key in said if key.rpartition("/")[2].lower() == "unixcallers"), {}
        )
        named = [*found.get("users", ()), *(f"group {each}" for each in found.get("groups", ()))]
        return ", ".join(named) or formatting.NOTHING

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("TYPE", lambda row: row.spec.get("accountType") or "User"),
        TableColumn("EMAIL", lambda row: row.spec["email"], most=80),
        TableColumn("CALLERS", callers, most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def groups(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def relations(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    def said(row: wire.ResourceManifest) -> str:
        relations, attributes = row.spec.get("relations") or (), row.spec.get("attributes") or ()
        texts = [f"{each['subject']} {each.get('value') or each['relation']} of {each['object']}" for each in relations]
        texts += [f"{each['object']} {each['name']}" for each in attributes if each["value"]]
        return "; ".join(texts) or formatting.NOTHING

    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("SAYS", said, most=200),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def nodes(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    def told(row: wire.ResourceManifest) -> Mapping[str, Any]:
        conditions: Mapping[str, Any] = row.status.get("conditions", {})
        return next((each["value"] for each in conditions.values()), {})

    return (
        TableColumn("NAME", lambda row: row.spec.get("name", row.name)),
        TableColumn("PEER ID", lambda row: told(row).get("peerId", formatting.NOTHING), most=WHOLE),
        TableColumn("VERSION", lambda row: told(row).get("version", formatting.NOTHING)),
        TableColumn("LISTEN", lambda row: ", ".join(told(row).get("listen", ())) or formatting.NOTHING, most=200),
        TableColumn("NETWORKS", lambda row: ", ".join(told(row).get("networks", ())) or formatting.NOTHING, most=80),
        TableColumn("STARTED", lambda row: formatting.ago(row.updated_at, now)),
    )


def _signed_until(row: wire.ResourceManifest) -> str:
    """Formats the end of a name's record on IPFS, and the time when the node signs it again."""
    found = (each["value"] for key, each in row.status.get("conditions", {}).items() if key.endswith("/NameRecord"))
    said = next(found, None) or {}
    ends, renewed = (formatting.moment(said[key]) if key in said else "" for key in ("expiresAt", "renewsAt"))
    return f"{ends}, renewed {renewed}" if ends else formatting.NOTHING


def repositories(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("URL", lambda row: row.spec["url"], most=WHOLE),
        TableColumn("PHASE", phase_text),
        TableColumn("SIGNED UNTIL", _signed_until),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
    )


def webhooks(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    return (
        TableColumn("NAME", lambda row: row.name),
        TableColumn("URL", lambda row: row.spec["url"], most=80),
        TableColumn("PHASE", phase_text),
        TableColumn("CONDITIONS", lambda row: conditions_text(row.status), most=80),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
        TableColumn("", lambda row: row.status.get("message", ""), most=WHOLE),
    )


def resources(now: Instant) -> tuple[TableColumn[wire.ResourceManifest], ...]:
    return (
        TableColumn("TYPE", lambda row: row.type),
        TableColumn("NAME", lambda row: row.name),
        TableColumn("PHASE", phase_text),
        TableColumn("CONDITIONS", lambda row: conditions_text(row.status), most=80),
        TableColumn("RETRY", lambda row: formatting.moment(row.status.get("retryAt"))),
        TableColumn("GENERATION", lambda row: formatting.count(row.generation), right=True),
        TableColumn("CHANGED", lambda row: formatting.ago(row.updated_at, now)),
        TableColumn("", lambda row: row.status.get("message", ""), most=WHOLE),
    )


def phase_text(row: wire.ResourceManifest) -> str:
    """Formats the phase: ``Failed(code)`` after a failure; with a star if it is about an older generation."""
    phase, code = row.status.get("phase", formatting.NOTHING), row.status.get("code")
    behind = "" if row.status.get("observedGeneration") == row.generation else "*"
    return (f"{phase}({code})" if phase == "Failed" else phase) + behind


def conditions_text(status: Mapping[str, Any]) -> str:
    """Formats conditions by the last part of their URIs."""
    conditions = {key.rpartition("/")[2]: each["value"] for key, each in status.get("conditions", {}).items()}
    return labels_text(conditions)


def labels_text(labels: Mapping[str, Any]) -> str:
    """Formats labels as ``-l`` takes them."""
    shown = (f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in sorted(labels.items()))
    return ",".join(shown) or formatting.NOTHING
