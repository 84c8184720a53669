"""Plans an apply: which resources are created, updated or unchanged, with ids and generations. Pure; writes nothing.

Names are checked as they will be after the whole batch, so that two resources may swap theirs. Ids are given in the
order of types and names, so that the order of manifests has no effect.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

import msgspec

from chain.errors import Conflict, Invalid
from chain.instant import Instant
from odfd.resources.changes import changes_of, difference
from odfd.resources.owners import Parts, name_fault, owned_fault
from odfd.resources.references import FinalState, Reference, ResourceLookup, find_cycle
from odfd.resources.registry import OF_ACCOUNTS, OWNER
from odfd.resources.resource import ACCOUNT, Json, Resource, ResourceHandle, derived_id

APPLY: Final = "odfctl"
"""The default name of the manager that applies manifests."""
LABEL: Final = "odfctl-label"
"""The manager of labels and annotations set by hand: an apply leaves them alone."""
Action: TypeAlias = Literal["created", "updated", "unchanged"]


class DesiredResource(msgspec.Struct, frozen=True, kw_only=True):
    """One resource as a user declares it."""

    type: str
    name: str
    id: str | None = None
    account: str | None = None
    """Name or id of the Account that shall own it; ``None`` leaves that as it is."""
    labels: Mapping[str, Json] = {}
    annotations: Mapping[str, Json] = {}
    spec: Json
    is_kept: bool = False
    """Whether the spec has the form in which it is stored."""
    is_partial: bool = False
    """Whether labels, annotations and fields of the spec that it does not state stay as they are."""
    place: str = ""
    """Where it was written, as ``file:line``."""


class PlannedResource(msgspec.Struct, frozen=True, kw_only=True):
    """The planned change of one resource."""

    action: Action
    before: Resource | None
    after: Resource
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    dangling: tuple[Reference, ...] = ()
    """References to what was never here; the resource waits for it."""

    @property
    def has_new_spec(self) -> bool:
        """Whether it is new, or has another spec."""
        return self.action == "created" or (self.before is not None and self.before.spec != self.after.spec)

    @property
    def gives_up_name(self) -> bool:
        """Whether what is here gets another name or account, so that another one may have the name."""
        before, after = self.before, self.after
        return before is not None and (before.account, before.key) != (after.account, after.key)


def renaming(held: Resource, name: str, place: str = "", manager: str = APPLY) -> DesiredResource:
    """Returns what stands, under another name. ``manager``: whose labels it states, as those of others stay anyway."""
    labels, annotations = (
        {key: value for key, value in values.items() if held.managers.get(f"{part}.{key}", APPLY) == manager}
        for part, values in (("labels", held.labels), ("annotations", held.annotations))
    )
    return DesiredResource(
        type=held.type, name=name, id=held.id, labels=labels, annotations=annotations, spec=held.spec, is_kept=True,
        place=place,
    )  # fmt: skip


Walk: TypeAlias = Callable[[str, Json], Iterable[Reference]]
"""Yields the references in a spec of a type."""
PreApply: TypeAlias = Callable[[DesiredResource, Resource | None, str], Json]


class Generated(Protocol):
    """A resource, or a view of one."""

    @property
    def generation(self) -> int: ...


def check_generation(held: Generated | None, generation: int, name: str) -> None:
    """Raises Conflict if a resource has not the generation that its editor saw, or is not here."""
    if held is not None and held.generation == generation:
        return
    what = "is not here" if held is None else f"has generation {held.generation}"
    raise Conflict(
        f"{name} {what}, not {generation}: others changed it meanwhile",
        rule="generation",
        hint="read it again, and change what it is now",
    )


class TypeRules(NamedTuple):
    """The rules of types on references, owned parts and stored specs; by default none, and specs stay as written."""

    kept: PreApply = lambda desired, *_: desired.spec
    """Returns the spec to store, given the desired resource, the present one and the id. Raises Invalid."""
    walk: Walk = lambda *_: ()
    parts: Parts = lambda _: ()
    object: Callable[[str, Json], str | None] = lambda *_: None
    """Returns what a resource of a type stands for, where its spec says that."""
    account: str | None = None
    """Id of the account that gets new resources that name no account."""
    owner: tuple[str, ...] = ()
    """The id and the did by which the account of the node's owner is written."""


NO_RULES: Final = TypeRules()


class Terms(NamedTuple):
    """The conditions of one apply."""

    manager: str = APPLY
    """The manager whose labels and annotations an apply replaces; those of others stay."""
    force: bool = False
    """Whether to change also what another resource made."""
    generation: int | None = None
    """The generation, as it was read, of the one resource that is changed."""


