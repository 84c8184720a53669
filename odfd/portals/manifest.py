"""Defines a Portal: the private dataset, the root that publishes its rows, and the rule between them. Pure.

The resource belongs to the node's owner, and no peer and no account sees it: the chain of the root has the rule, and
only a salted hash of the private dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec

from chain.model.portal import MAX_COLUMNS, MAX_LEAST, MAX_SUPPRESSED, RULE, KAnonymity, PortalRule, Suppression
from chain.model.wire import U32
from odfd.resources import registry
from odfd.resources.manifest import Draft, describe
from odfd.resources.references import reference_key, refers_to
from odfd.resources.types import ResourceType

TYPE: Final = "Portal"


class KAnonymitySpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many rows must be equal in the quasi-identifiers before any of them is published."""

    k: Annotated[U32, describe("Fewest rows of a block that must be equal in all quasi-identifiers; at least 2.")]
    quasi_identifiers: Annotated[
        tuple[str, ...], describe("Columns by which individuals could be identified, such as town, age, event_time.")
    ]


class SuppressionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that are left out because they stand for too few."""

    count: Annotated[str, describe("The column that states how many individuals a row stands for.")]
    below: Annotated[U32, describe("Rows that stand for fewer are left out; at least 2.")]
    groups: Annotated[tuple[str, ...], describe("Columns that distinguish groups; each group is published only once.")]


class PortalSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The private dataset, the dataset that its rows are published in, and the rule."""

    input: Annotated[str, describe("The private dataset, one of this node's own."), refers_to("Dataset")]
    dataset: Annotated[
        str,
        describe("The dataset that gets the rows: a source dataset of this node without a source."),
        refers_to("Dataset"),
    ]
    k_anonymity: Annotated[KAnonymitySpec, describe("The rule; it is checked for the rows of each block.")] | None = (
        None
    )
    suppress: (
        Annotated[tuple[SuppressionSpec, ...], describe("Rows that stand for few, which are left out.")] | None
    ) = None


def check_portal(draft: Draft) -> None:
    """Adds the mistakes in a Portal to its draft."""
    spec: PortalSpec = draft.spec
    keys = [draft.attempt(f"spec.{name}", _key, getattr(spec, name)) for name in ("input", "dataset")]
    if keys[0] is not None and keys[0] == keys[1]:
        text = "a portal gives rows to another dataset than it takes them from"
        draft.note("spec.dataset", text, RULE, "declare a source dataset for them: kind: Root, without a source")
    if spec.k_anonymity is None and not spec.suppress:
        draft.note("spec", "a portal without a rule protects no individual", RULE, "say kAnonymity, suppress or both")
    if len(spec.suppress or ()) > MAX_SUPPRESSED:
        draft.note("spec.suppress", f"{len(spec.suppress or ())} of them", RULE, f"at most {MAX_SUPPRESSED}")
    for path, text, hint in _mistakes(spec):
        draft.note(path, text, RULE, hint)


def _key(text: str) -> str:
    return reference_key(text, "Dataset")


def _mistakes(spec: PortalSpec) -> Iterator[tuple[str, str, str]]:
    if spec.k_anonymity is not None:
        yield from _least("spec.kAnonymity.k", spec.k_anonymity.k)
        yield from _columns("spec.kAnonymity.quasiIdentifiers", spec.k_anonymity.quasi_identifiers)
    for number, each in enumerate(spec.suppress or ()):
        path = f"spec.suppress[{number}]"
        yield from _least(f"{path}.below", each.below)
        yield from _columns(f"{path}.groups", each.groups)
        yield from _columns(f"{path}.count", (each.count,))
        if each.count in each.groups:
            yield f"{path}.groups", f"{each.count} is the count, and distinguishes no groups", "leave it out"


def _least(path: str, number: int) -> Iterator[tuple[str, str, str]]:
    if not 2 <= number <= MAX_LEAST:
        yield (
            path,
            f"{number} protects no individual" if number < 2 else f"{number:,} is too many",
            f"2 to {MAX_LEAST:,}",
        )


def _columns(path: str, names: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    if not 0 < len(names) <= MAX_COLUMNS or not all(0 < len(name) <= 256 for name in names):
        yield path, "names of columns are missing, too many or too long", f"1 to {MAX_COLUMNS} names"
    elif len(set(names)) < len(names):
        yield path, "a column is named twice", "name each once"


def spec_of(spec: Mapping[str, Any]) -> PortalSpec:
    """Returns a spec, that was checked before, from its plain form."""
    return msgspec.convert(spec, PortalSpec)


def rule_of(spec: PortalSpec, input_hash: str) -> PortalRule:
    """Returns the rule for the chain. ``input_hash`` stands for the private dataset."""
    said = spec.k_anonymity
    return PortalRule(
        input=input_hash,
        k_anonymity=None if said is None else KAnonymity(k=said.k, quasi_identifiers=said.quasi_identifiers),
        suppress=tuple(
            Suppression(count=each.count, below=each.below, groups=each.groups) for each in spec.suppress or ()
        ),
    )


PORTAL_TYPE: Final = ResourceType(
    names=registry.PORTAL,
    about="Publishes rows of a private dataset in another one, by a rule that is checked for every "
    "block (odfctl docs portals).",
    spec=PortalSpec,
    is_silent=True, follows_datasets=True,
    check=check_portal,
    example="""\
$schema: Portal
headers:
  name: wages
spec:
  input: Dataset:wages-by-town
  dataset: Dataset:wages-published
  suppress:
  - {count: people, below: 5, groups: [event_time, town]}
""",
)  # fmt: skip
