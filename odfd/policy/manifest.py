"""Declares the manifests of trust: what must hold before datasets are used or served, and whose verdicts count."""

from __future__ import annotations

import sqlite3
from typing import Annotated, Final

import msgspec

from chain.codec.bind import plain_of
from chain.ids import KeyDid
from chain.model.wire import I32
from odfd.policy.policy import DatasetRule, Policy, parse_expression, quorum_mistakes
from odfd.resources import registry
from odfd.resources.manifest import Draft, describe
from odfd.resources.resource import Json, Resource
from odfd.resources.selectors import TARGETS_HELP, Targets
from odfd.resources.store import ResourceStore
from odfd.resources.types import ResourceType

TYPE: Final = "TrustPolicy"
MAX_PRIORITY: Final = 100
_RULE: Final = "trust-policy"


class TrustPolicySpec(msgspec.Struct, frozen=True, kw_only=True):
    """Rules for datasets of some names, in place of the settings; a mirror's own terms take precedence."""

    datasets: Annotated[Targets, describe(TARGETS_HELP)]
    use: (
        Annotated[str, describe("Facts that a transform needs to read a block of others, such as data & attested:2.")]
        | None
    ) = None
    serve: (
        Annotated[str, describe("Facts required before data is served to other nodes. Default: the settings'.")] | None
    ) = None
    priority: (
        Annotated[
            I32,
            describe(
                "-100 to 100: of several policies for a dataset the highest number decides, then the oldest policy."
            ),
        ]
        | None
    ) = None


class ValidatorResourceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A validator whose verdicts count; those of one group count once."""

    did: Annotated[str, describe("The validator's key, did:key:….")]
    group: (
        Annotated[str, describe("The group of validators it belongs to. Default: the name of the resource.")] | None
    ) = None


def check_trust_policy(draft: Draft) -> None:
    """Adds the mistakes in a TrustPolicy to those of its draft."""
    spec: TrustPolicySpec = draft.spec
    if not spec.datasets or not all(spec.datasets):
        draft.note("spec.datasets", "it is for no dataset", _RULE, "datasets: [food.%]")
    else:
        draft.check_targets("spec.datasets", spec.datasets)
    if spec.use is None and spec.serve is None:
        draft.note("spec", "it says nothing", _RULE, "use: data & attested:2, or serve, or both")
    for key, text in (("use", spec.use), ("serve", spec.serve)):
        if text is not None:
            draft.attempt(f"spec.{key}", parse_expression, text)
    if abs(spec.priority or 0) > MAX_PRIORITY:
        hint = f"-{MAX_PRIORITY} to {MAX_PRIORITY}"
        draft.note("spec.priority", f"a priority of {spec.priority}", "number-range", hint)


def kept_validator(name: str, spec: ValidatorResourceSpec, before: Json) -> Json:
    """Returns the form in which a Validator is stored: in no other group because it is renamed. Raises Invalid."""
    group = spec.group or (name if before is None else before["group"])
    return plain_of(ValidatorResourceSpec(did=str(KeyDid.parse(spec.did)), group=group))


def rules_in(connection: sqlite3.Connection) -> tuple[DatasetRule, ...]:
    """Reads the rules in force, the deciding one first. Raises Damaged."""
    found = ResourceStore(connection).all(TYPE)
    ordered = sorted(found, key=lambda each: (-(each.spec.get("priority") or 0), each.created_at, each.id))
    return tuple(map(_rule, ordered))


def unreachable(resource: Resource, policy: Policy) -> list[str]:
    """Describes quorums that the listed validators cannot reach; with one of them nothing is used or served."""
    rule = _rule(resource)
    said = {name: each for name, each in (("use", rule.use), ("serve", rule.serve)) if each is not None}
    return list(quorum_mistakes(said, len(policy.groups), policy.tolerated))


def _rule(resource: Resource) -> DatasetRule:
    spec = resource.spec
    use, serve = spec.get("use"), spec.get("serve")
    return DatasetRule(
        name=resource.name,
        datasets=tuple(spec["datasets"]),
        use=None if use is None else parse_expression(use),
        serve=None if serve is None else parse_expression(serve),
    )


VALIDATOR_TYPE: Final = ResourceType(
    names=registry.VALIDATOR,
    about="A validator whose verdicts count here.",
    spec=ValidatorResourceSpec,
    is_silent=True,
    kept=kept_validator, judged_at="spec.did", stands_for="did", made_by="the settings",
    instead="[policy.validators] of the settings names it: change it there, then reload",
    example="""\
$schema: Validator
headers:
  name: uni
spec:
  did: did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp
""",
)  # fmt: skip

TRUST_POLICY_TYPE: Final = ResourceType(
    names=registry.TRUST_POLICY,
    about="The facts that must hold before data of some datasets is used or served here.",
    spec=TrustPolicySpec,
    is_silent=True,
    check=check_trust_policy,
    example="""\
$schema: TrustPolicy
headers:
  name: strict
spec:
  datasets: ["food.%"]
  use: data & attested:2
""",
)  # fmt: skip
