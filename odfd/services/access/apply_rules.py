"""Decides what accounts may apply: what is their own matter, over what they may use, and relations.

What acts by itself, as a Flow, acts with the rights of the account that has it, which are asked again at each use
(``odfd.access.uses``). The decision comes before planning, because a plan reveals what exists. An account has names of
its own, so it learns nothing of those of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from chain.codec.bind import plain_of
from chain.errors import Fault, Invalid, NotFound, Refused
from chain.model.events import SetPollingSource
from odfd.access.manifest import RelationsSpec
from odfd.access.relations import ADMIN, Action, Role
from odfd.control import wire
from odfd.flows.manifest import flow_of, paces
from odfd.flows.plan import Step, acted_on, needed_on_target, of_the_node
from odfd.flows.tasks import RUN, tasks_of
from odfd.flows.tasks import TYPE as TASK
from odfd.ingest.source_manifest import SourceSpec, endpoint_of
from odfd.portals.manifest import TYPE as PORTAL
from odfd.resources.label_schemas import ACCESS
from odfd.resources.manifest import Draft
from odfd.resources.plan import APPLY
from odfd.resources.references import ANY, FinalState, reference_key, references_of, with_names
from odfd.resources.registry import ACTING, OF_ACCOUNTS, OWNER
from odfd.resources.resource import Resource
from odfd.resources.selectors import is_pattern
from odfd.resources.store import ResourceStore
from odfd.services.access.calls import Call
from odfd.services.access.guard import Guard
from odfd.services.resources.apply import ApplyTerms
from odfd.store.catalog import TYPE as DATASET
from odfd.store.flow_runs import TYPE as FLOW


async def apply(call: Call, request: wire.ApplyRequest) -> wire.TaskRef:
    """Restricts ``applying.apply``."""
    call.guard.check_identified("to apply manifests", Role.MAINTAINER)
    if request.prune is not None:
        raise call.guard.owner_only("to prune")
    terms = ApplyTerms(account=call.guard.subject.account, judge=partial(_judge, call.guard))
    ref: wire.TaskRef = await call.begin(request, terms)
    return ref


def _judge(guard: Guard, drafts: Sequence[Draft]) -> Mapping[int, wire.ApplyItem]:
    """Raises a fault for the first thing that the account may not apply. Blocking.

    Returns items of what it may only read and which is here as it is written, so that a list that it got is applied.
    """
    settled = {}
    with guard.home.database.read() as connection:
        by = _Judged(guard, guard.state(), ResourceStore(connection), drafts)
        for at, draft in enumerate(drafts):
            for fault in _faults(by, draft):
                if (held := by.find_unchanged(draft)) is not None:
                    settled[at] = wire.ApplyItem(kind=held.type.lower(), name=held.name, action="unchanged", id=held.id)
                    break
                fault.place = fault.place or draft.place("headers.name")
                raise fault
    return settled


class _Judged:
    """The facts by which one apply is judged."""

    def __init__(self, guard: Guard, state: Any, store: ResourceStore, drafts: Sequence[Draft]) -> None:
        self.guard, self.state, self.store = guard, state, store
        self.final, owner = FinalState((), store), store.owner()
        self._owners = (owner["id"], owner["did"])
        held = [(draft, self.find_visible(draft)) for draft in drafts]
        self.batch = {(self.home(each), each.type.name, each.headers.name.casefold()): there for each, there in held}
        """What is here of each resource of the batch, by its account, type and name after it; ``None`` if it is new."""
        self.moved = {there.id for there in self.batch.values() if there is not None} - {
            there.id for (home, _, name), there in self.batch.items()
            if there is not None and (there.account, there.key) == (home, name)
        }  # fmt: skip
        """Ids of what the batch renames or moves, which its former name does not find after it."""

    def home(self, draft: Draft) -> str | None:
        """Returns the id of the account that the manifest is of, in which its references are looked up."""
        headers = draft.headers
        if headers.account is not None:
            return self.account(headers.account)[1]
        held = None if headers.id is None else self.store.get(headers.id)
        return self.guard.subject.account if held is None else held.account

    def account(self, ref: str) -> tuple[bool, str | None]:
        """Returns whether there is an account of a name, id or did; and its id, ``None`` for the node's owner's."""
        found = self.final.account(ref)
        if found is not None:
            return True, found.id
        return ref in self._owners or ref.casefold() == OWNER, None

    def acts_as(self, account: str) -> bool:
        """Whether the subject acts as an account, by its name, id or did."""
        id_ = self.account(account)[1]
        return id_ is not None and self.guard.account(id_) is not None

    def target(self, key: str, home: str | None) -> tuple[bool, Resource | None]:
        """Returns whether a reference finds what the batch makes; else what it finds after it and the subject may read.

        ``home``: the account in which a name without one is looked up.
        """
        type_, _, name = key.partition(":")
        owner, _, plain = name.rpartition("/")
        is_known, named = self.account(owner) if owner else (True, home)
        if not is_known:
            return False, None
        place = (named, type_, plain)
        if place in self.batch:
            held = self.batch[place]
            return held is None, held
        found = self.final.find(key, home)
        is_known = found is not None and self.guard.role_of(self.state, found.id) is not None
        return False, found if is_known and found is not None and found.id not in self.moved else None

    def find_visible(self, draft: Draft) -> Resource | None:
        """Returns what the manifest names, if the subject may know of it."""
        kind, headers = draft.type.name, draft.headers
        if headers.id is not None:
            found = self.store.get(headers.id)
        elif headers.account is None:
            found = self.store.find_named(kind, headers.name, self.guard.subject.account)
        else:
            is_account, owner = self.account(headers.account)
            found = self.store.find_named(kind, headers.name, owner) if is_account else None
        is_known = found is not None and found.type == kind and self.guard.role_of(self.state, found.id) is not None
        return found if is_known else None

    def find_unchanged(self, draft: Draft) -> Resource | None:
        """Returns what the subject may read and the manifest states as it is printed; ``None`` if it says more."""
        held, headers = self.find_visible(draft), draft.headers
        if held is None or self.guard.denial(self.state, held.id, Action.READ, held.name) is not None:
            return None
        said = headers.name, self.home(draft), headers.labels or {}, headers.annotations or {}
        is_same = said == (held.name, held.account, held.labels, held.annotations)
        if held.spec is None or not is_same:
            return None
        stands = with_names(draft.type.layout, held.spec, held.references)
        return held if plain_of(draft.spec) in (stands, {**stands, "did": held.did}) else None


def _faults(by: _Judged, draft: Draft) -> Iterator[Fault]:
    kind, headers = draft.type.name, draft.headers
    if kind not in OF_ACCOUNTS:
        yield by.guard.owner_only(f"to apply a {kind}")
    held = by.find_visible(draft)
    if held is not None:
        yield from _standing_faults(by, draft, held)
    elif headers.id is not None:
        yield Invalid(f"headers.id: there is no {kind} with the id {headers.id}", rule="no-such-id",
                      hint="leave the id out: the node gives one")  # fmt: skip
    elif headers.account is not None and not by.acts_as(headers.account):
        yield _account_fault(by, draft)
    if isinstance(draft.spec, RelationsSpec):
        yield from _relation_faults(by, draft)
        return
    if kind in ACTING:
        yield from _acting_faults(by, draft, held)
    yield from _source_faults(draft)
    yield from _reference_faults(by, draft)


def _standing_faults(by: _Judged, draft: Draft, held: Resource) -> Iterator[Fault]:
    """Yields the faults of a change of what is here: by who may not maintain it, or may not give it away."""
    account, what = draft.headers.account, f"{held.type}:{held.name}"
    action = Action.OWN if _changes_access(draft, held) else Action.MAINTAIN
    if (denied := by.guard.denial(by.state, held.id, action, what)) is not None:
        yield denied
    if account is None or by.account(account) == (True, held.account):
        return
    if (denied := by.guard.denial(by.state, held.id, Action.OWN, what)) is not None:
        yield denied
    if not by.acts_as(account):
        yield _account_fault(by, draft)


def _acting_faults(by: _Judged, draft: Draft, held: Resource | None) -> Iterator[Fault]:
    """Yields the faults of what acts by itself: on the node, too often, or for another account."""
    kind = draft.type.name
    if held is not None and (held.account is None or by.guard.account(held.account) is None):
        yield acts_for_others(by.guard, held)
    service = getattr(draft.spec, "service_account", None)
    if service is not None and by.guard.account(service.removeprefix("Account:")) is None:
        text = f"the {kind} would act with the rights of {service[:120]}, and you act as {by.guard.subject.name}"
        yield Refused(text, rule="access-account", place=draft.place("spec.serviceAccount"), hint="leave it out")
    if (matter := of_the_node(_tasks_of(draft))) is not None:
        fault = by.guard.owner_only(f"to {matter}")
        fault.place = draft.place("spec")
        yield fault
    flow = flow_of(draft) if kind == FLOW else None
    for path, text in () if flow is None else paces(flow):
        hint = "the node's owner may declare a Flow that runs more often"
        yield Invalid(text, rule="flow-duration", hint=hint, place=draft.place(path))


def acts_for_others(guard: Guard, held: Resource | wire.ResourceView) -> Refused:
    """Builds the fault for a change of what acts with rights that the subject need not have."""
    text = f"the {held.type} {held.name} acts with the rights of its account, and you act as {guard.subject.name}"
    return Refused(text, rule="access-account", hint="apply one of your own")


def _tasks_of(draft: Draft) -> Sequence[Step]:
    """Returns the tasks that a Flow, a FlowRun or a Task declares; none for other types."""
    if draft.type.name in (RUN, TASK):
        return tasks_of(draft)
    flow = flow_of(draft) if draft.type.name == FLOW else None
    return () if flow is None else flow.tasks


def _uses_of(draft: Draft) -> Iterator[tuple[str, str, Action]]:
    """Yields the key and the text of what a manifest does more to than read, with the action."""
    if draft.type.name == PORTAL:
        yield reference_key(draft.spec.dataset, DATASET), draft.spec.dataset, Action.WRITE
    tasks = _tasks_of(draft)
    yield from ((key, key.partition(":")[2], action) for key, action in acted_on(tasks))
    if draft.type.name in (FLOW, RUN) and draft.spec.target is not None and not is_pattern(draft.spec.target):
        key = reference_key(draft.spec.target, DATASET)
        yield key, draft.spec.target, needed_on_target([task for task in tasks if task.on in (None, key)])


def _changes_access(draft: Draft, held: Resource) -> bool:
    """Whether a manifest gives a resource other labels that decide who may read it, or takes them away."""
    stated = draft.headers.labels or {}
    return any(
        stated[key] != held.labels.get(key)
        if key in stated
        else key in held.labels and held.managers.get(f"labels.{key}", APPLY) == APPLY
        for key in ACCESS
    )


def _account_fault(by: _Judged, draft: Draft) -> Fault:
    """Builds the fault for a resource of others; in the same words whatever they have."""
    account, who = draft.headers.account or "", by.guard.subject.name
    text = f"{draft.type.name} {draft.headers.name} would be of the account {account[:120]}, and you act as {who}"
    return Refused(text, rule="access-account", place=draft.place("headers.account"), hint="leave the account out")


def _source_faults(draft: Draft) -> Iterator[Fault]:
    pushed = "AddPushSource"
    if isinstance(draft.spec, SourceSpec):
        places, pushed = ["spec.ingress"] if endpoint_of(draft.spec) is None else [], "RestEndpoint"
    else:
        events = getattr(draft.spec, "metadata", ())
        places = [f"spec.metadata[{at}]" for at, each in enumerate(events) if isinstance(each, SetPollingSource)]
    for place in places:
        text = "a polling source is read by the node in its owner's name: their files, networks and secrets"
        yield Refused(text, rule="access-source", place=draft.place(place), hint=f"push data in: kind: {pushed}")


def _reference_faults(by: _Judged, draft: Draft) -> Iterator[Fault]:
    """Yields a fault for what may not be read, in the words for what is not here, or not be used."""
    used = {key: (text, action) for key, text, action in _uses_of(draft)}
    named = [
        (each.key, each.text, draft.place(each.path)) for each in references_of(type(draft.spec), plain_of(draft.spec))
    ]
    for key, text, place in named:
        is_new, found = by.target(key, by.home(draft))
        if is_new:
            continue
        if found is None:
            yield _missing(key, text, place)
        elif key in used:
            denied = by.guard.denial(by.state, found.id, used[key][1], f"{found.type}:{found.name}")
            if denied is not None:
                denied.place = place
                yield denied


def _missing(key: str, text: str, place: str) -> NotFound:
    """Builds the fault for what is not here, and for what may not be read."""
    if key.partition(":")[0] == DATASET:
        name = text.removeprefix(f"{DATASET}:")[:120]
        return NotFound(f"no dataset {name!r} here", rule="dataset-ref", place=place,
                        hint="odfctl get datasets lists what you may read")  # fmt: skip
    return NotFound(f"there is no {text[:120]!r} that you may read", rule="resource", place=place,
                    hint="odfctl get lists what you may read")  # fmt: skip


def _relation_faults(by: _Judged, draft: Draft) -> Iterator[Fault]:
    spec: RelationsSpec = draft.spec
    if any(attribute.name == ADMIN for attribute in spec.attributes or ()):
        yield by.guard.owner_only("to make administrators")
    said = [(f"relations[{at}]", each.object) for at, each in enumerate(spec.relations or ())]
    said += [(f"attributes[{at}]", each.object) for at, each in enumerate(spec.attributes or ())]
    for part, text in said:
        key = reference_key(text, ANY)
        place = draft.place(f"spec.{part}.object")
        is_new, found = by.target(key, by.home(draft))
        if is_new:
            continue
        if found is None:
            yield NotFound(f"there is no {text[:120]!r} that you may read", rule="resource", place=place,
                           hint="odfctl get lists what you may read")  # fmt: skip
        elif (denied := by.guard.denial(by.state, found.id, Action.OWN, text)) is not None:
            denied.place = place
            yield denied