PLAIN: Final = Terms()


def plan(
    desired: Sequence[DesiredResource],
    standing: ResourceLookup,
    new_id: Callable[[], str],
    now: Instant,
    terms: Terms = PLAIN,
    rules: TypeRules = NO_RULES,
) -> tuple[list[PlannedResource], list[Invalid]]:
    """Plans in the order of ``desired``. A plan with faults must not be carried out."""
    faults: list[Invalid] = []
    homes = _homes(desired, standing, rules, faults)
    homes = _kept_homes(desired, homes, standing)
    names = {
        each.id: (home, each.name.casefold())
        for each, home in zip(desired, homes.told, strict=True)
        if each.id is not None
    }
    found = [_find_present(each, home, names, standing, faults) for each, home in zip(desired, homes.told, strict=True)]
    _check_twice(desired, homes.told, found, faults)
    _check_names(desired, homes.told, found, standing, faults)
    ids = {number: new_id() for number in _in_order(desired) if found[number] is None}
    ids |= {number: id_ for number, id_ in homes.ids.items() if number in ids}
    planned, places = [], []
    for number, (each, before) in enumerate(zip(desired, found, strict=True)):
        resource_id = ids[number] if before is None else before.id
        try:
            as_kept = msgspec.structs.replace(each, spec=rules.kept(each, before, resource_id))
        except Invalid as fault:
            fault.place = fault.place or each.place
            faults.append(fault)
            continue
        home = homes.told[number]
        did = rules.object(each.type, as_kept.spec)
        name_of = partial(_account_name, standing)
        planned.append(_plan_one(as_kept, before, (resource_id, home, did), now, terms.manager, name_of))
        places.append(each.place)
    if faults:
        return planned, faults
    final = FinalState([each.after for each in planned], standing)
    planned = [_referring(each, final, rules.walk) for each in planned]
    for one, place in zip(planned, places, strict=True):
        faults += _owning_faults(one, final, rules.parts, place, forced=terms.force)
    circle = _cycle_fault(planned, standing, places)
    return planned, faults if circle is None else [*faults, circle]


class _Homes(NamedTuple):
    """The account of each desired resource; ``None``: of the node's owner."""

    told: list[str | None]
    ids: dict[int, str]
    """Ids of new accounts of the batch, by number, since others of it are theirs."""


def _in_order(desired: Sequence[DesiredResource]) -> list[int]:
    return sorted(range(len(desired)), key=lambda number: (desired[number].type, desired[number].name.casefold()))


def _homes(
    desired: Sequence[DesiredResource], standing: ResourceLookup, rules: TypeRules, faults: list[Invalid]
) -> _Homes:
    """Finds the accounts, also among those that the batch makes."""
    told: list[str | None] = []
    ids: dict[int, str] = {}
    made = {each.name.casefold(): number for number, each in enumerate(desired) if each.type == ACCOUNT}
    state = FinalState((), standing)
    for each in desired:
        if each.account is not None and (
            each.account in rules.owner or (each.type == ACCOUNT and each.account == each.id)
        ):
            told.append(None)  # an account is shown as its own
        elif each.type not in OF_ACCOUNTS:
            told.append(None)
            if each.account is not None:
                text = f"headers.account: a {each.type} is of the node, and of no account"
                faults.append(Invalid(text, rule="account-type", hint="leave the account out", place=each.place))
        elif each.account is None:
            told.append(rules.account)
        elif (owner := state.account(each.account)) is not None:
            told.append(owner.id)
        elif (number := made.get(each.account.casefold())) is not None:
            told.append(ids.setdefault(number, derived_id(ACCOUNT, desired[number].name, desired[number].place)))
        elif each.account.casefold() == OWNER:
            told.append(None)
        else:
            told.append(None)
            text = f"headers.account: there is no Account {each.account[:120]!r}"
            faults.append(Invalid(text, rule="no-such-account", hint="apply it first", place=each.place))
    return _Homes(told, ids)


def _kept_homes(desired: Sequence[DesiredResource], homes: _Homes, standing: ResourceLookup) -> _Homes:
    """Returns the accounts after the batch: an id alone moves nothing."""
    told = list(homes.told)
    for number, each in enumerate(desired):
        held = None if each.id is None or each.account is not None else standing.get(each.id)
        if held is not None and held.type == each.type:
            told[number] = held.account
    return homes._replace(told=told)


def _account_name(standing: ResourceLookup, account: str | None) -> str:
    """Returns the name of an account, for people; its id if the batch makes it."""
    held = None if account is None else standing.get(account)
    return "the node" if account is None else account if held is None else held.name


