"""Decides what a resource of an account may use, when it is used: what the account has, or may read then. Pure.

A reference is resolved when it is applied; whether it may be followed is asked here at each use, so that a use ends
with the grant that allowed it, and goes on when that is given again. Things of the node's owner may use everything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Protocol

from chain.errors import NotFound, Refused
from chain.ids import DatasetId
from odfd.access.relations import Action, Role
from odfd.resources.references import reference_key
from odfd.resources.resource import ACCOUNT, Resource
from odfd.resources.status import UNRESOLVED

SERVICE: Final = "serviceAccount"
SERVED: Final = ("Flow", "FlowRun", "Task")
"""The types of which a manifest may say as whom its tasks are done."""
NOT_GRANTED: Final = "access-use"
"""The rule of a use that the account has no right for."""


class AccountRights(Protocol):
    """Tells the rights of accounts as they are now."""

    def role(self, account: str, thing: str) -> Role | None:
        """Returns the role of an account on a resource, both by id; ``None`` if it may not know of it. Blocking."""
        ...

    def account_name(self, account: str) -> str: ...


class Lookup(Protocol):
    """Looks up the present resources."""

    def get(self, resource_id: str, /) -> Resource | None: ...
    def with_did(self, type_: str, did: str, /) -> Resource | None: ...


class DatasetLookup(Protocol):
    """Looks up the resource of the dataset that a chain is, or is inside of."""

    def resource_of(self, dataset: DatasetId, /) -> Resource | None: ...


class Used(Protocol):
    """A thing that is used. ``account``: the id of its account; ``None``: it belongs to the node's owner."""

    @property
    def id(self) -> str: ...
    @property
    def account(self) -> str | None: ...


class _Missing(NamedTuple):
    """Stands for what is not a resource here, on which nobody has rights."""

    id: str = ""
    account: str | None = None


class Uses:
    """Follows the references of resources, for whom they belong to."""

    def __init__(self, rights: AccountRights) -> None:
        self._rights = rights

    def acting(self, user: Resource) -> str | None:
        """Returns the account with whose rights a resource acts: its ``serviceAccount`` (RFC-019), else its own.

        Raises NotFound if that is not here.
        """
        said = user.spec.get(SERVICE) if user.type in SERVED and isinstance(user.spec, dict) else None
        if said is None:
            return user.account
        held = user.references.get(reference_key(said, ACCOUNT))
        if held is None:
            text = f"there is no account {said[:120]!r} here"
            raise NotFound(text, rule=UNRESOLVED, hint="it acts when that is here")
        return held.id

    def find_meant(self, store: Lookup, user: Resource | None, key: str, action: Action = Action.READ) -> Resource:
        """Returns the resource that a reference of a resource is resolved to, whatever its name is now.

        ``key`` is as in ``references``. Another resource that took the name since is not returned; one that was deleted
        and made again is, by its did. Raises NotFound; Refused if the account of ``user`` may not use it so.
        """
        handle = None if user is None else user.references.get(key)
        type_ = key.partition(":")[0]
        found = None if handle is None else store.get(handle.id)
        if found is None and handle is not None and handle.did is not None:
            found = store.with_did(type_, handle.did)
        if found is None or user is None:
            again = "" if user is None else f", and the {user.type} {user.name} again"
            raise NotFound(f"there is no {key}", rule=UNRESOLVED, hint=f"apply the {type_}{again}")
        if type_ != ACCOUNT:  # to act as it is no use of it
            self.check(self.acting(user), found, key, action)
        return found

    def check(self, account: str | None, thing: Used, what: str, action: Action = Action.READ) -> None:
        """Raises Refused if an account may not use a thing. ``what``: as the user of the thing names it."""
        if account is None or self.may(account, thing, action):
            return
        role = action.value.word
        hint = f"its owner grants the role {role}; it continues by itself then (odfctl docs access)"
        verb = "read" if action is Action.READ else f"act as {role} of"
        raise Refused(
            f"its account {self._rights.account_name(account)} may not {verb} {what}", rule=NOT_GRANTED, hint=hint
        )

    def nodes_own(self, account: str, what: str) -> Refused:
        """Builds the fault for what acts on the node itself, to which no account has a right."""
        hint = "the node's owner declares it in their own name"
        return Refused(f"its account {self._rights.account_name(account)} may not {what}", rule=NOT_GRANTED, hint=hint)

    def check_inputs(self, store: DatasetLookup, dataset: DatasetId, inputs: Iterable[DatasetId]) -> None:
        """Raises Refused if the account of a dataset may not read one of the datasets that it takes from."""
        user = store.resource_of(dataset)
        if user is None or user.account is None:
            return
        for input_ in inputs:
            found = store.resource_of(input_) or _Missing()
            self.check(user.account, found, f"the input {input_.short}")

    def may(self, account: str | None, thing: Used, action: Action = Action.READ) -> bool:
        """Whether an account (``None``: the node's owner) may use a thing now."""
        if account is None or thing.account == account:
            return True
        role = self._rights.role(account, thing.id)
        return role is not None and role >= action.value

    def fault(self, store: Lookup, user: Resource) -> Refused | None:
        """Returns why the account of a resource may not use something that it refers to, if so."""
        try:
            account = self.acting(user)
        except NotFound:
            return None  # it waits
        for key, handle in user.references.items() if account is not None else ():
            found = None if handle is None else store.get(handle.id)
            try:
                if found is not None and found.type != ACCOUNT:
                    self.check(account, found, key)
            except Refused as fault:
                return fault
        return None
