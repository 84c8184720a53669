"""Declares the manifest of a TrustPolicy: what must hold for some datasets before they are used or served here."""

from __future__ import annotations

import sqlite3
from typing import Annotated, Final

import msgspec

from chain.model.wire import I32
from odfd.resources.declared import DeclaredResource, DeclaredStore
from odfd.resources.manifest import Draft, described
from odfd.trust.policy.policy import DatasetRule, Policy, parse_expression, quorum_mistakes

TYPE: Final = "TrustPolicy"
MAX_PRIORITY: Final = 100
_RULE: Final = "trust-policy"


class TrustPolicySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for datasets of some names, in place of the settings; a mirror's own terms take precedence."""

    datasets: Annotated[tuple[str, ...], described("Names of datasets; % stands for any text, _ for one character.")]
    use: (
        Annotated[str, described("Facts required before a query or transform uses data, such as data & attested:2.")]
        | None
    ) = None
    serve: (
        Annotated[str, described("Facts required before data is served to others. Default: the settings'.")] | None
    ) = None
    priority: (
        Annotated[
            I32,
            described(
                "-100 to 100: of several policies for a dataset the highest number decides, then the oldest policy."
            ),
        ]
        | None
    ) = None


def check_trust_policy(draft: Draft) -> None:
    """Adds the mistakes in a TrustPolicy to those of its draft."""
    spec: TrustPolicySpec = draft.spec
    if not spec.datasets or not all(spec.datasets):
        draft.note("spec.datasets", "it is for no dataset", _RULE, "datasets: [food.%]")
    if spec.use is None and spec.serve is None:
        draft.note("spec", "it says nothing", _RULE, "use: data & attested:2, or serve, or both")
    for key, text in (("use", spec.use), ("serve", spec.serve)):
        if text is not None:
            draft.attempt(f"spec.{key}", parse_expression, text)
    if abs(spec.priority or 0) > MAX_PRIORITY:
        hint = f"-{MAX_PRIORITY} to {MAX_PRIORITY}"
        draft.note("spec.priority", f"a priority of {spec.priority}", "number-range", hint)


def rules_in(connection: sqlite3.Connection) -> tuple[DatasetRule, ...]:
    """Reads the rules in force, the deciding one first. Raises Damaged."""
    found = DeclaredStore(connection).all(TYPE)
    ordered = sorted(found, key=lambda each: (-(each.spec.get("priority") or 0), each.created_at, each.id))
    return tuple(map(_rule, ordered))


def unreachable(resource: DeclaredResource, policy: Policy) -> list[str]:
    """Describes quorums that the listed validators cannot reach; with one of them nothing is used or served."""
    rule = _rule(resource)
    said = {name: each for name, each in (("use", rule.use), ("serve", rule.serve)) if each is not None}
    return list(quorum_mistakes(said, len(policy.groups), policy.tolerated))


def _rule(resource: DeclaredResource) -> DatasetRule:
    spec = resource.spec
    use, serve = spec.get("use"), spec.get("serve")
    return DatasetRule(
        name=resource.name,
        datasets=tuple(spec["datasets"]),
        use=None if use is None else parse_expression(use),
        serve=None if serve is None else parse_expression(serve),
    )
