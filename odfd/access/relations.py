"""Decides what an account may do with a resource, by relations between them (ReBAC). Pure.

A role on an account covers the resources of that account, and a member of an organisation has what the organisation
has. A statement counts only while its author owns its object, so what they granted ends when they lose the object.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from typing import Final, TypeAlias

import msgspec

MAX_DEPTH: Final = 5
"""Organisations within organisations whose rights a member has."""
PUBLIC: Final = "allowPublicRead"
ANONYMOUS: Final = "allowAnonymousRead"
ADMIN: Final = "admin"
MEMBER: Final = "member"
ROLE: Final = "role"


class Role(enum.IntEnum):
    """A role has the rights of those before it."""

    READER = 1
    EDITOR = 2
    MAINTAINER = 3
    OWNER = 4

    @property
    def word(self) -> str:
        return self.name.lower()


ROLES: Final = {each.word: each for each in Role}


class Action(enum.Enum):
    """An action, with the least role that it needs."""

    READ = Role.READER
    WRITE = Role.EDITOR
    """Bring data in, pull, verify."""
    MAINTAIN = Role.MAINTAINER
    """Change what it is: spec, name, labels."""
    OWN = Role.OWNER
    """Delete it, publish it, grant roles on it."""


class Principal(msgspec.Struct, frozen=True):
    """The caller of a request. ``account``: the id of one; ``None``: nobody that is known here."""

    account: str | None = None
    is_owner: bool = False
    """Of the node: has every right."""
    name: str = ""
    most: Role | None = None
    """The role that it has at the most, as the token says by which it asks; ``None``: any."""
    token: str = ""
    """Id of that token."""


OWNER: Final = Principal(is_owner=True)


class Thing(msgspec.Struct, frozen=True):
    """A resource as it is judged. ``account``: the id of its account; ``None``: the node's owner."""

    id: str
    account: str | None = None
    is_published: bool = False
    """Anybody may have it already."""


class Statement(msgspec.Struct, frozen=True):
    """One relation or attribute. ``author``: id of the account whose statement it is; ``None``: the node's owner."""

    object: str
    name: str
    subject: str = ""
    """Id of an account; of attributes, nothing."""
    value: str = ""
    """A role."""
    author: str | None = None


class Allow(msgspec.Struct, frozen=True):
    """It may be done."""


class Deny(msgspec.Struct, frozen=True):
    """It may not. ``role``: what the subject is to the resource; ``None``: it shall not know that there is one."""

    role: Role | None
    needed: Role


Decision: TypeAlias = Allow | Deny


class Relations:
    """Statements that count. ``accounts``: by id of each resource, its account (``None``: the node's owner's)."""

    def __init__(self, statements: Iterable[Statement], accounts: Mapping[str, str | None]) -> None:
        self._accounts = accounts
        self._roles: dict[tuple[str, str], Role] = {}
        self._members: dict[str, set[str]] = {}
        self._attributes: set[tuple[str, str]] = set()
        waiting = list(statements)
        while counting := [each for each in waiting if self._counts(each)]:
            for each in counting:
                self._take(each)
            waiting = [each for each in waiting if each not in counting]

    def says_as(self, other: Relations) -> bool:
        """Whether the same counts in both."""
        return (self._roles, self._members, self._attributes) == (other._roles, other._members, other._attributes)

    def role(self, subject: Principal, thing: Thing) -> Role | None:
        """Returns what a subject is to a resource; ``None``: nothing."""
        role = self._role(subject, thing)
        return role if role is None or subject.most is None else min(role, subject.most)

    def _role(self, subject: Principal, thing: Thing) -> Role | None:
        if subject.is_owner:
            return Role.OWNER
        found = [Role.READER] if thing.is_published or self._has(ANONYMOUS, thing) else []
        if subject.account is not None:
            acting = self.identities(subject.account)
            if any((each, ADMIN) in self._attributes for each in acting):
                return Role.OWNER
            if thing.id == subject.account or thing.account in acting:
                return Role.OWNER
            found += [Role.READER] if self._has(PUBLIC, thing) else []
            found += [
                role
                for each in acting
                for object_ in (thing.id, thing.account)
                if object_ is not None and (role := self._roles.get((each, object_))) is not None
            ]
        return max(found, default=None)

    def identities(self, account: str) -> Collection[str]:
        """Returns an account, and the organisations whose rights it has as a member."""
        found, last = {account}, {account}
        for _ in range(MAX_DEPTH):
            last = {each for member in last for each in self._members.get(member, ())} - found
            found |= last
        return found

    def _has(self, attribute: str, thing: Thing) -> bool:
        return any((each, attribute) in self._attributes for each in (thing.id, thing.account) if each is not None)

    def _counts(self, said: Statement) -> bool:
        """Whether its author owns the object, by what counts so far: more only ever lets more count."""
        if said.author is None:
            return True
        if said.name == ADMIN or said.object not in self._accounts:
            return False
        return self.role(Principal(said.author), Thing(said.object, self._accounts[said.object])) is Role.OWNER

    def _take(self, said: Statement) -> None:
        match said.name:
            case "role" if said.value in ROLES:
                key = said.subject, said.object
                self._roles[key] = max(ROLES[said.value], self._roles.get(key, Role.READER))
            case "member":
                self._members.setdefault(said.subject, set()).add(said.object)
            case _:
                self._attributes.add((said.object, said.name))


def authorize(subject: Principal, action: Action, thing: Thing, relations: Relations) -> Decision:
    """Decides one action on one resource: the same for one that may not be read as for one that is not there."""
    role = relations.role(subject, thing)
    return Allow() if role is not None and role >= action.value else Deny(role, action.value)
