"""Decides what an account may do with a resource, by relations between them (ReBAC). Pure.

A role on an account covers the resources of that account, and a member of a group or an organisation has its rights.
A statement counts only while its author owns its object, so grants end when their author loses the object.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

MAX_DEPTH: Final = 5
"""Deepest nesting of groups and organisations whose rights a member gets."""
PUBLIC: Final = "allowPublicRead"
ANONYMOUS: Final = "allowAnonymousRead"
ADMIN: Final = "admin"
MEMBER: Final = "member"
ROLE: Final = "role"


class Role(enum.IntEnum):
    """A role, which includes the rights of those before it."""

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
    """Includes: bring data in, pull, verify."""
    MAINTAIN = Role.MAINTAINER
    """Includes: change what it is: spec, name, labels."""
    OWN = Role.OWNER
    """Includes: delete it, publish it, grant roles on it."""


class Principal(msgspec.Struct, frozen=True):
    """The caller of a request. ``account``: the id of its account; ``None``: it has none here."""

    account: str | None = None
    is_owner: bool = False
    """Whether it is the node's owner, who has every right."""
    name: str = ""
    most: Role | None = None
    """Highest role, on anything, that its token permits; ``None``: no limit."""
    token: str = ""
    """Id of that token; empty without one."""


OWNER: Final = Principal(is_owner=True)


class Thing(msgspec.Struct, frozen=True):
    """A resource to decide about. ``account``: the id of its account; ``None``: it belongs to the node's owner."""

    id: str
    account: str | None = None
    is_published: bool = False
    """Whether it is published, so that anybody may read it."""


class Statement(msgspec.Struct, frozen=True):
    """One relation or attribute. ``author``: id of the account that states it; ``None``: the node's owner."""

    object: str
    name: str
    subject: str = ""
    """Id of an account or a group; empty for attributes."""
    value: str = ""
    """A role; empty for attributes."""
    author: str | None = None


class Deny(msgspec.Struct, frozen=True):
    """The action is refused. ``role``: the subject's role; ``None``: it may not learn that the resource exists."""

    role: Role | None
    needed: Role


class Relations:
    """The valid statements. ``accounts``: account id of each resource by its id (``None``: the node's owner's).

    ``shown``: resources, by id, that everybody may read who may read another one, given by its id.
    """

    def __init__(
        self,
        statements: Iterable[Statement],
        accounts: Mapping[str, str | None],
        shown: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._accounts, self._shown = accounts, shown
        self._roles: dict[tuple[str, str], Role] = {}
        self._members: dict[str, set[str]] = {}
        self._attributes: set[tuple[str, str]] = set()
        waiting = list(statements)
        while counting := [each for each in waiting if self._counts(each)]:
            for each in counting:
                self._take(each)
            waiting = [each for each in waiting if each not in counting]

    def role(self, subject: Principal, thing: Thing) -> Role | None:
        """Returns the subject's role on a resource; ``None`` without one."""
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
        other = self._shown.get(thing.id)
        if other is not None and self._role(subject, Thing(other, self._accounts.get(other))) is not None:
            found.append(Role.READER)
        return max(found, default=None)

    def identities(self, account: str) -> Collection[str]:
        """Returns an account, and the groups and organisations whose rights it has as a member."""
        found, last = {account}, {account}
        for _ in range(MAX_DEPTH):
            last = {each for member in last for each in self._members.get(member, ())} - found
            found |= last
        return found

    def _has(self, attribute: str, thing: Thing) -> bool:
        return any((each, attribute) in self._attributes for each in (thing.id, thing.account) if each is not None)

    def _counts(self, said: Statement) -> bool:
        """Whether a statement is valid: its author owns the object, by the statements valid so far, which only grow."""
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


def authorize(subject: Principal, action: Action, thing: Thing, relations: Relations) -> Deny | None:
    """Returns why one action on one resource is refused; ``None`` if it is permitted.

    A resource that may not be read is refused like one that does not exist.
    """
    role = relations.role(subject, thing)
    return None if role is not None and role >= action.value else Deny(role, action.value)
