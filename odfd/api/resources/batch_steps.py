"""Turns what the manifests of an apply state into what is stored, with what is renamed together and what is meant.

Reads the store of the connection that it is given, and writes nothing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from chain.codec.bind import plain_of
from chain.errors import Conflict, Invalid
from odfd.datasets.catalog import TYPE as DATASET
from odfd.datasets.catalog import Catalog
from odfd.mirrors.mirror_spec import TYPE as MIRROR
from odfd.network.joined_networks import NETWORK
from odfd.resources.manifest import Draft
from odfd.resources.plan import DesiredResource, PlannedResource, renaming
from odfd.resources.references import FinalState
from odfd.resources.registry import OF_ACCOUNTS
from odfd.resources.resource import Json, Resource
from odfd.resources.store import ResourceStore

NAMESAKES: Final = {DATASET: MIRROR, MIRROR: DATASET}
"""Types of which one of each, for one dataset, have the same name."""


def waiting(planned: PlannedResource, draft: Draft, store: ResourceStore, batch: Sequence[Resource]) -> PlannedResource:
    """Adds a warning for each reference to what is not here, with the nearest name of its own account."""
    if planned.action == "unchanged":
        return planned
    told = []
    for each in planned.dangling:
        type_, _, name = each.key.partition(":")
        account = planned.after.account if type_ in OF_ACCOUNTS else None
        known = {row.name for row in store.rows(type_) if row.account == account}
        known |= {other.name for other in batch if (other.type, other.account) == (type_, account)}
        near = difflib.get_close_matches(name, sorted(known), n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        told.append(f"{draft.place(each.path)}: no {type_.lower()} {name!r} here{meant}; it begins when that is here")
    return msgspec.structs.replace(planned, warnings=(*planned.warnings, *told))


def desired_of(draft: Draft) -> DesiredResource:
    return DesiredResource(
        type=draft.type.name,
        name=draft.headers.name,
        id=draft.headers.id,
        account=draft.headers.account,
        labels=draft.headers.labels or {},
        annotations=draft.headers.annotations or {},
        spec=plain_of(draft.spec),
        place=draft.place("headers.name"),
        is_partial=draft.is_partial,
    )


def namesakes(desired: Sequence[DesiredResource], store: ResourceStore, manager: str) -> Iterator[DesiredResource]:
    """Yields the mirrors of renamed datasets, and the datasets of renamed mirrors: both have one name."""
    told = {each.id for each in desired} | {(each.type, each.name.casefold()) for each in desired if each.id is None}
    for each in desired:
        held = None if each.id is None or each.type not in NAMESAKES else store.get(each.id)
        if held is None or held.type != each.type or held.did is None or held.name == each.name:
            continue
        other = store.with_did(NAMESAKES[each.type], held.did)
        if other is not None and other.id not in told and (other.type, other.key) not in told:
            yield renaming(other, each.name, each.place, manager)


def rename_faults(planned: PlannedResource, batch: Sequence[PlannedResource], catalog: Catalog) -> Iterator[Invalid]:
    """Yields a fault for each new name that something cannot have."""
    before, after = planned.before, planned.after
    if before is None or before.name == after.name:
        return
    if after.type == NETWORK:
        text = f"nodes meet by the name of their network: {after.name} is another one than {before.name}"
        yield Invalid(text, rule="network-name", hint=f"odfctl network leave {before.name}, and apply {after.name}")
    if after.type == DATASET:
        yield from catalog.inner_fault(after.name, after.account)
    for other in batch:
        is_same = other.after.type == NAMESAKES.get(after.type) and other.after.did == after.did is not None
        if is_same and other.after.name != after.name:
            text = f"{after.type} {after.name} and {other.after.type} {other.after.name} are one dataset"
            yield Invalid(text, rule="mirror-name", hint="give both the same name, or leave one of them out")


def meaning(each: Resource, final: FinalState) -> Resource:
    """Resolves the references of a resource to others of the same batch."""
    references = {key: final.resolved(key, held, each.account) for key, held in each.references.items()}
    return msgspec.structs.replace(each, references=references)


def standing_of(
    planned: PlannedResource,
    present: Mapping[str, Resource],
    store: ResourceStore,
    dids: Mapping[tuple[str | None, str], str],
) -> Resource:
    """Returns the resource to store, with the status and the object that it has now. Raises Conflict.

    ``present``: what stands now, by id.
    """
    after, held = planned.after, present.get(planned.after.id)
    if (held is None) != (planned.before is None):
        text = f"the {after.type} {after.name} {'is gone' if held is None else 'came'} meanwhile"
        raise Conflict(text, rule="head-moved", hint="apply it again")
    # A handover that came meanwhile gave it another object.
    stands_for = after.did if held is None else held.did
    did = stands_for or (dids.get((after.account, after.key)) if after.type == "Dataset" else None)
    if held is None and did is not None and (back := store.with_did(after.type, did)) is not None:
        held = back  # the data of a deleted dataset was taken back for it
        after = msgspec.structs.replace(after, id=back.id, generation=back.generation + 1, created_at=back.created_at)
    return msgspec.structs.replace(after, did=did, status=after.status if held is None else held.status)


def dataset_spec(desired: DesiredResource, before: Resource | None) -> Json:
    """Returns the spec to store of a dataset, without its did, which the resource has. Raises Invalid.

    A spec of a did alone declares nothing: what stands stays as it is. So do fields that a snapshot cannot state.
    """
    spec = {key: value for key, value in desired.spec.items() if key != "did"}
    if spec:
        held = None if before is None else before.spec
        spec = {**held, **spec} if desired.is_partial and held is not None else spec
        is_same = held is not None and {key: value for key, value in held.items() if key != "did"} == spec
        return held if is_same else spec
    if before is None or before.did != desired.spec["did"]:
        text = f"there is no dataset {desired.name} with the id {desired.spec['did'][:120]}"
        hint = "mirror it first; or declare it: spec needs kind and metadata"
        raise Invalid(text, rule="dataset-did", hint=hint)
    return before.spec


def sets_of(store: ResourceStore, name: str, account: str | None) -> tuple[Resource | None, Resource | None]:
    """Returns the sets of values of a dataset, which have its name and its account."""
    return store.named("VariableSet", name, account), store.named("SecretSet", name, account)
