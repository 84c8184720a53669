"""Finds the account of a caller of the control socket, by the user and groups that the kernel reports. Pure.

The node's own user and root have every right. As long as no account names users or groups, so has everyone else that
the socket admits, as before there were accounts. Afterwards a caller acts as the account that names its user or group,
or has no rights.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from chain.errors import NotFound, Refused
from odfd.access.relations import OWNER, Principal

RULE = "access-account"


class UnixCaller(msgspec.Struct, frozen=True):
    """A process at the socket: its user and groups, by number and, if they have one, by name."""

    uid: int
    users: Collection[str] = ()
    groups: Collection[str] = ()


class AccountCallers(msgspec.Struct, frozen=True):
    """An account, and the users and groups that act as it."""

    id: str
    name: str
    users: Collection[str] = ()
    groups: Collection[str] = ()
    did: str | None = None


def subject_of(caller: UnixCaller, own_uid: int, accounts: Sequence[AccountCallers], wanted: str = "") -> Principal:
    """Returns the principal that a caller acts as. ``wanted``: the account it asks for, by name, id or did.

    Raises Refused if that account is not its own, or if it has several and asks for none; NotFound.
    """
    is_owner = caller.uid in (0, own_uid) or not any(account.users or account.groups for account in accounts)
    by_user = [account for account in accounts if not set(account.users).isdisjoint(caller.users)]
    found = by_user or [account for account in accounts if not set(account.groups).isdisjoint(caller.groups)]
    if wanted:
        return _find_wanted(wanted, accounts if is_owner else found, is_owner=is_owner)
    if is_owner:
        return OWNER
    if len(found) > 1:
        names = ", ".join(sorted(each.name for each in found))
        text = f"user {caller.uid} is in the groups of several accounts: {names}"
        raise Refused(text, rule=RULE, hint="say which: odfctl --account NAME")
    return Principal(found[0].id, name=found[0].name) if found else Principal()


def _find_wanted(wanted: str, accounts: Sequence[AccountCallers], *, is_owner: bool) -> Principal:
    for account in accounts:
        if wanted.casefold() in (account.name.casefold(), account.id) or wanted == account.did:
            return Principal(account.id, name=account.name)
    if is_owner:
        hint = "odfctl get accounts lists them"
        raise NotFound(f"there is no Account {wanted[:120]!r}", rule=RULE, hint=hint)
    text = f"you may not act as the account {wanted[:120]!r}"
    raise Refused(text, rule=RULE, hint="the node's owner lists the callers: unixCallers of the Account")