def _referring(planned: PlannedResource, final: FinalState, walk: Walk) -> PlannedResource:
    """Resolves the references of a planned resource; one resolved before stays so unless its target is gone."""
    before = planned.before.references if planned.before is not None else {}
    references: dict[str, ResourceHandle | None] = {}
    warnings, dangling = [], []
    for each in walk(planned.after.type, planned.after.spec):
        held, found = before.get(each.key), final.resolve(each.key, before.get(each.key), planned.after.account)
        references[each.key] = found
        if found is None and held is None:
            dangling.append(each)
        if (
            held is not None
            and found is not None
            and found.id != held.id
            and (held.did is None or found.did != held.did)
        ):
            warnings.append(f"{each.path}: {each.text} is another {each.type} now: the one that was meant is gone")
    after = msgspec.structs.replace(planned.after, references=references)
    return msgspec.structs.replace(
        planned, after=after, warnings=(*planned.warnings, *warnings), dangling=tuple(dangling)
    )


def _owning_faults(
    planned: PlannedResource, final: FinalState, parts: Parts, place: str, *, forced: bool
) -> Iterable[Invalid]:
    """Yields a fault if people change an owned resource, or if a part would have the name of another."""
    if not forced and planned.action == "updated" and planned.before is not None and planned.before.owners:
        yield owned_fault(planned.before, place)
    try:
        made = list(parts(planned.after))
    except Invalid as fault:
        fault.place = fault.place or place
        yield fault
        return
    for part in made:
        other = final.find_named(part.type, part.name.casefold(), planned.after.account)
        taken = name_fault(planned.after, part, other)
        if taken is not None and other is not None and not _gives_up_its_name(other, final, parts):
            taken.place = place
            yield taken


def _gives_up_its_name(other: Resource, final: FinalState, parts: Parts) -> bool:
    """Whether the batch gives an owned resource another name, or takes it from the last of its owners.

    An owner that is not in the batch keeps what it has, whether or not it makes it now.
    """
    is_kept = is_renamed = False
    makers = [(found, owner.part) for owner in other.owners if (found := final.get(owner.id)) is not None]
    try:
        for maker, identity in makers:
            if maker.account != other.account:
                return True  # it goes to another account with its maker
            made: dict[str | None, str] = {
                part.part: part.name.casefold() for part in parts(maker) if part.type == other.type
            }
            if made.get(identity) == other.name.casefold():
                return False
            is_renamed |= identity in made
            is_kept |= identity not in made and not final.has_in_batch(maker.id)
    except Invalid:
        return False  # reported with that owner
    return bool(makers) and (is_renamed or not is_kept)


def _cycle_fault(planned: Sequence[PlannedResource], standing: ResourceLookup, places: Sequence[str]) -> Invalid | None:
    final = FinalState([each.after for each in planned], standing)

    def edges(resource_id: str) -> Iterable[str]:
        resource = final.get(resource_id)
        return [] if resource is None else [held.id for held in resource.references.values() if held is not None]

    cycle = find_cycle([each.after.id for each in planned if each.after.references], edges)
    if cycle is None:
        return None
    place = next((place for each, place in zip(planned, places, strict=True) if each.after.id in cycle), "")
    return cycle_fault([found.name for each in cycle if (found := final.get(each)) is not None], place)


def cycle_fault(names: Sequence[str], place: str) -> Invalid:
    """Returns the fault for a cycle; ``names``: those along it, the first also at the end."""
    text = f"they refer to each other in a circle: {' -> '.join(names)}"
    return Invalid(
        text, rule="reference-cycle", hint="derivations must not form a circle; leave one of them out", place=place
    )


def _find_present(
    desired: DesiredResource,
    home: str | None,
    names: Mapping[str, tuple[str | None, str]],
    standing: ResourceLookup,
    faults: list[Invalid],
) -> Resource | None:
    """Returns the present resource. ``names``: accounts and names that the batch gives to resources, by ids."""
    if desired.id is None:
        named = standing.find_named(desired.type, desired.name, home)
        # One that the batch renames, or gives to another account, leaves its name to a new one.
        own = None if named is None else (named.account, named.key)
        return None if named is not None and names.get(named.id, own) != own else named
    held = standing.get(desired.id)
    if held is None or held.type != desired.type:
        faults.append(
            Invalid(
                f"headers.id: there is no {desired.type} with the id {desired.id}",
                rule="no-such-id",
                hint="leave the id out: the node gives one",
                place=desired.place,
            )
        )
        return None
    return held


