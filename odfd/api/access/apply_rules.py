"""Decides what accounts may apply: their own datasets over readable inputs, and relations over what they own.

The decision comes before planning, because a plan reveals what exists. Names are unique in a node, so an account learns
that a name is taken, and nothing more, in the same words whatever has that name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from chain.codec.bind import plain_of
from chain.errors import Fault, Invalid, NotFound, Refused
from chain.model.events import SetPollingSource
from odfd.access.manifest import RELATIONS, RelationsSpec
from odfd.access.relations import ADMIN, Action, Role
from odfd.api.access.guard import Guard
from odfd.api.access.tasks import TaskOwners
from odfd.api.resources.apply_terms import ApplyTerms
from odfd.api.resources.desired_state import DesiredState
from odfd.control import wire
from odfd.resources.declared import DeclaredStore
from odfd.resources.manifest import Draft
from odfd.resources.references import ANY, FinalState, reference_key, references_of

TYPES: Final = ("Dataset", RELATIONS)
"""Types that accounts may apply. The others configure the node, or act in its owner's name."""
_VALUES: Final = ("VariableSet", "SecretSet")


def apply(guard: Guard, tasks: TaskOwners, operation: Any) -> Any:
    """Restricts ``datasets.apply``."""

    async def guarded(request: wire.ApplyRequest) -> wire.TaskRef:
        guard.identified("to apply manifests", Role.MAINTAINER)
        if request.prune is not None:
            raise guard.owner_only("to prune")
        judge = partial(_judge, guard)
        ref: wire.TaskRef = tasks.noted(
            guard.subject, await operation(request, ApplyTerms(account=guard.subject.account, judge=judge))
        )
        return ref

    return guarded


def _judge(guard: Guard, wanted: DesiredState) -> None:
    """Raises a fault for the first thing that the account may not apply. Blocking."""
    legacy = next((each for each in wanted.snapshots if each.is_legacy), None)
    if legacy is not None:
        text = f"a DatasetSnapshot names no account, and {legacy.name} would be the node's owner's"
        raise Refused(text, rule="access-legacy", place=legacy.manifest.place(), hint="write $schema: Dataset")
    batch = {(each.type.name, each.headers.name.casefold()) for each in wanted.drafts}
    state = guard.state()
    with guard.home.database.read() as connection:
        store = DeclaredStore(connection)
        for draft in wanted.drafts:
            for fault in _faults(_Judged(guard, state, store, batch), draft):
                fault.place = fault.place or draft.place("headers.name")
                raise fault


class _Judged:
    """The facts by which one apply is judged."""

    def __init__(self, guard: Guard, state: Any, store: DeclaredStore, batch: set[tuple[str, str]]) -> None:
        self.guard, self.state, self.store, self.batch = guard, state, store, batch
        self.final = FinalState((), store)


def _faults(by: _Judged, draft: Draft) -> Iterator[Fault]:
    kind, headers = draft.type.name, draft.headers
    if kind not in TYPES:
        yield by.guard.owner_only(f"to apply a {kind}")
    held = by.store.named(kind, headers.name) if headers.id is None else by.store.get(headers.id)
    if held is not None or headers.id is not None:
        yield from _standing_faults(by, draft, held)
    account = headers.account
    if account is not None and by.guard.account(account) is None:
        text = f"{kind} {headers.name} would be of the account {account[:120]}, and you act as {by.guard.subject.name}"
        yield Refused(text, rule="access-account", place=draft.place("headers.account"), hint="leave the account out")
    if kind == "Dataset":
        yield from _dataset_faults(by, draft)
    if isinstance(draft.spec, RelationsSpec):
        yield from _relation_faults(by, draft)


def check_name(guard: Guard, name: str, before: str) -> None:
    """Raises Invalid for a name that is taken by something that the subject cannot read. Blocking."""
    state = guard.state()
    with guard.home.database.read() as connection:
        store = DeclaredStore(connection)
        found = [each for kind in ("Dataset", *_VALUES) if (each := store.named(kind, name)) is not None]
    if name.casefold() != before.casefold() and any(guard.role_of(state, each.id) is None for each in found):
        raise _taken("Dataset", name)


def _standing_faults(by: _Judged, draft: Draft, held: Any) -> Iterator[Fault]:
    kind, headers = draft.type.name, draft.headers
    role = None if held is None or held.type != kind else by.guard.role_of(by.state, held.id)
    if role is None and headers.id is not None:
        yield Invalid(f"headers.id: there is no {kind} with the id {headers.id}", rule="no-such-id",
                      hint="leave the id out: the node gives one")  # fmt: skip
    elif role is None:
        yield _taken(kind, headers.name)
    elif (denied := by.guard.denial(by.state, held.id, Action.MAINTAIN, f"{kind}:{held.name}")) is not None:
        yield denied
    elif headers.account is not None and by.guard.account(headers.account) != held.account:
        denied = by.guard.denial(by.state, held.id, Action.OWN, f"{kind}:{held.name}")
        if denied is not None:
            yield denied


def _dataset_faults(by: _Judged, draft: Draft) -> Iterator[Fault]:
    for number, event in enumerate(draft.spec.metadata):
        if isinstance(event, SetPollingSource):
            text = "a polling source is read by the node in its owner's name: their files, networks and secrets"
            place = draft.place(f"spec.metadata[{number}]")
            yield Refused(text, rule="access-source", place=place, hint="push data in: kind: AddPushSource")
    for kind in _VALUES:  # a source of the dataset would read them
        named = by.store.named(kind, draft.headers.name)
        if named is not None and by.guard.denial(by.state, named.id, Action.WRITE, "") is not None:
            yield _taken("Dataset", draft.headers.name)
    for each in references_of(type(draft.spec), plain_of(draft.spec)):
        if each.type == "Dataset" and not _reads(by, each.key):
            # One that may not be read is told of as one that is not here (R31).
            yield NotFound(f"no dataset {each.text[:120]!r} here", rule="dataset-ref", place=draft.place(each.path),
                           hint="odfctl get datasets lists what you may read")  # fmt: skip


def _relation_faults(by: _Judged, draft: Draft) -> Iterator[Fault]:
    spec: RelationsSpec = draft.spec
    if any(each.name == ADMIN for each in spec.attributes or ()):
        yield by.guard.owner_only("to make administrators")
    said = [(f"relations[{at}]", each.object) for at, each in enumerate(spec.relations or ())]
    said += [(f"attributes[{at}]", each.object) for at, each in enumerate(spec.attributes or ())]
    for part, text in said:
        key = reference_key(text, ANY)
        place = draft.place(f"spec.{part}.object")
        if _in_batch(by, key):
            continue
        found = by.final.find(key)
        if found is None or by.guard.role_of(by.state, found.id) is None:
            yield NotFound(f"there is no {text[:120]!r} that you may read", rule="resource", place=place,
                           hint="odfctl get lists what you may read")  # fmt: skip
        elif (denied := by.guard.denial(by.state, found.id, Action.OWN, text)) is not None:
            denied.place = place
            yield denied


def _reads(by: _Judged, key: str) -> bool:
    found = by.final.find(key)
    return _in_batch(by, key) or (found is not None and by.guard.role_of(by.state, found.id) is not None)


def _in_batch(by: _Judged, key: str) -> bool:
    type_, _, name = key.partition(":")
    return (type_, name) in by.batch


def _taken(kind: str, name: str) -> Invalid:
    return Invalid(f"{name} is a name of others", rule="name-taken", hint=f"choose another name for the {kind}")