def _check_twice(
    desired: Sequence[DesiredResource],
    homes: Sequence[str | None],
    found: Sequence[Resource | None],
    faults: list[Invalid],
) -> None:
    """Adds a fault for each of several manifests of one resource."""
    places: dict[str, list[DesiredResource]] = defaultdict(list)
    for each, home, held in zip(desired, homes, found, strict=True):
        places[held.id if held is not None else f"{home} {each.type} {each.name.casefold()}"].append(each)
    for several in places.values():
        for each in several if len(several) > 1 else ():
            others = ", ".join(sorted(other.place for other in several if other is not each))
            text = f"headers.name: {each.type} {each.name} is written twice, also at {others}"
            faults.append(Invalid(text, rule="manifest-twice", hint="keep one of them", place=each.place))


def _check_names(
    desired: Sequence[DesiredResource],
    homes: Sequence[str | None],
    found: Sequence[Resource | None],
    standing: ResourceLookup,
    faults: list[Invalid],
) -> None:
    """Adds a fault for each name that another resource would still have after the batch."""
    moving = {held.id for held in found if held is not None}
    for each, home, held in zip(desired, homes, found, strict=True):
        if each.id is not None and held is None:
            continue  # reported already
        if held is not None and (held.account, held.key) == (home, each.name.casefold()):
            continue  # it has the name
        other = standing.find_named(each.type, each.name, home)
        if other is not None and (held is None or other.id != held.id) and other.id not in moving:
            text = f"headers.name: {each.name} is the name of another {each.type}, {other.id}"
            faults.append(Invalid(text, rule="name-taken", hint="choose another name", place=each.place))


def _plan_one(
    desired: DesiredResource,
    before: Resource | None,
    said: tuple[str, str | None, str | None],
    now: Instant,
    manager: str,
    name_of: Callable[[str | None], str],
) -> PlannedResource:
    """Plans one resource. ``said``: its id, its account, and what it stands for; ``name_of``: names an account."""
    labels, annotations, managers = _merge_kept(desired, before, manager)
    id_, home, did = said
    if before is None:
        after = Resource(
            id=id_, type=desired.type, name=desired.name, did=did, account=home, labels=labels,
            annotations=annotations, managers=managers, spec=desired.spec, created_at=now, updated_at=now,
        )  # fmt: skip
        return PlannedResource(action="created", before=None, after=after)
    after = msgspec.structs.replace(
        before, name=desired.name, account=home, did=before.did or did, labels=labels, annotations=annotations,
        managers=managers, spec=desired.spec,
    )  # fmt: skip
    changes = changes_of(before, after, name_of)
    if not changes:
        # A manifest that states a resource as it already is becomes its declaration, without a change.
        kept = before if before.spec is not None or desired.spec is None else after
        return PlannedResource(action="unchanged", before=before, after=kept)
    after = msgspec.structs.replace(after, generation=before.generation + 1, updated_at=now)
    warnings = tuple(_overwritten(before, after, manager))
    return PlannedResource(action="updated", before=before, after=after, changes=changes, warnings=warnings)


def _overwritten(before: Resource, after: Resource, manager: str) -> Iterable[str]:
    """Yields a warning if the spec of another manager, or a part of another resource, is overwritten."""
    wrote = before.managers.get("spec", APPLY)
    if before.spec is not None and wrote != manager and difference(before.spec, after.spec, ""):
        yield f"spec: {wrote} wrote it, and {manager} writes over it"
    for owner in before.owners:
        yield f"{owner.type} {owner.name} made it, and may make it again as it was"


def _merge_kept(
    desired: DesiredResource, before: Resource | None, manager: str
) -> tuple[Mapping[str, Json], Mapping[str, Json], Mapping[str, str]]:
    """Returns labels and annotations merged with those of other managers, and the manager of each."""
    managers = {} if before is None else dict(before.managers)
    parts: list[dict[str, Json]] = []
    for part in ("labels", "annotations"):
        held: Mapping[str, Json] = {} if before is None else getattr(before, part)
        if desired.is_partial:
            parts.append(dict(held))
            continue
        stated: Mapping[str, Json] = getattr(desired, part)
        others = {key: value for key, value in held.items() if managers.get(f"{part}.{key}", APPLY) != manager}
        for key in stated:
            managers.pop(f"{part}.{key}", None)
            if manager != APPLY:
                managers[f"{part}.{key}"] = manager
        parts.append({**others, **stated})
    if before is None or difference(before.spec, desired.spec, ""):
        managers.pop("spec", None)
        if manager != APPLY:
            managers["spec"] = manager
    standing = {
        f"{part}.{key}" for part, values in zip(("labels", "annotations"), parts, strict=True) for key in values
    }
    return parts[0], parts[1], {key: who for key, who in managers.items() if key == "spec" or key in standing}
